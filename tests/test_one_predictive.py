"""One model, asked in every way there is: always the same mean, standard deviation and interval.

The oracle is `Trained.predict`, whose own oracles are in the tests of predictions and likelihoods.
Everything else must say the same to 1e-6, relative to the standard deviation of a target: the
command line and the record of the report write seven digits, and ONNX computes in float32.
"""

import io
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
import pytest

import secateur as sc
from command_line import secateur
from secateur.networks import Dense
from secateur.report import make_record
from secateur.sklearn import PrunedClassifier, PrunedRegressor
from secateur.sklearn.features import FeatureEncoding
from secateur.tables import encode_table

pytestmark = pytest.mark.xdist_group("one predictive")

LEVEL, CLASSES = 0.95, ["few", "many", "some"]
NUMBERS = {
    "learnt precision": (sc.GaussianLikelihood(), "moments"),
    "known precision": (sc.GaussianLikelihood(precision=9.0), "moments"),
    "samples": (sc.GaussianLikelihood(), "local"),
}
rng = np.random.default_rng(0)
# Numbers that float32 holds exactly, so that ONNX is given the same inputs.
X = rng.normal(size=(60, 2)).astype(np.float32).astype(np.float64)
Y = 3 + 2 * X[:, :1] - np.abs(X[:, 1:]) + 0.3 * rng.normal(size=(60, 1))
LABELS = np.digitize(Y[:, 0], [1.5, 3.5])


class Answers(NamedTuple):
    """What was said of the rows of X: of numbers, or the probabilities of classes."""

    mean: Any
    standard_deviation: Any = None
    low: Any = None
    high: Any = None


@cache
def trained(name):
    """A model, and its targets as a table has them."""
    if name == "classes":
        likelihood, inference, outputs = sc.CategoricalLikelihood(), "moments", 3
        column, y = np.array(["few", "some", "many"])[LABELS], None
    else:
        (likelihood, inference), outputs = NUMBERS[name], 1
        column, y = Y[:, 0], Y
    table = encode_table(pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": column}), ["y"])
    y = table.y if y is None else y
    network = Dense(2, (3,), outputs)
    model = sc.BayesianModel(
        network, network.init(jax.random.key(0)), likelihood=likelihood, inference=inference
    )
    result = sc.fit(model, (X, y), key=jax.random.key(1), epochs=40, progress=False)
    return result, table


# --- ways to ask ----------------------------------------------------------------------------------


def ask_model(name, folder):
    prediction = trained(name)[0].predict(X)
    if name == "classes":
        return Answers(prediction.probabilities)
    low, high = prediction.interval(LEVEL)
    return Answers(prediction.mean, prediction.standard_deviation, low, high)


def ask_command_line(name, folder):
    result, table = trained(name)
    sc.save(result, folder / "model.safetensors", extra={"table": table.encoding.to_json()})
    pd.DataFrame(X, columns=["a", "b"]).to_csv(folder / "new.csv", index=False)
    command = secateur("predict", folder, folder / "new.csv", "--interval", LEVEL)
    assert command.code == 0, command.err
    frame = pd.read_csv(io.StringIO(command.out))
    if name == "classes":
        return Answers(frame[[f"y={c}" for c in CLASSES]].to_numpy())
    columns = (frame[[f"y_{part}"]].to_numpy() for part in ("mean", "sd", "low", "high"))
    return Answers(*columns)


def ask_report(name, folder):
    result, table = trained(name)

    record = make_record(
        fitted=result,
        pruned=result,
        inputs=table.encoding.inputs,
        targets=[{"name": t.name, "classes": t.classes} for t in table.encoding.targets],
        task=table.encoding.task,
        settings={},
        command="",
        data={"name": "table"},
        held_out=(X, table.y),
        seconds=0.0,
    )
    (target,) = record["held_out"]["targets"]
    if name == "classes":
        return Answers([bin_["confidence"] for bin_ in target["after"]["bins"]])
    points = target["points"]
    assert points["row"] == list(range(len(X)))
    columns = ("mean", "deviation", "low", "high")
    return Answers(*(np.array(points[column])[:, None] for column in columns))


def ask_estimator(name, folder):
    estimator = PrunedClassifier() if name == "classes" else PrunedRegressor()
    estimator.result_, estimator.average_ = trained(name)[0], None
    estimator.n_features_in_, estimator._is_flat = 2, False
    estimator._encoding = FeatureEncoding.from_rows(X, ["a", "b"])
    if name == "classes":
        estimator.classes_ = np.array(CLASSES)
        return Answers(estimator.predict_proba(X))
    return Answers(
        *estimator.predict(X, return_std=True), *estimator.predict_interval(X, level=LEVEL)
    )


def ask_onnx(name, folder):
    runtime = pytest.importorskip("onnxruntime")
    result, _ = trained(name)
    sc.export(result, folder / "model.onnx")
    session = runtime.InferenceSession(folder / "model.onnx")
    names = [output.name for output in session.get_outputs()]
    values = session.run(None, {session.get_inputs()[0].name: X.astype(np.float32)})
    answers = dict(zip(names, (np.asarray(v, np.float64) for v in values), strict=True))
    if name == "classes":
        return Answers(answers["probabilities"])
    columns = ("mean", "standard_deviation", "lower", "upper")
    return Answers(*(answers[column] for column in columns))


# ONNX has the moments of a model that samples, not its samples.
CASES = [
    pytest.param(ask, name, id=f"{ask.__name__.removeprefix('ask_')} {name}")
    for name in (*NUMBERS, "classes")
    for ask in (ask_command_line, ask_report, ask_estimator, ask_onnx)
    if not (ask is ask_onnx and name == "samples")
]


@pytest.mark.slow
@pytest.mark.parametrize(("ask", "name"), CASES)
def test_every_way_to_ask_gives_the_same_answer(ask, name, tmp_path):
    expected, answers = ask_model(name, tmp_path), ask(name, tmp_path)
    if name == "classes":
        probabilities = expected.mean
        if ask is ask_report:  # which has the mean probability of the choices, by tenths of it
            sure = probabilities.max(axis=1)
            tenths = np.minimum((10 * sure).astype(int), 9)
            probabilities = [sure[tenths == tenth].mean() for tenth in np.unique(tenths)]
        np.testing.assert_allclose(answers.mean, probabilities, rtol=0, atol=1e-6)
        return
    # An end of an interval is a difference, and as precise as its terms.
    size = np.abs(expected.mean) + 0.5 * (expected.high - expected.low)
    scales = Answers(np.maximum(np.abs(expected.mean), expected.standard_deviation),
                     expected.standard_deviation, size, size)  # fmt: skip
    for field, actual, wanted, scale in zip(
        Answers._fields, answers, expected, scales, strict=True
    ):
        assert actual.shape == wanted.shape == (len(X), 1)
        assert np.max(np.abs(actual - wanted) / scale) < 1e-6, field
