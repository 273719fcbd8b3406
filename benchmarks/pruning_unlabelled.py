"""A classifier of images in an ONNX file, pruned on images without labels.

    python benchmarks/pruning_unlabelled.py FILE.onnx IMAGES.npz [--images-used 4000] [--rounds 2] …

IMAGES.npz holds `x_train`, `x_test` (of the shape that the network takes, as it takes them) and
`y_test`, which only judges. Prints the test accuracy of the network as it came, fitted and pruned,
and how often it gives the class that it gave as it came.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

import secateur as sc
from secateur.beliefs import mean_weights
from secateur.importing import from_onnx
from secateur.importing.starting import as_trained, compute_targets, make_model
from secateur.training.recipe import RECIPES


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--images-used", type=int, default=4000)
    parser.add_argument("--test", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=RECIPES["trained"].steps)
    parser.add_argument("--gradual-steps", type=int, default=RECIPES["trained"].gradual_steps)
    parser.add_argument("--retrain-steps", type=int, default=RECIPES["trained"].retrain_steps)
    parser.add_argument("--rounds", type=int, default=2, help="after those that are gradual")
    options = parser.parse_args()
    with np.load(options.images) as file:
        x = file["x_train"][: options.images_used].astype(np.float32)
        x_test = file["x_test"][: options.test].astype(np.float32)
        y_test = file["y_test"][: options.test]
    f, params = from_onnx(options.file)
    data = (x, compute_targets(f, params, x))
    model = make_model(f, params, data, inference="local")
    evaluate, start = jax.jit(model.f), time.process_time()
    first = []

    def report(name, trained):
        weights = mean_weights(trained.beliefs)
        parts = [evaluate(weights, x_test[i : i + 500]) for i in range(0, len(x_test), 500)]
        classes = np.concatenate([np.asarray(p) for p in parts]).argmax(1)
        first.append(classes)
        print(
            f"{name}: {trained.live_weights} weights, test accuracy "
            f"{(classes == y_test).mean():.4f}, agreement {(classes == first[0]).mean():.4f}, "
            f"{trained.epochs} epochs, {time.process_time() - start:.0f} s of processor time",
            flush=True,
        )

    report("as it came", as_trained(model))
    recipe = replace(
        RECIPES["trained"],
        steps=options.steps,
        gradual_steps=options.gradual_steps,
        retrain_steps=options.retrain_steps,
        batch_size=options.batch_size,
    )
    fitted = sc.fit(
        model, data, key=jax.random.key(0), recipe=recipe, learn_priors="leaves", progress=False
    )
    report("fitted", fitted)
    most, trainings = recipe.gradual_rounds + options.rounds, 0

    def watch(update):
        nonlocal trainings
        if update.epoch < update.epochs:
            return None
        trainings += 1
        print(f"  round {trainings}, free energy {update.free_energy:.0f}", flush=True)
        return "stop" if trainings >= most else None

    pruned = sc.prune(fitted, data, key=jax.random.key(1), progress=False, callback=watch)
    report("pruned", pruned)
    print(pruned.table())


if __name__ == "__main__":
    main()
