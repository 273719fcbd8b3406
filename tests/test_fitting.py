"""`fit`: what it minimises, which rows it uses, when it ends, what it refuses."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import secateur as sc
from secateur.progress import Progress, ProgressUpdate
from secateur.training import program
from secateur.training.batches import deal, shuffle
from secateur.training.coordinates import Coordinates
from secateur.training.layout import assemble, flat_complexity, flatten_priors, lay_out
from secateur.training.recipe import (
    RECIPES,
    Training,
    find_rate_scales,
    make_adam,
    make_initial_beliefs,
)
from secateur.training.sources import Arrays, make_scaling
from secateur.training.timetable import fit_trend
from secateur.training.trainer import Trainer

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = np.sin(X[:, :1]) + 0.1 * RNG.normal(size=(60, 1))
QUICK = replace(RECIPES["default"], epochs=40, batch_size=16, warm_steps=0, rate=1e-2)


def net(params, x):
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def params(hidden=6, inputs=3, outputs=1, dtype=jnp.float64):
    k1, k2 = jax.random.split(KEY)
    return {
        "w1": jax.random.normal(k1, (inputs, hidden), dtype),
        "b1": jnp.zeros((1, hidden), dtype),
        "w2": jax.random.normal(k2, (hidden, outputs), dtype),
        "b2": jnp.zeros((1, outputs), dtype),
    }


def model(**options):
    return sc.BayesianModel(net, params(), **options)


def fit(model, data, key=KEY, recipe=QUICK, **options):
    return sc.fit(model, data, key=key, recipe=recipe, progress=False, **options)


def linear(w, x):
    return x @ w


def linear_model(**options):
    return sc.BayesianModel(linear, jnp.zeros((3, 1)), **options)


@pytest.fixture(scope="module")
def fitted():
    return fit(model(), (X, Y))


# --- what is minimised --------------------------------------------------------------------------


@pytest.mark.parametrize("inference", ["moments", "local", "global"])
def test_linear_regression_reaches_the_conjugate_optimum(inference):
    """Oracle: the best mean-field Normal has the exact posterior's mean and 1/precision_ii."""
    recipe = replace(
        QUICK, standardise_inputs=False, standardise_targets=False, epochs=2000, batch_size=60
    )
    noise = 4.0
    found = fit(
        linear_model(likelihood=sc.GaussianLikelihood(precision=noise), inference=inference),
        (X, Y),
        recipe=recipe,
    )
    precision = noise * X.T @ X + np.eye(3)
    mean = noise * np.linalg.solve(precision, X.T @ Y)
    tolerance = 1e-3 if inference == "moments" else 0.02
    np.testing.assert_allclose(found.beliefs.mean, mean, atol=tolerance)
    np.testing.assert_allclose(
        found.beliefs.variance[:, 0],
        1 / np.diag(precision),
        rtol={"moments": 0.02, "local": 0.1, "global": 0.3}[inference],
    )
    covariance = np.eye(60) / noise + X @ X.T
    evidence = -0.5 * (Y.T @ np.linalg.solve(covariance, Y)).item()
    evidence -= 0.5 * (60 * np.log(2 * np.pi) + np.linalg.slogdet(covariance)[1])
    assert found.free_energy >= -evidence - 4 * found.standard_error
    assert found.free_energy == pytest.approx(-evidence, abs=0.5 + 4 * found.standard_error)


def test_the_free_energy_is_in_the_units_of_the_data(fitted):
    """Oracle: y → 1000 y + 7 adds N ln 1000 to −ln p(y), and nothing else."""
    found = fit(model(), (X, 1000 * Y + 7))
    shift = len(Y) * np.log(1000)
    assert found.free_energy == pytest.approx(fitted.free_energy + shift, abs=1e-3)
    np.testing.assert_allclose(
        found.predict(X).mean, 1000 * fitted.predict(X).mean + 7, rtol=1e-4, atol=1e-2
    )
    np.testing.assert_allclose(
        found.predict(X).variance, 1e6 * fitted.predict(X).variance, rtol=1e-3
    )


def test_a_known_precision_is_in_the_units_of_the_targets():
    """Oracle: the conjugate posterior for targets far from unit scale, by the default recipe."""
    y, precision = 50 * X @ np.array([[1.0], [-2.0], [0.5]]), 0.04
    likelihood = sc.GaussianLikelihood(precision=precision)
    recipe = replace(QUICK, standardise_inputs=False, epochs=3000, rate=0.2, batch_size=60)
    wide = linear_model(likelihood=likelihood, prior=sc.Normal(0.0, 1e4))
    found = fit(wide, (X, y), recipe=recipe)
    assert found.scaling.targets is None
    exact = precision * X.T @ X + 1e-4 * np.eye(3)
    np.testing.assert_allclose(
        found.beliefs.mean, precision * np.linalg.solve(exact, X.T @ y), rtol=1e-2
    )
    np.testing.assert_allclose(found.beliefs.variance[:, 0], 1 / np.diag(exact), rtol=0.05)


def test_the_free_energy_is_that_of_free_energy(fitted):
    """Oracle: `free_energy` of the beliefs that came out, on data standardised by hand."""
    x, y = (X - X.mean(0)) / X.std(0), (Y - Y.mean(0)) / Y.std(0)
    forward = sc.propagate(net, "moments")
    likelihood = fitted.model.likelihood

    @jax.jit
    def compute(beliefs):
        noise = likelihood.update_noise(forward(None, beliefs, x), y)
        return sc.free_energy(forward, beliefs, fitted.priors, likelihood, noise, (x, y), key=None)

    expected = compute(fitted.beliefs)
    jacobian = len(Y) * np.log(Y.std())
    assert fitted.free_energy == pytest.approx(float(expected.total) + jacobian, rel=1e-9)
    assert float(fitted.parts.total) == fitted.free_energy
    assert float(fitted.parts.accuracy) == pytest.approx(float(expected.accuracy) - jacobian)


def test_training_lowers_the_free_energy(fitted):
    history = fitted.history.free_energy
    assert len(history) == fitted.epochs == 40
    assert fitted.free_energy < history[0] - 50


PRIORS = {
    "normal": sc.Normal(0.5, 2.0),
    "laplace": sc.Laplace(0.0, 0.7),
    "normals": {"w1": sc.Normal(0.0, 1.0), "b1": sc.Normal(0.0, 2.0), "w2": sc.Normal(0.0, 0.5)},
    "mixed": {"w1": sc.Laplace(0.0, 1.0), "b1": sc.Normal(0.0, 1.0), "w2": sc.Normal(0.0, 1.0)},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prior", "apart"),
    [("normal", False), ("normal", True), ("laplace", False), ("normals", False), ("mixed", True)],
)
def test_flat_complexity_is_the_complexity(prior, apart, monkeypatch):
    """Oracle: `secateur.complexity`, with pruned weights and padding that must not count."""
    beliefs = sc.believe(params(), variance=0.3)
    keep = jax.tree.map(lambda q: q.mean < 0.5, beliefs, is_leaf=lambda q: isinstance(q, sc.Normal))
    beliefs = sc.cut(beliefs, keep)
    if apart and prior != "mixed":  # every leaf counts as a large one
        monkeypatch.setattr("secateur.training.layout._LARGE", 1)
    prior = PRIORS[prior]
    if isinstance(prior, dict):
        prior = prior | {"b2": sc.Normal(0.0, 1.0)}
    priors = sc.priors(beliefs, prior)
    layout, flat, certain = lay_out(beliefs, priors, multiple=16)
    assert all(size % 16 == 0 for size in layout.sizes)
    assert len(layout.sizes) == (4 if apart else 1)
    weights, alive = Coordinates.from_beliefs(flat), tuple(q.variance > 0 for q in flat)
    flattened = flatten_priors(layout, priors)
    value, gradient = jax.jit(jax.value_and_grad(lambda w: flat_complexity(w, alive, flattened)))(
        weights
    )
    np.testing.assert_allclose(value, sc.complexity(beliefs, priors), rtol=1e-9)
    for part in (gradient.means, gradient.log_deviations):
        for g, a in zip(part, alive, strict=True):
            assert np.isfinite(g).all()
            assert not g[~a].any()
    back = layout.beliefs(weights.beliefs(alive), certain)
    for ours, theirs in zip(jax.tree.leaves(back), jax.tree.leaves(beliefs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    found, restored = assemble(layout, weights, alive, flattened)
    restored = layout.build_tree(restored, None)
    np.testing.assert_allclose(sc.complexity(beliefs, restored), value, rtol=1e-9)
    np.testing.assert_allclose(found[0].mean, back["b1"].mean)


@pytest.mark.parametrize("apart", [False, True])
def test_the_gradient_of_cutting_vectors_is_their_concatenation(apart, monkeypatch):
    """Oracle: the gradient of the same function of the leaves themselves."""
    if apart:
        monkeypatch.setattr("secateur.training.layout._LARGE", 1)
    beliefs = sc.believe(params(), variance=0.3)
    layout, flat, certain = lay_out(beliefs, multiple=16)
    assert len(layout.sizes) == (4 if apart else 1)

    def total(beliefs):
        leaves = jax.tree.leaves(beliefs)
        return sum(jnp.sum(jnp.sin(leaf * (i + 1))) for i, leaf in enumerate(leaves))

    ours = jax.jit(jax.grad(lambda flat: total(layout.beliefs(flat, certain))))(flat)
    theirs = lay_out(jax.jit(jax.grad(total))(beliefs), multiple=16)[1]
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b)


def test_only_variances_of_normal_priors_are_learnt():
    with pytest.raises(ValueError, match="Normal priors only"):
        fit(model(prior=sc.Laplace(0.0, 1.0)), (X, Y), learn_priors="leaves")


def test_certain_leaves_and_objects_pass_through():
    weights = {**params(), "steps": 3, "name": "net"}
    found = fit(
        sc.BayesianModel(net, weights, where=lambda path, leaf: "w" in path), (X, Y), epochs=2
    )
    assert found.beliefs["steps"] == 3
    np.testing.assert_array_equal(found.beliefs["b1"], weights["b1"])
    assert isinstance(found.beliefs["w1"], sc.Normal)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "targets", "outputs"),
    [
        (sc.CategoricalLikelihood(), (X[:, 0] > 0).astype(int) + (X[:, 1] > 0), 3),
        (sc.BernoulliLikelihood(), (X[:, :1] > 0).astype(float), 1),
        (sc.PoissonLikelihood(), RNG.poisson(np.exp(0.5 * X[:, :1])), 1),
    ],
    ids=["categorical", "bernoulli", "poisson"],
)
def test_other_likelihoods_learn(likelihood, targets, outputs):
    """Oracle: a model that ignores its inputs; classes and counts here depend on them."""
    data_model = sc.BayesianModel(net, params(outputs=outputs), likelihood=likelihood)
    found = fit(data_model, (X, targets))
    assert found.scaling.targets is None
    assert found.noise is None
    shuffled = fit(data_model, (X[RNG.permutation(60)], targets))
    assert float(found.parts.accuracy) > float(shuffled.parts.accuracy) + 5


# --- every row counts ---------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "batch"), [(17, 5), (60, 16), (8, 8), (9, 4), (3, 1)])
def test_every_row_is_dealt_once(rows, batch):
    order = jax.random.permutation(KEY, rows)
    indices, counts = deal(order, batch)
    assert indices.shape == (-(-rows // batch), batch)
    assert sorted(np.asarray(indices)[counts]) == list(range(rows))
    sizes = counts.sum(axis=1)
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("rows", [1, 2, 3, 17, 1000])
def test_shuffling_is_a_permutation_and_random(rows):
    """Oracle: with 300 keys every row is about as often in the first half as in the second, and as
    often in the same half as its neighbour as not.
    """
    orders = np.asarray(jax.vmap(lambda k: shuffle(k, rows))(jax.random.split(KEY, 300)))
    np.testing.assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(rows), (300, 1)))
    if rows < 10:
        return
    places = np.argsort(orders, axis=1)
    early = (places < rows // 2) - (rows // 2) / rows
    deviation = 0.5 / np.sqrt(300)
    assert np.abs(early.mean(0)).max() < 4.5 * deviation
    together = np.mean(early[:, 1:] * early[:, :-1], axis=0)
    assert np.abs(together).max() < 4.5 * deviation / 2 + 1 / rows
    assert len({tuple(o) for o in orders}) == 300


@pytest.mark.parametrize("inference", ["moments", "global"])
def test_an_epoch_uses_every_row_once_with_the_right_weight(inference):
    """Oracle: with weights that do not move, the mean over an epoch's steps is the accuracy of all
    17 rows, whatever the batches: each row counts once.
    """
    x, y = X[:17], Y[:17]
    linear_ = linear_model(likelihood=sc.GaussianLikelihood(precision=2.0), inference=inference)
    # Certain weights, so that sampling has no part in it.
    beliefs = sc.Normal(jnp.array([[0.3], [-0.2], [0.1]]), jnp.full((3, 1), 1e-30))
    recipe = replace(
        QUICK, batch_size=5, rate=1e-30, standardise_inputs=False, standardise_targets=False
    )
    priors = sc.priors(beliefs, sc.Normal(0.0, 1.0))
    trainer = Trainer(linear_, Arrays([(x, y)]), [beliefs], [priors], Training(recipe))
    state = trainer.restart(trainer.start([KEY]))
    schedule = trainer._make_schedule(trainer.planner.plan_training())
    assert trainer.steps == 4
    _, records = program.train(trainer.spec, state, trainer.constants, trainer._data, schedule, 3)
    residual = y - linear(np.asarray(beliefs.mean), x)
    expected = np.sum(-0.5 * (2.0 * residual**2 + np.log(2 * np.pi) - np.log(2.0)))
    np.testing.assert_allclose(records.accuracy[:3], expected, rtol=1e-9)
    kl = float(jnp.sum(beliefs.kl(sc.Normal(0.0, 1.0))))
    np.testing.assert_allclose(records.complexity_weights[:3], kl, rtol=1e-9)


def test_a_stream_gives_what_arrays_give(fitted):
    """Oracle: the same rows as arrays. Batches of the stream may have any size."""

    def batches():
        for start, stop in ((0, 7), (7, 40), (40, 41), (41, 60)):
            yield X[start:stop], Y[start:stop]

    for data in (batches, list(batches())):
        found = fit(model(), data)
        assert found.free_energy == pytest.approx(fitted.free_energy, rel=1e-9)


@pytest.mark.slow
def test_a_stream_in_several_blocks(monkeypatch):
    """Oracle: arrays, trained with the same budget; rows reach training in another order."""
    monkeypatch.setattr("secateur.training.sources._BLOCK_ROWS", 32)
    found = fit(model(), lambda: iter([(X, Y)]), recipe=replace(QUICK, epochs=150))
    whole = fit(model(), (X, Y), recipe=replace(QUICK, epochs=150))
    assert found.epochs == whole.epochs == 150
    assert found.free_energy == pytest.approx(whole.free_energy, abs=4)
    with pytest.raises(ValueError, match="61, but the stream has 60"):
        fit(model(), lambda: iter([(X, Y)]), size=61)


def test_an_iterator_is_read_once():
    rows = 2000
    x = RNG.normal(size=(rows, 3))
    y = x @ np.array([[1.0], [2.0], [3.0]]) + 0.1 * RNG.normal(size=(rows, 1))
    pieces = ((x[i : i + 100], y[i : i + 100]) for i in range(0, rows, 100))
    with pytest.raises(ValueError, match="size="):
        fit(linear_model(), pieces)
    pieces = ((x[i : i + 100], y[i : i + 100]) for i in range(0, rows, 100))
    found = fit(linear_model(), pieces, size=rows, rate=0.1)
    assert found.epochs == 1
    np.testing.assert_allclose(found.predict(x[:5]).mean, y[:5], atol=0.5)


# --- recipes ------------------------------------------------------------------------------------


def test_wide_leaves_move_more_slowly():
    """In its first step Adam moves every weight by the rate, whatever its gradient."""
    params = {"wide": jnp.zeros((100, 3)), "narrow": jnp.zeros((3, 2)), "bias": jnp.zeros(200)}
    layout, flat, _ = lay_out(sc.believe(params, variance=1.0))
    weights = Coordinates.from_beliefs(flat)
    for width, slower in ((50, 0.5), (None, 1.0), (100, 1.0)):
        optimiser = make_adam(layout, width)
        assert optimiser is make_adam(layout, width)
        moved = (weights, None)
        gradient = jax.tree.map(lambda a: np.full_like(a, 7.0), moved)
        (update, _), _ = optimiser.update(gradient, optimiser.init(moved), moved)
        means = layout.build_tree([place.take(update.means) for place in layout.places], [])
        np.testing.assert_allclose(means["wide"], -slower, rtol=1e-5)
        for steps in (means["narrow"], means["bias"], *update.log_deviations):
            np.testing.assert_allclose(steps, -1.0, rtol=1e-5)


def test_rates_and_deviations_follow_small_weights():
    """Rates at most 5 % of the weights' size, in powers of two; deviations at most 20 % of it."""
    recipe = replace(RECIPES["trained"], rate=2e-3)
    params = {"small": jnp.full((3, 4), 1e-3), "large": jnp.ones((3, 4)), "zero": jnp.zeros(4)}
    beliefs = sc.believe(params, variance=1.0)
    scales = dict(zip(sorted(params), find_rate_scales(2e-3, 0.05, beliefs), strict=True))
    assert scales == {"large": 1.0, "small": 2.0**-6, "zero": 1.0}  # 0.05 · 0.001 / 0.002 = 1/40
    start = make_initial_beliefs(
        recipe, KEY, beliefs, sc.priors(beliefs, sc.Normal(0.0, 1.0)), redraw=False
    )
    deviations = {name: np.sqrt(q.variance).max() for name, q in start.items()}
    np.testing.assert_allclose(deviations["small"], 0.2 * 1e-3, rtol=1e-6)
    np.testing.assert_allclose(deviations["large"], np.exp(-4.5), rtol=1e-6)
    np.testing.assert_allclose(deviations["zero"], np.exp(-4.5), rtol=1e-6)
    layout, flat, _ = lay_out(beliefs)
    weights = Coordinates.from_beliefs(flat)
    optimiser = make_adam(layout, None, find_rate_scales(2e-3, 0.05, beliefs))
    moved = (weights, None)
    gradient = jax.tree.map(lambda a: np.full_like(a, 7.0), moved)
    (update, _), _ = optimiser.update(gradient, optimiser.init(moved), moved)
    means = layout.build_tree([place.take(update.means) for place in layout.places], [])
    for name, scale in scales.items():
        np.testing.assert_allclose(means[name], -scale, rtol=1e-5)


def test_the_papers_recipe_is_the_papers():
    recipe = RECIPES["paper"]
    assert (recipe.rate, recipe.batch_size, recipe.epochs) == (1e-2, 16, 750)
    assert recipe.standardise_inputs
    assert not recipe.standardise_targets
    options = (recipe.stops, recipe.cooling, recipe.conjugate_noise, recipe.warm_steps)
    assert not any(options)
    assert recipe.samples == 10
    found = fit(model(prior=sc.Normal(0.0, 4.0)), (X, Y), recipe="paper", epochs=1, rate=1e-12)
    q = found.beliefs["w1"]
    np.testing.assert_allclose(q.variance, 4.0, rtol=1e-6)
    assert 0.005 < float(jnp.std(q.mean)) < 0.02
    assert found.scaling.targets is None


def test_softplus_makes_the_noise_of_what_the_optimiser_moves():
    values = np.array([1e-6, 1e-3, 0.5, 1.0, 40.0, 1e6], np.float32)
    made = jax.nn.softplus(program.free_noise(jnp.asarray(values)))
    np.testing.assert_allclose(made, values, rtol=2e-5)


def test_means_start_from_the_model_or_at_a_sensible_scale():
    found = fit(model(), (X, Y), rate=1e-12, epochs=1)
    np.testing.assert_allclose(found.beliefs["w1"].mean, params()["w1"], atol=1e-6)

    def start(weights, redraw):
        beliefs = sc.believe(weights, variance=1.0)
        prior = sc.priors(beliefs, sc.Normal(0.0, 1.0))
        return make_initial_beliefs(QUICK, KEY, beliefs, prior, redraw=redraw)

    zeros = start(jnp.zeros((50, 40)), False)
    assert float(np.std(zeros.mean)) == pytest.approx(np.sqrt(2 / 50), rel=0.1)
    first, second = (start(params(), redraw)["w1"].mean for redraw in (False, True))
    assert not np.allclose(first, second)
    assert float(np.std(second)) == pytest.approx(float(np.std(first)), rel=0.5)


def test_any_optax_optimiser_will_do():
    found = fit(model(), (X, Y), optimiser=optax.sgd(0.05, momentum=0.9))
    assert found.free_energy < found.history.free_energy[0] - 20


def test_standardisation_leaves_constant_columns_alone():
    """Two columns are constant, one of them but for rounding: neither may be blown up."""
    x = np.concatenate([X, np.full((60, 1), 3.7), np.full((60, 1), 1e3)], axis=1)
    x[::2, 4] += 2.5e-13
    (columns,) = Arrays([(x, Y)]).columns
    scaling = make_scaling(columns, inputs=True, targets=True)
    assert np.asarray(scaling.inputs.scale)[3:].tolist() == [1.0, 1.0]


# --- the end ------------------------------------------------------------------------------------


def test_it_stops_by_itself_and_says_why():
    recipe = replace(QUICK, epochs=3000, batch_size=60)
    found = fit(linear_model(), (X, Y), recipe=recipe)
    assert found.epochs < 1500
    assert "levelled off after" in found.stop_reason
    short = fit(linear_model(), (X, Y), recipe=replace(recipe, epochs=30))
    assert short.epochs == 30
    assert "maximum of 30 epochs" in short.stop_reason


@pytest.mark.parametrize("noise", [0.0, 1.0, 10.0])
def test_the_trend_test_tells_falling_from_level(noise):
    rng = np.random.default_rng(1)
    epochs = np.arange(300)
    falling = 1000 * np.exp(-epochs / 200) + noise * rng.normal(size=300)
    assert not fit_trend(falling).level
    level = 1000 * np.exp(-epochs / 10) + noise * rng.normal(size=300)
    assert fit_trend(level).level
    assert fit_trend(level[:30]) is None


def test_correlated_noise_is_not_taken_for_a_fit_trend():
    """Oracle: an autoregressive series has no trend; at 95 % few of 200 may seem to fall."""
    rng = np.random.default_rng(2)
    falling = 0
    for _ in range(200):
        noise = rng.normal(size=300)
        for t in range(1, 300):
            noise[t] += 0.8 * noise[t - 1]
        falling += not fit_trend(100 * noise).level
    assert falling < 20


def test_the_rate_stays_and_falls_while_the_complexity_has_its_weight():
    schedule = program.Schedule(0.1, 0.0, 4.0, 10.0, 5.0, 1.0, 1.0)
    epochs = jnp.arange(16.0)
    rates = np.asarray(program.rate_at(schedule, epochs))
    np.testing.assert_allclose(rates[:11], 0.1, rtol=1e-6)
    assert np.all(np.diff(rates[10:]) < 1e-9)
    assert rates[15] == pytest.approx(0.0, abs=1e-8)
    weights = np.asarray(program.warmth_at(schedule, epochs))
    np.testing.assert_allclose(weights[:6], [0.0, 0.25, 0.5, 0.75, 1.0, 1.0])
    always = np.asarray(program.warmth_at(schedule._replace(warm_epochs=0.0), epochs[1:]))
    np.testing.assert_array_equal(always, 1.0)


# --- several runs in one program ----------------------------------------------------------------


@pytest.mark.slow
def test_restarts_keep_the_lowest(fitted):
    found = fit(model(), (X, Y), restarts=4)
    assert len(found.restarts) == 4
    assert found.free_energy == min(found.restarts)
    assert len(set(found.restarts)) == 4


def test_runs_side_by_side_are_the_runs_alone():
    """Oracle: `fit` on each data set. Sums may be rounded differently in a batched program."""
    other = np.cos(X[:, :1])
    keys = jax.random.split(KEY, 2)
    together = sc.fit_many(model(), [(X, Y), (X, other)], keys=keys, recipe=QUICK, progress=False)
    alone = fit(model(), (X, Y), key=keys[0])
    assert together[0].free_energy == pytest.approx(alone.free_energy, rel=1e-6)
    assert together[1].scaling.targets.shift == pytest.approx(other.mean())
    with pytest.raises(ValueError, match="equal shapes"):
        sc.fit_many(model(), [(X, Y), (X[:9], Y[:9])], keys=keys)


def test_the_same_key_gives_the_same_bits(fitted):
    again = fit(model(), (X, Y))
    assert again.free_energy == fitted.free_energy
    for a, b in zip(jax.tree.leaves(again.beliefs), jax.tree.leaves(fitted.beliefs), strict=True):
        np.testing.assert_array_equal(a, b)
    other = fit(model(), (X, Y), key=jax.random.key(1))
    assert other.free_energy != fitted.free_energy


def test_the_same_shapes_compile_once(fitted):
    before = program.train._cache_size()
    fit(model(), (X + 1, 2 * Y), key=jax.random.key(5))
    assert program.train._cache_size() == before


# --- progress -----------------------------------------------------------------------------------


def test_the_callback_sees_every_part(capsys):
    reports = []
    found = fit(model(), (X, Y), callback=reports.append)
    assert capsys.readouterr() == ("", "")
    last = reports[-1]
    assert (last.epoch, last.epochs, last.phase) == (40, 40, "cooling")
    assert last.free_energy == pytest.approx(last.complexity - last.accuracy)
    assert last.free_energy == pytest.approx(found.history.free_energy[-1])
    assert [r.epoch for r in reports] == sorted({r.epoch for r in reports})
    assert last.rate < reports[0].rate == pytest.approx(0.01)


def test_the_callback_can_end_training():
    stopped = fit(model(), (X, Y), callback=lambda report: "stop" if report.epoch >= 2 else None)
    assert 2 <= stopped.epochs < 40
    assert stopped.stop_reason == f"training was stopped after {stopped.epochs} epochs"
    reports = []

    def cool(report):
        reports.append(report)
        return "cool"

    cooled = fit(model(), (X, Y), callback=cool)
    assert cooled.epochs == reports[0].epoch + 20
    assert reports[-1].rate < 0.1 * reports[0].rate
    with pytest.raises(ValueError, match="the callback returned 3"):
        fit(model(), (X, Y), callback=lambda report: 3)


def test_a_callback_that_raises_loses_nothing(tmp_path):
    path, epochs = tmp_path / "run", []

    def interrupt(report):
        epochs.append(report.epoch)
        if len(epochs) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model(), (X, Y), checkpoint=path, callback=interrupt)
    found = fit(model(), (X, Y), checkpoint=path, callback=interrupt)
    assert epochs[3] == epochs[2] + 1  # a resumed training begins with a call of one epoch
    whole = fit(model(), (X, Y))
    np.testing.assert_array_equal(found.history.free_energy, whole.history.free_energy)


def test_progress_is_lines_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr("secateur.progress._PATIENCE", 0.0)
    sc.fit(model(), (X, Y), key=KEY, recipe=QUICK)
    out, err = capsys.readouterr()
    assert out == ""
    assert "free energy" in err
    assert "complexity" in err
    assert "\x1b" not in err


def test_progress_is_a_bar_on_a_terminal(monkeypatch):
    import io

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("secateur.progress._PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Terminal()
    with Progress("fit", file=screen) as progress:
        progress.update(ProgressUpdate(3, 10, 5.0, 7.0, 2.0, 0.01, "training", 1.0, 100.0))
        progress.finish("done")
    text = screen.getvalue()
    assert "epoch 3/10" in text
    assert "2 min left" in text
    assert "━" in text


# --- trouble ------------------------------------------------------------------------------------


def bad(values, at, value):
    values = np.array(values)
    values[at] = value
    return values


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X[:0], Y[:0]), "empty"),
        ((X, Y[:50]), "60 rows .* 50"),
        ((X, Y[:, 0]), r"targets\[:, None\]"),
        ((bad(X, (4, 1), np.nan), Y), r"1 values .* \(nan\) at index \(4, 1\)"),
        ((X, bad(Y, (7, 0), np.inf)), r"targets hold 1 .*\(inf\) at index \(7, 0\)"),
        ((X, np.ones_like(Y)), "constant"),
        ((X[:, :2], Y), "dot_general|shape"),
        ((lambda: iter(())), "empty"),
        ((3.0, Y), "single number"),
    ],
    ids=["empty", "rows", "shape", "nan", "inf", "constant", "columns", "stream", "scalar"],
)
def test_bad_data_are_refused_with_the_reason(data, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fit(model(), data)


def test_bad_types_and_options_are_refused():
    with pytest.raises(TypeError, match="Encode text"):
        fit(model(), (X.astype(str), Y))
    with pytest.raises(TypeError, match="Supported: a pair"):
        fit(model(), 3)
    with pytest.raises(ValueError, match="recipe='best'"):
        fit(model(), (X, Y), recipe="best")
    with pytest.raises(ValueError, match="batch_size=0"):
        fit(model(), (X, Y), batch_size=0)
    with pytest.raises(ValueError, match="restarts=0"):
        fit(model(), (X, Y), restarts=0)
    with pytest.raises(ValueError, match="not an algorithm"):
        model(inference="exact")
    labels = sc.BayesianModel(net, params(outputs=2), likelihood=sc.CategoricalLikelihood())
    with pytest.raises(ValueError, match="labels range from 0 to 2"):
        fit(labels, (X, np.arange(60) % 3))
    with pytest.raises(ValueError, match="returns 2 arrays"):
        fit(sc.BayesianModel(lambda p, x: (net(p, x), x), params()), (X, Y))


@pytest.mark.slow
def test_what_is_documented_to_work_works():
    """Integer targets are numbers; a batch over N is all rows; float64 tables need no x64."""
    import pandas

    frame, targets = pandas.DataFrame(X, columns=list("abc")), np.rint(3 * Y).astype(int)
    with jax.enable_x64(False):
        weights = params(dtype=jnp.float32)
        found = fit(sc.BayesianModel(net, weights), (frame, targets), batch_size=1000, epochs=2)
        assert found.beliefs["w1"].mean.dtype == jnp.float32
    assert np.isfinite(found.free_energy)


def test_a_value_that_is_not_finite_stops_with_the_last_good_state():
    """The function overflows once a weight has grown: the error names the part, epoch and step."""

    def explosive(w, x):
        return x @ w + jnp.where(jnp.sum(w**2) > 1.0, jnp.inf, 0.0)

    trap = sc.BayesianModel(explosive, jnp.array([[0.1], [0.0], [-0.1]]), inference="global")
    with pytest.raises(sc.FitError) as caught:
        fit(trap, (X, 5 * X[:, :1]), recipe=replace(QUICK, rate=0.02))
    message = str(caught.value)
    assert "accuracy" in message
    assert "epoch" in message
    assert "step" in message
    assert "smaller learning rate" in message
    last_good = caught.value.last_good
    assert np.isfinite(last_good.beliefs.mean).all()
    assert np.isfinite(last_good.history.free_energy).all()


@pytest.mark.slow
def test_a_restart_that_fails_does_not_stop_the_others():
    def sometimes(w, x):
        return x @ w["w"] + jnp.where(w["switch"] > 0.0, jnp.inf, 0.0)

    weights = {"w": jnp.zeros((3, 1)), "switch": jnp.asarray([-1.0, 1.0])}
    trap = sc.BayesianModel(
        lambda w, x: sometimes({"w": w["w"], "switch": w["switch"][0]}, x),
        weights,
        where={"w": True, "switch": True},
        inference="global",
    )
    recipe = replace(QUICK, initial_deviation=1e-6)
    with pytest.warns(UserWarning, match="of 6 met a value that is not finite"):
        found = fit(trap, (X, Y), restarts=6, recipe=recipe)
    assert any(np.isnan(f) for f in found.restarts)
    assert np.isfinite(found.free_energy)
