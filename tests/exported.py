"""Trained models without training, and what onnxruntime makes of a file."""

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime

import secateur as sc
from secateur.pytrees import map_beliefs
from secateur.training.objective import FreeEnergy
from secateur.training.recipe import Recipe, Training
from secateur.training.scaling import Affine, Scaling

NOISE = sc.Gamma(np.array([30.0]), np.array([4.0]))
UNITS = Affine(np.array([20.0]), np.array([3.0]))


def trained(f, params, *, scaled=0, seed=0, dtype=None, likelihood=None, inference="moments"):
    """A posterior around given weights, a fifth of them pruned. `scaled`: inputs, if in units.

    It counts as compacted: `export` takes it as it is. By NumPy: there is nothing to compile.
    """
    random = np.random.default_rng(seed)
    likelihood = likelihood or sc.GaussianLikelihood()

    def spread(leaf):
        if not (hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)):
            return leaf
        gone = random.uniform(size=leaf.shape) < 0.2
        variance = np.where(gone, 0, random.uniform(1e-3, 0.02, leaf.shape))
        mean = np.where(gone, 0, np.asarray(leaf))
        return sc.Normal(*(jnp.asarray(v, dtype or leaf.dtype) for v in (mean, variance)))

    beliefs = jax.tree.map(spread, params)
    inputs = Affine(10 + random.normal(size=scaled), random.uniform(0.5, 2, scaled))
    return sc.Trained(
        model=sc.BayesianModel(f, params, likelihood=likelihood, inference=inference),
        beliefs=beliefs,
        priors=map_beliefs(standard_normal, beliefs, otherwise=lambda leaf: None),
        noise=NOISE if likelihood.free_units else None,
        scaling=Scaling(
            inputs if scaled else None, UNITS if scaled and likelihood.free_units else None
        ),
        free_energy=12.5,
        parts=FreeEnergy(9.5, 0.0, -3.0),
        standard_error=0.0,
        epochs=3,
        stop_reason="made by hand",
        training=Training(Recipe()),
        key=jax.random.key(0),
        compaction=sc.Compaction(None, (), 0, 0),
    )


def standard_normal(q):
    shape, dtype = q.mean.shape, q.mean.dtype
    return sc.Normal(jnp.asarray(np.zeros(shape, dtype)), jnp.asarray(np.ones(shape, dtype)))


def run(content, x):
    """The outputs of a model, in bytes or a file, by name."""
    content = content if isinstance(content, bytes) else str(content)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"inputs": np.asarray(x, np.float32)}), strict=True))
