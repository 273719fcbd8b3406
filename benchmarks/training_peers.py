"""Microseconds per training step of other libraries for Bayesian neural networks.

    python benchmarks/training_peers.py --list
    python benchmarks/training_peers.py --peer numpyro --case a --steps 2000

One peer and one case per process, so that the threads and imports of one do not disturb another;
one JSON line on stdout. A step is what training repeats: take a mini-batch, draw one sample of the
weights, negative log likelihood + KL / N, gradient, Adam at rate 0.01. Compilation and the first
run are not counted.

All peers get the same data, network and fixed noise, and a standard normal prior on weights and
biases. Each trains as its own documentation does it, and where there is a choice, the faster way:
torch batches are slices of a permutation (a `DataLoader` is slower), torch's Adam is the fused one,
and small networks get one torch thread (a second gains nothing, and stalls when its core is busy).
Two differ by construction: bayesian-torch's KL is a mean over a layer's weights, not their sum;
blitz estimates the KL from the sample, and its GRU has 4 blocks of weights but uses 3. NumPyro's
Trace_ELBO also estimates the KL from the sample. A peer without the layer that a case needs reports
null and the reason.

Installation (Python 3.11). The torch libraries and tf-keras ask for packages that training does not
use (torchvision, tensorboard, scikit-learn, the full tensorflow), hence `--no-deps`:

    pip install numpyro==0.22.0
    pip install torch==2.13.0  # a CPU build suffices
    pip install --no-deps bayesian-torch==0.5.0 blitz-bayesian-pytorch==0.2.8 torchbnn==1.2
    pip install tensorflow-cpu==2.21.0 tensorflow-probability==0.25.0
    pip install --no-deps tf-keras==2.21.0

TensorFlow Probability is measured on TensorFlow: its JAX substrate (0.25.0) does not import with
jax 0.10 (`jax.interpreters.xla.pytype_aval_mappings` is gone).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise

import numpy as np

RATE = 1e-2  # of Adam
NOISE = 0.5  # standard deviation of the Gaussian likelihood, fixed
HIDDEN = 16  # width of the GRU

Run = Callable[[], float]
"""Trains `steps` more steps, waits until they are done, and returns the last loss."""


@dataclass(frozen=True)
class Case:
    """A network and its data; `sizes` is None for the recurrent one."""

    title: str
    sizes: tuple[int, ...] | None
    batch: int
    rows: int
    classes: int | None = None

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs (float32) and targets: (rows, 1) float32, or (rows,) int64 classes."""
        rng = np.random.default_rng(0)
        if self.sizes is None:  # predict a noisy wave from its last 8 samples
            wave = np.sin(0.2 * np.arange(self.rows + 8)) + 0.1 * rng.normal(size=self.rows + 8)
            windows = np.lib.stride_tricks.sliding_window_view(wave, 8)[: self.rows]
            return np.float32(windows[..., None]), np.float32(wave[8:, None])
        x = rng.normal(size=(self.rows, self.sizes[0]))
        score = x @ rng.normal(size=(self.sizes[0], self.sizes[-1])) / math.sqrt(self.sizes[0])
        if self.classes is not None:
            return np.float32(x), score.argmax(1)
        return np.float32(x), np.float32(np.tanh(score) + 0.1 * rng.normal(size=score.shape))


CASES = {
    "a": Case("13-50-1 ReLU, batch 16, N = 506", (13, 50, 1), 16, 506),
    "b": Case("8-50-1 ReLU, batch 64, N = 8192", (8, 50, 1), 64, 8192),
    "c": Case("GRU-16 over 8 samples, linear readout, batch 16, N = 792", None, 16, 792),
    "d": Case("784-300-100-10 ReLU, batch 128, N = 10000", (784, 300, 100, 10), 128, 10_000, 10),
}


class NoLayerError(Exception):
    """The peer has no layer for this case."""


def mlp(weights, x):
    """The feed-forward network as a JAX function; weights are pairs of matrix and bias."""
    import jax

    for w, b in weights[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = weights[-1]
    return x @ w + b


def gru(weights, x):
    """The recurrent network as a JAX function of (rows, samples, 1)."""
    import jax
    import jax.numpy as jnp

    (wx, bx), (wh, bh), (w, b) = weights

    def cell(h, x):
        (rx, zx, nx), (rh, zh, nh) = (jnp.split(v, 3, -1) for v in (x @ wx + bx, h @ wh + bh))
        z = jax.nn.sigmoid(zx + zh)
        new = jnp.tanh(nx + jax.nn.sigmoid(rx + rh) * nh)
        return (1 - z) * new + z * h, None

    h, _ = jax.lax.scan(cell, jnp.zeros((x.shape[0], HIDDEN)), x.swapaxes(0, 1))
    return h @ w + b


# --- NumPyro: a model is a function, so that any network can be written ---------------------------


def numpyro_parts(case: Case) -> tuple[Callable, Callable]:
    """The weights' priors, and the likelihood given those weights."""
    import numpyro
    import numpyro.distributions as dist

    def weight(name: str, *shape: int):
        return numpyro.sample(name, dist.Normal(0, 1).expand(shape).to_event(len(shape)))

    def layer(name: str, inputs: int, outputs: int):
        return weight(f"{name}_w", inputs, outputs), weight(f"{name}_b", outputs)

    def mlp_weights():
        return [layer(f"layer{i}", m, n) for i, (m, n) in enumerate(pairwise(case.sizes))]

    def gru_weights():
        inputs, hidden = layer("input", 1, 3 * HIDDEN), layer("hidden", HIDDEN, 3 * HIDDEN)
        return inputs, hidden, layer("readout", HIDDEN, 1)

    weights, network = (gru_weights, gru) if case.sizes is None else (mlp_weights, mlp)

    def likelihood(weights, x):
        y = network(weights, x)
        return dist.Categorical(logits=y) if case.classes else dist.Normal(y[:, 0], NOISE)

    return weights, likelihood


def numpyro_run(case: Case, steps: int) -> tuple[Run, str]:
    """SVI.run, whose mini-batch is a plate's subsample."""
    import jax
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO, init_to_median
    from numpyro.infer.autoguide import AutoNormal

    weights, likelihood = numpyro_parts(case)

    def model(x, y):
        sample = weights()
        with numpyro.plate("data", case.rows, subsample_size=case.batch) as rows:
            numpyro.sample("y", likelihood(sample, x[rows]), obs=y[rows])

    x, y = numpyro_data(case)
    guide = AutoNormal(model, init_loc_fn=init_to_median)
    svi = SVI(model, guide, numpyro.optim.Adam(RATE), Trace_ELBO())
    state = svi.init(jax.random.key(0), x, y)

    # SVI.run compiles anew in every call, unless it is itself inside a compiled function.
    @jax.jit
    def train(state, x, y):
        result = svi.run(None, steps, x, y, progress_bar=False, init_state=state)
        return result.state, result.losses[-1]

    def run() -> float:
        nonlocal state
        state, loss = train(state, x, y)
        return float(loss)

    return run, (
        "SVI.run(progress_bar=False) inside jax.jit, AutoNormal, Trace_ELBO, numpyro.optim.Adam, "
        "numpyro.plate(subsample_size=batch)"
    )


def numpyro_update_run(case: Case, steps: int) -> tuple[Run, str]:
    """SVI.update over an epoch's shuffled batches, as in NumPyro's VAE example.

    A plate draws its subsample by a sequential shuffle in every step (on CPU), which can cost more
    than the rest of the step (case b). This way NumPyro is faster.
    """
    import jax
    import numpyro
    from numpyro.infer import SVI, TraceMeanField_ELBO, init_to_median
    from numpyro.infer.autoguide import AutoNormal

    weights, likelihood = numpyro_parts(case)

    def model(x, y):
        sample = weights()
        with numpyro.handlers.scale(scale=case.rows / case.batch):
            numpyro.sample("y", likelihood(sample, x).to_event(1), obs=y)

    x, y = numpyro_data(case)
    guide = AutoNormal(model, init_loc_fn=init_to_median)
    svi = SVI(model, guide, numpyro.optim.Adam(RATE), TraceMeanField_ELBO())
    state = svi.init(jax.random.key(0), x[: case.batch], y[: case.batch])
    per_epoch = case.rows // case.batch  # whole batches only, as in the example
    key = jax.random.key(1)

    @jax.jit
    def train(state, key, x, y):
        def shuffled(key):
            order = jax.random.permutation(key, case.rows)
            return order[: per_epoch * case.batch].reshape(per_epoch, case.batch)

        keys = jax.random.split(key, 1 + math.ceil(steps / per_epoch))
        batches = jax.lax.map(shuffled, keys[1:]).reshape(-1, case.batch)[:steps]
        state, losses = jax.lax.scan(
            lambda state, rows: svi.update(state, x[rows], y[rows]), state, batches
        )
        return state, keys[0], losses[-1]

    def run() -> float:
        nonlocal state, key
        state, key, loss = train(state, key, x, y)
        return float(loss)

    return run, (
        "SVI.update in a lax.scan over shuffled batches inside jax.jit, AutoNormal, "
        "TraceMeanField_ELBO, numpyro.optim.Adam"
    )


def numpyro_data(case: Case):
    import jax.numpy as jnp

    x, y = case.data()
    return jnp.asarray(x), jnp.asarray(y if case.classes else y[:, 0])


# --- PyTorch: three libraries of layers, one training loop ----------------------------------------


def torch_run(case: Case, steps: int, model, loss_of: Callable) -> Run:
    """The loop all three document: `loss_of(x, y)`, backward, Adam."""
    import torch

    if case.classes is None:
        torch.set_num_threads(1)
    x, y = map(torch.from_numpy, case.data())
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)

    def endless_batches() -> Iterator:
        while True:
            for rows in torch.randperm(case.rows).split(case.batch):
                yield x[rows], y[rows]

    batches = endless_batches()

    def run() -> float:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_of(*next(batches))
            loss.backward()
            optimizer.step()
        return loss.item()

    return run


def torch_likelihood(case: Case) -> Callable:
    """Mean negative log likelihood, up to a constant."""
    from torch import nn

    mse = nn.MSELoss()

    def gaussian(y_model, y):
        return mse(y_model, y) / (2 * NOISE**2)

    return nn.CrossEntropyLoss() if case.classes else gaussian


def torch_mlp(case: Case, layer: Callable):
    from torch import nn

    modules = [m for sizes in pairwise(case.sizes) for m in (layer(*sizes), nn.ReLU())]
    return nn.Sequential(*modules[:-1])


def torchbnn_run(case: Case, steps: int) -> tuple[Run, str]:
    import torch
    import torchbnn as bnn

    if case.sizes is None:
        raise NoLayerError("torchbnn has no recurrent layer")
    torch.manual_seed(0)
    model = torch_mlp(case, lambda m, n: bnn.BayesLinear(0, 1.0, m, n))
    likelihood, kl = torch_likelihood(case), bnn.BKLLoss(reduction="sum")

    def loss_of(x, y):
        return likelihood(model(x), y) + kl(model).squeeze() / case.rows

    return torch_run(case, steps, model, loss_of), "BayesLinear, BKLLoss, fused Adam"


def bayesian_torch_run(case: Case, steps: int) -> tuple[Run, str]:
    import torch
    from bayesian_torch.layers import LinearReparameterization
    from torch import nn
    from torch.nn.functional import relu

    if case.sizes is None:
        raise NoLayerError("bayesian-torch has an LSTM layer, but no GRU")
    torch.manual_seed(0)

    class Network(nn.Module):
        """Layers return their KL beside the output, as in the library's own models."""

        def __init__(self) -> None:
            super().__init__()
            layers = (LinearReparameterization(m, n) for m, n in pairwise(case.sizes))
            self.layers = nn.ModuleList(layers)

        def forward(self, x):
            x, kl_sum = self.layers[0](x)
            for layer in self.layers[1:]:
                x, kl = layer(relu(x))
                kl_sum = kl_sum + kl
            return x, kl_sum

    model, likelihood = Network(), torch_likelihood(case)

    def loss_of(x, y):
        y_model, kl = model(x)
        return likelihood(y_model, y) + kl / case.rows

    return torch_run(case, steps, model, loss_of), (
        "LinearReparameterization with the KL it returns (a mean over weights), fused Adam"
    )


def blitz_run(case: Case, steps: int) -> tuple[Run, str]:
    import torch
    from blitz.modules import BayesianGRU, BayesianLinear
    from blitz.utils import variational_estimator

    torch.manual_seed(0)
    # One normal instead of the default mixture, and unchecked: both are cheaper.
    prior = torch.distributions.Normal(0.0, 1.0, validate_args=False)

    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = BayesianGRU(1, HIDDEN, prior_dist=prior)
            self.readout = BayesianLinear(HIDDEN, 1, prior_dist=prior)

        def forward(self, x):
            return self.readout(self.gru(x)[1])

    class Perceptron(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch_mlp(case, lambda m, n: BayesianLinear(m, n, prior_dist=prior))

        def forward(self, x):
            return self.layers(x)

    model = variational_estimator(Recurrent if case.sizes is None else Perceptron)()
    likelihood = torch_likelihood(case)

    def loss_of(x, y):
        return model.sample_elbo(x, y, likelihood, 1, complexity_cost_weight=1 / case.rows)

    layers = "BayesianGRU, BayesianLinear" if case.sizes is None else "BayesianLinear"
    return torch_run(case, steps, model, loss_of), (
        f"{layers}, variational_estimator, sample_elbo(sample_nbr=1), fused Adam"
    )


# --- TensorFlow Probability -----------------------------------------------------------------------


def tfp_run(case: Case, steps: int) -> tuple[Run, str]:
    """Keras `fit`; `steps_per_execution` keeps Python out of the steps of small models."""
    if case.sizes is None:
        raise NoLayerError("tfp.layers has no recurrent layer")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf
    import tensorflow_probability as tfp
    import tf_keras

    tf_keras.utils.set_random_seed(0)

    def divergence(q, p, _):
        return tfp.distributions.kl_divergence(q, p) / case.rows

    def dense(units: int, activation: str | None):
        return tfp.layers.DenseReparameterization(
            units,
            activation=activation,
            kernel_divergence_fn=divergence,
            bias_posterior_fn=tfp.layers.default_mean_field_normal_fn(),
            bias_prior_fn=tfp.layers.default_multivariate_normal_fn,
            bias_divergence_fn=divergence,
        )

    def gaussian(y, y_model):
        return tf.reduce_mean(tf.square(y - y_model)) / (2 * NOISE**2)

    categorical = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    hidden = [dense(units, "relu") for units in case.sizes[1:-1]]
    model = tf_keras.Sequential([*hidden, dense(case.sizes[-1], None)])
    model.compile(
        tf_keras.optimizers.Adam(RATE),
        loss=categorical if case.classes else gaussian,
        steps_per_execution=steps,
    )
    data = tf.data.Dataset.from_tensor_slices(case.data()).cache().shuffle(case.rows)
    data = data.repeat().batch(case.batch).prefetch(tf.data.AUTOTUNE)

    def run() -> float:
        history = model.fit(data, steps_per_epoch=steps, epochs=1, verbose=0)
        return float(history.history["loss"][-1])

    return run, (
        "tfp.layers.DenseReparameterization in tf_keras, fit on a prefetched tf.data, "
        "steps_per_execution = steps"
    )


# --- The benchmark --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """`packages` are what `pip` calls them: the peer itself, then what it runs on."""

    packages: tuple[str, ...]
    prepare: Callable[[Case, int], tuple[Run, str]]


PEERS = {
    "numpyro": Peer(("numpyro", "jax"), numpyro_run),
    "numpyro-update": Peer(("numpyro", "jax"), numpyro_update_run),
    "bayesian-torch": Peer(("bayesian-torch", "torch"), bayesian_torch_run),
    "blitz": Peer(("blitz-bayesian-pytorch", "torch"), blitz_run),
    "torchbnn": Peer(("torchbnn", "torch"), torchbnn_run),
    "tensorflow-probability": Peer(
        ("tensorflow-probability", "tensorflow-cpu", "tf-keras"), tfp_run
    ),
}


def installed(package: str) -> str | None:
    for name in (package, "tensorflow") if package == "tensorflow-cpu" else (package,):
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    return None


def installed_peers() -> dict[str, str | None]:
    """The versions, as "1.2 (torch 2.13.0)"; None where a peer or what it needs is missing."""

    def versions(own: str, *others: str) -> str | None:
        if None in map(installed, (own, *others)):
            return None
        return f"{installed(own)} ({', '.join(f'{p} {installed(p)}' for p in others)})"

    return {name: versions(*peer.packages) for name, peer in PEERS.items()}


def measure(peer: str, case: str, steps: int, repeats: int) -> dict:
    """The printed line; null with a reason if there is nothing to measure."""
    line = {
        "peer": peer,
        "case": case,
        "microseconds_per_step": None,
        "steps": steps,
        "repeats": [],
        "version": installed_peers()[peer],
        "how": None,
        "reason": None,
    }
    missing = [p for p in PEERS[peer].packages if installed(p) is None]
    if missing:
        return line | {"reason": f"not installed: pip install {' '.join(missing)}"}
    try:
        run, how = PEERS[peer].prepare(CASES[case], steps)
    except NoLayerError as error:
        return line | {"reason": str(error)}
    run()  # compiles, fills caches, starts threads
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        loss = run()
        times.append((time.perf_counter() - start) / steps * 1e6)
    if not math.isfinite(loss):
        return line | {"how": how, "reason": f"the loss became {loss}"}
    rounded = [round(t, 2) for t in times]
    return line | {
        "microseconds_per_step": statistics.median(rounded),
        "repeats": rounded,
        "how": how,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="print peers and cases, and stop")
    parser.add_argument("--peer", choices=PEERS)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--steps", type=int, default=2000, help="per repeat")
    parser.add_argument("--repeats", type=int, default=5, help="at least 3")
    options = parser.parse_args()
    if options.list:
        cases = {name: case.title for name, case in CASES.items()}
        print(json.dumps({"peers": installed_peers(), "cases": cases}, indent=2))
        return
    if options.peer is None or options.case is None:
        parser.error("give --peer and --case, or --list")
    if options.steps < 1 or options.repeats < 3:
        parser.error("--steps is at least 1 and --repeats at least 3")
    print(json.dumps(measure(options.peer, options.case, options.steps, options.repeats)))


if __name__ == "__main__":
    main()
