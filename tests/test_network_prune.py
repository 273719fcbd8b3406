"""`secateur prune`: a trained network in, a smaller one out."""

import json

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

# ruff: noqa: E402
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import secateur as sc
from secateur.cli.application import app
from secateur.importing import OnnxError
from secateur.importing.costs import count_multiply_adds
from secateur.remedies import UsageError
from secateur.runs import network_prune
from secateur.runs.controls import RunInterrupted
from secateur.runs.folder import RunFolder
from secateur.runs.network_data import read_network_data
from secateur.runs.network_prune import NetworkSettings, prune_network

QUICK = NetworkSettings(epochs=20, retrain_epochs=5, batch_size=60)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A folder with a network of 6 hidden units, of which two do the work, and its data."""
    folder = tmp_path_factory.mktemp("network")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
    first, second = 0.02 * rng.normal(size=(6, 4)), 0.02 * rng.normal(size=(2, 6))
    first[0, :2], first[1, :2] = 3, -3
    second[1, 0], second[0, 1] = 2, 2
    arrays = {"first": first, "bias": np.zeros(6), "second": second}
    nodes = [
        helper.make_node("Gemm", ["rows", "first", "bias"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["h"]),
        helper.make_node("Gemm", ["h", "second"], ["l"], transB=1),
        helper.make_node("Softmax", ["l"], ["chance"], axis=-1),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", n])
        for name, n in (("rows", 4), ("chance", 2))
    ]
    tensors = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "net.onnx")
    np.savez(folder / "labels.npz", x=x, y=y)
    np.savez(folder / "inputs.npz", rows=x)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    lines = ["a,b,c,d", *(",".join(map(str, row)) for row in x)]
    (folder / "table.csv").write_text("\n".join(lines))
    return folder


@pytest.mark.slow
def test_with_labels_interrupted_and_resumed(network, tmp_path, monkeypatch):
    out = RunFolder(tmp_path / "out")
    arguments = (network / "net.onnx", [network / "labels.npz"], QUICK, out)

    def interrupted(*_, **__):
        raise RunInterrupted

    with monkeypatch.context() as patch:
        patch.setattr(network_prune.sc, "prune", interrupted)
        with pytest.raises(RunInterrupted):
            prune_network(*arguments, progress=False)
    assert out.is_interrupted
    with pytest.raises(UsageError, match="interrupted"):
        prune_network(*arguments, progress=False)
    run = prune_network(*arguments, progress=False, resume=True)
    assert not run.notes
    table = {name: texts for name, *texts in run.rows}
    assert table["weights"][0] == table["weights"][1] == "42"
    assert int(table["weights"][2]) < 42
    assert table["hidden units"][0] == "6"
    assert table["multiply-adds of a row"][0] == "36"
    accuracies = [float(text[:-1]) for text in table["accuracy"]]
    assert accuracies[0] == 100
    assert min(accuracies) >= 95  # of 60 rows
    written = onnx.load(out.path / "model.onnx").graph
    shapes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*written.input, *written.output)
    }
    assert shapes == {"rows": ["batch", 4], "chance": ["batch", 2]}
    assert "#include" in (out.path / "model.c").read_text()
    assert "original" in (out.path / "report.html").read_text(encoding="utf-8")
    loaded = sc.load(out.model)
    assert loaded.model.f.last_step.kind == "Softmax"
    ort = pytest.importorskip("onnxruntime")
    x = np.load(network / "x.npy")
    (chances,) = ort.InferenceSession(out.path / "model.onnx").run(None, {"rows": x})
    mine = loaded.predict(x, at_means=True).probabilities
    np.testing.assert_allclose(chances, mine, atol=1e-5)


@pytest.mark.slow
def test_without_labels(network, tmp_path):
    said = []
    out = RunFolder(tmp_path / "out")
    run = prune_network(
        network / "net.onnx", [network / "inputs.npz"], QUICK, out, progress=False, say=said.append
    )
    assert "own outputs" in said[0]
    table = {name: texts for name, *texts in run.rows}
    assert table["agreement with the network"][0] == "100.00%"
    record = json.loads(out.record.read_text())
    assert "no targets" in record["settings"]["fitted to"]
    assert type(sc.load(out.model).model.likelihood) is sc.CategoricalLikelihood


def test_kinds_of_data(network):
    f, _ = sc.from_onnx(network / "net.onnx")
    both = read_network_data([network / "x.npy", network / "y.npy"], f)
    table = read_network_data([network / "table.csv"], f)
    named = read_network_data([network / "inputs.npz"], f)
    np.testing.assert_allclose(table.x, both.x, rtol=1e-6)
    np.testing.assert_array_equal(named.x, both.x)
    assert both.y.shape == (300,)
    assert table.y is None
    with pytest.raises(UsageError, match="no column 'z'"):
        read_network_data([network / "table.csv"], f, target="z")
    np.save(network / "narrow.npy", both.x[:, :3])
    with pytest.raises(UsageError, match=r"shape \(3,\). The network needs \(4\)"):
        read_network_data([network / "narrow.npy"], f)
    (network / "broken.npz").write_bytes(b"PK")
    with pytest.raises(UsageError, match="cannot be read"):
        read_network_data([network / "broken.npz"], f)
    np.savez(network / "other.npz", z=both.x)
    with pytest.raises(UsageError, match="holds the arrays z"):
        read_network_data([network / "other.npz"], f)


def test_what_cannot_be_pruned_leaves_nothing_behind(network, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x07garbage")
    with pytest.raises(OnnxError):
        prune_network(
            tmp_path / "bad.onnx", [network / "x.npy"], QUICK, RunFolder(tmp_path / "out")
        )
    assert not (tmp_path / "out").exists()
    result = CliRunner().invoke(
        app, ["prune", str(tmp_path / "bad.onnx"), "--data", str(network / "x.npy")]
    )
    assert result.exit_code != 0
    assert "not an ONNX model" in str(result.exception)


def test_multiply_adds():
    """Oracle: counted by hand: 3 · 3 · 2 products for each of 4 · 6 · 6 results; then 7 · 5."""
    import jax
    import jax.numpy as jnp

    def f(p, x):
        y = jax.lax.conv_general_dilated(x, p["k"], (1, 1), "VALID")
        return y, jax.jit(lambda v: p["v"] @ v)(p["w"])

    params = {"k": jnp.ones((4, 2, 3, 3)), "v": jnp.ones((7, 5)), "w": jnp.ones(5)}
    assert count_multiply_adds(f, params, jnp.ones((9, 2, 8, 8))) == 18 * 144 + 35
