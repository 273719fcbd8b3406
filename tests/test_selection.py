"""Structures of dense networks, chosen by the free energy after pruning."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import scipy.special
import scipy.stats
from sklearn.datasets import load_iris

import secateur as sc
from secateur.caveats import find_caveats
from secateur.dense_structures import STRUCTURES, Structure, divide_structures, make_start
from secateur.selection import Candidate, _choose_priors, _is_linear, select_structure
from secateur.training.recipe import RECIPES

CONSTANT, LINEAR = Structure((), False), Structure((), True)
NARROW, WIDE = Structure((3,), True), Structure((8,), False)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
NOISE = 0.1 * RNG.normal(size=(60, 1))
TARGETS = {
    "constant": 5 + 10 * RNG.normal(size=(60, 1)),
    "linear": X[:, :1] - 2 * X[:, 1:2] + NOISE,
    "units": 2 * np.abs(X[:, :1]) + NOISE,
}


@pytest.fixture(scope="module", params=list(TARGETS))
def selected(request):
    selection = select_structure(
        (X, TARGETS[request.param]),
        outputs=1,
        likelihood=sc.GaussianLikelihood(),
        key=jax.random.key(0),
        structures=[CONSTANT, LINEAR, NARROW, WIDE],
        progress=False,
    )
    return request.param, selection


def test_the_evidence_chooses(selected):
    name, selection = selected
    if name == "units":
        assert selection.best.structure in (NARROW, WIDE)
    else:
        assert str(selection.best.structure) == name
    energies = [c.pruned.free_energy for c in selection.candidates]
    assert selection.best.pruned.free_energy == pytest.approx(min(energies), abs=1e-3)
    rows = selection.table()
    assert [r["chosen"] for r in rows].count(True) == 1
    assert [r["structure"] for r in rows][:2] == ["constant", "linear"]
    assert rows[-1]["structure"] == "linear, with covariance"


def test_candidates_are_networks_of_their_own(selected, tmp_path):
    """Oracle: the free energy of the smaller network's beliefs, computed afresh."""
    name, selection = selected
    y = TARGETS[name]
    for candidate in selection.candidates:
        pruned, structure = candidate.pruned, candidate.structure
        assert pruned.model.f == structure.make_network(3, 1, "relu")
        shapes = jax.tree.map(np.shape, pruned.model.params)
        expected = jax.tree.map(np.shape, pruned.model.f.init(jax.random.key(0)))
        assert shapes == expected
        again = sc.prune(pruned, (X, y), key=jax.random.key(3), progress=False)
        assert again.free_energy <= pruned.free_energy + 1e-2
        sc.save(pruned, tmp_path / "model.safetensors")
        loaded = sc.load(tmp_path / "model.safetensors")
        np.testing.assert_array_equal(loaded.predict(X).mean, pruned.predict(X).mean)
        assert loaded.training.prior_groups == pruned.training.prior_groups


def test_a_constant_is_said_to_be_one(selected):
    name, selection = selected
    caveats = find_caveats(selection.best.pruned, (X, TARGETS[name]))
    assert bool(caveats) == (name == "constant")
    if caveats:
        assert "the model is a constant" in caveats[0]


def test_priors_are_learnt_where_that_pays(selected):
    """A precision for each input costs several nats, which a few units do not earn."""
    _, selection = selected
    learnt = {str(c): c.fitted.training.prior_groups for c in selection.candidates}
    assert learnt["linear, with covariance"] == (None, None)
    assert learnt["linear"] is None
    assert learnt[str(NARROW)] is None
    assert _choose_priors([Structure((50,), False)]) == "inputs"


def test_the_linear_candidate_has_the_best_factors():
    """Oracle: coordinate ascent on q(w) q(γ) q(λ) in NumPy, for nearly collinear inputs."""
    rng = np.random.default_rng(3)
    base = rng.normal(size=(30, 1))
    x = base + 0.1 * rng.normal(size=(30, 4))
    y = x @ np.array([[1.0], [-0.5], [0.8], [0.3]]) + 0.05 * rng.normal(size=(30, 1))
    selection = select_structure(
        (x, y), outputs=1, likelihood=sc.GaussianLikelihood(), key=jax.random.key(0),
        structures=[LINEAR], prune=False, progress=False,
    )  # fmt: skip
    by_name = {str(c): c.fitted for c in selection.candidates}
    correlated, independent = by_name["linear, with covariance"], by_name["linear"]
    mean, covariance, energy = find_best_linear_factors(x, y[:, 0])
    assert correlated.free_energy == pytest.approx(energy, abs=0.05)
    assert correlated.free_energy < independent.free_energy - 1
    np.testing.assert_allclose(
        correlated.beliefs["layers"][0]["weights"].mean[:, 0], mean[:4], atol=0.02
    )
    rows = np.c_[(x - x.mean(0)) / x.std(0), np.ones(30)]
    variance = np.einsum("ij,jk,ik->i", rows, covariance, rows) * y.var()
    np.testing.assert_allclose(correlated.predict(x).weight_variance[:, 0], variance, rtol=0.1)


def find_best_linear_factors(x, y):
    """Return mean and covariance of q(w), bias last, and the free energy at the best factors.

    Weights have a common precision with the prior of leaves, as has the bias; the noise has the
    recipe's. All densities are those of SciPy.
    """
    rows = np.c_[(x - x.mean(0)) / x.std(0), np.ones(len(x))]
    z = (y - y.mean()) / y.std()
    groups = [np.arange(x.shape[1]), np.array([x.shape[1]])]
    hyper, noise_prior = (0.5, 0.05), RECIPES["default"].noise_prior
    precision, gamma = np.ones(rows.shape[1]), 1.0
    for _ in range(5000):
        covariance = np.linalg.inv(gamma * rows.T @ rows + np.diag(precision))
        mean = gamma * covariance @ rows.T @ z
        squares = mean**2 + np.diag(covariance)
        learnt = [(hyper[0] + len(g) / 2, hyper[1] + squares[g].sum() / 2) for g in groups]
        for group, (shape, rate) in zip(groups, learnt, strict=True):
            precision[group] = shape / rate
        error = np.sum((z - rows @ mean) ** 2) + np.trace(rows @ covariance @ rows.T)
        noise = (noise_prior[0] + len(z) / 2, noise_prior[1] + error / 2)
        gamma = noise[0] / noise[1]

    def mean_log(shape, rate):
        return scipy.special.digamma(shape) - np.log(rate)

    def cross_entropy(shape, rate, prior):  # −E[ln p] under Gamma(shape, rate)
        a, b = prior
        log = mean_log(shape, rate)
        return -(a * np.log(b) - scipy.special.gammaln(a) + (a - 1) * log - b * shape / rate)

    energy = 0.5 * len(z) * (np.log(2 * np.pi) - mean_log(*noise)) + 0.5 * gamma * error
    energy -= scipy.stats.multivariate_normal(mean, covariance).entropy()
    for group, q in zip(groups, learnt, strict=True):
        energy += 0.5 * len(group) * (np.log(2 * np.pi) - mean_log(*q))
        energy += 0.5 * q[0] / q[1] * squares[group].sum()
    for q, prior in [(noise, noise_prior), *((q, hyper) for q in learnt)]:
        energy += cross_entropy(*q, prior) - scipy.stats.gamma(q[0], scale=1 / q[1]).entropy()
    return mean, covariance, energy + len(z) * np.log(y.std())


def test_structures_start_as_parts_of_the_whole():
    whole = sc.networks.Dense(3, (8,), 2, linear_path=True)
    start = make_start(whole, NARROW, RECIPES["default"], jax.random.key(0))
    alive = jax.tree.map(
        lambda q: np.asarray(q.variance) > 0, start, is_leaf=lambda q: isinstance(q, sc.Normal)
    )
    assert alive["layers"][0]["weights"].sum() == 9
    assert alive["layers"][0]["bias"].tolist() == [True] * 3 + [False] * 5
    assert alive["layers"][1]["weights"].sum() == 6
    assert alive["linear"].all()
    spread = np.std(start["layers"][1]["weights"].mean[:3])
    assert 0.2 < spread < 2.5  # about √(2/3), not √(2/8)


def test_few_units_start_several_times(selected):
    """Their start with the lowest free energy counts; others are not kept unless asked for."""
    _, selection = selected
    for candidate in selection.candidates:
        energies = candidate.pruned.restarts
        assert len(energies) == (3 if candidate.structure.is_narrow else 1)
        assert candidate.pruned.free_energy == pytest.approx(min(energies), abs=1e-3)
        assert len(candidate.restarts) == 1


def test_wide_structures_wait_for_narrow_ones():
    narrow, wide = divide_structures(STRUCTURES)
    assert [s.hidden for s in narrow] == [(), (), (3,), (10,)]
    assert [s.hidden for s in wide] == [(50,), (50,)]
    assert divide_structures([LINEAR, Structure((50,), False)]) == [[LINEAR, ((50,), False)]]


def test_wide_structures_are_left_out_where_the_linear_model_with_covariance_is_best():
    """Of the independent ones alone, the network of 3 units is the best on iris."""
    x, y = load_iris(return_X_y=True)
    selection = select_structure(
        (x, y), outputs=3, likelihood=sc.CategoricalLikelihood(), key=jax.random.key(0),
        structures=[LINEAR, NARROW, Structure((11,), True)], progress=False,
    )  # fmt: skip
    energies = {str(c): c.pruned.free_energy for c in selection.candidates}
    assert list(energies) == ["linear", str(NARROW), "linear, with covariance"]
    assert energies[str(NARROW)] < energies["linear"]
    assert str(selection.best) == "linear, with covariance"


@pytest.mark.parametrize(
    ("hidden", "units", "linear", "is_linear"),
    [((), 0, None, False), ((), 1, None, True), ((3,), 0, 1, True), ((3,), 1, 1, False),
     ((3,), 0, 0, False), ((3,), 0, None, False)],
)  # fmt: skip
def test_a_linear_model_is_recognised(hidden, units, linear, is_linear):
    """Whatever structure it has come from; a constant is not one."""
    beliefs = {"layers": [{"weights": sc.Normal(np.ones((2, 3)), np.full((2, 3), units))}]}
    if linear is not None:
        beliefs["linear"] = sc.Normal(np.ones((2, 1)), np.full((2, 1), linear))
    pruned = SimpleNamespace(beliefs=beliefs)
    assert _is_linear(Candidate(Structure(hidden, True), pruned, pruned, ())) == is_linear


def test_structures_of_different_depths_are_refused():
    with pytest.raises(ValueError, match="different depths"):
        select_structure(
            (X, X[:, :1]), outputs=1, likelihood=sc.GaussianLikelihood(), key=jax.random.key(0),
            structures=[Structure((3,), False), Structure((3, 3), False)],
        )  # fmt: skip


def test_a_network_with_a_linear_path_adds_it():
    """Oracle: the same computation in NumPy."""
    network = sc.networks.Dense(3, (4,), 2, linear_path=True)
    params = jax.tree.map(np.asarray, network.init(jax.random.key(0)))
    first, last = params["layers"]
    hidden = np.maximum(X @ first["weights"] + first["bias"], 0)
    expected = hidden @ last["weights"] + last["bias"] + X @ params["linear"]
    np.testing.assert_allclose(network(params, X), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="already linear"):
        sc.networks.Dense(3, (), 2, linear_path=True)


def test_collinear_inputs_that_ridge_regression_would_master_are_reported():
    rng = np.random.default_rng(1)
    base = rng.normal(size=(80, 1))
    x = base + 1e-4 * rng.normal(size=(80, 5))
    y = (x[:, :1] - x[:, 1:2]) * 1e4
    model = sc.networks.Dense(5, ())
    fitted = sc.fit(
        sc.BayesianModel(model, model.init(jax.random.key(0))),
        (x, y),
        key=jax.random.key(1),
        progress=False,
        epochs=200,
    )
    assert any("collinear" in c for c in find_caveats(fitted, (x, y)))
