"""`from_onnx`: what becomes parameters, what is refused, and what a damaged file can do."""

from dataclasses import replace

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

# ruff: noqa: E402
from onnx import TensorProto, helper, numpy_helper

import secateur as sc
from mutated_files import mutate
from secateur.importing import OnnxError, from_onnx


def array(name, *shape, seed=0):
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return numpy_helper.from_array(values, name)


def value(name, *shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, arrays=(), inputs=None, outputs=None, version=17, functions=(), domains=()):
    graph = helper.make_graph(
        nodes, "g", inputs or [value("x", "N", 3)], outputs or [value("y", "N", 2)], list(arrays)
    )
    imports = [helper.make_opsetid("", version), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=list(functions))


def dense():
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)]
    return model(nodes, [array("w", 2, 3), array("b", 2, seed=1)])


def numpy_of(tensor):
    return numpy_helper.to_array(tensor)


def test_parameters_have_the_names_of_the_file():
    f, params = from_onnx(dense())
    assert set(params) == {"w", "b"}
    x = np.ones((4, 3), np.float32)
    np.testing.assert_allclose(f(params, x), x @ params["w"].T + params["b"], rtol=1e-6)


def test_a_file_its_bytes_and_a_model_are_the_same(tmp_path):
    onnx.save(dense(), tmp_path / "m.onnx")
    one, two = from_onnx(tmp_path / "m.onnx"), from_onnx((tmp_path / "m.onnx").read_bytes())
    assert all(np.array_equal(one[1][k], two[1][k]) for k in one[1])
    assert one[0].origin == (tmp_path / "m.onnx").stat().st_size


def test_weights_in_8_bits_are_folded():
    """Oracle: scale · (number − zero), for each channel."""
    q = np.arange(-3, 3, dtype=np.int8).reshape(2, 3)
    scale, zero = np.array([0.5, 0.25], np.float32), np.array([1, 0], np.int8)
    arrays = [numpy_helper.from_array(a, n) for a, n in ((q, "q"), (scale, "s"), (zero, "z"))]
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0),
        helper.make_node("Gemm", ["x", "w"], ["y"], transB=1),
    ]
    f, params = from_onnx(model(nodes, arrays))
    np.testing.assert_array_equal(params["q"], (q - zero[:, None]) * scale[:, None])
    assert not f.graph.arrays


@pytest.mark.slow
def test_a_network_in_8_bits_is_written_in_8_bits_again():
    """Weights with a scale for each channel, values with one; oracle: onnxruntime."""
    ort = pytest.importorskip("onnxruntime")
    from secateur.exports import to_onnx
    from secateur.importing import as_trained

    rng = np.random.default_rng(0)
    weights = rng.integers(-128, 128, (20, 3, 3, 3)).astype(np.int8)
    arrays = {
        "w": weights, "ws": rng.uniform(0.001, 0.01, 20).astype(np.float32),
        "wz": np.zeros(20, np.int8), "b": rng.normal(size=20).astype(np.float32),
        "s1": np.float32(0.03), "z1": np.int8(7), "s2": np.float32(0.11), "z2": np.int8(-3),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s1", "z1"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["v"], axis=0),
        helper.make_node("Conv", ["d", "v", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "s2", "z2"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s2", "z2"], ["e"]),
        helper.make_node("Relu", ["e"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s2", "z2"], ["y"]),
    ]
    proto = model(
        nodes, [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()],
        [value("x", "N", 3, 6, 6, kind=TensorProto.INT8)],
        [value("y", "N", 20, 4, 4, kind=TensorProto.INT8)],
    )  # fmt: skip
    f, params = from_onnx(proto)
    content = to_onnx(as_trained(sc.BayesianModel(f, params, sc.GaussianLikelihood())))
    written = onnx.load_from_string(content)
    kinds = sorted(n.op_type for n in written.graph.node if n.op_type != "Identity")
    assert kinds == sorted(n.op_type for n in nodes)
    stored = [numpy_of(t) for t in written.graph.initializer]
    assert any(np.array_equal(a, weights) for a in stored if a.dtype == np.int8)
    x = rng.integers(-128, 128, (5, 3, 6, 6)).astype(np.int8)
    truth, mine = (
        ort.InferenceSession(c).run(None, {"x": x})[0] for c in (proto.SerializeToString(), content)
    )
    assert mine.dtype == np.int8
    np.testing.assert_array_equal(mine, truth)


@pytest.mark.parametrize("layer", ["Conv", "Gemm", "MatMul"])
def test_batch_normalisation_is_folded_into_the_layer_before(layer):
    """Oracle: the formula of batch normalisation, on what the layer alone computes."""
    rng = np.random.default_rng(0)
    parts = {
        n: rng.uniform(0.5, 2, 2).astype(np.float32) for n in ("scale", "shift", "mean", "var")
    }
    shape = (2, 3, 1, 1) if layer == "Conv" else (2, 3) if layer == "Gemm" else (3, 2)
    x = rng.normal(size=(4, 3, 2, 2) if layer == "Conv" else (4, 3)).astype(np.float32)
    arrays = [array("w", *shape), array("b", 2, seed=1)]
    if layer == "MatMul":
        nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]),
                 helper.make_node("Add", ["m", "b"], ["h"])]  # fmt: skip
    else:
        options = {"transB": 1} if layer == "Gemm" else {}
        nodes = [helper.make_node(layer, ["x", "w", "b"], ["h"], **options)]
    alone = model(nodes, arrays, [value("x", "N", *x.shape[1:])], [value("h", "N")])
    arrays += [numpy_helper.from_array(a, n) for n, a in parts.items()]
    nodes = [*nodes, helper.make_node("BatchNormalization", ["h", *parts], ["y"], epsilon=1e-3)]
    f, params = from_onnx(model(nodes, arrays, [value("x", "N", *x.shape[1:])], [value("y", "N")]))
    assert [n.kind for n in f.graph.nodes] == [
        n for n in (layer, "Add") if n != "Add" or layer == "MatMul"
    ]
    assert set(params) == {"w", "shift"}
    own, own_params = from_onnx(alone)
    h = np.asarray(own(own_params, x))
    shaped = {n: a.reshape(-1, *[1] * (x.ndim - 2)) for n, a in parts.items()}
    expected = (h - shaped["mean"]) / np.sqrt(shaped["var"] + 1e-3) * shaped["scale"] + shaped[
        "shift"
    ]
    np.testing.assert_allclose(f(params, x), expected, rtol=1e-5, atol=1e-5)


def recurrent(kind, directions):
    gates = {"GRU": 3, "LSTM": 4}[kind]
    arrays = [array("W", directions, gates * 4, 3), array("R", directions, gates * 4, 4, seed=1),
              array("B", directions, gates * 8, seed=2), array("v", 2, 4 * directions, seed=3),
              numpy_helper.from_array(np.array([0, 0, -1]), "shape")]  # fmt: skip
    options = {"linear_before_reset": 1} if kind == "GRU" else {}
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node(
            kind, ["t", "W", "R", "B"], ["s"], hidden_size=4,
            direction="bidirectional" if directions == 2 else "forward", **options,
        ),
        helper.make_node("Transpose", ["s"], ["u"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["u", "shape"], ["r"]),
        helper.make_node("ReduceMean", ["r"], ["m"], axes=[0], keepdims=0),
        helper.make_node("Gemm", ["m", "v"], ["y"], transB=1),
    ]  # fmt: skip
    return model(nodes, arrays, [value("x", "N", 5, 3)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_gates_are_separate_and_hidden_units_of_both_directions_are_found(kind):
    """Oracle: onnxruntime."""
    ort = pytest.importorskip("onnxruntime")
    proto = recurrent(kind, 2)
    f, params = from_onnx(proto)
    x = np.random.default_rng(5).normal(size=(6, 5, 3)).astype(np.float32)
    session = ort.InferenceSession(proto.SerializeToString())
    (truth,) = session.run(None, {"x": x})
    np.testing.assert_allclose(jax.jit(f)(params, x), truth, atol=1e-6)
    gate = "update" if kind == "GRU" else "forget"
    assert params[f"W/forward/{gate}"].shape == (4, 3)
    found = sc.units(f, params, x)
    assert sum(unit.kind == "hidden" for unit in found.units) == 8


def test_what_is_not_a_weight_is_certain():
    arrays = [array("mean", 3), array("w", 3, 2, seed=1), array("b", 2, seed=2)]
    nodes = [
        helper.make_node("Sub", ["x", "mean"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    f, params = from_onnx(model(nodes, arrays))
    assert set(params) == {"w", "b"}
    assert set(f.graph.arrays) == {"mean"}


@pytest.mark.slow
def test_whole_numbers_as_inputs(tmp_path):
    """An embedding; oracle: onnxruntime. The exported file takes whole numbers, too."""
    ort = pytest.importorskip("onnxruntime")
    from secateur.exports import ExportError, export, to_onnx
    from secateur.importing import as_trained

    nodes = [
        helper.make_node("Gather", ["table", "x"], ["e"], axis=0),
        helper.make_node("ReduceMean", ["e"], ["m"], axes=[1], keepdims=0),
        helper.make_node("Gemm", ["m", "w"], ["y"], transB=1),
    ]
    arrays = [array("table", 11, 4), array("w", 2, 4, seed=1)]
    proto = model(nodes, arrays, [value("x", "N", 5, kind=TensorProto.INT64)])
    f, params = from_onnx(proto)
    x = np.random.default_rng(0).integers(-11, 11, (6, 5))
    (truth,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(jax.jit(f)(params, x), truth, atol=1e-6)
    trained = as_trained(sc.BayesianModel(f, params, sc.GaussianLikelihood()))
    (mine,) = ort.InferenceSession(to_onnx(trained)).run(None, {"x": x})
    np.testing.assert_allclose(mine, truth, atol=1e-6)
    sheet = export(trained, tmp_path / "small.onnx", inputs=x, measured=False)
    # The difference from `predict`, on the same integers.
    assert sheet.accuracy.from_predict[0].largest < 1e-5
    with pytest.raises(ExportError, match="integers as inputs"):
        export(trained, tmp_path / "no.c", inputs=x)


def test_scales_are_weights_and_masks_are_not():
    arrays = [array("w", 3, 4), array("scale", 4, seed=1), array("shift", 4, seed=2)]
    for name, values in (("mask", [0, 1, 1, 0]), ("scores", [0, -3e38, 0, -3e38])):
        arrays.append(numpy_helper.from_array(np.array(values, np.float32), name))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "scale"], ["b"]),
        helper.make_node("Add", ["b", "shift"], ["c"]),
        helper.make_node("Mul", ["c", "mask"], ["d"]),
        helper.make_node("Add", ["d", "scores"], ["y"]),
    ]
    f, params = from_onnx(model(nodes, arrays, outputs=[value("y", "N", 4)]))
    assert set(params) == {"w", "scale", "shift"}
    assert set(f.graph.arrays) == {"mask", "scores"}


def test_a_file_for_one_row_takes_several():
    """A network exported for one row flattens it with a shape that has a 1 in it."""
    arrays = [array("w", 2, 6), numpy_helper.from_array(np.array([1, 6]), "shape")]
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["f"]),
             helper.make_node("Gemm", ["f", "w"], ["y"], transB=1)]  # fmt: skip
    f, params = from_onnx(model(nodes, arrays, [value("x", 1, 2, 3)], [value("y", 1, 2)]))
    x = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32)
    np.testing.assert_allclose(f(params, x), x.reshape(5, 6) @ params["w"].T, rtol=1e-5)
    nodes[0] = helper.make_node("Flatten", ["x"], ["f"], axis=0)
    arrays[0] = array("w", 2, 6)
    g, params = from_onnx(model(nodes, arrays[:1], [value("x", 1, 2, 3)], [value("y", 1, 2)]))
    with pytest.raises(OnnxError, match="dynamic"):
        g(params, np.zeros((5, 2, 3), np.float32)[:, :, :])


@pytest.mark.parametrize("shape", [(-1, 6, 2, 2), (0, 6, 4), (6, -1, 4)])
def test_sequences_of_another_length_than_the_file_says(shape):
    """Exporters write the length of their example into shapes; oracle: NumPy."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    arrays = [numpy_helper.from_array(np.array(shape, np.int64), "shape")]
    ends = [value("x", "N", 6, 4)], [value("y", *"ABCD"[: len(shape)])]
    f, params = from_onnx(model(nodes, arrays, *ends))
    for length in (6, 4, 1):
        x = np.random.default_rng(0).normal(size=(3, length, 4)).astype(np.float32)
        expected = [length if n == 6 else 3 if n == 0 else n for n in shape]
        np.testing.assert_array_equal(f(params, x), x.reshape(expected))


def test_exports_of_a_network_that_does_not_read_all_inputs(tmp_path):
    """All inputs stay, also on the command line, where columns of tables do not."""
    ort = pytest.importorskip("onnxruntime")
    from secateur.exports import export
    from secateur.importing import as_trained
    from secateur.runs.folder import RunFolder
    from secateur.runs.table_model import export_run

    f, params = from_onnx(dense())
    variance = {n: np.full_like(a, 1e-4) for n, a in params.items()}
    params["w"][:, 1] = variance["w"][:, 1] = 0
    trained = as_trained(sc.BayesianModel(f, params, inference="local"))
    trained = replace(trained, beliefs={n: sc.Normal(a, variance[n]) for n, a in params.items()})
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    export(trained, tmp_path / "a.onnx", measured=False)
    (mine,) = ort.InferenceSession(tmp_path / "a.onnx").run(None, {"x": x})
    np.testing.assert_allclose(mine, f(params, x), atol=1e-6)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    sc.save(trained, folder.model)
    sheet = export_run(folder, tmp_path / "a.c", keep_inputs=False, measured=False)
    assert sheet.size.parameters > 0
    assert "3" in (tmp_path / "a.h").read_text().split("INPUTS")[1][:4]


def test_numbers_of_16_bits():
    """Oracle: NumPy. (No warning of a limit that numbers of 16 bits cannot hold.)"""
    weights = np.arange(6, dtype=np.float16).reshape(2, 3)
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)]
    ends = (
        [value("x", "N", 3, kind=TensorProto.FLOAT16)],
        [value("y", "N", 2, kind=TensorProto.FLOAT16)],
    )
    f, params = from_onnx(model(nodes, [numpy_helper.from_array(weights, "w")], *ends))
    assert list(params) == ["w"]
    np.testing.assert_array_equal(f(params, np.ones((1, 3), np.float16)), [[3, 12]])


def test_the_last_softmax_comes_off_and_back():
    nodes = [helper.make_node("Gemm", ["x", "w"], ["l"], transB=1),
             helper.make_node("Softmax", ["l"], ["y"], axis=-1)]  # fmt: skip
    f, params = from_onnx(model(nodes, [array("w", 2, 3)]))
    logits = f.without_last_step()
    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(logits(params, x), x @ params["w"].T, rtol=1e-6)
    np.testing.assert_allclose(logits.finish(logits(params, x)), f(params, x), rtol=1e-6)


# --- what is refused ------------------------------------------------------------------------------


def recursive_function():
    call = helper.make_node("Again", ["a"], ["b"], domain="own")
    return helper.make_function(
        "own", "Again", ["a"], ["b"], [call], [helper.make_opsetid("own", 1)]
    )


def endless_loop():
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["again"]),
            helper.make_node("Identity", ["s"], ["t"]),
        ],
        "body",
        [value("i", kind=TensorProto.INT64), value("go", kind=TensorProto.BOOL), value("s", 1)],
        [value("again", kind=TensorProto.BOOL), value("t", 1)],
    )
    true = numpy_helper.from_array(np.array(True), "true")
    start = numpy_helper.from_array(np.zeros(1, np.float32), "start")
    nodes = [helper.make_node("Loop", ["", "true", "start"], ["end"], body=body),
             helper.make_node("Add", ["x", "end"], ["y"])]  # fmt: skip
    return model(nodes, [true, start])


def external(location):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3],
                         data_location=TensorProto.EXTERNAL)  # fmt: skip
    tensor.external_data.add(key="location", value=location)
    return model([helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)], [tensor])


REFUSED = {
    "empty": (lambda: b"", "not an ONNX model"),
    "foreign": (lambda: b"PK\x03\x04" + bytes(range(200)), "not an ONNX model"),
    "cut short": (lambda: dense().SerializeToString()[:-30], "damaged|not an ONNX|cut short"),
    "unknown operator": (
        lambda: model([helper.make_node("Det", ["x"], ["y"], name="here")]),
        r"Det \(node 'here'\).*Supported operators: Abs",
    ),
    "another domain": (
        lambda: model([helper.make_node("Run", ["x"], ["y"], domain="com.evil")],
                      domains=["com.evil"]),
        r"com.evil.Run .* has no rule",
    ),
    "recursive": (
        lambda: model([helper.make_node("Again", ["x"], ["y"], domain="own")],
                      functions=[recursive_function()], domains=["own"]),
        "calls itself",
    ),
    "endless loop": (endless_loop, "without an end"),
    "nothing computes": (
        lambda: model([helper.make_node("Relu", ["q"], ["y"])]), "nothing computes 'q'",
    ),
    "too large": (
        lambda: model([helper.make_node("ConstantOfShape", ["s"], ["c"]),
                       helper.make_node("Add", ["x", "c"], ["y"])],
                      [numpy_helper.from_array(np.array([2**40]), "s")]),
        "too large",
    ),
    "shapes do not fit": (
        lambda: model([helper.make_node("Gemm", ["x", "w"], ["y"])], [array("w", 7, 2)]),
        r"Gemm .* do not fit",
    ),
    "elsewhere": (lambda: external("weights.bin"), "another file"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_refused(case):
    make, message = case
    proto = make()
    content = proto if isinstance(proto, bytes) else proto.SerializeToString()
    with pytest.raises(OnnxError, match=message):
        from_onnx(content)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "", "link.bin"])
def test_external_data_are_read_from_the_folder_only(tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(24))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    onnx.save_model(external(location), folder / "m.onnx")
    with pytest.raises(OnnxError, match="outside the model's folder"):
        from_onnx(folder / "m.onnx")


def test_external_data_in_the_folder_are_read(tmp_path):
    weights = np.arange(6, dtype="<f4").reshape(2, 3)
    (tmp_path / "w.bin").write_bytes(weights.tobytes())
    onnx.save_model(external("w.bin"), tmp_path / "m.onnx")
    np.testing.assert_array_equal(from_onnx(tmp_path / "m.onnx")[1]["w"], weights)
    (tmp_path / "w.bin").write_bytes(weights.tobytes()[:-1])
    with pytest.raises(OnnxError, match="too short"):
        from_onnx(tmp_path / "m.onnx")


def test_a_file_of_2_gb_is_refused_unread(tmp_path):
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)  # takes no space
    with pytest.raises(OnnxError, match="at most 2 GB"):
        from_onnx(path)


def test_missing_file(tmp_path):
    with pytest.raises(OnnxError, match="there is no file"):
        from_onnx(tmp_path / "no.onnx")


def test_random_damage_is_imported_or_refused():
    """`benchmarks/onnx_mutations.py` does this 2000 times with larger files."""
    rng = np.random.default_rng(0)
    originals = [dense().SerializeToString(), recurrent("GRU", 2).SerializeToString()]
    outcomes = []
    for number in range(100):
        try:
            from_onnx(mutate(originals[number % 2], rng))
            outcomes.append("imported")
        except OnnxError:
            outcomes.append("refused")
    assert set(outcomes) == {"imported", "refused"}


def test_models_are_saved_with_their_function(tmp_path):
    from secateur.importing.starting import as_trained

    f, params = from_onnx(dense())
    trained = as_trained(sc.BayesianModel(f, params))
    sc.save(trained, tmp_path / "m.safetensors")
    loaded = sc.load(tmp_path / "m.safetensors")
    x = np.ones((2, 3), np.float32)
    weights = {name: q.mean for name, q in loaded.beliefs.items()}
    np.testing.assert_array_equal(loaded.model.f(weights, x), f(params, x))
