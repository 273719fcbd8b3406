"""`compact`: a pruned model without its dead units."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.beliefs import complexity, mean_weights
from secateur.compaction.analysis import Analysis, analyse
from secateur.compaction.folding import Fold, Weights, apply_folds, find_folds, leave_out
from secateur.compaction.removal import (
    Removal,
    choose_units,
    describe_removal,
    find_features,
)
from secateur.compaction.smaller_function import SmallerFunction
from secateur.distributions import Normal
from secateur.model import BayesianModel
from secateur.networks import Dense, Gru
from secateur.propagation import draws, propagate
from secateur.pytrees import align_tree, flatten_beliefs, is_belief
from secateur.structure.unit_search import is_array
from secateur.trained import Compaction, History, Trained
from secateur.training.layout import lay_out, to_numpy
from secateur.training.scaling import Affine, Scaling

__all__ = ["compact", "find_used_inputs"]

# Random inputs on which the smaller model is compared with the original.
ROWS = 32
_TOLERANCE = 1e-6  # relative to the largest output
_ROUNDING = 32  # units in the last place, where that is larger (single precision)
_SQUARE_ROUNDING = 4  # the same, relative to the square of the largest mean


def compact(trained: Trained, *, drop_inputs: bool = False, inputs: Any = None) -> Trained:
    """Remove dead units from a trained model without changing its predictions.

    A unit is dead if none of its weights has an effect: nothing reads it, or it is always 0. A unit
    whose inputs are all cut is a constant. It is folded into the bias of the units that read it, if
    they have one (mean and variance of w·c are added to those of the bias):

        y_k = b_k + Σ_u w_uk c_u        b_k ← b_k + w_uk c_u

    The result is compared with the original on random inputs before it is returned: mean and
    variance of the outputs under `"moments"` and `"independent"`, f at the mean weights for
    inference that samples.

    Args:
        trained: A trained model, from `prune`, `fit`, `update` or `load`.
        drop_inputs: Whether to also remove input features that no weight reads. The compacted model
            then takes only the features in `compaction.kept_inputs` (last axis of the inputs).
        inputs: Some rows like those given to `fit`; only their shapes are used. Not needed for
            `secateur.networks`.

    Returns:
        A `Trained` whose `compaction` describes what was removed. Its function is a smaller
        `secateur.networks` specification, or your own function if that accepts smaller arrays, or
        else the same equations with smaller sizes. A layer without remaining units keeps one, with
        all weights cut. The priors from before an `update` are not kept.

    Example:
        >>> import secateur as sc
        >>> network, key = sc.networks.Dense(3, hidden=(8,)), jax.random.key(0)
        >>> x = np.random.default_rng(0).normal(size=(60, 3))
        >>> model = sc.BayesianModel(network, network.init(key))
        >>> fitted = sc.fit(model, (x, x[:, :1]), key=key, epochs=300, progress=False)
        >>> pruned = sc.prune(fitted, (x, x[:, :1]), key=key, epochs=100, progress=False)
        >>> small = compact(pruned)
        >>> small.compaction.parameters_after < small.compaction.parameters_before
        True
        >>> gap = small.predict(x).mean - pruned.predict(x).mean
        >>> bool(jnp.max(jnp.abs(gap)) < 1e-5)
        True
    """
    if not isinstance(trained, Trained):
        raise TypeError(
            f"compact: a {type(trained).__name__} is not a trained model. Give the result of fit, "
            "prune, update or load."
        )
    model, example = trained.model, _example_inputs(trained, inputs)
    leaves, _, treedef = flatten_beliefs(trained.beliefs)
    means = mean_weights(trained.beliefs)
    analysis = analyse(model.f, means, example)
    weights = Weights.of([leaf for leaf in leaves if _has_axes(leaf)])
    x = random_inputs(example, ROWS)
    truth = evaluate_outputs(model.f, model.inference, trained.beliefs, x)

    def beliefs_of(weights: Weights) -> Any:
        arrays = iter(weights.beliefs())
        return treedef.unflatten([next(arrays) if _has_axes(leaf) else leaf for leaf in leaves])

    def keeps_outputs(weights: Weights) -> bool:
        outputs = evaluate_outputs(model.f, model.inference, beliefs_of(weights), x)
        return are_same(truth, outputs)

    data = jax.tree.leaves(random_inputs(example, 2))
    before = weights.alive()
    weights = _fold_constants(analysis, weights, data, model.inference, keeps_outputs)
    dead = analysis.dead(weights.alive())
    removal = choose_units(analysis, dead, drop_inputs=drop_inputs)
    # A unit that is read and can still be removed is a constant: 0, or folded into a bias.
    constant = analysis.read(before) if removal.removed.any() else np.zeros(len(dead), bool)
    weights = weights.cut(analysis.members(dead))
    beliefs, priors = _shrink_trees(beliefs_of(weights), trained.priors, removal)
    f = _choose_function(model, means, beliefs, removal, x, truth)
    records = describe_removal(analysis, removal.removed, constant)
    return _smaller_model(trained, f, beliefs, priors, removal, records, example)


def find_used_inputs(trained: Trained, *, inputs: Any = None) -> np.ndarray:
    """Return the input features on which the predictions of a trained model depend.

    Args:
        trained: A trained model whose inputs are one array.
        inputs: As in `compact`.

    Returns:
        A mask over the last axis of the inputs.

    Example:
        >>> import secateur as sc
        >>> network = sc.networks.Dense(2, hidden=())
        >>> model = sc.BayesianModel(network, network.init(jax.random.key(0)))
        >>> x = np.random.default_rng(0).normal(size=(60, 2))
        >>> fitted = sc.fit(model, (x, x[:, :1]), key=jax.random.key(1), progress=False)
        >>> pruned = sc.prune(fitted, (x, x[:, :1]), key=jax.random.key(2), progress=False)
        >>> find_used_inputs(pruned).tolist()
        [True, False]
    """
    example = _example_inputs(trained, inputs)
    leaves = [leaf for leaf in flatten_beliefs(trained.beliefs)[0] if _has_axes(leaf)]
    analysis = analyse(trained.model.f, mean_weights(trained.beliefs), example)
    dead = analysis.dead(Weights.of(leaves).alive())
    (units,) = find_features(analysis)
    if not units.size:  # the last axis is the axis of rows
        return np.ones(np.shape(example)[-1], bool)
    return ~np.append(dead, False)[units]


def _has_axes(leaf: Any) -> bool:
    return is_belief(leaf) or is_array(leaf)


def _example_inputs(trained: Trained, inputs: Any) -> Any:
    """Two rows of standardised inputs; zeros if only their shape is known."""
    dtype, f = lay_out(trained.beliefs)[0].dtype, trained.model.f
    if inputs is not None:
        rows = jax.tree.map(lambda a: np.asarray(a)[np.arange(2) % len(a)], inputs)
        return jax.tree.map(jnp.asarray, trained.scaling.standardise_inputs(rows, dtype))
    if isinstance(f, Dense):
        return jnp.zeros((2, f.inputs), dtype)
    if isinstance(f, Gru):
        return jnp.zeros((2, 4, f.inputs), dtype)
    raise ValueError(
        "compact: the shape of the inputs is not known for a function of your own. Pass some rows: "
        "compact(trained, inputs=x)."
    )


def _fold_constants(
    analysis: Analysis, weights: Weights, data: list[Any], inference: str, keeps_outputs: Any
) -> Weights:
    """Fold constant units into biases, where that is exact and frees the whole unit."""

    def of_removable_units(folds: list[Fold]) -> list[Fold]:
        """Leave out the units that would still be read."""
        while folds:
            dead = analysis.dead(apply_folds(weights, folds).alive())
            still_read = np.zeros(len(dead), bool)
            for fold in folds:
                units = fold.units[fold.units >= 0]
                still_read[units] = ~dead[units]
            if not still_read.any():
                break
            folds = _leave_out_units(folds, still_read)
        return folds

    folds = find_folds(analysis, weights, data, inference)
    if folds:
        folds = of_removable_units(_leave_out_units(folds, analysis.dead(weights.alive())))
    if folds and not keeps_outputs(apply_folds(weights, folds)):
        exact: list[Fold] = []
        for fold in folds:
            if keeps_outputs(apply_folds(weights, [*exact, fold])):
                exact.append(fold)
        folds = of_removable_units(exact)
    return apply_folds(weights, folds) if folds else weights


def _leave_out_units(folds: list[Fold], units: np.ndarray) -> list[Fold]:
    smaller = (leave_out(fold, units) for fold in folds)
    return [fold for fold in smaller if np.any(fold.units >= 0)]


def _shrink_trees(beliefs: Any, priors: Any, removal: Removal) -> tuple[Any, Any]:
    leaves, _, treedef = flatten_beliefs(beliefs)
    prior_leaves = align_tree(priors, treedef, "priors")
    new_leaves, new_priors, number = [], [], 0
    for leaf, prior in zip(leaves, prior_leaves, strict=True):
        if not _has_axes(leaf):
            new_leaves.append(leaf)
            new_priors.append(prior)
            continue
        at = number
        new_leaves.append(jax.tree.map(lambda a, at=at: removal.shrink(at, a), leaf))
        new_priors.append(jax.tree.map(lambda a, at=at: removal.shrink(at, a), prior))
        number += 1
    return treedef.unflatten(new_leaves), treedef.unflatten(new_priors)


def _choose_function(
    model: BayesianModel, params: Any, beliefs: Any, removal: Removal, x: Any,
    truth: list[Any],
) -> Any:  # fmt: skip
    """Return the first function for the smaller arrays that predicts the same as the original."""
    small_x = removal.shrink_inputs(x)
    reasons: list[str] = []
    for f in _candidates(model.f, params, beliefs, removal):
        try:
            outputs = evaluate_outputs(f, model.inference, beliefs, small_x)
        except Exception as error:  # the user's function may not expect these sizes
            reasons.append(f"{type(error).__name__}: {error}")
            continue
        if are_same(truth, outputs):
            return f
        reasons.append("its outputs differ")
    raise RuntimeError(
        "compact: the smaller function does not agree with the original on random inputs "
        f"({'; '.join(reasons)}), so it is not returned. Please report this with the model."
    )


def _candidates(f: Any, params: Any, beliefs: Any, removal: Removal) -> Any:
    if isinstance(f, Dense):
        shapes = [jnp.shape(_mean(layer["weights"])) for layer in beliefs["layers"]]
        hidden = tuple(columns for _, columns in shapes[:-1])
        yield replace(f, inputs=shapes[0][0], hidden=hidden)
    elif isinstance(f, Gru):
        inputs, units = jnp.shape(_mean(beliefs["gates"]["candidate"]["inputs"]))
        yield replace(f, inputs=inputs, units=units)
    else:
        yield f
        if removal.removed.any():
            yield SmallerFunction(f, params, removal.kept, removal.inputs)


def _complexity(beliefs: Any, priors: Any) -> float:
    leaves, _, treedef = flatten_beliefs(beliefs)
    pairs = zip(leaves, align_tree(priors, treedef, "priors"), strict=True)
    every = [(leaf, prior) for leaf, prior in pairs if is_belief(leaf)]
    return float(_compiled_complexity([q for q, _ in every], [p for _, p in every]))


_compiled_complexity = jax.jit(complexity)


def _mean(leaf: Any) -> Any:
    return leaf.mean if is_belief(leaf) else leaf


def _smaller_model(
    trained: Any, f: Any, beliefs: Any, priors: Any, removal: Removal, removed: Any, example: Any
) -> Trained:
    leaves, _, treedef = flatten_beliefs(beliefs)
    model = replace(
        trained.model,
        f=f,
        params=mean_weights(beliefs),
        prior=priors,
        where=treedef.unflatten([is_belief(leaf) for leaf in leaves]),
    )
    # The accuracy is unchanged; weights without effect no longer add to the complexity.
    change = _complexity(beliefs, priors) - _complexity(trained.beliefs, trained.priors)
    parts = replace(trained.parts, complexity_weights=trained.parts.complexity_weights + change)
    before = [leaf for leaf in flatten_beliefs(trained.beliefs)[0] if _has_axes(leaf)]
    after = [leaf for leaf in leaves if _has_axes(leaf)]
    return replace(
        trained,
        model=model,
        beliefs=beliefs,
        priors=priors,
        scaling=_shrink_scaling(trained.scaling, removal),
        free_energy=trained.free_energy + change,
        parts=parts,
        training=replace(trained.training, before_update=None),
        history=History(),
        compaction=Compaction(
            kept_inputs=_kept_inputs(removal, example),
            removed=removed,
            parameters_before=sum(int(np.size(_mean(leaf))) for leaf in before),
            parameters_after=sum(int(np.size(_mean(leaf))) for leaf in after),
        ),
    )


def _kept_inputs(removal: Removal, example: Any) -> Any:
    structure: Any
    leaves, structure = jax.tree.flatten(example)
    pairs = zip(leaves, removal.inputs, strict=True)
    return structure.unflatten([np.arange(a.shape[-1]) if at is None else at[1] for a, at in pairs])


def _shrink_scaling(scaling: Scaling, removal: Removal) -> Scaling:
    def is_affine(leaf: Any) -> bool:
        return leaf is None or isinstance(leaf, Affine)

    def shrink(affine: Affine | None, at: Any) -> Affine | None:
        if affine is None or at is None or not np.ndim(affine.shift):
            return affine
        return Affine(affine.shift[at[1]], affine.scale[at[1]])

    structure: Any
    leaves, structure = jax.tree.flatten(scaling.inputs, is_leaf=is_affine)
    if len(leaves) != len(removal.inputs):  # one None for a whole pytree
        return scaling
    names = tuple(
        n if n is None or at is None else tuple(n[i] for i in at[1])
        for n, at in zip(scaling.column_names, removal.inputs, strict=False)
    )
    inputs = structure.unflatten(map(shrink, leaves, removal.inputs))
    return replace(scaling, inputs=inputs, column_names=names)


# --- comparing with the original ------------------------------------------------------------------


def random_inputs(example: Any, rows: int, seed: int = 0) -> Any:
    """Draw inputs in the form of an example; values that are not real numbers are copied."""
    rng = np.random.default_rng(seed)

    def draw(x: Any) -> Any:
        x = np.asarray(x)
        if np.issubdtype(x.dtype, np.floating) or x.dtype.kind == "V":
            return jnp.asarray(rng.normal(size=(rows, *x.shape[1:])), x.dtype)
        return jnp.asarray(x[np.arange(rows) % len(x)])

    return jax.tree.map(draw, example)


def evaluate_outputs(f: Any, inference: str, beliefs: Any, x: Any) -> list[Any]:
    """Return the outputs as Normals of NumPy arrays; if inference samples, at the mean weights."""
    layout, flat, certain = lay_out(to_numpy(beliefs))
    result = to_numpy(_evaluate(f, inference, layout, flat, certain, x))
    return jax.tree.leaves(result, is_leaf=is_belief)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _evaluate(f, inference, layout, flat, certain, x) -> Any:
    beliefs = layout.beliefs(flat, certain)
    if draws(inference):
        return f(mean_weights(beliefs), x)
    outputs = propagate(f, inference)(None, beliefs, x)
    # An output that depends on no uncertain weight is an array: its variance is 0.
    return jax.tree.map(
        lambda y: y if is_belief(y) else Normal(y, jnp.zeros_like(y)), outputs, is_leaf=is_belief
    )


def are_same(one: list[Any], other: list[Any]) -> bool:
    """Whether outputs are equal up to rounding."""
    return len(one) == len(other) and all(map(_is_same, one, other))


def _is_same(one: Any, other: Any) -> bool:
    if not is_belief(one):
        return _is_close(one, other)
    # A variance is a difference of squares, so its rounding scales with the mean's square.
    square = np.max(np.square(one.mean.astype(np.float64)), initial=0)
    slack = _SQUARE_ROUNDING * float(jnp.finfo(one.mean.dtype).eps) * square
    return _is_close(one.mean, other.mean) and _is_close(one.variance, other.variance, slack)


def _is_close(one: np.ndarray, other: np.ndarray, slack: float = 0.0) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not jnp.issubdtype(one.dtype, jnp.floating):
        return bool(np.array_equal(one, other))
    limit = max(_TOLERANCE, _ROUNDING * float(jnp.finfo(one.dtype).eps))
    one, other = one.astype(np.float64), other.astype(np.float64)
    scale = max(np.max(np.abs(one), initial=0), np.max(np.abs(other), initial=0))
    return bool(np.max(np.abs(one - other), initial=0) <= limit * scale + slack)
