"""ONNX files read by `from_onnx`, beside onnxruntime.

    python benchmarks/imported_models.py FILE.onnx … [--keywords kws_test.npz]

For each file: the largest difference from onnxruntime on random rows (of floating-point outputs as
a share of their largest value, of 8 bits in steps), units, operations that `coverage` lists,
whether `propagate` with each algorithm gives finite numbers, and the file that is written again
without any training. `--keywords` adds the accuracy on the official test inputs of keyword spotting
for files with `kws` in their name.
"""

import argparse
import time
from pathlib import Path

import jax
import numpy as np
import onnxruntime

import secateur as sc
from secateur.exports import to_onnx
from secateur.importing import as_trained, from_onnx

ALGORITHMS = ("moments", "independent", "local", "global")


def draw_rows(f, count):
    shape, rng = (count, *f.row_shape), np.random.default_rng(0)
    if f.inputs[0].dtype == "int8":
        return rng.integers(-128, 128, shape).astype(np.int8)
    return rng.normal(size=shape).astype(np.float32)


def run(file, x):
    session = onnxruntime.InferenceSession(file)
    name = session.get_inputs()[0].name
    shape = session.get_inputs()[0].shape
    step = shape[0] if isinstance(shape[0], int) else len(x)  # some files are for a single row
    parts = [session.run(None, {name: x[i : i + step]})[0] for i in range(0, len(x), step)]
    return np.concatenate(parts)


def compare(mine, truth):
    gap = np.abs(np.asarray(mine, np.float64) - truth.astype(np.float64))
    if truth.dtype.kind == "f":
        return f"{gap.max() / np.abs(truth).max():.1e}"
    return f"{gap.max():.0f} steps, {100 * np.mean(gap > 1):.1f} % more than one"


def examine(path, keywords):
    f, params = from_onnx(path)
    x = draw_rows(f, 8)
    start = time.process_time()
    facts = {
        "weights": sum(a.size for a in params.values()),
        "difference": compare(jax.jit(f)(params, x), run(path, x)),
        "hidden units": sum(unit.kind == "hidden" for unit in sc.units(f, params, x[:2]).units),
        "operations": len(sc.coverage(f, params, x[:2]).rows),
    }
    if keywords and "kws" in path.stem:
        with np.load(keywords) as file:
            mfcc, label = file["mfcc"], file["label"]
        inputs = mfcc.reshape(-1, *f.row_shape)
        if f.inputs[0].dtype != "int8":
            inputs = (inputs.astype(np.float32) - 83) * np.float32(0.5847)
        answers = np.asarray(jax.jit(f)(params, inputs)).argmax(-1)
        theirs = run(path, inputs).argmax(-1)
        facts["accuracy"] = f"{(answers == label).mean():.4f}"
        facts["accuracy with onnxruntime"] = f"{(theirs == label).mean():.4f}"
    logits = f.without_last_step()
    likelihood = sc.CategoricalLikelihood() if logits.last_step else sc.GaussianLikelihood()
    content = to_onnx(as_trained(sc.BayesianModel(logits, params, likelihood)))
    facts["written again"] = compare(run(content, x), run(path, x))
    facts["size"] = f"{len(content) / path.stat().st_size:.3f}"
    print(f"{path.stem}: " + "; ".join(f"{k} {v}" for k, v in facts.items()), flush=True)
    beliefs = {n: sc.Normal(a, np.full_like(a, 1e-6)) for n, a in params.items()}
    for how in ALGORITHMS:
        result = jax.jit(sc.propagate(f, how))(jax.random.key(0), beliefs, x[:2])
        finite = all(np.all(np.isfinite(np.asarray(a))) for a in jax.tree.leaves(result))
        print(f"  {how}: {'finite' if finite else 'NOT FINITE'}", flush=True)
    print(f"  {time.process_time() - start:.0f} s of processor time", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--keywords", type=Path)
    options = parser.parse_args()
    for path in options.files:
        examine(path, options.keywords)


if __name__ == "__main__":
    main()
