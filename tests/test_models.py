"""Every model of the zoo, as its library made it, under all three inference algorithms.

Oracle: Monte Carlo over the weights, drawn jointly, with its standard error. `pytest -s` shows the
figures in a table at the end of the module.

- single layers: mean and variance within four standard errors;
- deep and recurrent models, posterior standard deviation 0.1: mean within 0.1 output standard
  deviations, standard deviation within 20 %;
- ``"global"`` draws from the oracle's own distribution, so it is held to the standard error in
  deep models too;
- ``"local"`` is held to what the moments are, but for the standard deviation of a recurrent model:
  there its law is another, and is checked against an oracle of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from model_zoo import (
    CASES,
    CHUNK,
    STEPS,
    Case,
    Estimate,
    Model,
    monte_carlo,
    split_static,
    summarise,
    trace,
)

MEAN_TOLERANCE = 0.1  # of an output standard deviation
SD_TOLERANCE = 0.2

# Recurrent models that the zoo also has in a form with new weights in every step.
REDRAWN = ("hand GRU-16 state", "equinox GRUCell scan", "equinox LSTMCell scan")

# Compiling a gradient takes seconds, through a recurrent cell many: one model of each kind must do,
# since the same kind from another library is made of the same primitives.
DIFFERENTIATED = (
    "hand MLP relu",
    "hand MLP silu",
    "hand GRU-16 readout",
    "nnx LSTM last",
    "nnx Linear LayerNorm",
    "nnx Conv depthwise",
    "nnx CNN",
    "nnx MultiHeadAttention",
    "equinox Embedding",
    "equinox Conv2d batch",
    "keras Dense",
)

# "global" runs the model as it is on drawn weights: one model of each library must do.
SAMPLED_GLOBALLY = ("hand MLP relu", "nnx Linear", "equinox Linear", "keras Dense")

# One model of each kind and library for `make test-fast`.
QUICK = ("hand linear", "hand MLP relu", "nnx Linear", "equinox Linear", "keras Dense")


@dataclass(frozen=True)
class Subject:
    """A case, its model and beliefs, and its Monte Carlo truth: built once for all its tests."""

    case: Case
    model: Model

    @cached_property
    def variances(self) -> Any:
        return self.case.variances(self.model.params)

    @cached_property
    def truth(self) -> Estimate:
        return monte_carlo(self.model, self.variances, self.case.samples)

    def beliefs(self, scale: float = 1.0) -> Any:
        """The params pytree with Normal leaves; Equinox's functions stay what they are."""
        leaves, structure = jax.tree.flatten(self.model.params)
        variances = structure.flatten_up_to(self.variances)
        return jax.tree.unflatten(
            structure,
            [
                m if v is None else sc.Normal(m, scale * v)
                for m, v in zip(leaves, variances, strict=True)
            ],
        )

    def run_moments(self, arrays: list[jax.Array]) -> sc.Normal:
        forward = sc.propagate(self.model.f, "moments")
        _, put_back = split_static(self.beliefs())
        return forward(None, put_back(arrays), self.model.x)

    @cached_property
    def moments_and_gradient(self) -> Callable[[list[jax.Array]], tuple[sc.Normal, list]]:
        """Compiled moments and the gradient of a scalar of them, of the arrays in the beliefs.

        No gradient, but an empty list, for most models.
        """
        if self.case.name not in DIFFERENTIATED:
            return jax.jit(lambda arrays: (self.run_moments(arrays), []))

        def scalar(arrays: list[jax.Array]) -> tuple[jax.Array, sc.Normal]:
            y = self.run_moments(arrays)
            return jnp.sum(jnp.sin(y.mean)) + jnp.sum(jnp.sqrt(1e-3 + y.variance)), y

        @jax.jit
        def run(arrays: list[jax.Array]) -> tuple[sc.Normal, list[jax.Array]]:
            gradient, y = jax.grad(scalar, has_aux=True)(arrays)
            return y, gradient

        return run

    def samples(self, how: str) -> np.ndarray:
        """Outputs of ``propagate(f, how)`` for as many keys as the oracle has samples."""
        forward = sc.propagate(self.model.f, how)
        arrays, put_back = split_static(self.beliefs())

        @jax.jit
        def run(keys: jax.Array, arrays: list[jax.Array]) -> jax.Array:
            return jax.vmap(lambda key: forward(key, put_back(arrays), self.model.x))(keys)

        # The default generator takes several times as long to compile as most of the models.
        root = jax.random.key(3, impl="unsafe_rbg")
        keys = jax.random.split(root, (self.case.samples // CHUNK, CHUNK))
        return np.concatenate([np.asarray(run(k, arrays), np.float64) for k in keys])


def parameters(cases: Iterable[Case]) -> list:
    """Test parameters; the recurrent models take longest to compile."""
    return [
        pytest.param(
            case,
            id=case.name.replace(" ", "-"),
            # All tests of a model in one process: it is built, and its samples drawn, once.
            marks=[pytest.mark.xdist_group(case.name)]
            + ([] if case.name in QUICK else [pytest.mark.slow]),
        )
        for case in cases
    ]


@pytest.fixture(scope="module", params=parameters(CASES))
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(request.param, request.param.build())


# What the module prints at its end.


@pytest.fixture(scope="module", autouse=True)
def table():
    rows: list[str] = []
    yield rows
    if rows:
        print(f"\n\n{'model':28s} {'algorithm':9s} agreement with Monte Carlo over the weights")
        print("─" * 118)
        print(*rows, sep="\n")


# Comparisons ----------------------------------------------------------------------------------


def z_scores(difference: np.ndarray, error: np.ndarray, scale: float) -> np.ndarray:
    """Errors in standard errors, none of which is smaller than 1e-3 of the output's own scale.

    The floor is for elements (a relu that is all but dead) of which the oracle saw too little to
    know its own error; it is far below the standard error of any other.
    """
    return np.abs(difference) / np.maximum(error, 1e-3 * scale)


def limit(elements: int) -> float:
    """Four standard errors for one number; for many, the limit with the same chance of alarm."""
    chance = 2 * NormalDist().cdf(-4.0)
    return -NormalDist().inv_cdf(chance / (2 * elements))


def check_within_error(
    label: str, rows: list[str], mean: Any, variance: Any, errors: tuple[Any, Any], truth: Estimate
) -> None:
    """Mean and variance within four standard errors, with allowance for the worst of many."""
    spread = truth.variance.mean()
    z_mean = z_scores(mean - truth.mean, errors[0], np.sqrt(spread))
    z_variance = z_scores(variance - truth.variance, errors[1], spread)
    rows.append(
        f"{label} in standard errors, worst and RMS of {z_mean.size:4d}:"
        f"  mean {z_mean.max():5.2f} {rms(z_mean):5.2f}"
        f"  variance {z_variance.max():5.2f} {rms(z_variance):5.2f}"
    )
    for name, z in (("mean", z_mean), ("variance", z_variance)):
        worst = tuple(map(int, np.unravel_index(z.argmax(), z.shape)))
        assert z.max() <= limit(z.size), f"{name}, worst at {worst}; {rows[-1]}"
        assert (z > 4).sum() <= max(1, 0.01 * z.size), f"{name}, too many beyond 4; {rows[-1]}"


def check_close(
    label: str,
    rows: list[str],
    mean: Any,
    variance: Any,
    truth: Estimate,
    *,
    sd_tolerance: float | None = SD_TOLERANCE,
) -> None:
    """Mean and, unless its tolerance is None, standard deviation as a deep model must have them."""
    sd = np.sqrt(truth.variance)
    shift = np.abs(mean - truth.mean) / sd
    ratio = np.sqrt(variance) / sd
    off = np.abs(ratio - 1)
    rows.append(
        f"{label} mean off by RMS {rms(shift):5.3f} sd (worst {shift.max():5.3f});"
        f"  sd off by median {np.median(off):5.1%}"
        f" (ratio {ratio.min():.2f} to {ratio.max():.2f}, median {np.median(ratio):.2f})"
    )
    assert rms(shift) <= MEAN_TOLERANCE, rows[-1]
    assert sd_tolerance is None or np.median(off) <= sd_tolerance, rows[-1]


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


# Tests ----------------------------------------------------------------------------------------


def test_moments_are_finite_and_differentiable(subject: Subject) -> None:
    """Oracle where beliefs are certain: the model, its output and its gradient, and no variance."""
    model = subject.model
    params, put_back = split_static(model.params)

    def plain(params: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
        y = model.f(put_back(params), model.x)
        return jnp.sum(jnp.sin(y)), y

    if subject.case.name in DIFFERENTIATED:
        expected_gradient, expected = jax.jit(jax.grad(plain, has_aux=True))(params)
    else:
        expected_gradient, expected = [], jax.jit(plain)(params)[1]
    for scale in (1.0, 0.0):
        arrays, _ = split_static(subject.beliefs(scale))
        y, gradient = subject.moments_and_gradient(arrays)
        assert isinstance(y, sc.Normal)
        for part in (y.mean, y.variance):
            assert (part.shape, part.dtype) == (expected.shape, expected.dtype)
            assert jnp.isfinite(part).all()
        assert (y.variance >= 0).all()
        assert all(jnp.isfinite(g).all() for g in gradient)

    # Attention computes its softmax in float32 whatever it is given.
    tolerance = 1e-4 if "f32[" in str(trace(model)) else 1e-8
    close = partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    close(y.mean, expected)
    close(y.variance, jnp.zeros_like(expected))
    means = gradient[::2]  # and not variances
    for ours, theirs in zip(means, expected_gradient, strict=True):
        close(ours, theirs)


def test_moments_agree_with_monte_carlo(subject: Subject, table: list[str]) -> None:
    arrays, _ = split_static(subject.beliefs())
    y, _ = subject.moments_and_gradient(arrays)
    label, truth = f"{subject.case.name:28s} {'moments':9s}", subject.truth
    mean, variance = np.asarray(y.mean), np.asarray(y.variance)
    if subject.case.kind == "single":
        errors = truth.mean_error, truth.variance_error
        check_within_error(label, table, mean, variance, errors, truth)
    else:
        check_close(label, table, mean, variance, truth)


def both_errors(ours: Estimate, truth: Estimate) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors of the differences between two estimates."""
    return (
        np.hypot(ours.mean_error, truth.mean_error),
        np.hypot(ours.variance_error, truth.variance_error),
    )


def draw_samples(subject: Subject, how: str) -> np.ndarray:
    samples = subject.samples(how)
    plain = jax.eval_shape(lambda: subject.model.f(subject.model.params, subject.model.x))
    assert samples.shape[1:] == plain.shape
    assert np.isfinite(samples).all()
    return samples


def test_local_samples_agree_with_monte_carlo(subject: Subject, table: list[str]) -> None:
    ours = summarise(draw_samples(subject, "local"))
    label, truth = f"{subject.case.name:28s} {'local':9s}", subject.truth
    if subject.case.kind == "single":
        errors = both_errors(ours, truth)
        check_within_error(label, table, ours.mean, ours.variance, errors, truth)
    else:
        # By its definition "local" draws anew in every step of a loop, so a recurrent model has
        # less variance than the truth. That is printed here; its own law is the next test.
        tolerance = None if subject.case.recurrent else SD_TOLERANCE
        check_close(label, table, ours.mean, ours.variance, truth, sd_tolerance=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
    "subject",
    parameters(c for c in CASES if c.name in SAMPLED_GLOBALLY),
    indirect=True,
)
def test_global_samples_agree_with_monte_carlo(subject: Subject, table: list[str]) -> None:
    ours = summarise(draw_samples(subject, "global"))
    label, truth = f"{subject.case.name:28s} {'global':9s}", subject.truth
    errors = both_errors(ours, truth)
    check_within_error(label, table, ours.mean, ours.variance, errors, truth)


@pytest.mark.parametrize(
    "subject",
    parameters(c for c in CASES if c.name in REDRAWN),
    indirect=True,
)
def test_local_draws_new_weights_in_every_step(subject: Subject, table: list[str]) -> None:
    """Oracle: Monte Carlo of the same model with independent weights in each step.

    Given the state before it, a step's units are independent Gaussians before their nonlinearity,
    whether the weights are drawn or the units: the two have the same law.
    """
    model = subject.model
    assert model.redrawn is not None
    stack = partial(jax.tree.map, lambda a: jnp.stack([a] * STEPS))
    redrawn = Model(model.redrawn, stack(model.params), model.x)
    truth = monte_carlo(redrawn, stack(subject.variances), subject.case.samples, seed=1)
    ours = summarise(subject.samples("local"))
    label = f"{subject.case.name:28s} {'local ⟂':9s}"
    check_within_error(label, table, ours.mean, ours.variance, both_errors(ours, truth), truth)


def test_coverage_lists_every_model(subject: Subject) -> None:
    """Every equation on an uncertain path has a rule, and says how exact it is."""
    listed = sc.coverage(subject.model.f, subject.model.params, subject.model.x)
    assert len(str(listed).splitlines()) > 1
