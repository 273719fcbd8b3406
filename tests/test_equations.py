"""The one walk over equations, on plain numbers; and the one table of primitives."""

import ast
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur
from secateur.equations import Interpreter, primitives, read_program, trace_function
from secateur.equations.control_flow import Scan, UnsettledLoop, branches, recomputed_part, settle

PACKAGE = Path(secateur.__file__).parent


class PlainWalk(Interpreter):
    """Evaluates equations as they are, and looks into control flow."""

    def apply_default(self, equation, operands):
        return self.evaluate_known(equation, operands)

    def nested(self, body, inputs):
        return PlainWalk(read_program(*body, [True] * len(inputs))).run(inputs)

    def scan(self, equation, operands):
        parts = Scan.of(equation)
        consts, carry, xs = parts.split(operands)

        def step(carry, x):
            return parts.split_results(self.nested(parts.body, [*consts, *carry, *x]))

        last, stacked = jax.lax.scan(step, carry, xs, length=parts.length, reverse=parts.reverse)
        return [*last, *stacked]

    def cond(self, equation, operands):
        results = [self.nested(body, operands[1:]) for body in branches(equation)]
        return results[int(operands[0])]

    def remat(self, equation, operands):
        return self.nested(recomputed_part(equation), operands)


def recurrent(w, x):
    def step(h, row):
        h = jnp.tanh(row @ w["in"] + h @ w["state"])
        return h, jnp.sum(h)

    return jax.lax.scan(step, jnp.zeros(2), x, reverse=True)


FUNCTIONS = {
    "wrappers": lambda w, x: jax.nn.softplus(jax.jit(jnp.dot)(x, w["in"])),
    "scan": recurrent,
    "branches": lambda w, x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x @ w["in"]),
    "recomputed": lambda w, x: jax.checkpoint(lambda x: jax.nn.gelu(x @ w["in"]))(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_walk_evaluates_a_function(name):
    """Oracle: the function itself."""
    rng = np.random.default_rng(0)
    weights = {"in": jnp.asarray(rng.normal(size=(3, 2))), "state": jnp.eye(2), "note": "kept"}
    arguments = (weights, jnp.asarray(rng.normal(size=(4, 3))))
    leaves, structure = jax.tree.flatten(arguments)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    arrays = [leaves[i] for i in places]
    trace = trace_function(FUNCTIONS[name], leaves, structure, places, arrays)
    results = PlainWalk(trace.program([True] * len(arrays))).run(arrays)
    expected = FUNCTIONS[name](*arguments)
    assert trace.result_structure == jax.tree.structure(expected)
    for mine, truth in zip(results, jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, truth, rtol=1e-6)


def test_equation_without_a_rule_is_named():
    trace = trace_function(jnp.sin, [jnp.ones(2)], jax.tree.structure((0,)), [0], [jnp.ones(2)])
    with pytest.raises(NotImplementedError, match="'sin' has no rule"):
        Interpreter(trace.program([True])).run([jnp.ones(2)])


def test_a_loop_that_never_settles_names_what_it_carries():
    with pytest.raises(UnsettledLoop, match=r"carried value 2 of a loop \(net.py:3\)"):
        settle(lambda n, _: n + 1, 0, lambda a, b: [2] if a != b else [], 3, where="net.py:3")


def test_a_loop_may_take_as_many_steps_to_settle_as_it_carries_values():
    assert settle(lambda n, _: min(n + 1, 12), 0, lambda a, b: [0] if a != b else [], 12) == 12


def known_primitives():
    names = set(primitives.CALLS) | set(primitives.CONTROL_FLOW) | set(primitives.WINDOWS)
    for value in vars(primitives).values():
        if isinstance(value, set):
            names |= value
    return names


def test_lists_of_primitives_are_in_the_table_only():
    """Three or more names of primitives in one literal are a list of their own."""
    known = known_primitives()
    for package in ("equations", "propagation", "structure", "compaction"):
        for path in (PACKAGE / package).rglob("*.py"):
            if path.name == "primitives.py":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Set | ast.Tuple | ast.List):
                    texts = [e.value for e in node.elts if isinstance(e, ast.Constant)]
                    listed = [text for text in texts if text in known]
                    assert len(listed) < 3, f"{path.name}:{node.lineno} lists {listed}"
