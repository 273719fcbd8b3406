"""`compact`: a pruned model without its dead units."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.beliefs import complexity
from secateur.beliefs.trees import aligned, flatten, is_belief
from secateur.compaction.analysis import Analysis, analyse
from secateur.compaction.folding import Fold, Weights, folded, folds, without
from secateur.compaction.removing import Cut, choose, told
from secateur.compaction.result import Compacted, Parameters
from secateur.compaction.shrinking import Shrunk
from secateur.compaction.verifying import ROWS, in_numpy, outcome, random_inputs, same
from secateur.files.loaded import continuation_of
from secateur.fitting.result import Trained
from secateur.fitting.scaling import Affine, Scaling
from secateur.fitting.weights import lay_out
from secateur.model import BayesianModel
from secateur.networks import Dense, Gru
from secateur.structure.find import is_array

__all__ = ["compact"]


def compact(result: Trained, *, drop_inputs: bool = False, inputs: Any = None) -> Compacted:
    """Take dead units out of a trained model, without any change of what it predicts.

    A unit is dead if none of its weights has an effect: nobody reads it, or it is always 0. One
    whose inputs are all cut is a constant, which goes into the bias of the units that read it
    (mean and variance of w·c are added to the bias's) where there is one:

        y_k = b_k + Σ_u w_uk c_u        b_k ← b_k + w_uk c_u

    What that leaves is compared with the original on random inputs before it is returned: mean and
    variance of the prediction under `"moments"` and `"independent"`, and f at the mean weights for
    inference that samples.

    Args:
        result: from `prune`, `fit`, `update` or `load`.
        drop_inputs: also take out input features that no weight reads, so that the compacted model
            takes only those that `Compacted.kept_inputs` names (along the last axis of the inputs).
        inputs: some rows as given to `fit`, of which the shapes count; not needed for
            `secateur.networks`.

    Returns:
        A `Compacted`. Its function is a smaller `secateur.networks` specification, or your own
        function where that takes smaller arrays as it is, or else the same equations with smaller
        sizes. A layer of which nothing is left keeps one unit, with all weights cut. What a model
        was updated from (`update`) is not kept.

    Example:
        >>> import secateur as sc
        >>> network, key = sc.networks.Dense(3, hidden=(8,)), jax.random.key(0)
        >>> x = np.random.default_rng(0).normal(size=(60, 3))
        >>> model = sc.BayesianModel(network, network.init(key))
        >>> fitted = sc.fit(model, (x, x[:, :1]), key=key, epochs=300, progress=False)
        >>> pruned = sc.prune(fitted, (x, x[:, :1]), key=key, epochs=100, progress=False)
        >>> small = compact(pruned)
        >>> small.parameters.after < small.parameters.before
        True
        >>> gap = small.predict(x).mean - pruned.predict(x).mean
        >>> bool(jnp.max(jnp.abs(gap)) < 1e-5)
        True
    """
    if not isinstance(result, Trained):
        raise TypeError(
            f"compact: a {type(result).__name__} is no trained model. Give what fit, prune, update "
            "or load returned."
        )
    model, example = result.model, _example(result, inputs)
    leaves, _, treedef = flatten(result.beliefs)
    means = treedef.unflatten([q.mean if is_belief(q) else q for q in leaves])
    analysis = analyse(model.f, means, example)
    weights = Weights.of([leaf for leaf in leaves if _has_axes(leaf)])
    x = random_inputs(example, ROWS)
    truth = outcome(model.f, model.inference, result.beliefs, x)

    def beliefs_of(weights: Weights) -> Any:
        arrays = iter(weights.beliefs())
        return treedef.unflatten([next(arrays) if _has_axes(leaf) else leaf for leaf in leaves])

    def verified(weights: Weights) -> bool:
        return same(truth, outcome(model.f, model.inference, beliefs_of(weights), x))

    data = jax.tree.leaves(random_inputs(example, 2))
    before = weights.alive()
    weights = _without_constants(analysis, weights, data, model.inference, verified)
    dead = analysis.dead(weights.alive())
    cut = choose(analysis, dead, drop_inputs=drop_inputs)
    # What was read and yet can go is a constant, 0 or folded; nothing at all is told of the others.
    constant = analysis.read(before) if cut.gone.any() else np.zeros(len(dead), bool)
    weights = weights.cut(analysis.members(dead))
    beliefs, priors = _smaller_trees(beliefs_of(weights), result.priors, cut)
    f = _smaller_function(model, means, beliefs, cut, x, truth)
    return _described(result, f, beliefs, priors, cut, told(analysis, cut.gone, constant), example)


def _has_axes(leaf: Any) -> bool:
    return is_belief(leaf) or is_array(leaf)


def _example(result: Trained, inputs: Any) -> Any:
    """Two rows of standardised inputs, in zeros where only the shape is known."""
    dtype, f = lay_out(result.beliefs)[0].dtype, result.model.f
    if inputs is not None:
        rows = jax.tree.map(lambda a: np.asarray(a)[np.arange(2) % len(a)], inputs)
        return jax.tree.map(jnp.asarray, result.scaling.standard_inputs(rows, dtype))
    if isinstance(f, Dense):
        return jnp.zeros((2, f.inputs), dtype)
    if isinstance(f, Gru):
        return jnp.zeros((2, 4, f.inputs), dtype)
    raise ValueError(
        "compact: the shape of the inputs is not known for a function of your own. Give some rows: "
        "compact(result, inputs=x)."
    )


def _without_constants(
    analysis: Analysis, weights: Weights, data: list[Any], inference: str, verified: Any
) -> Weights:
    """Fold constant units into biases, where that is exact and lets the whole unit go."""

    def leaving(trial: list[Fold]) -> list[Fold]:
        """Leave out the units that somebody would still read."""
        while trial:
            dead = analysis.dead(folded(weights, trial).alive())
            stay = np.zeros(len(dead), bool)
            for fold in trial:
                units = fold.units[fold.units >= 0]
                stay[units] = ~dead[units]
            if not stay.any():
                break
            trial = _some(trial, stay)
        return trial

    found = folds(analysis, weights, data, inference)
    if found:
        found = leaving(_some(found, analysis.dead(weights.alive())))
    if found and not verified(folded(weights, found)):
        good: list[Fold] = []
        for fold in found:
            if verified(folded(weights, [*good, fold])):
                good.append(fold)
        found = leaving(good)
    return folded(weights, found) if found else weights


def _some(found: list[Fold], others: np.ndarray) -> list[Fold]:
    """Leave out some units."""
    return [fold for fold in (without(f, others) for f in found) if np.any(fold.units >= 0)]


def _smaller_trees(beliefs: Any, priors: Any, cut: Cut) -> tuple[Any, Any]:
    leaves, _, treedef = flatten(beliefs)
    found = aligned(priors, treedef, "priors")
    new_leaves, new_priors, number = [], [], 0
    for leaf, prior in zip(leaves, found, strict=True):
        if not _has_axes(leaf):
            new_leaves.append(leaf)
            new_priors.append(prior)
            continue
        at = number
        new_leaves.append(jax.tree.map(lambda a, at=at: cut.shrunk(at, a), leaf))
        new_priors.append(jax.tree.map(lambda a, at=at: cut.shrunk(at, a), prior))
        number += 1
    return treedef.unflatten(new_leaves), treedef.unflatten(new_priors)


def _smaller_function(
    model: BayesianModel, params: Any, beliefs: Any, cut: Cut, x: Any, truth: list[np.ndarray]
) -> Any:
    """The first function for the smaller arrays that predicts what the original did."""
    small_x = cut.shrunk_inputs(x)
    wrong: list[str] = []
    for f in _candidates(model.f, params, beliefs, cut):
        try:
            found = outcome(f, model.inference, beliefs, small_x)
        except Exception as error:  # the user's function, given sizes it does not expect
            wrong.append(f"{type(error).__name__}: {error}")
            continue
        if same(truth, found):
            return f
        wrong.append("its outputs differ")
    raise RuntimeError(
        "compact: the smaller function does not agree with the original on random inputs "
        f"({'; '.join(wrong)}), so it is not returned. Please report this with the model."
    )


def _candidates(f: Any, params: Any, beliefs: Any, cut: Cut) -> Any:
    if isinstance(f, Dense):
        shapes = [jnp.shape(_mean(layer["weights"])) for layer in beliefs["layers"]]
        hidden = tuple(columns for _, columns in shapes[:-1])
        yield replace(f, inputs=shapes[0][0], hidden=hidden)
    elif isinstance(f, Gru):
        inputs, units = jnp.shape(_mean(beliefs["gates"]["candidate"]["inputs"]))
        yield replace(f, inputs=inputs, units=units)
    else:
        yield f
        if cut.gone.any():
            yield Shrunk(f, params, cut.kept, cut.inputs)


def _complexity(beliefs: Any, priors: Any) -> float:
    leaves, _, treedef = flatten(beliefs)
    pairs = zip(leaves, aligned(priors, treedef, "priors"), strict=True)
    every = [(leaf, prior) for leaf, prior in pairs if is_belief(leaf)]
    return float(_compiled_complexity([q for q, _ in every], [p for _, p in every]))


_compiled_complexity = jax.jit(complexity)


def _mean(leaf: Any) -> Any:
    return leaf.mean if is_belief(leaf) else leaf


def _described(
    result: Any, f: Any, beliefs: Any, priors: Any, cut: Cut, removed: Any, example: Any
) -> Compacted:
    leaves, _, treedef = flatten(beliefs)
    model = replace(
        result.model,
        f=f,
        params=treedef.unflatten([_mean(leaf) for leaf in leaves]),
        prior=priors,
        where=treedef.unflatten([is_belief(leaf) for leaf in leaves]),
    )
    # Accuracy is what it was; weights that had no effect are not paid for any more.
    change = _complexity(beliefs, priors) - _complexity(result.beliefs, result.priors)
    parts = replace(result.parts, complexity_weights=result.parts.complexity_weights + change)
    before = [_mean(leaf) for leaf in flatten(result.beliefs)[0] if _has_axes(leaf)]
    after = [_mean(leaf) for leaf in leaves if _has_axes(leaf)]
    empirical_bayes = result.continuation.empirical_bayes
    return Compacted(
        model=model,
        beliefs=beliefs,
        priors=priors,
        noise=result.noise,
        scaling=_smaller_scaling(result.scaling, cut),
        free_energy=result.free_energy + change,
        parts=parts,
        standard_error=result.standard_error,
        epochs=result.epochs,
        stop_reason=result.stop_reason,
        recipe=result.recipe,
        kept_inputs=_kept_inputs(cut, example),
        removed=removed,
        parameters=Parameters(
            sum(int(np.size(a)) for a in before), sum(int(np.size(a)) for a in after)
        ),
        rounds=getattr(result, "rounds", ()),
        weights_before=getattr(result, "weights_before", result.live_weights),
        free_energy_before=getattr(result, "free_energy_before", result.free_energy),
        continuation=continuation_of(
            in_numpy(beliefs), priors, result.noise, result.recipe, empirical_bayes, None
        ),
    )


def _kept_inputs(cut: Cut, example: Any) -> Any:
    structure: Any
    leaves, structure = jax.tree.flatten(example)
    pairs = zip(leaves, cut.inputs, strict=True)
    return structure.unflatten([np.arange(a.shape[-1]) if at is None else at[1] for a, at in pairs])


def _smaller_scaling(scaling: Scaling, cut: Cut) -> Scaling:
    def is_affine(node: Any) -> bool:
        return node is None or isinstance(node, Affine)

    def shrink(affine: Affine | None, at: Any) -> Affine | None:
        if affine is None or at is None or not np.ndim(affine.shift):
            return affine
        return Affine(affine.shift[at[1]], affine.scale[at[1]])

    structure: Any
    leaves, structure = jax.tree.flatten(scaling.inputs, is_leaf=is_affine)
    if len(leaves) != len(cut.inputs):  # one None for a whole pytree
        return scaling
    return replace(scaling, inputs=structure.unflatten(map(shrink, leaves, cut.inputs)))
