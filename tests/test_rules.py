"""Every rule against Monte Carlo over its uncertain operands."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from rule_cases import CASES
from secateur.equations import primitives
from secateur.propagation.rules import RULES

SAMPLES = 20_000
# Aliases of other versions of JAX, and a primitive that needs several devices.
WITHOUT_ROW = {
    "copy_p", "scatter_add", "expand_dims", "sharding_constraint", "layout_constraint", "reshard",
    "pvary", "lt_to", "le_to", "eq_to",
}  # fmt: skip


def call(case):
    return lambda beliefs, _: case.f(*beliefs)


def primitives_in(jaxpr) -> set[str]:
    names = set()
    for eqn in jaxpr.eqns:
        names.add(eqn.primitive.name)
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    names |= primitives_in(inner)
    return names


def run(case):
    """Moments with their gradient, and draws of both sampling algorithms, in one program."""
    # The default generator takes several times as long to compile as most rules.
    keys = jax.random.split(jax.random.key(3, impl="unsafe_rbg"), SAMPLES)

    def everything(beliefs):
        def total(beliefs):
            result = sc.propagate(call(case), "moments")(None, beliefs, None)
            return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(result)), result

        if case.primitives == ("while",):  # JAX has no reverse mode through while_loop
            moments, gradient = total(beliefs)[1], ()
        else:
            (_, moments), gradient = jax.value_and_grad(total, has_aux=True)(beliefs)
        sample = [
            jax.vmap(sc.propagate(call(case), how), (0, None, None))(keys, beliefs, None)
            for how in ("global", "local")
        ]
        return moments, gradient, *sample

    return jax.jit(everything)(case.beliefs)


def close(mine, truth, error, allowance) -> None:
    """Within 4.5 standard errors (the largest of a few dozen elements) and the allowance."""
    excess = np.abs(mine - truth) - (4.5 * error + allowance)
    at = np.unravel_index(np.argmax(excess), excess.shape)
    assert excess[at] <= 0, f"{np.asarray(mine)[at]} for {truth[at]} ± {error[at]}"


def is_normal(leaf) -> bool:
    return isinstance(leaf, sc.Normal)


def check(mine_mean, mine_variance, sample, tolerance) -> None:
    sample = np.asarray(sample, np.float64)
    n = len(sample)
    mean, variance = sample.mean(0), sample.var(0)
    sd = np.sqrt(variance)
    fourth = ((sample - mean) ** 4).mean(0)
    rare = 10.0 / n  # an event that no sample has seen may still have this probability
    slack = 0.0 if tolerance is None else tolerance
    close(np.asarray(mine_mean), mean, sd / np.sqrt(n), slack * sd + rare)
    error = np.sqrt(np.maximum(fourth - variance**2, 0.0) / n)
    close(np.asarray(mine_variance), variance, error, 2.0 * slack * variance + rare)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_rule(case):
    """Oracle: Monte Carlo over the operands, with its standard error."""
    moments, gradient, drawn, local = run(case)
    truth = jax.tree.leaves(drawn)
    for mine, sample in zip(jax.tree.leaves(moments, is_leaf=is_normal), truth, strict=True):
        check(mine.mean, mine.variance, sample, case.tolerance)
    # Local draws of independent operands are exact, but draws.
    for mine, sample in zip(jax.tree.leaves(local), truth, strict=True):
        mine = np.asarray(mine, np.float64)
        check(mine.mean(0), mine.var(0), sample, 0.05)
    for leaf in jax.tree.leaves(gradient):
        assert np.isfinite(leaf).all()


def test_every_rule_has_a_row():
    covered = {name for case in CASES for name in case.primitives}
    declared = set(RULES) | primitives.UNIVARIATE | set(primitives.CONTROL_FLOW)
    assert declared - covered - WITHOUT_ROW == set()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_row_exercises_its_primitives(case):
    means = jax.tree.map(lambda n: n.mean, case.beliefs, is_leaf=is_normal)
    jaxpr = jax.make_jaxpr(lambda b: case.f(*b))(means)
    names = primitives_in(getattr(jaxpr, "jaxpr", jaxpr))
    assert names & set(case.primitives), f"{case.primitives} not in {sorted(names)}"
