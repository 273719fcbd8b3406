"""Trained models with beliefs of a test's choice, without any training."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import secateur as sc
from secateur.pytrees import flatten_beliefs, is_belief
from secateur.trained import Trained
from secateur.training.objective import FreeEnergy
from secateur.training.recipe import Recipe, Training
from secateur.training.scaling import Affine, Scaling


def trained(
    f,
    beliefs,
    *,
    inference="local",
    likelihood=None,
    noise=None,
    prior=None,
    inputs=None,
    targets=None,
    **attributes,
):
    """A model of which these beliefs are the posterior.

    The noise defaults to that of two outputs, for a Gaussian likelihood of unknown precision.
    """
    leaves, _, treedef = flatten_beliefs(beliefs)
    params = treedef.unflatten([q.mean if is_belief(q) else q for q in leaves])
    where = treedef.unflatten([is_belief(q) for q in leaves])
    prior = prior or sc.Normal(0.0, 1.0)
    model = sc.BayesianModel(
        f,
        params,
        likelihood=likelihood or sc.GaussianLikelihood(),
        prior=prior,
        inference=inference,
        where=where,
    )
    if noise is None and model.likelihood.free_units:
        noise = sc.Gamma(jnp.ones(2), jnp.ones(2))
    priors = sc.priors(beliefs, prior)
    complexity = divergence(beliefs, priors)
    parts = FreeEnergy(jnp.asarray(complexity), jnp.asarray(1.0), jnp.asarray(-3.0))
    values = {
        "free_energy": complexity + 4.0,
        "parts": parts,
        "standard_error": 0.0,
        "epochs": 1,
        "stop_reason": "made by hand",
        "training": Training(Recipe()),
        "key": jax.random.key(0),
        "weights_before": sc.count(beliefs).live,
        "free_energy_before": complexity + 4.0,
        "version": "test",
    }
    return Trained(
        model=model,
        beliefs=beliefs,
        priors=priors,
        noise=noise,
        scaling=Scaling(inputs, targets),
        **values | attributes,
    )


def divergence(beliefs, priors):
    """KL[q ‖ p] over the live weights, by NumPy for Normal priors: there is nothing to compile."""
    posteriors = [q for q in flatten_beliefs(beliefs)[0] if is_belief(q)]
    matching = [p for p in flatten_beliefs(priors)[0] if p is not None]
    if len(posteriors) != len(matching) or not all(map(is_belief, matching)):
        return float(sc.complexity(beliefs, priors))
    total = 0.0
    for q, p in zip(posteriors, matching, strict=True):
        arrays = (q.mean, q.variance, p.mean, p.variance)
        mean, variance, prior_mean, prior_variance = (np.asarray(a, np.float64) for a in arrays)
        ratio = np.where(variance > 0, variance, 1.0) / prior_variance
        terms = ratio - 1 - np.log(ratio) + np.square(mean - prior_mean) / prior_variance
        total += 0.5 * np.sum(np.where(variance > 0, terms, 0.0))
    return float(total)


def believed(params, *, variance=0.01, seed=0, size=0.5):
    """Normals with random means around 0 for all arrays of floating numbers."""
    rng = np.random.default_rng(seed)

    def draw(leaf):
        if not (hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)):
            return leaf
        mean = size * rng.normal(size=leaf.shape)
        spread = variance * rng.uniform(0.5, 1.5, size=leaf.shape)
        return sc.Normal(jnp.asarray(mean, leaf.dtype), jnp.asarray(spread, leaf.dtype))

    return jax.tree.map(draw, params)


def masked(leaf, alive):
    """A belief of which only some elements are alive, by NumPy: there is nothing to compile."""
    mean, variance = np.asarray(leaf.mean), np.asarray(leaf.variance)
    zero = np.zeros((), mean.dtype)
    return sc.Normal(
        jnp.asarray(np.where(alive, mean, zero)), jnp.asarray(np.where(alive, variance, zero))
    )


def pruned_by_force(beliefs, rate, *, seed=0):
    """Cut a random share of all weights: exact zeros."""
    rng = np.random.default_rng(seed)

    def cut(leaf):
        if not is_belief(leaf):
            return leaf
        alive = rng.uniform(size=leaf.mean.shape) >= rate
        return masked(leaf, alive)

    return jax.tree.map(cut, beliefs, is_leaf=is_belief)


def standardised(shape, seed=0):
    """An affine change of units for the last axis."""
    rng = np.random.default_rng(seed)
    return Affine(rng.normal(size=shape), rng.uniform(0.5, 2.0, size=shape))
