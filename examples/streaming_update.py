"""Learning from a stream of data: the posterior of each batch is the prior of the next.

    python examples/streaming_update.py [--quick]

A reading depends on two of six inputs; halfway, a third input begins to matter.
`--quick` trains only briefly.
"""

import sys

import jax
import numpy as np

import secateur as sc

BATCHES, EPOCHS = (3, 5) if "--quick" in sys.argv else (6, 300)
rng = np.random.default_rng(0)


def read_batch(batch):
    """Return one batch of 100 readings."""
    x = rng.uniform(-2, 2, size=(100, 6))
    y = np.abs(x[:, :1]) + 0.5 * x[:, 1:2] + 0.1 * rng.normal(size=(100, 1))
    if batch >= BATCHES // 2:
        y += x[:, 2:3]
    return x, y


network = sc.networks.Dense(6, hidden=(20,))
model = sc.BayesianModel(network, network.init(jax.random.key(0)))
current = None
for batch in range(BATCHES):
    x, y = data = read_batch(batch)
    fit_key, prune_key = jax.random.split(jax.random.key(batch))
    surprise = np.nan
    if current is None:
        current = sc.fit(model, data, key=fit_key, epochs=EPOCHS)
    else:
        surprise = -float(np.mean(current.predict(x).log_density(y)))  # before learning from it
        # Below 1, old beliefs are gradually forgotten, as the process may change.
        current = sc.update(current, data, key=fit_key, trust=0.5, epochs=EPOCHS)
    # Weights that the new data require grow back; the old rows are not needed for this.
    current = sc.prune(current, data, key=prune_key, grow=True, epochs=EPOCHS)
    alive = np.asarray(current.beliefs["layers"][0]["weights"].variance) > 0
    print(
        f"batch {batch}: surprise {surprise:6.2f} nats per row, "
        f"{current.live_weights:3d} weights, inputs in use {np.flatnonzero(alive.any(axis=1))}"
    )
