"""Every walk over equations knows what it does with every primitive, on every version of JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive

import secateur as sc
from rule_cases import CASES
from secateur.compaction.analysis import OriginSearch
from secateur.compaction.influence import IndicatorWalk, _forward
from secateur.compaction.smaller_function import Remaining, SmallerEvaluation
from secateur.equations import primitives, trace_function
from secateur.equations.expansions import EXPANSIONS, expand
from secateur.equations.primitives import CALLS, KINDS, Kind, Policy
from secateur.exports.lowering import Lowering
from secateur.propagation.propagator import Propagator
from secateur.structure.labels import AxisLabels, Partition
from secateur.structure.unit_search import UnitSearch

WALKS = [Propagator, UnitSearch, IndicatorWalk, SmallerEvaluation, OriginSearch, Lowering]


# --- the table ------------------------------------------------------------------------------------


def test_the_table_names_every_primitive_of_jax_lax():
    """What is missing here freezes the axes it touches, and is an error under "moments"."""
    values = (getattr(lax, name) for name in dir(lax) if name.endswith("_p"))
    names = {value.name for value in values if isinstance(value, Primitive)}
    assert names - KINDS.keys() == set()


def test_each_primitive_has_one_kind():
    listed = [name for names in primitives._TABLE.values() for name in names.split()]
    assert len(listed) == len(KINDS)
    assert CALLS.keys() | EXPANSIONS.keys() == primitives.of(Kind.CALL)
    assert primitives.of(Kind.CONTROL_FLOW) == primitives.CONTROL_FLOW.keys()
    assert set(Kind) == set(KINDS.values())


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.__name__)
@pytest.mark.parametrize("kind", Kind)
def test_a_kind_with_a_rule_has_one_for_each_primitive(walk, kind):
    policy = walk.policies[kind]
    if policy is Policy.RULE:
        assert {name for name in primitives.of(kind) if not walk.has_rule(name)} == set()
    assert (policy is Policy.EXPAND) == (kind is Kind.CALL)


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.__name__)
def test_a_primitive_that_nobody_knows_has_a_policy(walk):
    assert walk.policies[None] not in (Policy.RULE, Policy.EXPAND)


# --- expansions -----------------------------------------------------------------------------------

X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)))


def bind_named(name, *operands, **params):
    """One primitive of that name, if this JAX has it."""
    primitive = getattr(lax, f"{name.replace('-', '_')}_p", None)
    if primitive is None:
        pytest.skip(f"this JAX has no {name}")
    return primitive.bind(*operands, **params)


@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("stack", lambda x: jnp.stack([x, 2.0 * x], axis=1)),
        ("unstack", lambda x: jnp.unstack(x, axis=1)),
        ("tile", lambda x: jnp.tile(x, (2, 1, 3))),
        ("polynomial", lambda x: bind_named("polynomial", x, x, 2.0 * x, 3.0 * x)),
        ("one_minus_square", lambda x: bind_named("one_minus_square", x)),
        ("log2", lambda x: bind_named("log2", jnp.abs(x), accuracy=None)),
        ("scatter-sub", lambda x: x.at[jnp.array([0, 2])].subtract(x[:2])),
    ],
)
def test_expansions_are_what_they_stand_for(name, f):
    """Oracle: the primitive itself."""
    jaxpr = jax.make_jaxpr(f)(X)
    eqns = [eqn for eqn in jaxpr.jaxpr.eqns if eqn.primitive.name == name]
    if not eqns:
        pytest.skip(f"this JAX writes {name} out")
    structure = jax.tree.structure((X,))
    program = trace_function(f, [X], structure, [0], [X]).program([True])
    assert name not in {equation.name for equation in program.equations}
    for mine, truth in zip(
        program.evaluate([X], range(len(program.outputs))), jax.tree.leaves(f(X)), strict=True
    ):
        np.testing.assert_allclose(mine, truth, rtol=1e-12)
    assert expand(eqns[0]) is not None


# --- the crossing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_walk_goes_through_every_rule_case(case):
    """Labels, indicators and smaller values have the shapes that the equations have."""
    means = jax.tree.map(lambda n: n.mean, case.beliefs, is_leaf=lambda n: isinstance(n, sc.Normal))
    leaves, structure = jax.tree.flatten(tuple(means))
    f = lambda *arrays: case.f(*arrays)  # noqa: E731
    trace = trace_function(f, leaves, structure, range(len(leaves)), leaves)
    partition = Partition()
    search = UnitSearch(trace.program([True] * len(leaves)), partition)
    fresh = [AxisLabels(tuple(map(partition.fresh, a.shape)), (True,) * a.ndim) for a in leaves]
    search.run(fresh)
    for slot, value in search.values.items():
        assert value.shape == slot.shape
        assert len(value.vanishes) == len(slot.shape)

    def indicators(arrays):
        walk = IndicatorWalk(search, _forward)
        return [walk.indicator(value) for value in walk.run(arrays)]

    def smaller(arrays):
        return SmallerEvaluation(search, Remaining(partition, frozenset())).run(arrays)

    shapes = [a.shape for a in jax.tree.leaves(jax.eval_shape(f, *leaves))]
    ones = [jnp.ones_like(a) for a in leaves]
    assert [a.shape for a in jax.eval_shape(indicators, ones)] == shapes
    assert [np.shape(a) for a in jax.eval_shape(smaller, leaves)] == shapes
    OriginSearch(search.program, len(leaves))


def test_units_reports_what_it_does_not_know(monkeypatch):
    """A primitive that a new version of JAX brings is not silent."""

    def f(w, x):
        return jnp.sinh(x @ w["a"]) @ w["b"]

    w = {"a": jnp.ones((3, 5)), "b": jnp.ones((5, 2))}
    known = sc.units(f, w, jnp.ones((4, 3)))
    assert len(known) == 8
    assert {(r.operation, r.known) for r in known.frozen} == {("output", True)}
    monkeypatch.delitem(UnitSearch.rules, "sinh")
    monkeypatch.delitem(KINDS, "sinh")
    unknown = sc.units(f, w, jnp.ones((4, 3)))
    (report,) = [r for r in unknown.frozen if not r.known]
    assert report.operation == "sinh"
    assert "test_walks.py" in report.where
    assert ("['a']", 1) in report.axes
    assert "unknown operation: sinh" in repr(unknown)
    monkeypatch.setattr(primitives, "UNIVARIATE", primitives.UNIVARIATE - {"sinh"})
    with pytest.raises(sc.UnsupportedOperation, match="'sinh' has no rule"):
        sc.propagate(f, "moments")(None, sc.believe(w, variance=0.1), jnp.ones((4, 3)))
