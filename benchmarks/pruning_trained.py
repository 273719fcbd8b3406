"""Networks of MNIST trained plainly in PyTorch, pruned from their trained weights.

    python benchmarks/pruning_trained.py FOLDER [--network dense|lenet5] [--epochs 15] …

FOLDER holds NAME.onnx from `train_in_torch.py`. Prints the test accuracy of the network as it came,
after fitting and after pruning (at the posterior means, as exported), with the weights that are
left, and writes NAME-pruned.safetensors.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

import secateur as sc
from secateur import datasets
from secateur.importing import from_onnx
from secateur.importing.starting import as_trained, make_model
from secateur.training.recipe import RECIPES


def load_images():
    mnist = datasets.load_images("mnist")
    images = [
        np.asarray(x, np.float32).reshape(-1, 1, 28, 28) / 255
        for x in (mnist.x_train, mnist.x_test)
    ]
    return images[0], mnist.y_train.astype(np.int32), images[1], mnist.y_test.astype(np.int32)


def measure(trained, x, y):
    """Accuracy and log-likelihood at the posterior means."""
    logits = []
    f = jax.jit(trained.model.f)
    weights = jax.tree.map(lambda q: q.mean if isinstance(q, sc.Normal) else q, trained.beliefs,
                           is_leaf=lambda q: isinstance(q, sc.Normal))  # fmt: skip
    for i in range(0, len(x), 1000):
        logits.append(np.asarray(f(weights, x[i : i + 1000])))
    logits = np.concatenate(logits)
    log_p = np.asarray(jax.nn.log_softmax(logits))[np.arange(len(y)), y]
    return float((logits.argmax(1) == y).mean()), float(log_p.mean())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--network", default="dense")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--retrain-epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--inference", default="local")
    parser.add_argument("--priors", default="leaves")
    parser.add_argument("--what", default="weights")
    parser.add_argument("--rows", type=int, default=60_000)
    options = parser.parse_args()
    x, y, x_test, y_test = load_images()
    data = (x[: options.rows], y[: options.rows])
    f, params = from_onnx(options.folder / f"{options.network}.onnx")
    model = make_model(f, params, data, inference=options.inference)
    start = time.perf_counter()

    def report(name, trained):
        accuracy, log_p = measure(trained, x_test, y_test)
        print(
            f"{name}: {trained.live_weights} weights, test accuracy {accuracy:.4f}, log-likelihood "
            f"{log_p:.4f}, {trained.epochs} epochs, free energy {trained.free_energy:.0f}, "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )

    report("as it came", as_trained(model))
    recipe = replace(RECIPES["trained"], retrain_epochs=options.retrain_epochs)
    fitted = sc.fit(
        model, data, key=jax.random.key(0), recipe=recipe, epochs=options.epochs,
        batch_size=options.batch_size, rate=options.rate, learn_priors=options.priors,
        progress=True,
    )  # fmt: skip
    report("fitted", fitted)
    pruned = sc.prune(fitted, data, key=jax.random.key(1), what=options.what, progress=True)
    report("pruned", pruned)
    print(pruned.table())
    sc.save(pruned, options.folder / f"{options.network}-pruned.safetensors")


if __name__ == "__main__":
    main()
