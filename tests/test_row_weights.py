"""Weights of rows: a row of weight 2 is two rows, a row of weight 0 is none."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from recipes import PLAIN
from secateur.caveats import _find_constant_density, find_caveats
from secateur.pruning.growth import compute_sensitivity
from secateur.trained import resume
from secateur.training.program import stack_runs
from secateur.training.scaling import Columns
from secateur.training.sources import Arrays, make_source

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
ROWS = 24
X = RNG.normal(3.0, 2.0, size=(ROWS, 2))
Y = np.stack([X[:, 0] * np.sin(X[:, 1]), X[:, 1]], axis=1) + 0.3 * RNG.normal(size=(ROWS, 2))
WEIGHTS = np.array([0, 1, 2, 3] * 6)
REPEATED = np.repeat(np.arange(ROWS), WEIGHTS)
WHOLE = replace(sc.Recipe(), batch_size=1000, epochs=40)


def make_model(likelihood=None, outputs=2):
    network = sc.networks.Dense(2, (3,), outputs)
    return sc.BayesianModel(
        network, network.init(KEY), likelihood=likelihood or sc.GaussianLikelihood()
    )


LIKELIHOODS = {
    "gaussian": (sc.GaussianLikelihood(), Y),
    "known precision": (sc.GaussianLikelihood(precision=2.0), Y),
    "bernoulli": (sc.BernoulliLikelihood(), (Y - np.median(Y) > 0).astype(int)),
    "poisson": (sc.PoissonLikelihood(), np.floor(np.abs(Y)).astype(int)),
    "categorical": (sc.CategoricalLikelihood(), (Y[:, 0] > 0).astype(int)),
}


@pytest.fixture(scope="module", params=LIKELIHOODS)
def fits(request):
    """A fit to weighted rows, and one to repeated rows; all rows are in every step."""
    likelihood, y = LIKELIHOODS[request.param]
    model = make_model(likelihood)
    sets = (X, y, WEIGHTS), (X[REPEATED], y[REPEATED])
    return sets, [sc.fit(model, data, key=KEY, recipe=WHOLE, progress=False) for data in sets]


def test_whole_weights_train_like_repeated_rows(fits):
    """Oracle: the same training with repeated rows, step by step the same function."""
    _, (weighted, repeated) = fits
    for a, b in zip(*map(jax.tree.leaves, (weighted.scaling, repeated.scaling)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    for a, b in zip(*map(jax.tree.leaves, (weighted.beliefs, repeated.beliefs)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)
    for a, b in zip(*map(jax.tree.leaves, (weighted.noise, repeated.noise)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8)
    np.testing.assert_allclose(weighted.free_energy, repeated.free_energy, rtol=1e-9)
    np.testing.assert_allclose(weighted.history.accuracy, repeated.history.accuracy, rtol=1e-8)


def test_the_free_energy_at_given_beliefs(fits):
    """Oracles: repeated rows, and the objective by its definition."""
    sets, (trained, _) = fits
    evaluations = []
    for data in sets:
        trainer, state = resume([trained], Arrays([data]))
        evaluations.append(trainer.evaluate(state)[0])
    totals = [float(e.free_energy.total) for e in evaluations]
    np.testing.assert_allclose(*totals, rtol=1e-12)
    scaling, model = trained.scaling, trained.model
    x, y = scaling.standardise((X, sets[0][1]), np.float64)
    parts = sc.free_energy(
        sc.propagate(model.f, "moments"), trained.beliefs, trained.priors, model.likelihood,
        evaluations[0].noise, (x, y), key=None, weights=jnp.asarray(WEIGHTS, float),
    )  # fmt: skip
    scale = 0.0 if scaling.targets is None else np.sum(np.log(scaling.targets.scale))
    np.testing.assert_allclose(totals[0], float(parts.total) + WEIGHTS.sum() * scale, rtol=1e-9)


def test_what_cut_weights_would_change(fits):
    """Oracle: repeated rows. Growing judges cut weights by slope and curvature."""
    sets, (trained, _) = fits
    results = []
    for data in sets:
        trainer, state = resume([trained], Arrays([data]))
        noise = stack_runs([trained.noise])
        (block,) = trainer.blocks()
        results.append(compute_sensitivity(trainer.spec, state, trainer.constants, block, noise))
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_the_noise_of_weighted_rows():
    """Oracle: α̂ = α + ½ Σ w, β̂ = β + ½ Σ w E[(y − f)²], with weights that are not whole."""
    weights = np.random.default_rng(1).uniform(0, 2, ROWS)
    model = make_model(sc.GaussianLikelihood(sc.Gamma(2.0, 3.0)))
    recipe = replace(WHOLE, batch_size=7)
    trained = sc.fit(model, (X, Y, weights), key=KEY, recipe=recipe, progress=False)
    np.testing.assert_allclose(trained.noise.shape, 2 + 0.5 * weights.sum(), rtol=1e-9)
    x, y = trained.scaling.standardise((X, Y), np.float64)
    f = sc.propagate(trained.model.f, "moments")(None, trained.beliefs, x)
    squares = (y - f.mean) ** 2 + f.variance
    np.testing.assert_allclose(trained.noise.rate, 3 + 0.5 * weights @ np.asarray(squares))


def test_an_algorithm_that_samples():
    """Oracle: moments, which local reparametrisation estimates without bias for a linear model."""
    network = sc.networks.Dense(2, (), 2)
    model = sc.BayesianModel(network, network.init(KEY))
    data = (X, Y, WEIGHTS)
    trained = sc.fit(model, data, key=KEY, recipe=WHOLE, progress=False)
    sampled = replace(
        trained,
        model=replace(trained.model, inference="local"),
        training=replace(trained.training, recipe=replace(WHOLE, samples=400)),
    )
    trainer, state = resume([sampled], Arrays([data]))
    (evaluation,) = trainer.evaluate(state)
    np.testing.assert_allclose(evaluation.noise.shape, 1 + 0.5 * WEIGHTS.sum())
    error = float(evaluation.free_energy.total) - trained.free_energy
    assert abs(error) < 4 * float(evaluation.standard_error)
    assert float(evaluation.standard_error) < 0.5


@pytest.mark.parametrize("batch_size", [200, 40])
def test_the_exact_posterior_of_a_conjugate_model(batch_size):
    """Oracle: the closed forms of posterior and evidence of θ ~ N(0, 1), y ~ N(θ x, 1/4)."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(200, 1))
    y = 1.5 * x + 0.5 * rng.normal(size=(200, 1))
    weights = rng.exponential(size=200)
    model = sc.BayesianModel(
        lambda w, x: x @ w, jnp.zeros((1, 1)), likelihood=sc.GaussianLikelihood(precision=4.0)
    )
    recipe = replace(PLAIN, batch_size=batch_size, epochs=600, cooling=0.5)
    trained = sc.fit(model, (x, y, weights), key=KEY, recipe=recipe, progress=False)
    w = weights[:, None]
    precision = 1 + 4 * np.sum(w * x**2)
    mean = 4 * np.sum(w * x * y) / precision
    log_evidence = 0.5 * (
        np.sum(w * (np.log(4 / (2 * np.pi)) - 4 * y**2)) + precision * mean**2 - np.log(precision)
    )
    tolerance = 1e-4 if batch_size == 200 else 3e-3
    np.testing.assert_allclose(trained.beliefs.mean, mean, rtol=tolerance)
    np.testing.assert_allclose(trained.beliefs.variance, 1 / precision, rtol=50 * tolerance)
    assert -1e-9 < trained.free_energy + log_evidence < 0.01


def test_rows_of_weight_0_have_no_influence():
    model = make_model()
    strange = WEIGHTS[:, None] == 0
    sets = (X, Y, WEIGHTS), (np.where(strange, 1e6, X), np.where(strange, -1e6, Y), WEIGHTS)
    one, other = (sc.fit(model, s, key=KEY, recipe=WHOLE, progress=False) for s in sets)
    np.testing.assert_allclose(one.free_energy, other.free_energy, rtol=1e-12)
    np.testing.assert_allclose(one.predict(X).mean, other.predict(X).mean, rtol=1e-9)


def test_statistics_of_columns():
    """Oracle: NumPy's statistics of repeated values, also when blocks are joined."""
    values = np.random.default_rng(3).normal(size=(ROWS, 3, 2))
    whole = Columns(values[REPEATED])
    parts = [Columns(values[i : i + 5], WEIGHTS[i : i + 5]) for i in range(0, ROWS, 5)]
    nothing = Columns(values[:2], np.zeros(2))
    for first in (Columns(values, WEIGHTS), parts[0]):
        first.join(nothing)
        for other in parts[1:] if first is parts[0] else []:
            first.join(other)
        assert first.count == whole.count
        np.testing.assert_allclose(first.mean, values[REPEATED].mean(axis=(0, 1)))
        np.testing.assert_allclose(first.deviation, values[REPEATED].std(axis=(0, 1)))
    nothing.join(parts[1])
    np.testing.assert_allclose(nothing.mean, parts[1].mean)


def make_batches(with_weights=(True,) * 4):
    for start, weighted in zip(range(0, ROWS, 6), with_weights, strict=True):
        here = slice(start, start + 6)
        yield (X[here], Y[here], WEIGHTS[here]) if weighted else (X[here], Y[here])


def test_a_stream_of_weighted_batches(monkeypatch):
    """Oracle: the same rows in memory; blocks of 7 rows are not the batches of 6."""
    monkeypatch.setattr("secateur.training.sources._BLOCK_ROWS", 7)
    recipe = replace(WHOLE, batch_size=7, epochs=2)
    trained = sc.fit(make_model(), (X, Y, WEIGHTS), key=KEY, recipe=recipe, progress=False)
    free_energies = []
    for data in ((X, Y, WEIGHTS), make_batches):
        trainer, state = resume([trained], make_source(data, size=None, batch_size=7))
        free_energies.append(float(trainer.evaluate(state)[0].free_energy.total))
    np.testing.assert_allclose(*free_energies, rtol=1e-9)
    streamed = sc.fit(make_model(), make_batches, key=KEY, recipe=recipe, progress=False)
    assert np.isfinite(streamed.free_energy)
    once = make_source(make_batches(), size=240, batch_size=7)
    assert once.total_weights == [10 * WEIGHTS.sum()]
    with pytest.raises(ValueError, match="others have weights"):
        make_source(lambda: make_batches((True, True, False, True)), size=None, batch_size=7)


def test_many_fits_with_weights_of_their_own():
    """Oracle: each of them alone."""
    model, other = make_model(), np.roll(WEIGHTS, 1)
    keys = list(jax.random.split(KEY, 2))
    sets = [(X, Y, WEIGHTS), (X, Y, other)]
    many = sc.fit_many(model, sets, keys=keys, recipe=WHOLE, progress=False)
    alone = sc.fit(model, sets[0], key=keys[0], recipe=WHOLE, progress=False)
    np.testing.assert_allclose(many[0].free_energy, alone.free_energy, rtol=1e-6)
    assert many[1].noise.shape[0] == pytest.approx(1 + 0.5 * other.sum())
    with pytest.raises(ValueError, match="equal shapes"):
        sc.fit_many(model, [(X, Y, WEIGHTS), (X, Y)], keys=keys, progress=False)


def test_pruning_and_updating(tmp_path):
    """Oracle: repeated rows."""
    model, file = make_model(), tmp_path / "checkpoint"
    results = []
    for data in ((X, Y, WEIGHTS), (X[REPEATED], Y[REPEATED])):
        trained = sc.fit(model, data, key=KEY, recipe=WHOLE, progress=False)
        pruned = sc.prune(trained, data, key=KEY, epochs=10, progress=False)
        results.append([pruned, sc.update(pruned, data, key=KEY, epochs=10, progress=False)])
    for weighted, repeated in zip(*results, strict=True):
        assert weighted.live_weights == repeated.live_weights
        np.testing.assert_allclose(weighted.free_energy, repeated.free_energy, rtol=1e-7)
    recipe = replace(WHOLE, epochs=2)
    options = {"key": KEY, "recipe": recipe, "checkpoint": file, "progress": False}
    sc.fit(model, (X, Y, WEIGHTS), **options)
    sc.fit(model, (X, Y, WEIGHTS), **options)
    with pytest.raises(sc.CheckpointError, match="another training"):
        sc.fit(model, (X, Y, np.roll(WEIGHTS, 1)), **options)


@pytest.mark.parametrize("name", [n for n in LIKELIHOODS if n != "known precision"])
def test_what_a_constant_achieves(name):
    """Oracle: repeated rows."""
    likelihood, y = LIKELIHOODS[name]
    weighted = _find_constant_density(likelihood, y, WEIGHTS)
    repeated = _find_constant_density(likelihood, y[REPEATED], np.ones(len(REPEATED)))
    assert weighted == pytest.approx(repeated, rel=1e-12)


def test_a_model_is_compared_with_the_constant_of_its_weights():
    """A constant for rows that hardly count is better there than a model for the other rows."""
    x = np.linspace(-1, 1, 40)[:, None]
    y = np.where(np.arange(40)[:, None] < 20, 5 * x, 0.01 * np.cos(40 * x))
    weights = np.where(np.arange(40) < 20, 1.0, 1e-6)
    model = sc.BayesianModel(lambda w, x: x @ w["w"] + w["b"], {
        "w": jnp.zeros((1, 1)), "b": jnp.zeros((1, 1))})  # fmt: skip
    trained = sc.fit(model, (x, y, weights), key=KEY, progress=False)
    assert find_caveats(trained, (x, y, weights)) == []
    assert "not better than a constant" in find_caveats(trained, (x[20:], y[20:]))[0]


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (-WEIGHTS, ValueError, "weight of row 1 is -1"),
        (np.where(WEIGHTS == 2, np.nan, 1.0), ValueError, "weight of row 2 is nan"),
        (WEIGHTS[:-1], ValueError, r"shape \(23,\), and there are 24 rows"),
        (WEIGHTS[:, None], ValueError, r"shape \(24, 1\)"),
        (np.zeros(ROWS), ValueError, "all rows have weight 0"),
        (np.array(["a"] * ROWS), TypeError, "dtype <U1"),
    ],
)
def test_weights_that_are_refused(weights, error, message):
    with pytest.raises(error, match=message):
        sc.fit(make_model(), (X, Y, weights), key=KEY, progress=False)


def test_no_weights_are_no_arrays():
    """Nothing is computed with weights where there are none, and None is as good as none."""
    source = make_source((X, Y, None), size=None, batch_size=8)
    assert source.sets[0].weights is None
    assert source.total_weights == [ROWS]
    trainer, _ = resume(
        [sc.fit(make_model(), (X, Y), key=KEY, recipe=WHOLE, progress=False)], source
    )
    assert len(jax.tree.leaves(list(trainer.blocks()))) == 2
