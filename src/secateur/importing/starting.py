"""Training that starts from a trained network: its model, priors and targets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import secateur
from secateur.beliefs import believe, priors
from secateur.distributions import Gamma, Normal
from secateur.importing.imported_function import ImportedFunction
from secateur.likelihoods import BernoulliLikelihood, CategoricalLikelihood, GaussianLikelihood
from secateur.likelihoods.base import Noise, Prediction, split, sum_outputs
from secateur.likelihoods.gumbel import expected_logsumexp
from secateur.model import BayesianModel
from secateur.registration import register_dataclass
from secateur.trained import Trained
from secateur.training.objective import FreeEnergy
from secateur.training.recipe import RECIPES, Training
from secateur.training.scaling import Scaling

__all__ = [
    "SoftLabels",
    "as_trained",
    "compute_targets",
    "find_prior",
    "make_model",
    "with_hard_labels",
]

_TASKS = ("classification", "regression")


def find_prior(params: dict[str, Any]) -> dict[str, Normal]:
    """Return, for each array of weights, a prior whose variance is their mean square.

    Args:
        params: Trained weights.
    """
    sizes = {name: float(np.mean(np.square(a, dtype=np.float64))) for name, a in params.items()}
    floor = 1e-6 * max([*sizes.values(), 1e-6])  # biases may all be 0
    return {name: Normal(0.0, max(size, floor)) for name, size in sizes.items()}


def make_model(
    f: ImportedFunction,
    params: dict[str, Any],
    data: tuple[Any, Any],
    *,
    task: str | None = None,
    inference: str = "moments",
) -> BayesianModel:
    """Return the Bayesian model of an imported network.

    Prior variances are the mean squares of the arrays of weights. For classification, a final
    softmax or sigmoid is removed, because likelihoods expect logits. For regression, the prior of
    the noise precision is Gamma(1, s²), with the mean square error s² of the original network.

    Args:
        f: Function from `from_onnx`.
        params: Weights from `from_onnx`.
        data: Inputs, and targets or the network's own outputs (see `compute_targets`).
        task: "classification" or "regression". Defaults to classification if the network ends with
            a softmax or sigmoid, or if the targets are integers.
        inference: As in `BayesianModel`.
    """
    x, y = data
    y = np.asarray(y)
    logits = f.without_last_step()
    if task is None:
        has_classes = logits.last_step is not None or y.dtype.kind in "iub"
        task = "classification" if has_classes else "regression"
    if task not in _TASKS:
        raise ValueError(f"task={task!r}. Supported: {', '.join(_TASKS)}.")
    prior = find_prior(params)
    if task == "regression":
        rows = _first_rows(x, 2000)
        answers = np.asarray(jax.jit(f)(params, rows), np.float64)
        errors = np.square(
            answers - np.asarray(y[: len(answers)], np.float64).reshape(answers.shape)
        )
        spread = float(max(errors.mean(), 1e-6 * np.var(answers), 1e-12))
        likelihood: Any = GaussianLikelihood(Gamma(1.0, spread))
        return BayesianModel(f, params, likelihood, prior, inference)
    if y.dtype.kind == "f" and y.ndim == 2 and y.shape[1] > 1:
        likelihood = SoftLabels()
    else:
        shape = jax.eval_shape(logits, params, _first_rows(x, 2)).shape
        likelihood = BernoulliLikelihood() if shape[-1] == 1 else CategoricalLikelihood()
    return BayesianModel(logits, params, likelihood, prior, inference)


def _first_rows(x: Any, count: int) -> Any:
    return jax.tree.map(lambda a: np.asarray(a)[:count], x)


def compute_targets(f: ImportedFunction, params: dict[str, Any], x: Any) -> np.ndarray:
    """Return the network's own outputs for all rows, to be used as targets if there are none.

    Args:
        f: Function from `from_onnx`.
        params: Weights from `from_onnx`.
        x: Inputs.

    Returns:
        Probabilities of classes for a network that ends with a softmax, else its outputs.
    """
    evaluate = jax.jit(f)
    rows = len(jax.tree.leaves(x)[0])
    size = 500
    blocks = []
    for start in range(0, rows, size):
        at = np.arange(start, start + size) % rows  # the last block as large as the others
        blocks.append(np.asarray(evaluate(params, jax.tree.map(lambda a: np.asarray(a)[at], x))))  # noqa: B023
    return np.concatenate(blocks)[:rows]


def as_trained(model: BayesianModel, *, key: Array | None = None) -> Trained:
    """Return the original network as a trained model, without fitting it.

    Its predictions at the means are those of the network; its free energy is unknown (nan). It can
    be exported and saved.

    Args:
        model: The model, whose params are the network's weights.
        key: A JAX random key for predictions of algorithms that sample.

    Example:
        >>> model = BayesianModel(lambda w, x: x @ w, jnp.ones((2, 1)))
        >>> as_trained(model).predict(np.ones((1, 2)), at_means=True).mean.tolist()
        [[2.0]]
    """
    recipe = RECIPES["trained"]
    deviation = recipe.initial_deviation or 0.0
    beliefs = believe(model.params, variance=deviation**2, where=model.where)
    likelihood, noise = model.likelihood, None
    if isinstance(likelihood, GaussianLikelihood):
        if likelihood.prior is None:
            likelihood = replace(likelihood, prior=Gamma(*recipe.noise_prior))
            model = replace(model, likelihood=likelihood)
        outputs = 1 if isinstance(model.f, ImportedFunction) is False else _count_outputs(model)
        noise = likelihood.initial_noise(jnp.zeros((1, outputs)))
    unknown = FreeEnergy(*(jnp.asarray(math.nan),) * 3)
    return Trained(
        model=model,
        beliefs=beliefs,
        priors=priors(beliefs, model.prior),
        noise=noise,
        scaling=Scaling(None, None),
        free_energy=math.nan,
        parts=unknown,
        standard_error=0.0,
        epochs=0,
        stop_reason="the original network was not trained by secateur",
        training=Training(recipe),
        key=jax.random.key(0) if key is None else key,
        weights_before=sum(int(np.size(q.mean)) for q in jax.tree.leaves(
            beliefs, is_leaf=lambda q: isinstance(q, Normal)) if isinstance(q, Normal)),
        version=secateur.__version__,
    )  # fmt: skip


def _count_outputs(model: BayesianModel) -> int:
    shape = model.f.outputs[0].shape  # type: ignore[attr-defined]
    last = shape[-1] if shape else 1
    return last if isinstance(last, int) else 1


# --- without labels -------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True, eq=False)
class SoftLabels(CategoricalLikelihood):
    """Targets are probabilities of classes, such as those of another network.

        −accuracy = −Σ_n Σ_c p_nc E[ln softmax(f_n)_c]

    Targets have the shape of the predictions. The model predicts a class, as with
    `CategoricalLikelihood`.

    Example:
        >>> p = jnp.array([[0.25, 0.75]])
        >>> SoftLabels().expected_log_likelihood(None, jnp.log(p), p).round(4)
        Array([-0.5623], dtype=float...)
    """

    def expected_log_likelihood(
        self, noise: Noise, prediction: Prediction, targets: Array
    ) -> Array:
        """Return Σ_c p_c E[f_c] − E[ln Σ_j exp f_j], one value per row."""
        mean, variance = split(prediction)
        if targets.shape != mean.shape:
            raise ValueError(
                f"SoftLabels: the prediction has shape {mean.shape} and the targets "
                f"{targets.shape}. Targets need a probability for each class."
            )
        if variance is None:
            log_sum = jax.nn.logsumexp(mean, axis=-1)
        else:
            log_sum = expected_logsumexp(mean, variance)
        return sum_outputs(jnp.sum(targets * mean, axis=-1) - log_sum)

    def check_targets(self, shape: tuple[int, ...], targets: np.ndarray) -> None:
        """Refuse targets that are not probabilities.

        Args:
            shape: Shape of the predictions.
            targets: Probabilities.
        """
        if np.any(targets < 0) or not np.allclose(targets.sum(-1), 1, atol=1e-3):
            raise ValueError("SoftLabels: the targets are not probabilities that add up to 1.")


def with_hard_labels(trained: Trained) -> Trained:
    """Return a model that was fitted to probabilities, for judging it by labels and saving it.

    Args:
        trained: A trained model.
    """
    if not isinstance(trained.model.likelihood, SoftLabels):
        return trained
    return replace(trained, model=replace(trained.model, likelihood=CategoricalLikelihood()))
