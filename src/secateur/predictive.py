"""The predictive distribution of a trained model for new rows.

All predictions (of the command line, the report, the estimators, exported files and the paper's
tables) are computed here. Rows are processed in blocks, so that a million of them fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.beliefs import sample_weights
from secateur.distributions import Normal
from secateur.likelihoods import BernoulliLikelihood, CategoricalLikelihood
from secateur.likelihoods.base import PredictiveMoments, sampled_predictive_log_density
from secateur.model import BayesianModel
from secateur.options import check_count, check_key
from secateur.propagation import draws, propagate
from secateur.training.layout import Layout, lay_out, to_numpy
from secateur.training.scaling import Scaling
from secateur.training.table_columns import make_array

__all__ = ["SAMPLES", "Predictive"]

# Number of sampled networks that are averaged where the algorithm samples.
SAMPLES = 100
# Rows are padded to one of a few sizes; the program is compiled once for each.
_MIN_ROWS, _MAX_ROWS = 64, 8192
# Maximum number of inputs in a block, and of outputs that are cached rather than recomputed.
_MAX_INPUTS, _MAX_KEPT = 4_000_000, 16_000_000


class _Block(NamedTuple):
    """A slice of the rows, and the function's values in standardised units.

    `components` is a Normal of NumPy arrays with a leading axis: one component for an algorithm
    that computes moments; for one that samples, a component without variance for each network.
    """

    rows: slice
    components: Normal


class Predictive:
    """The distribution of the targets of new rows, in the data's own units.

    An algorithm that computes moments gives f ~ N(mean, variance) for the model's function f. For
    an algorithm that samples, f is evaluated for `samples` networks whose weights are drawn from
    the posterior, with the same key for all rows. The likelihood describes how targets scatter
    around f; the uncertainty about the noise is integrated out.

    All results are NumPy arrays of float64, computed on first use.

    Args:
        model: The model.
        beliefs: Posterior of its weights.
        noise: q(γ), or None.
        scaling: How its data are standardised.
        inputs: Rows like those given to `fit`.
        key: Random key for the networks of an algorithm that samples.
        samples: Number of these networks.

    Example:
        >>> import jax, numpy as np, secateur as sc
        >>> x = np.linspace(-1, 1, 64)[:, None]
        >>> model = sc.BayesianModel(lambda w, x: x @ w, jnp.zeros((1, 1)))
        >>> fitted = sc.fit(model, (x, 3 * x), key=jax.random.key(0), progress=False)
        >>> prediction = fitted.predict(np.array([[0.5]]))
        >>> low, high = prediction.interval(0.95)
        >>> bool(low < 1.5 < high), prediction.mean.round(1).tolist()
        (True, [[1.5]])
    """

    def __init__(
        self,
        model: BayesianModel,
        beliefs: Any,
        noise: Any,
        scaling: Scaling,
        inputs: Any,
        *,
        key: Array,
        samples: int = SAMPLES,
    ) -> None:
        samples = check_count(samples, "samples")
        self._model, self._likelihood = model, model.likelihood
        self._layout, flat, self._certain = lay_out(to_numpy(beliefs))
        self._flat = jax.device_put(flat)
        self._noise, self._scaling, self._key = noise, scaling, check_key(key)
        self._samples = samples if draws(model.inference) else None
        self._inputs = jax.tree.map(np.asarray, scaling.arrange(inputs))
        leaves = jax.tree.leaves(self._inputs)
        if not leaves or any(not x.ndim or len(x) != len(leaves[0]) for x in leaves):
            raise ValueError(
                f"inputs have the shapes {[np.shape(x) for x in leaves]}. Give rows like those "
                "that the model was fitted to, rows first."
            )
        self._rows = len(leaves[0])
        self._kept: list[_Block] | None = None

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        how = "by moments" if self._samples is None else f"from {self._samples} networks"
        return f"<Predictive: {self._rows} rows, {how}>"

    # --- moments --------------------------------------------------------------------------------

    @cached_property
    def outputs(self) -> Normal:
        """Mean and variance of the model's function itself (for classes, of the logits)."""

        def moments(block: _Block) -> tuple[np.ndarray, np.ndarray]:
            mean, variance = block.components.mean, block.components.variance
            return mean.mean(axis=0), variance.mean(axis=0) + mean.var(axis=0)

        mean, variance = self._collect(moments)
        return Normal(self._to_data(mean), self._to_data_variance(variance))

    @cached_property
    def _moments(self) -> PredictiveMoments:
        self._method("predictive_moments")

        def moments(block: _Block) -> PredictiveMoments:
            f, rows = self._padded_components(block)
            parts = _compute_moments(self._likelihood, self._noise, f, kind=type(self._likelihood))
            mean, weights, noise = (np.asarray(p, np.float64)[:, :rows] for p in parts)
            return PredictiveMoments(
                mean.mean(axis=0), weights.mean(axis=0) + mean.var(axis=0), noise.mean(axis=0)
            )

        mean, weights, noise = self._collect(moments)
        return PredictiveMoments(
            self._to_data(mean), self._to_data_variance(weights), self._to_data_variance(noise)
        )

    @property
    def mean(self) -> np.ndarray:
        """Expected targets; for classes, their probabilities; for binary targets, that of a 1."""
        return self._moments.mean

    @property
    def variance(self) -> np.ndarray:
        """Variance of a target: the sum of `weight_variance` and `noise_variance`."""
        return self._moments.weight_variance + self._moments.noise_variance

    @property
    def weight_variance(self) -> np.ndarray:
        """Part of the variance due to uncertainty about the weights (epistemic)."""
        return self._moments.weight_variance

    @property
    def noise_variance(self) -> np.ndarray:
        """Part of the variance that would remain if the weights were known (aleatoric)."""
        return self._moments.noise_variance

    @property
    def standard_deviation(self) -> np.ndarray:
        """Square root of the variance of a target."""
        return np.sqrt(self.variance)

    @property
    def probabilities(self) -> np.ndarray:
        """Probability of every class (last axis) or, for binary targets, of a 1."""
        if not isinstance(self._likelihood, CategoricalLikelihood | BernoulliLikelihood):
            raise TypeError(
                f"a {type(self._likelihood).__name__} has no classes, so there are no "
                "probabilities. Ask for mean, interval or cdf."
            )
        return self.mean

    # --- probabilities of values ----------------------------------------------------------------

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the central interval that contains a target with a given probability.

        Args:
            level: Probability of the interval.
        """
        if not 0 < level < 1:
            raise ValueError(f"level={level}. Give a probability between 0 and 1.")
        low, high = self.quantiles([0.5 - 0.5 * level, 0.5 + 0.5 * level])
        return low, high

    def quantiles(self, probabilities: Any) -> np.ndarray:
        """Return the values below which targets lie with the given probabilities.

        Args:
            probabilities: A number, or several numbers, which become the first axis of the result.
        """
        levels = np.asarray(probabilities, np.float64)
        if np.any((levels <= 0) | (levels >= 1)):
            raise ValueError(f"probabilities={probabilities}. Give numbers between 0 and 1.")
        quantile = self._method("predictive_quantile")

        def compute(block: _Block) -> tuple[np.ndarray]:
            values = [quantile(self._noise, block.components, p) for p in levels.ravel().tolist()]
            return (np.stack(values, axis=1),)

        (values,) = self._collect(compute)
        values = self._to_data(np.moveaxis(values, 1, 0))
        return values.reshape(levels.shape + values.shape[1:])

    def cdf(self, values: Any) -> np.ndarray:
        """Return the probability that each target is at most a value.

        Args:
            values: Numbers that broadcast to the shape of the targets.
        """
        cumulative = self._method("predictive_cdf")
        shape = self.outputs.mean.shape
        standard = np.broadcast_to(np.asarray(values, np.float64), shape)
        if self._scaling.targets is not None:
            standard = self._scaling.targets.to_standard(standard)
        return self._collect(
            lambda block: (cumulative(self._noise, block.components, standard[block.rows]),)
        )[0]

    def log_density(self, targets: Any) -> np.ndarray:
        """Return the predictive log-density of targets in nats, one value per row.

            ln p(y | x) = ln E[p(y | f, γ)]

        Args:
            targets: Targets of all rows, as given to `fit`.
        """
        targets = np.asarray(make_array(targets, "targets"))
        if np.ndim(targets) == 0 or len(targets) != self._rows:
            count = len(targets) if np.ndim(targets) else "one number as"
            raise ValueError(f"there are {self._rows} rows of inputs and {count} targets.")
        if hasattr(self._likelihood, "check_targets"):
            self._likelihood.check_targets(self._output_shape, targets)
        jacobian = 0.0
        if self._scaling.targets is not None:
            jacobian = self._scaling.targets.log_jacobian_per_row(targets)
        standard = self._scaling.standardise_targets(targets, self._layout.dtype)

        def compute(block: _Block) -> tuple[np.ndarray]:
            f, rows = self._padded_components(block)
            y = _pad(standard[block.rows], rows)
            density = _compute_log_density(
                self._likelihood, self._noise, f, y, kind=type(self._likelihood)
            )
            return (np.asarray(density, np.float64)[:rows] - jacobian,)

        return self._collect(compute)[0]

    def sample(self, key: Array, count: int = 1) -> np.ndarray:
        """Draw targets of all rows.

        The rows of one draw share the noise and, for an algorithm that samples, the network.

        Args:
            key: A JAX random key.
            count: Number of draws, the first axis of the result.
        """
        self._method("sample_targets")
        key = check_key(key)
        pick_key, draw_key = jax.random.split(key)
        picks = np.asarray(jax.random.randint(pick_key, (count,), 0, self._samples or 1))

        def pick(block: _Block) -> tuple[np.ndarray, np.ndarray]:
            f = block.components
            return f.mean[picks].swapaxes(0, 1), f.variance[picks].swapaxes(0, 1)

        mean, variance = (a.swapaxes(0, 1) for a in self._collect(pick))
        keys = jax.random.split(draw_key, count)
        targets = _sample_targets(
            self._likelihood, self._noise, keys, Normal(mean, variance), kind=type(self._likelihood)
        )
        return self._to_data(np.asarray(targets))

    # --- blocks ---------------------------------------------------------------------------------

    def _blocks(self) -> Iterator[_Block]:
        """Yield the function's values block by block, from the cache if they fit into it."""
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[_Block] | None = []
        size = 0
        for start in range(0, max(1, self._rows), self._block_rows):
            rows = slice(start, min(start + self._block_rows, self._rows))
            block = _Block(rows, self._compute_components(rows))
            size += 2 * block.components.mean.size
            kept = None if kept is None or size > _MAX_KEPT else [*kept, block]
            yield block
        self._kept = kept

    @property
    def _block_rows(self) -> int:
        per_row = sum(x.size // max(1, len(x)) for x in jax.tree.leaves(self._inputs))
        rows = _MAX_INPUTS // max(1, per_row)
        return max(_MIN_ROWS, min(_MAX_ROWS, 1 << max(0, rows.bit_length() - 1)))

    def _make_arguments(self, rows: slice) -> tuple[Any, ...]:
        """Return the arguments of `_compute_outputs` for some rows."""
        inputs = jax.tree.map(lambda x: x[rows], self._inputs)
        standard = self._scaling.standardise_inputs(inputs, self._layout.dtype)
        options = (self._model.f, self._model.inference, self._layout, self._samples)
        weights = (self._key, self._flat, self._certain)
        return (*options, *weights, _pad(standard, rows.stop - rows.start))

    def _explain_failures(self, compute: Callable, *arguments: Any) -> Any:
        """Compute; if the model's function fails, raise an error that states the inputs' shapes."""
        try:
            return compute(*arguments)
        except (TypeError, ValueError) as error:
            shapes = [x.shape for x in jax.tree.leaves(self._inputs)]
            raise ValueError(
                f"the model's function fails for inputs of the shapes {shapes}: {error} Give rows "
                "like those that the model was fitted to."
            ) from error

    @cached_property
    def _output_shape(self) -> tuple[int, ...]:
        """Shape of the function's values, found by tracing only."""
        first = slice(0, min(self._block_rows, self._rows))
        arguments = self._make_arguments(first)
        compute = partial(_compute_outputs, *arguments[:4])
        components: Normal = self._explain_failures(jax.eval_shape, compute, *arguments[4:])
        return (self._rows, *components.mean.shape[2:])

    def _compute_components(self, rows: slice) -> Normal:
        count = rows.stop - rows.start
        values = self._explain_failures(_compute_outputs, *self._make_arguments(rows))
        return jax.tree.map(lambda a: np.asarray(a, np.float64)[:, :count], values)

    def _padded_components(self, block: _Block) -> tuple[Normal | np.ndarray, int]:
        """Return the components as the likelihood expects them, padded, and the row count."""
        rows = block.rows.stop - block.rows.start
        dtype = self._layout.dtype
        padded = _pad(block.components, rows, axis=1)
        f = jax.tree.map(lambda a: a.astype(dtype), padded)
        has_variance = self._samples is None and bool(self._flat)  # of the function, not the noise
        return (f if has_variance else f.mean), rows

    def _collect(self, compute: Callable[[_Block], tuple[np.ndarray, ...]]) -> list[np.ndarray]:
        parts = [compute(block) for block in self._blocks()]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _method(self, name: str) -> Callable:
        method = getattr(self._likelihood, name, None)
        if method is None:
            raise TypeError(
                f"{type(self._likelihood).__name__} has no method {name}, so this is not "
                "available. Implement it (see secateur.likelihoods.Likelihood), or use outputs and "
                "log_density, which do not need it."
            )
        return method

    def _to_data(self, values: np.ndarray) -> np.ndarray:
        units = self._scaling.targets
        return (
            values if units is None else values * np.asarray(units.scale) + np.asarray(units.shift)
        )

    def _to_data_variance(self, variance: np.ndarray) -> np.ndarray:
        units = self._scaling.targets
        return variance if units is None else variance * np.square(np.asarray(units.scale))


def _pad(tree: Any, count: int, *, axis: int = 0) -> Any:
    """Pad arrays to one of a few numbers of rows by repeating the last row."""
    size = max(_MIN_ROWS, 1 << (count - 1).bit_length()) if count else 0

    def pad(array: np.ndarray) -> np.ndarray:
        widths = [(0, 0)] * array.ndim
        widths[axis] = (0, size - count)
        return np.pad(array, widths, mode="edge")

    return jax.tree.map(pad, tree)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _compute_outputs(
    f: Callable,
    inference: str,
    layout: Layout,
    samples: int | None,
    key: Array,
    flat: tuple[Normal, ...],
    certain: list[Array],
    x: Any,
) -> Normal:
    """Return the function's values, as a Normal with a leading axis of components."""
    beliefs = layout.beliefs(flat, certain)
    if samples is None:
        value = propagate(f, inference)(None, beliefs, x)
        if not isinstance(value, Normal):
            value = Normal(value, jnp.zeros_like(value))
        return jax.tree.map(lambda a: a[None], value)
    keys = jax.random.split(key, samples)
    values = jax.lax.map(lambda k: f(sample_weights(k, beliefs), x), keys)
    return Normal(values, jnp.zeros_like(values))


# `kind`, the likelihood's class, is what its structure may not show; see `registration`.
@partial(jax.jit, static_argnames=("kind",))
def _compute_moments(
    likelihood: Any, noise: Any, components: Any, *, kind: type
) -> PredictiveMoments:
    return jax.vmap(lambda f: likelihood.predictive_moments(noise, f))(components)


@partial(jax.jit, static_argnames=("kind",))
def _sample_targets(likelihood: Any, noise: Any, keys: Array, f: Normal, *, kind: type) -> Array:
    def sample(key: Array, f: Normal) -> Array:
        value_key, noise_key = jax.random.split(key)
        return likelihood.sample_targets(noise_key, noise, f.sample(value_key))

    return jax.vmap(sample)(keys, f)


@partial(jax.jit, static_argnames=("kind",))
def _compute_log_density(
    likelihood: Any, noise: Any, components: Any, targets: Array, *, kind: type
) -> Array:
    return sampled_predictive_log_density(likelihood, noise, components, targets)
