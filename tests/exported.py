"""Trained models without training, and what onnxruntime makes of a file."""

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime

import secateur as sc
from secateur.beliefs import priors
from secateur.fitting.result import Trained
from secateur.fitting.scaling import Affine, Scaling

NOISE = sc.Gamma(np.array([30.0]), np.array([4.0]))
UNITS = Affine(np.array([20.0]), np.array([3.0]))


def trained(f, params, *, scaled=0, seed=0, dtype=None, likelihood=None, inference="moments"):
    """A posterior around given weights, a fifth of them pruned. `scaled`: inputs, if in units."""
    random = np.random.default_rng(seed)

    def spread(leaf):
        gone = random.uniform(size=leaf.mean.shape) < 0.2
        variance = np.where(gone, 0, random.uniform(1e-3, 0.02, leaf.mean.shape))
        kind = dtype or leaf.mean.dtype
        mean = np.where(gone, 0, np.asarray(leaf.mean))
        return sc.Normal(jnp.asarray(mean, kind), jnp.asarray(variance, kind))

    is_belief = lambda leaf: isinstance(leaf, sc.Normal)  # noqa: E731
    beliefs = sc.believe(params, variance=1.0)
    beliefs = jax.tree.map(lambda b: spread(b) if is_belief(b) else b, beliefs, is_leaf=is_belief)
    gaussian = likelihood is None
    inputs = Affine(10 + random.normal(size=scaled), random.uniform(0.5, 2, scaled))
    scaling = Scaling(inputs if scaled else None, UNITS if scaled and gaussian else None)
    model = sc.BayesianModel(
        f, params, likelihood=likelihood or sc.GaussianLikelihood(), inference=inference
    )
    prior = priors(beliefs, sc.Normal(0.0, 1.0))
    return Trained(
        model, beliefs, prior, NOISE if gaussian else None, scaling, 12.5, None, 0.0, 3, "", None
    )


def run(path, x):
    """The outputs of a file by name."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"inputs": np.asarray(x, np.float32)}), strict=True))
