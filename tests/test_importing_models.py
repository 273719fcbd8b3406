"""The networks of MLPerf Tiny, read from files. Skipped where these are not there.

SECATEUR_MODELS is their folder (`ad01_fp32.onnx`, …), and SECATEUR_DATA that of the data sets.
"""

import os
from pathlib import Path

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

# ruff: noqa: E402
import secateur as sc
from secateur.exports import to_onnx
from secateur.importing import as_trained, from_onnx

FOLDER = Path(os.environ.get("SECATEUR_MODELS", "/nowhere"))
FLOAT = ("ad01_fp32", "kws_ref_model_float32", "pretrainedResnet", "vww_96_float")
INT8 = ("kws_ref_model", "pretrainedResnet_quant", "str_ww_ref_model")
ALGORITHMS = ("moments", "independent", "local", "global")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="SECATEUR_MODELS has no models"),
]


def load(name):
    return FOLDER / f"{name}.onnx", *from_onnx(FOLDER / f"{name}.onnx")


def draw_rows(f, count):
    shape, rng = (count, *f.row_shape), np.random.default_rng(0)
    if f.inputs[0].dtype == "int8":
        return rng.integers(-128, 128, shape).astype(np.int8)
    return rng.normal(size=shape).astype(np.float32)


def run(path, x):
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(path)
    return session.run(None, {session.get_inputs()[0].name: x})[0].astype(np.float64)


@pytest.mark.parametrize("name", [*FLOAT, *INT8])
def test_equal_to_onnxruntime(name):
    path, f, params = load(name)
    x = draw_rows(f, 4)
    truth, mine = run(path, x), np.asarray(jax.jit(f)(params, x))
    if name in FLOAT:
        assert np.abs(mine - truth).max() <= 1e-5 * np.abs(truth).max()
    elif name == "pretrainedResnet_quant":
        # Sums that lie between two steps are rounded either way, there too: onnxruntime with and
        # without its own optimisations differs by 4 steps of the last softmax.
        assert np.mean(np.abs(mine - truth) > 1) < 0.1
    else:
        assert np.abs(mine - truth).max() <= 1


@pytest.mark.parametrize("name", [*FLOAT, *INT8])
def test_can_be_examined_and_propagated(name):
    _, f, params = load(name)
    x = draw_rows(f, 2)
    assert sum(unit.kind == "hidden" for unit in sc.units(f, params, x).units) > 200
    assert len(sc.coverage(f, params, x).rows) > 10
    beliefs = {n: sc.Normal(a, np.full_like(a, 1e-4)) for n, a in params.items()}
    for how in ALGORITHMS:
        result = jax.eval_shape(sc.propagate(f, how), jax.random.key(0), beliefs, x)
        assert jax.tree.leaves(result)[0].shape[0] == 2


@pytest.mark.parametrize("name", [*FLOAT, *INT8])
def test_round_trip(name):
    """Types of input and output stay, and numbers of 8 bits are written in 8 bits again."""
    path, f, params = load(name)
    f = f.without_last_step()
    likelihood = sc.CategoricalLikelihood() if f.last_step else sc.GaussianLikelihood()
    content = to_onnx(as_trained(sc.BayesianModel(f, params, likelihood)))
    assert len(content) <= 1.05 * path.stat().st_size
    x = draw_rows(f, 2)
    truth = run(path, x)
    kinds = [n.op_type for n in onnx.load_from_string(content).graph.node]
    quantised = [n.op_type for n in onnx.load(path).graph.node].count("QuantizeLinear")
    assert kinds.count("QuantizeLinear") == quantised
    assert "Round" not in kinds
    assert np.abs(run(content, x) - truth).max() <= 1e-6 * np.abs(truth).max()


def test_keyword_spotting():
    """90.1 % of the 1000 official inputs, as with onnxruntime; its authors state 90.0 %."""
    data = Path(os.environ.get("SECATEUR_DATA", "/nowhere")) / "kws" / "kws_test.npz"
    if not data.is_file():
        pytest.skip("SECATEUR_DATA has no kws/kws_test.npz")
    with np.load(data) as file:
        mfcc, label = file["mfcc"], file["label"]
    _, f, params = load("kws_ref_model_float32")
    x = ((mfcc.astype(np.float32) - 83) * 0.5847).reshape(len(mfcc), 49, 10, 1)
    right = np.asarray(jax.jit(f)(params, x)).argmax(1) == label
    assert len(right) == 1000
    assert round(float(right.mean()), 3) == 0.901
