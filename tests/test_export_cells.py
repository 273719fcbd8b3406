"""Gated cells are found by what a loop computes. Oracle: the loop's own body, in float64.

The cells of all libraries are tested with their ONNX models (test_export_onnx.py).
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import model_zoo as zoo
import secateur as sc
from secateur.exports.evaluator import evaluate_graph
from secateur.exports.graph import ExportError
from secateur.exports.lowering import lower_function
from secateur.exports.onnx.gated_cells import recognise_cell
from secateur.exports.simplification import simplify_graph


def loop(f, *shape):
    """The only loop of a function."""
    graph = simplify_graph(lower_function(f, jax.ShapeDtypeStruct(shape, jnp.float64)))
    (node,) = [n for n in graph.nodes if n.op == "recurrent"]
    return node


def assert_equals_its_body(cell, node):
    body, random = node.attributes["body"], np.random.default_rng(1)
    arrays = [2 * random.normal(size=v.shape) for v in body.inputs]
    carried = node.attributes["carried"]
    truth, _ = evaluate_graph(body, arrays)
    states = [a.reshape(-1, a.shape[-1]) for a in arrays[:carried]]
    x = np.concatenate([arrays[carried + i] for i in cell.inputs], -1)
    made = cell.step(x.reshape(-1, x.shape[-1]), states)
    for mine, its in zip(made, truth[:carried], strict=True):
        np.testing.assert_allclose(mine, its.reshape(mine.shape), rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", [{"reset_after": False}, {"go_backwards": True}], ids=str)
def test_the_other_gru_of_keras(options):
    pytest.importorskip("keras")
    with jax.numpy_rank_promotion("allow"):
        model = zoo.keras_model(
            lambda k: [k.GRU(4, dtype="float64", **options)], zoo.normal(0, 2, 5, 3)
        )
    node = loop(lambda x: model.f(model.params, x), 2, 5, 3)
    cell = recognise_cell(node)
    assert cell.linear_before_reset == options.get("reset_after", True)
    assert_equals_its_body(cell, node)


def test_the_built_in_gru():
    network = sc.networks.Gru(2, units=5)
    params = network.init(jax.random.key(0))
    cell = recognise_cell(loop(partial(network, params), 3, 4, 2))
    gates = params["gates"]
    # Oracle: the network's own weights, in ONNX's order of gates.
    order = ("update", "reset", "candidate")
    weights = np.concatenate([gates[name]["inputs"].T for name in order])
    np.testing.assert_allclose(cell.weights, weights, atol=1e-12)
    weights = np.concatenate([gates[name]["state"].T for name in order])
    np.testing.assert_allclose(cell.recurrent, weights, atol=1e-12)
    assert not cell.linear_before_reset


def scanned(step, units=4):
    """A network that repeats a step of (weights, h, x) from zeros."""
    w = zoo.dense(0, 3, 3 * units), zoo.dense(2, units, 3 * units)

    def f(x):
        start = jnp.zeros((x.shape[0], units))
        return jax.lax.scan(partial(step, w), start, jnp.swapaxes(x, 0, 1))[0]

    return loop(f, 2, 6, 3)


def other_conventions(w, h, x):
    """Gates in one array, of which each is used the other way round."""
    a, b = zoo.affine(w[0], x), zoo.affine(w[1], h)
    keep_past, new = jnp.split(jax.nn.sigmoid(a[:, :8] + b[:, :8]), 2, axis=1)
    n = jnp.tanh(a[:, 8:] + (1 - keep_past) * b[:, 8:])
    return h + new * (n - h), None


def test_conventions_are_found_by_trying():
    node = scanned(other_conventions)
    assert_equals_its_body(recognise_cell(node), node)


def vanilla(w, h, x):
    return jnp.tanh(zoo.affine(w[0], x)[:, :4] + zoo.affine(w[1], h)[:, :4]), None


def peeping(w, h, x):
    """A GRU whose candidate looks at the update gate too."""
    a, b = zoo.affine(w[0], x), zoo.affine(w[1], h)
    r, z = jnp.split(jax.nn.sigmoid(a[:, :8] + b[:, :8]), 2, axis=1)
    return (1 - z) * jnp.tanh(a[:, 8:] + r * z * b[:, 8:]) + z * h, None


def bent(w, h, x):
    """A GRU with a gate that is not affine."""
    return other_conventions(w, h, x * x)


@pytest.mark.parametrize("step", [vanilla, peeping, bent])
def test_other_loops_are_refused(step):
    with pytest.raises(ExportError, match="Supported: GRU and LSTM"):
        recognise_cell(scanned(step))
