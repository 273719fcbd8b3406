"""Selection of the structure of a dense network by the evidence.

All structures of a stage are one network in which some weights do not exist from the start, so that
one compiled program trains them side by side. They are compared by their free energy after pruning.
Wide structures are a separate stage, which is skipped if a linear model has a lower free energy
than a few units.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from secateur.dense_structures import (
    STRUCTURES,
    Structure,
    divide_structures,
    join_structures,
    make_starts,
    take_structure,
)
from secateur.distributions import Normal
from secateur.fitting import find_prior_groups, fit_runs
from secateur.likelihoods.base import Likelihood
from secateur.model import POSTERIORS, BayesianModel
from secateur.progress import Callback, Progress
from secateur.pruning import prune_many
from secateur.pruning.budget import Budget, make_budget
from secateur.structure.unit_posterior import LARGEST_FAN_IN
from secateur.trained import Trained
from secateur.training.recipe import Recipe, Training, choose_recipe
from secateur.training.sources import make_source

__all__ = ["Candidate", "Selection", "select_structure"]


_LINEAR = Structure((), True)
# Free energies are compared without the decimals in which the same models, trained by different
# programs, differ.
_DECIMALS = 3
# Choices of posteriors that are made of several.
_PLANS = ("linear", "auto")
# Where a few units end depends on where they start; many units contain several starts.
_FEWEST_STARTS = 3
# (With a shorter warm-up, collinear inputs end in a constant.)
_WARM_STEPS_PER_ROW = 20


class Candidate(NamedTuple):
    """One structure that was trained and pruned.

    Attributes:
        structure: Its structure.
        fitted: The model before pruning.
        pruned: The model after pruning.
        restarts: The models of the best restarts after pruning, at most as many as were asked for,
            that meet the requirements; the best one first.
    """

    structure: Structure
    fitted: Trained
    pruned: Trained
    restarts: tuple[Trained, ...]

    def __str__(self) -> str:
        has_covariance = self.fitted.model.posterior == "unit"
        return f"{self.structure}, with covariance" if has_covariance else str(self.structure)


@dataclass(frozen=True, eq=False)
class Selection:
    """Structures that were compared, and the one with the lowest free energy after pruning.

    Attributes:
        candidates: The result of every structure that was trained; for several restarts, that of
            the best one.
        best: The candidate with the lowest free energy.
    """

    candidates: tuple[Candidate, ...]
    best: Candidate

    def table(self) -> list[dict[str, Any]]:
        """Return structure, weights and free energy of every candidate, before and after."""
        return [
            {
                "structure": str(c),
                "weights_before": c.fitted.live_weights,
                "weights_after": c.pruned.live_weights,
                "free_energy_before": c.fitted.free_energy,
                "free_energy_after": c.pruned.free_energy,
                "chosen": c is self.best,
            }
            for c in self.candidates
        ]


def select_structure(
    data: tuple[Any, ...],
    *,
    outputs: int,
    likelihood: Likelihood,
    key: Array,
    structures: Sequence[Structure] = STRUCTURES,
    activation: str = "relu",
    inference: str = "moments",
    posterior: str = "linear",
    prior: Any = None,
    learn_priors: str | None = "auto",
    restarts: int = 1,
    recipe: str | Recipe = "default",
    epochs: int | None = None,
    batch_size: int | None = None,
    rate: float | None = None,
    prune: bool = True,
    prune_options: dict[str, Any] | None = None,
    checkpoint: Callable[[str], str | os.PathLike] | None = None,
    progress: bool = True,
    callbacks: tuple[Callback | None, Callback | None] = (None, None),
    rivals: Sequence[Candidate] = (),
) -> Selection:
    """Train and prune dense networks of several structures, and choose by free energy.

    Args:
        data: Inputs of shape (rows, inputs), targets and, optionally, weights of the rows.
        outputs: Number of outputs of the network.
        likelihood: How targets scatter around the function.
        key: A JAX random key.
        structures: Structures to compare. If there are some with at most ten units in a layer and
            others that are wider, the narrow ones come first, and the wide ones are trained unless
            the best of them is linear.
        activation: Activation of hidden units; see `secateur.networks.ACTIVATIONS`.
        inference: See `BayesianModel`.
        posterior: "mean-field" or "unit"; see `BayesianModel`. "auto" trains and prunes the
            structures with each of them, and the free energy chooses among all. "linear" does so
            for the linear structure, and keeps the weights of the others independent.
        prior: Prior of the weights. Defaults to N(0, 1).
        learn_priors: See `secateur.fit`. "auto" learns a variance for each input in wide structures
            and a common one in linear structures that are trained by themselves. Structures with
            few units keep the prior as it is, unless there is only one.
        restarts: Number of initialisations of every structure. Those with at most ten units in a
            layer have at least three, unless there is only one structure.
        recipe: See `secateur.fit`.
        epochs: See `secateur.fit`.
        batch_size: See `secateur.fit`.
        rate: See `secateur.fit`.
        prune: Whether to prune. If not, the free energy before pruning chooses.
        prune_options: Options of `secateur.prune_many`; `epochs` is that of each retraining.
        checkpoint: Function that returns the checkpoint file of "fit" and of "prune".
        progress: Whether to show progress.
        callbacks: Callbacks of training and of pruning; see `secateur.fit`.
        rivals: Other candidates for the same data. If the best of all is linear, wide structures
            are left out.

    Returns:
        A `Selection`, each of whose models is a network of its own structure.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(60, 2))
        >>> y = 2 * x[:, :1] + 0.1 * np.random.default_rng(1).normal(size=(60, 1))
        >>> from secateur.likelihoods import GaussianLikelihood
        >>> selection = select_structure(
        ...     (x, y), outputs=1, likelihood=GaussianLikelihood(), key=jax.random.key(0),
        ...     structures=[Structure((), False), Structure((), True), Structure((3,), True)],
        ...     progress=False,
        ... )
        >>> print(selection.best.structure)
        linear
    """
    if not structures or restarts < 1:
        raise ValueError("give at least one structure and one restart.")
    if posterior in _PLANS:
        return _select_posterior(**locals())
    join_structures(structures, np.shape(data[0])[1], outputs, activation)  # refuses mixtures
    chosen = choose_recipe(recipe, epochs=epochs, batch_size=batch_size, rate=rate)
    source = make_source(data, size=None, batch_size=chosen.batch_size)
    # On small tables the first decision would otherwise wait for twice the warm-up. A row of weight
    # 2 counts as two rows.
    rows = math.ceil(max(source.total_weights))
    chosen = replace(chosen, warm_steps=min(chosen.warm_steps, _WARM_STEPS_PER_ROW * rows))
    budget = make_budget(prune_options or {})

    def train_stage(number: int, stage: Sequence[Structure]) -> list[Candidate]:
        whole = join_structures(stage, np.shape(data[0])[1], outputs, activation)
        start_key, fit_key, prune_key = jax.random.split(
            jax.random.fold_in(key, number) if number else key, 3
        )
        model = BayesianModel(
            whole,
            whole.init(start_key),
            likelihood=likelihood,
            prior=Normal(0.0, 1.0) if prior is None else prior,
            inference=inference,
            posterior=posterior,
        )
        own_priors = _choose_priors(stage) if learn_priors == "auto" else learn_priors
        fewest = _FEWEST_STARTS if len(stage) > 1 else 1
        counts = [max(restarts, fewest) if s.is_narrow else restarts for s in stage]
        runs = [s for s, count in zip(stage, counts, strict=True) for _ in range(count)]
        paths = [
            None if checkpoint is None else checkpoint(name if not number else f"{name}-{number}")
            for name in ("fit", "prune")
        ]
        fits = fit_runs(
            model,
            source,
            list(jax.random.split(fit_key, len(runs))) if len(runs) > 1 else [fit_key],
            Training(chosen, None, find_prior_groups(model, source, own_priors)),
            paths[0],
            Progress("fit", show=progress, callback=callbacks[0]),
            starts=make_starts(whole, runs, chosen, start_key),
        )
        pruned = fits
        if prune:
            options = {"checkpoint": paths[1], "callback": callbacks[1], "progress": progress}
            options |= prune_options or {}
            pruned = prune_many(fits, [data], key=prune_key, **options)
        ends = np.cumsum(counts)
        return [
            _choose_restart(s, fits[end - count : end], pruned[end - count : end], budget, restarts)
            for s, count, end in zip(stage, counts, ends, strict=True)
        ]

    def find_best(among: Sequence[Candidate]) -> Candidate:
        return min(among, key=lambda c: _rank(c.pruned, budget))

    candidates: list[Candidate] = []
    for number, stage in enumerate(divide_structures(structures)):
        if not number or not _is_linear(find_best([*candidates, *rivals])):
            candidates += train_stage(number, stage)
    return Selection(tuple(candidates), find_best(candidates))


def _choose_priors(stage: Sequence[Structure]) -> str | None:
    """Return which prior variances the structures of a stage learn; see `secateur.fit`.

    Each variance costs about a nat, and that of an input several. A few units do not have enough
    weights to earn it.

    >>> [_choose_priors(stage) for stage in divide_structures(STRUCTURES)]
    [None, 'inputs']
    """
    if not any(s.hidden for s in stage):
        return "leaves"
    is_compared = len(stage) > 1
    return None if is_compared and all(s.is_narrow or not s.hidden for s in stage) else "inputs"


def _is_linear(candidate: Candidate) -> bool:
    """Whether a candidate was pruned to a linear model that reads an input."""
    beliefs = candidate.pruned.beliefs

    def is_alive(weights: Normal) -> bool:
        return bool(np.any(np.asarray(weights.variance) > 0))

    first = is_alive(beliefs["layers"][0]["weights"])
    if not candidate.structure.hidden:
        return first
    return not first and "linear" in beliefs and is_alive(beliefs["linear"])


def _select_posterior(
    data: tuple[Any, ...],
    *,
    posterior: str,
    structures: Sequence[Structure],
    checkpoint: Any,
    rivals: Sequence[Candidate],
    **options: Any,
) -> Selection:
    """Compare structures with and without covariance within units, where units are not too wide."""
    candidates: list[Candidate] = []
    for name, chosen in _plan_posteriors(posterior, structures, np.shape(data[0])[1]):
        own = checkpoint
        if checkpoint is not None and name != POSTERIORS[0]:
            own = _rename_stage(checkpoint, name)
        selection = select_structure(
            data,
            posterior=name,
            structures=chosen,
            checkpoint=own,
            rivals=[*candidates, *rivals],
            **options,
        )
        candidates = [*selection.candidates, *candidates]
    budget = make_budget(options["prune_options"] or {})
    return Selection(tuple(candidates), min(candidates, key=lambda c: _rank(c.pruned, budget)))


def _plan_posteriors(
    posterior: str, structures: Sequence[Structure], columns: int
) -> list[tuple[str, list[Structure]]]:
    """Return the structures of each posterior, in the order in which they are trained.

    >>> for name, chosen in _plan_posteriors("linear", STRUCTURES[:3], 5):
    ...     print(name, [str(s) for s in chosen])
    unit ['linear']
    mean-field ['constant', 'linear', '3 units and a linear path']
    """
    correlated = [s for s in structures if posterior == "auto" or s == _LINEAR]
    # The output sums over the last hidden layer and, by a linear path, over the inputs.
    widest = columns + max((max(s.hidden, default=0) for s in correlated), default=0) + 1
    plan = [("unit", correlated), ("mean-field", list(structures))]
    return [p for p in plan if p[1] and (p[0] != "unit" or widest <= LARGEST_FAN_IN)]


def _rename_stage(checkpoint: Callable[[str], Any], name: str) -> Callable[[str], Any]:
    return lambda stage: checkpoint(f"{stage}-{name}")


def _rank(trained: Trained, budget: Budget) -> tuple[bool, float, int]:
    """Order by requirements met, then free energy, then number of weights."""
    value = trained.free_energy
    energy = math.inf if math.isnan(value) else round(value, _DECIMALS)
    return not budget.is_met_by(trained), energy, trained.live_weights


def _choose_restart(
    structure: Structure,
    fits: Sequence[Trained],
    pruned: Sequence[Trained],
    budget: Budget,
    most: int,
) -> Candidate:
    """Return the best restart as a candidate, which keeps at most `most` restarts."""
    order = sorted(range(len(pruned)), key=lambda run: _rank(pruned[run], budget))
    energies = tuple(p.free_energy for p in pruned)
    best, *others = (
        replace(take_structure(pruned[run], structure), restarts=energies) for run in order
    )
    others = [other for other in others if budget.is_met_by(other)][: most - 1]
    fitted = take_structure(fits[order[0]], structure)
    return Candidate(structure, fitted, best, (best, *others))
