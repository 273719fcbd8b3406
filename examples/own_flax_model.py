"""An unmodified Flax NNX model is trained as a Bayesian neural network, pruned and converted back.

    python examples/own_flax_model.py [--quick]

Needs Flax: pip install '.[models]'. `--quick` trains only briefly.
"""

import sys

import jax
import numpy as np
from flax import nnx

import secateur as sc

EPOCHS, RETRAIN = (100, 20) if "--quick" in sys.argv else (None, None)


class Network(nnx.Module):
    """Two hidden layers, independent of secateur."""

    def __init__(self, rngs):
        """Make the layers."""
        self.first = nnx.Linear(4, 20, rngs=rngs)
        self.second = nnx.Linear(20, 10, rngs=rngs)
        self.out = nnx.Linear(10, 1, rngs=rngs)

    def __call__(self, x):
        """Return one number for each row."""
        return self.out(nnx.relu(self.second(nnx.relu(self.first(x)))))


graph, weights = nnx.split(Network(nnx.Rngs(0)))


def network(weights, x):
    """The module as a pure function of its weights."""
    return nnx.merge(graph, weights)(x)


rng = np.random.default_rng(0)
x = rng.uniform(-2, 2, size=(300, 4))  # the last two inputs do not matter
y = np.sin(2 * x[:, :1]) + np.abs(x[:, 1:2]) + 0.1 * rng.normal(size=(300, 1))
data = x, y

print(sc.coverage(network, weights, x.astype("float32")))
print(sc.units(network, weights, x))
fitted = sc.fit(sc.BayesianModel(network, weights), data, key=jax.random.key(0), epochs=EPOCHS)
pruned = sc.prune(fitted, data, key=jax.random.key(1), what="both", epochs=RETRAIN)
print(pruned)
print(pruned.table())

# The means are weights of the same module. It sees standardised inputs: see pruned.scaling.
means = jax.tree.map(lambda q: q.mean, pruned.beliefs, is_leaf=lambda q: isinstance(q, sc.Normal))
module = nnx.merge(graph, means)
used = np.flatnonzero(np.any(np.asarray(module.first.kernel[...]) != 0, axis=1))
print("inputs in use:", used)
