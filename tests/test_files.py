"""Model files: exact when whole, refused when not, and never a way to run code."""

import json
import pickle
import random
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import register_dataclass
from safetensors.numpy import save as save_tensors

import secateur as sc
from secateur.likelihoods.base import WithoutNoise
from secateur.networks import Dense, Gru
from secateur.storage import read_container, write_container
from secateur.training.checkpoint import Checkpoint
from trained import believed, trained

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = X[:, :1] * [[1.0, -2.0]] + 0.1 * RNG.normal(size=(40, 2))
EXTRA = {"z": [1, 2.5, None, True, "ünïcode"], "a": {"": []}}
short = {"epochs": 40, "progress": False}


def exactly_equal(a, b):
    """Same structure, same classes, same bits."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert type(one) is type(other)
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def same_prediction(a, b, targets):
    for name in ("mean", "variance", "weight_variance", "noise_variance"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    np.testing.assert_array_equal(a.interval(0.9), b.interval(0.9))
    np.testing.assert_array_equal(a.log_density(targets), b.log_density(targets))


@pytest.fixture(scope="module")
def fitted():
    network = Dense(3, hidden=(6,), outputs=2)
    return sc.fit(sc.BayesianModel(network, network.init(KEY)), (X, Y), key=KEY, **short)


@pytest.fixture(scope="module")
def pruned(fitted):
    return sc.prune(fitted, (X, Y), key=KEY, **short)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture
def loaded(pruned, path):
    sc.save(pruned, path)
    return sc.load(path)


def test_a_loaded_model_is_the_saved_one_to_the_bit(pruned, path):
    assert 0 < pruned.live_weights < pruned.weights_before
    sc.save(pruned, path, extra=EXTRA)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    loaded = sc.load(path)
    exactly_equal(loaded.beliefs, pruned.beliefs)
    exactly_equal(loaded.priors, pruned.priors)
    exactly_equal(loaded.noise, pruned.noise)
    exactly_equal(loaded.scaling, pruned.scaling)
    exactly_equal(loaded.parts, pruned.parts)
    same_prediction(loaded.predict(X), pruned.predict(X), Y)
    for name in ("free_energy", "free_energy_before", "weights_before", "live_weights", "epochs",
                 "pruned_fraction", "recipe", "stop_reason", "restarts"):  # fmt: skip
        assert getattr(loaded, name) == getattr(pruned, name), name
    assert loaded.model.f == pruned.model.f
    assert loaded.table() == pruned.table()
    assert loaded.version == sc.__version__
    assert json.dumps(loaded.extra) == json.dumps(EXTRA)


def test_what_was_pruned_is_not_stored(fitted, pruned, path):
    for result in (fitted, pruned):
        sc.save(result, path)
        tensors, _ = read_container(path, kind="secateur-model", version=2)
        stored = sum(
            v.size
            for n, v in tensors.items()
            if n.endswith((".mean", ".variance")) and "weights[" in n
        )
        assert stored == 2 * result.live_weights
    assert sc.load(path).live_weights == pruned.live_weights


def test_a_loaded_model_is_saved_again_as_it_was(loaded, path):
    content = path.read_bytes()
    sc.save(loaded, path)
    assert path.read_bytes() == content


@pytest.mark.slow
def test_a_loaded_model_can_be_pruned_updated_and_fitted(fitted, path):
    sc.save(fitted, path)
    loaded = sc.load(path)
    again = sc.prune(loaded, (X, Y), key=KEY, epochs=2, progress=False)
    # Oracle: the same beliefs have the same free energy, whichever way they came.
    assert again.free_energy_before == pytest.approx(fitted.free_energy, rel=1e-9)
    updated = sc.update(loaded, (X, Y), key=KEY, epochs=2, progress=False)
    sc.save(updated, path)
    loaded_update = sc.load(path)
    before, before_loaded = updated.training.before_update, loaded_update.training.before_update
    exactly_equal(before_loaded.priors, before.priors)
    for one, other in zip(*map(jax.tree.leaves, (before_loaded.alive, before.alive)), strict=True):
        np.testing.assert_array_equal(one, other)
    # Oracle: pruning goes the same way from the file as without it.
    options = {"key": KEY, "epochs": 2, "progress": False}
    without, through = (sc.prune(u, (X, Y), **options) for u in (updated, loaded_update))
    exactly_equal(through.beliefs, without.beliefs)
    assert through.live_weights > 0
    assert sc.fit(loaded.model, (X, Y), key=KEY, epochs=2, progress=False).epochs == 2


@pytest.mark.slow
def test_a_sampling_model_draws_the_same_samples(path):
    network = Gru(2, units=2, outputs=2)
    x, y = RNG.normal(size=(12, 3, 2)), RNG.normal(size=(12, 2))
    fitted = trained(network, believed(network.init(KEY)), inference="local")
    sc.save(fitted, path)
    loaded = sc.load(path)
    same_prediction(loaded.predict(x), fitted.predict(x), y)  # with the model's own key
    np.testing.assert_array_equal(
        loaded.predict(x, key=KEY, samples=3).mean, fitted.predict(x, key=KEY, samples=3).mean
    )


def test_what_was_compacted_is_kept(pruned, path):
    """A compacted model comes from the beliefs it has, and its file says what was removed."""
    first = pruned.beliefs["layers"][0]["weights"]
    alive = np.ones((3, 6), bool)
    alive[1] = False  # nothing reads the second input, and nothing feeds three units
    alive[:, :3] = False
    layers = [dict(layer) for layer in pruned.beliefs["layers"]]
    layers[0]["weights"] = sc.Normal(
        jnp.where(alive, 0.5, 0.0).astype(first.mean.dtype),
        jnp.where(alive, 0.01, 0.0).astype(first.mean.dtype),
    )
    cut = replace(pruned, beliefs={"layers": layers})
    small = sc.compact(cut, drop_inputs=True)
    assert small.compaction.kept_inputs.tolist() == [0, 2]
    assert small.model.f.hidden[0] <= 3
    sc.save(small, path)
    loaded = sc.load(path)
    np.testing.assert_array_equal(loaded.compaction.kept_inputs, small.compaction.kept_inputs)
    assert loaded.compaction.removed == small.compaction.removed
    assert loaded.compaction.table() == small.compaction.table() != ""
    assert repr(loaded) == repr(small)
    same_prediction(loaded.predict(X[:, [0, 2]]), small.predict(X[:, [0, 2]]), Y)
    np.testing.assert_allclose(small.predict(X[:, [0, 2]]).mean, cut.predict(X).mean)
    sc.save(pruned, path)
    assert sc.load(path).compaction is None


# --- all there is in the library ---------------------------------------------------------------

LIKELIHOODS = [
    sc.GaussianLikelihood(),
    sc.GaussianLikelihood(sc.Gamma(jnp.array([1.0, 2.0]), 3.0)),
    sc.GaussianLikelihood(precision=np.array([1.0, 2.0])),
    sc.BernoulliLikelihood(),
    sc.CategoricalLikelihood(),
    sc.PoissonLikelihood(),
]
PRIORS = [
    sc.Normal(0.0, 2.0),
    sc.Laplace(0.0, 0.5),
    sc.ScaleMixture(0.25, 1.0, 0.01),
    lambda path, leaf: sc.Normal(0.1, np.linspace(1, 2, leaf.shape[-1])),
]


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda v: type(v).__name__)
def test_every_likelihood_comes_back(loaded, path, likelihood):
    sc.save(replace(loaded, model=replace(loaded.model, likelihood=likelihood)), path)
    exactly_equal(sc.load(path).model.likelihood, likelihood)


@pytest.mark.parametrize("prior", PRIORS, ids=["normal", "laplace", "mixture", "by element"])
def test_every_prior_comes_back(loaded, path, prior):
    given = sc.priors(loaded.beliefs, prior)
    sc.save(replace(loaded, priors=given), path)
    found = sc.load(path)
    exactly_equal(found.priors, given)
    exactly_equal(sc.priors(found.beliefs, found.model.prior), given)


def test_all_public_likelihoods_and_priors_are_tested():
    tested = {type(v).__name__ for v in (*LIKELIHOODS, *PRIORS)}
    assert {name for name in sc.__all__ if name.endswith("Likelihood")} <= tested
    accepted = set()
    for name in (
        "Beta",
        "Dirichlet",
        "Gamma",
        "Laplace",
        "MultivariateNormal",
        "Normal",
        "ScaleMixture",
    ):
        kind = getattr(sc, name)
        try:
            sc.priors(
                sc.Normal(jnp.zeros(2), jnp.ones(2)), kind(*[1.0] * len(kind.__dataclass_fields__))
            )
        except TypeError:
            continue
        accepted.add(name)
    assert accepted <= tested


@register_dataclass
@dataclass(frozen=True, eq=False)
class OwnLikelihood(WithoutNoise):
    sharpness: float


def test_classes_of_the_users_own_are_handed_over_by_the_user(loaded, path):
    model = replace(loaded.model, likelihood=OwnLikelihood(0.5))
    sc.save(replace(loaded, model=model), path)
    with pytest.raises(sc.FileError, match=r"holds a OwnLikelihood.*classes=\[OwnLikelihood\]"):
        sc.load(path)
    assert sc.load(path, classes=[OwnLikelihood]).model.likelihood.sharpness == 0.5


def test_arrays_of_like_names_are_kept_apart(loaded, path):
    given = {"a": {"b": np.zeros(2)}, "a.b": np.ones(2)}
    sc.save(replace(loaded, model=replace(loaded.model, likelihood=OwnLikelihood(given))), path)
    exactly_equal(sc.load(path, classes=[OwnLikelihood]).model.likelihood.sharpness, given)


# --- functions and structures of the user's own ---------------------------------------------------


def own_function(params, x):
    w, (scale, _) = params["w"], params["rest"]
    return x[:, :2] @ w * scale


def with_beliefs(loaded, f, beliefs):
    """A result for any function, without training one."""
    model = replace(loaded.model, f=f, params=beliefs)
    return replace(
        loaded, model=model, beliefs=beliefs, priors=sc.priors(beliefs, sc.Normal(0.0, 1.0))
    )


def test_a_users_function_is_asked_for(loaded, path):
    mean = jnp.array([[1, 0], [2, 3]], jnp.float32)
    beliefs = {
        "w": sc.Normal(mean, jnp.where(mean > 0, 0.1, 0).astype(jnp.float32)),
        "rest": (jnp.ones((), jnp.int32), "a text"),
    }
    sc.save(with_beliefs(loaded, own_function, beliefs), path)
    with pytest.raises(
        sc.FileError, match=r"model.safetensors: .*'own_function'.*load\(path, f=…\)"
    ):
        sc.load(path)
    found = sc.load(path, f=own_function)
    assert jax.tree.structure(found.beliefs) == jax.tree.structure(beliefs)
    assert found.beliefs["rest"][1] == "a text"
    exactly_equal(found.beliefs["w"], beliefs["w"])
    assert found.model.where == {"w": True, "rest": (False, False)}


def test_a_network_is_not_taken_for_another(pruned, path):
    sc.save(pruned, path)
    sc.load(path, f=Dense(3, hidden=(6,), outputs=2))
    with pytest.raises(sc.FileError, match="not of Dense"):
        sc.load(path, f=Dense(3))


@partial(register_dataclass, data_fields=["w", "act"], meta_fields=[])
@dataclass
class Module:
    w: object
    act: object


def test_a_structure_of_another_library_is_asked_for(loaded, path):
    beliefs = Module(
        sc.Normal(jnp.ones((3, 2), jnp.bfloat16), jnp.ones((3, 2), jnp.bfloat16)), jnp.tanh
    )
    sc.save(with_beliefs(loaded, own_function, beliefs), path)
    with pytest.raises(sc.FileError, match=r"params=…"):
        sc.load(path, f=own_function)
    with pytest.raises(sc.FileError, match="the params have"):
        sc.load(path, f=own_function, params=[jnp.zeros((3, 2))])
    found = sc.load(path, f=own_function, params=Module(jnp.zeros((3, 2)), jnp.tanh))
    assert found.beliefs.act is jnp.tanh
    exactly_equal(found.beliefs.w, beliefs.w)


def test_what_cannot_be_saved_is_refused_and_leaves_nothing_behind(loaded, tmp_path):
    path = tmp_path / "sub" / "model"
    for extra in ((1, 2), {1: 2}, float("nan"), {"a": object()}):
        with pytest.raises(TypeError, match="extra"):
            sc.save(loaded, path, extra=extra)
    with pytest.raises(TypeError, match="is not a trained model"):
        sc.save(loaded.beliefs, path)
    keys = {"w": sc.Normal(jnp.ones(2), jnp.ones(2)), "key": jax.random.key(0)}
    sc.save(with_beliefs(loaded, own_function, keys), path)
    with pytest.raises(sc.FileError, match="params=…"):
        sc.load(path, f=own_function)
    path.unlink()
    likelihood = OwnLikelihood(lambda: 0)
    with pytest.raises(TypeError, match=r"likelihood.sharpness is a function"):
        sc.save(replace(loaded, model=replace(loaded.model, likelihood=likelihood)), path)
    assert list(path.parent.iterdir()) == []


# --- files that are not right ---------------------------------------------------------------------


def damaged(rng, good, other):
    """One of the ways in which files are damaged."""
    content = bytearray(good)
    place, length = rng.randrange(len(good)), rng.randrange(1, 40)
    header = 8 + int.from_bytes(good[:8], "little")
    way = rng.randrange(8)
    if way == 0:  # flipped bits, anywhere or in the header
        for _ in range(rng.choice([1, 1, 1, 2, 10])):
            content[rng.choice([rng.randrange(len(good)), rng.randrange(header)])] ^= (
                1 << rng.randrange(8)
            )
    elif way == 1:
        content = content[:place]
    elif way == 2:
        content[place:place] = rng.randbytes(length)
    elif way == 3:
        del content[place : place + length]
    elif way == 4:
        content[place : place + length] = bytes(len(content[place : place + length]))
    elif way == 5:  # the header of another model before these weights, or the other way round
        content = bytearray(other[:header] + good[header:])
    elif way == 6:
        content += rng.randbytes(length)
    else:  # a digit changed to another in the header
        digits = [i for i in range(8, header) if chr(content[i]).isdigit()]
        content[rng.choice(digits)] ^= 1
    return bytes(content)


def test_two_hundred_damaged_files_are_all_refused(fitted, loaded, path):
    good = path.read_bytes()
    sc.save(replace(loaded, noise=jax.tree.map(lambda p: p + 1, loaded.noise)), path)
    other = path.read_bytes()
    assert len(other) == len(good)
    rng, tried = random.Random(0), 0
    while tried < 200:
        content = damaged(rng, good, other)
        if content in (good, other):
            continue
        path.write_bytes(content)
        with pytest.raises(sc.FileError, match=r"damaged|format|kind"):
            sc.load(path)
        tried += 1


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 8, b"\xff" * 64, b"PK\x03\x04" + b"0" * 50, pickle.dumps([1, 2]),
     save_tensors({"a": np.ones(3)}), save_tensors({"a": np.ones(3)}, {"secateur": "[" * 100_000}),
     save_tensors({}, {"secateur": "[1]"}), save_tensors({}, {"secateur": '{"format": 1}'}),
     b"a,b\n1,2\n"],
)  # fmt: skip
def test_foreign_files_are_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(sc.FileError, match=r"damaged or not a secateur-model file"):
        sc.load(path)


def test_checkpoints_and_other_versions_are_refused(path):
    Checkpoint(path, "a fingerprint").write({"a": np.ones(3)}, {})
    with pytest.raises(sc.FileError, match=r"another kind \('secateur-checkpoint-2'\)"):
        sc.load(path)
    for version in (1, 3):
        write_container(path, {"a": np.ones(3)}, {}, kind="secateur-model", version=version)
        message = (
            rf"'secateur-model-{version}' of another version of secateur; this version reads "
            r"secateur-model-2. Train the model again, or read it with the version that wrote it"
        )
        with pytest.raises(sc.FileError, match=message):
            sc.load(path)
    with pytest.raises(FileNotFoundError):
        sc.load(path.with_name("none"))


def change(facts, tensors, what):
    """A file written on purpose, with a good checksum."""
    if what == "an unknown class":
        facts["likelihood"] = {"class": "os.system", "fields": {"command": "true"}}
    elif what == "an unknown field":
        facts["recipe"]["fields"]["callback"] = 1
    elif what == "an unknown kind":
        facts["noise"] = {"pickle": "x"}
    elif what == "no network":
        facts["network"] = facts["likelihood"]
    elif what == "another network":
        facts["network"]["fields"]["inputs"] = 4
    elif what == "a missing array":
        tensors.pop("noise.rate")
    elif what == "a missing part":
        del facts["scaling"]
    elif what == "a wrong mask":
        name = facts["weights"]["leaves"][0]["belief"]["mask"]
        tensors[name] = np.append(tensors[name], np.uint8(255))
    elif what == "too many weights":
        name = facts["weights"]["leaves"][0]["belief"]["mean"]["array"]
        tensors[name] = np.append(tensors[name], 1.0)
    elif what == "a huge shape":
        facts["weights"]["leaves"][0]["belief"]["shape"] = [10**9, 10**9]
    elif what == "an object array":
        facts["weights"]["leaves"][0]["belief"]["mean"]["dtype"] = "O"
    elif what == "a list in the place of all":
        facts = [1, 2]
    return facts, tensors


@pytest.mark.parametrize(
    "what",
    ["an unknown class", "an unknown field", "an unknown kind", "no network", "another network",
     "a missing array", "a missing part", "a wrong mask", "too many weights", "a huge shape",
     "an object array", "a list in the place of all"],
)  # fmt: skip
def test_files_written_with_intent_are_refused(loaded, path, what):
    tensors, facts = read_container(path, kind="secateur-model", version=2)
    facts, tensors = change(facts, tensors, what)
    write_container(path, tensors, facts, kind="secateur-model", version=2)
    with pytest.raises(sc.FileError, match=r"model\.safetensors"):
        sc.load(path)


def test_double_precision_is_never_lost_silently(loaded, path):
    with jax.enable_x64(False), pytest.raises(sc.FileError, match=r"double precision.*x64"):
        sc.load(path)
