"""Classes as pytrees: their structures tell them apart, unlike those that JAX gives dataclasses."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from secateur.importing.starting import SoftLabels
from secateur.training.sources import Arrays
from secateur.training.trainer import Trainer

SOURCE = pathlib.Path(sc.__file__).parent
ONE = jnp.ones(2)
VALUES = [
    sc.Normal(ONE, ONE),
    sc.Gamma(ONE, ONE),
    sc.Beta(ONE, ONE),
    sc.Laplace(ONE, ONE),
    sc.Dirichlet(ONE),
    sc.UnitNormal(ONE, ONE, ONE),
    sc.ScaleMixture(0.5, 1.0, 0.1),
    sc.BernoulliLikelihood(),
    sc.CategoricalLikelihood(),
    SoftLabels(),
    sc.PoissonLikelihood(),
    sc.GaussianLikelihood(),
]


def test_structures_tell_classes_apart():
    """A compiled program is looked up by the structures of its arguments."""
    for a, b in itertools.combinations(VALUES, 2):
        assert jax.tree.structure(a) != jax.tree.structure(b), (a, b)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_structures_of_one_class_are_equal(value):
    leaves, structure = jax.tree.flatten(value)
    again = structure.unflatten(leaves)
    assert type(again) is type(value)
    assert jax.tree.structure(again) == structure
    assert hash(jax.tree.structure(again)) == hash(structure)


def test_no_dataclass_is_registered_with_jax():
    for path in SOURCE.rglob("*.py"):
        if path.name != "registration.py":
            text = path.read_text()
            assert "tree_util.register_dataclass" not in text, path
            assert "tree_util import register_dataclass" not in text, path


@sc.register_dataclass
@dataclass(frozen=True)
class Line:
    slope: float
    offset: float
    name: str = field(default="", metadata={"static": True})


def test_fields():
    """Oracle: what JAX's own function makes of the same class."""

    @jax.tree_util.register_dataclass
    @dataclass(frozen=True)
    class Same:
        slope: float
        offset: float
        name: str = field(default="", metadata={"static": True})

    for cls in (Line, Same):
        pairs, structure = jax.tree_util.tree_flatten_with_path(cls(1.0, 2.0, "a"))
        assert [(jax.tree_util.keystr(path), leaf) for path, leaf in pairs] == [
            (".slope", 1.0),
            (".offset", 2.0),
        ]
        assert structure.unflatten([3.0, 4.0]) == cls(3.0, 4.0, "a")
        assert structure != jax.tree.structure(cls(1.0, 2.0, "b"))
    doubled = jax.jit(lambda line: jax.tree.map(lambda v: 2 * v, line))(Line(1.0, 2.0, "a"))
    assert (float(doubled.slope), float(doubled.offset), doubled.name) == (2.0, 4.0, "a")


def test_fields_that_do_not_fit_are_refused():
    @dataclass
    class Pair:
        a: float
        b: float

    with pytest.raises(ValueError, match=r"Pair: data_fields and meta_fields.*Check: b"):
        sc.register_dataclass(Pair, data_fields=["a"], meta_fields=[])
    with pytest.raises(ValueError, match="Check: c"):
        sc.register_dataclass(Pair, data_fields=["a", "b", "c"])


def test_a_program_knows_the_classes_of_its_likelihood_and_priors():
    """Also those that a user has registered with JAX, whose structures are equal."""

    def register(name, base):
        cls = dataclasses.make_dataclass(name, [], bases=(base,), frozen=True, eq=False)
        return jax.tree_util.register_dataclass(cls, [], [])

    first = register("First", sc.PoissonLikelihood)()
    second = register("Second", sc.BernoulliLikelihood)()
    if jax.tree.structure(first) != jax.tree.structure(second):
        pytest.skip("this JAX tells the classes apart by itself")
    network = sc.networks.Dense(1, (), 1)
    x, y = np.zeros((4, 1)), np.array([[0], [1], [0], [1]])
    specs = []
    for likelihood in (first, second):
        model = sc.BayesianModel(network, network.init(jax.random.key(0)), likelihood=likelihood)
        fitted = sc.fit(model, (x, y), key=jax.random.key(0), epochs=1, progress=False)
        trainer = Trainer(
            model, Arrays([(x, y)]), [fitted.beliefs], [fitted.priors], fitted.training
        )
        specs.append(trainer.spec)
    assert specs[0] != specs[1]
