"""A small convolutional network reads handwritten digits; whole channels and units are pruned.

    python examples/classify_digits.py [--quick]

The 1797 images of 8 × 8 pixels come with scikit-learn. `--quick` trains only briefly.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import secateur as sc

QUICK = "--quick" in sys.argv
ROWS, EPOCHS, RETRAIN = (150, 2, 1) if QUICK else (1797, 60, 20)


def network(params, images):
    """3 × 3 filters, every second pixel, then two dense layers; ten logits."""
    images = images.reshape(-1, 8, 8, 1)
    layout = ("NHWC", "HWIO", "NHWC")
    hidden = jax.lax.conv_general_dilated(
        images, params["filters"], (2, 2), "SAME", dimension_numbers=layout
    )
    hidden = jax.nn.relu(hidden + params["b1"]).reshape(len(images), -1)
    hidden = jax.nn.relu(hidden @ params["w2"] + params["b2"])
    return hidden @ params["w3"] + params["b3"]


def draw(key, *shape):
    """He's scale: variance 2 / inputs."""
    return jnp.sqrt(2 / np.prod(shape[:-1])) * jax.random.normal(key, shape)


x, y = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x[:ROWS], y[:ROWS], random_state=0)
data = x_train, y_train
k1, k2, k3 = jax.random.split(jax.random.key(0), 3)
params = {"filters": draw(k1, 3, 3, 1, 8), "w2": draw(k2, 128, 32), "w3": draw(k3, 32, 10)}
params |= {"b1": jnp.zeros((1, 1, 1, 8)), "b2": jnp.zeros((1, 32)), "b3": jnp.zeros((1, 10))}

model = sc.BayesianModel(network, params, likelihood=sc.CategoricalLikelihood(), inference="local")
fitted = sc.fit(model, data, key=jax.random.key(1), epochs=EPOCHS)
pruned = sc.prune(fitted, data, key=jax.random.key(2), what="units", epochs=RETRAIN)
print(pruned)
for name, axis in (("filters", 3), ("w2", 1)):
    alive = np.moveaxis(np.asarray(pruned.beliefs[name].variance) > 0, axis, 0)
    print(f"{name}: {alive.reshape(len(alive), -1).any(1).sum()} of {len(alive)} units left")
for name, result in (("before", fitted), ("after", pruned)):
    chosen = result.predict(x_test, samples=10).probabilities.argmax(axis=1)
    print(f"{name} pruning: test accuracy {100 * np.mean(chosen == y_test):.1f} %")
