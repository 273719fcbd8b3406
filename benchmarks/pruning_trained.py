"""Networks of MNIST trained plainly in PyTorch, pruned from their trained weights in three ways.

    python benchmarks/pruning_trained.py FOLDER [--network dense|lenet5] [--epochs 2] …
    python benchmarks/pruning_trained.py FOLDER --method magnitude --weights N
    python benchmarks/pruning_trained.py FOLDER --method torch-pruning --weights N

FOLDER holds NAME.onnx and NAME.pt from `train_in_torch.py`. Prints the test accuracy of the network
as it came and after pruning, with the weights that are left. All have the same number of epochs in
all. What each must be told beside the data:

- secateur: nothing. (It reads the ONNX file, and writes NAME-pruned.safetensors.)
- magnitude: how many weights shall be left, of all layers together. The smallest are cut in
  --stages stages, an epoch each; the rest of the epochs follow. With --decay, Adam decays weights.
- torch-pruning (the package Torch-Pruning, whole units by the norm of their weights): the ratio,
  found here by bisection from the number of weights, for all layers together or, with --uniform,
  the same for each; which layers to leave alone; an example input; the number of stages. The rest
  as before.
"""

import argparse
import copy
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


def prune_until(trained, data, last_epoch, **options):
    """Prune until there is nothing left to cut, or the epochs are used up."""
    done = trained.epochs

    def watch(update):
        nonlocal done
        if update.epoch < update.epochs:
            return None
        done += update.epochs  # a round is over
        print(f"  {done} epochs, free energy {update.free_energy:.0f}", flush=True)
        return "stop" if done >= last_epoch else None

    return sc.prune(trained, data, progress=False, callback=watch, **options)


# --- by others ------------------------------------------------------------------------------------


def count_nonzero(module):
    return sum(int((p != 0).sum()) for p in module.parameters())


def prune_in_torch(options, x, y, x_test, y_test):
    """Magnitude pruning, or Torch-Pruning, with as many epochs as secateur."""
    import torch
    from train_in_torch import NETWORKS, measure_accuracy, train

    torch.manual_seed(0)
    module = NETWORKS[options.network]()
    module.load_state_dict(torch.load(options.folder / f"{options.network}.pt"))
    stages, y, y_test = options.stages, y.astype(np.int64), y_test.astype(np.int64)
    start, accuracy = time.perf_counter(), measure_accuracy(module, x_test, y_test)
    print(f"as it came: {count_nonzero(module)} weights, test accuracy {accuracy:.4f}")
    settings = {
        "rate": options.rate, "batch_size": options.batch_size, "decay": options.decay
    }  # fmt: skip
    if options.method == "magnitude":
        total, masks = count_nonzero(module), None
        for stage in range(1, stages + 1):
            left = round(total * (options.weights / total) ** (stage / stages))
            sizes = torch.cat([p.detach().abs().ravel() for p in module.parameters()])
            limit = torch.topk(sizes, left).values[-1]
            masks = {p: (p.detach().abs() >= limit).float() for p in module.parameters()}
            with torch.no_grad():
                for p, mask in masks.items():
                    p.mul_(mask)
            train(module, x, y, epochs=1, masks=masks, **settings)
    else:
        ratio = find_ratio(module, options.weights, x, options.uniform)
        masks, pruner = None, make_pruner(module, ratio, x, stages, options.uniform)
        for _ in range(stages):
            pruner.step()
            train(module, x, y, epochs=1, **settings)
    train(module, x, y, epochs=options.most_epochs - stages, masks=masks, **settings)
    accuracy = measure_accuracy(module, x_test, y_test)
    print(
        f"{options.method}: {count_nonzero(module)} weights, test accuracy {accuracy:.4f}, "
        f"{options.most_epochs} epochs, {time.perf_counter() - start:.0f} s"
    )
    print(module)


def make_pruner(module, ratio, x, stages, uniform):
    import torch
    import torch_pruning as tp

    last = [m for m in module.modules() if isinstance(m, torch.nn.Linear)][-1]
    return tp.pruner.MagnitudePruner(
        module, torch.from_numpy(x[:1]), importance=tp.importance.MagnitudeImportance(p=2),
        global_pruning=not uniform, pruning_ratio=ratio, iterative_steps=stages,
        ignored_layers=[last], max_pruning_ratio=0.99,
    )  # fmt: skip


def find_ratio(module, weights, x, uniform):
    """The smallest ratio that leaves at most so many weights."""
    low, high = 0.0, 0.99
    for _ in range(12):
        ratio, trial = (low + high) / 2, copy.deepcopy(module)
        make_pruner(trial, ratio, x, 1, uniform).step()
        size = sum(p.numel() for p in trial.parameters())
        low, high = (low, ratio) if size <= weights else (ratio, high)
    return high


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--network", default="dense")
    parser.add_argument("--epochs", type=int, help="of the fit")
    parser.add_argument("--retrain-epochs", type=int)
    parser.add_argument("--gradual-rounds", type=int, default=RECIPES["trained"].gradual_rounds)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--most-epochs", type=int, default=30, help="in all")
    parser.add_argument(
        "--method", choices=["secateur", "magnitude", "torch-pruning"], default="secateur"
    )
    parser.add_argument("--weights", type=int, help="left by the other methods")
    parser.add_argument("--stages", type=int, default=10, help="of the other methods")
    parser.add_argument("--decay", type=float, default=0.0, help="of the other methods")
    parser.add_argument("--uniform", action="store_true", help="Torch-Pruning: layer by layer")
    parser.add_argument("--inference", default="local")
    parser.add_argument("--priors", default="leaves")
    parser.add_argument("--what", default="weights")
    parser.add_argument("--rows", type=int, default=60_000)
    options = parser.parse_args()
    x, y, x_test, y_test = load_images()
    if options.method != "secateur":
        prune_in_torch(options, x, y, x_test, y_test)
        return
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
    recipe = replace(
        RECIPES["trained"],
        retrain_epochs=options.retrain_epochs,
        gradual_rounds=options.gradual_rounds,
    )
    fitted = sc.fit(
        model, data, key=jax.random.key(0), recipe=recipe, epochs=options.epochs,
        batch_size=options.batch_size, rate=options.rate, learn_priors=options.priors,
        progress=False,
    )  # fmt: skip
    report("fitted", fitted)
    pruned = prune_until(
        fitted, data, options.most_epochs, key=jax.random.key(1), what=options.what,
        checkpoint=options.folder / f"{options.network}.checkpoint",
    )  # fmt: skip
    report(f"pruned, {len(pruned.rounds)} rounds", pruned)
    print(pruned.table())
    sc.save(pruned, options.folder / f"{options.network}-pruned.safetensors")


if __name__ == "__main__":
    main()
