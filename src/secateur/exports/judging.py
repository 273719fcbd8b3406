"""What rows of data say of an export, and of what quantisation made of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.distributions import Normal
from secateur.exports.evaluate import Numbers
from secateur.exports.models import ModelGraph
from secateur.exports.quantise import Quantised
from secateur.exports.rounding import energy_on, rounded_model
from secateur.fitting.result import Trained
from secateur.likelihoods import CategoricalLikelihood
from secateur.propagation import draws

__all__ = ["judge"]


def judge(
    trained: Trained, model: ModelGraph, quantised: Quantised | None, inputs: Any, targets: Any
) -> dict[str, Any]:
    """Free energy, log-density and correct classes on some rows, before and after quantisation.

    The log-density is that of the targets with the exported network's output as the mean, and the
    variance that the posterior leaves around it where the inference knows it without sampling.

    Args:
        trained: the model.
        model: its graph.
        quantised: the same in integers.
        inputs: rows.
        targets: theirs.

    Returns:
        Fields of a `Sheet`.
    """
    rows = np.asarray(inputs, np.float32)
    facts: dict[str, Any] = {"free_energy": energy_on(trained, inputs, targets)}
    facts |= _scores(trained, model, model.run(rows.astype(np.float64)), rows, targets, "")
    if quantised is None:
        return facts
    integers = model.run(rows, Numbers(np.float32), quantised.graph)
    facts |= _scores(trained, model, integers, rows, targets, "_quantised")
    rounded = rounded_model(trained, model, quantised.weights)
    if rounded is not None:
        facts["free_energy_quantised"] = energy_on(rounded, inputs, targets)
    return facts


def _scores(
    trained: Trained, model: ModelGraph, outputs: np.ndarray, rows: Any, targets: Any, end: str
) -> dict[str, float]:
    likelihood, scaling = trained.model.likelihood, trained.scaling
    if model.by_frame and np.ndim(targets) < outputs.ndim:
        outputs = outputs[:, -1]
    outputs = outputs.reshape(len(outputs), -1) if np.ndim(targets) <= 2 else outputs
    belief: Any = jnp.asarray(outputs, jnp.float32)
    if not draws(trained.model.inference):
        variance = trained.predict(rows).variance  # type: ignore[union-attr]
        belief = Normal(belief, jnp.reshape(variance, belief.shape))
    y = jnp.asarray(targets)
    jacobian = 0.0
    if scaling.targets is not None:
        belief = _standard(scaling.targets, belief)
        y = jnp.asarray(scaling.targets.to_standard(y), jnp.float32)
        jacobian = scaling.targets.log_jacobian_per_row(targets)
    density = _log_density(likelihood, trained.noise, belief, y) - jacobian
    facts = {f"log_density{end}": float(jnp.mean(density))}
    if isinstance(likelihood, CategoricalLikelihood):
        facts[f"correct{end}"] = float(np.mean(outputs.argmax(-1) == np.asarray(targets)))
    return facts


def _standard(units: Any, belief: Any) -> Any:
    """A prediction in the standardised units of the targets."""
    if not isinstance(belief, Normal):
        return jnp.asarray(units.to_standard(belief), jnp.float32)
    mean = jnp.asarray(units.to_standard(belief.mean), jnp.float32)
    scale = np.broadcast_to(np.asarray(units.scale, np.float32), mean.shape)
    return Normal(mean, belief.variance / np.square(scale))


@jax.jit
def _log_density(likelihood: Any, noise: Any, belief: Any, targets: Any) -> Any:
    return likelihood.predictive_log_density(noise, belief, targets)
