"""A recurrent network on real sequences: nine speakers told apart by one vowel (JapaneseVowels).

    python benchmarks/vowels.py [--wheel sktime-1.2.0-py3-none-any.whl] [--json FILE]

The data (UCI, Kudo et al. 1999; 270 training and 370 test sequences of 7 to 29 frames of 12
numbers) come with the package sktime, whose wheel is downloaded by pip but not installed. A GRU of
16 units is trained with the default recipe on padded sequences whose state stops at their end, as
in docs/how-to/sequences.md, pruned, and exported as C that takes one frame at a time. The output
is the accuracy on the official test set, the number of weights and, with the extra `device`, the
flash, RAM and instructions on a Cortex-M4F.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import secateur as sc

WHEEL = "sktime==1.2.0"
MEMBER = "sktime/datasets/data/JapaneseVowels/JapaneseVowels_{}.ts"
UNITS = 16


def download(folder):
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "--dest", folder, WHEEL]
    subprocess.run(command, check=True)
    return next(Path(folder).glob("*.whl"))


def read(wheel, part):
    """Return padded frames, their numbers, and classes from 0."""
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read(MEMBER.format(part)).decode().splitlines()
    sequences, labels = [], []
    for line in lines[lines.index("@data") + 1 :]:
        *channels, label = line.split(":")
        sequences.append(np.array([c.split(",") for c in channels], float).T)
        labels.append(int(label) - 1)
    lengths = np.array([len(s) for s in sequences])
    frames = np.stack([np.pad(s, ((0, 29 - len(s)), (0, 0))) for s in sequences])
    return {"frames": frames, "length": lengths}, np.array(labels)


def cell(params, state, frame):
    def gate(name, state):
        p = params[name]
        return frame @ p["inputs"] + state @ p["state"] + p["bias"]

    reset, update = jax.nn.sigmoid(gate("reset", state)), jax.nn.sigmoid(gate("update", state))
    return (1 - update) * jnp.tanh(gate("candidate", reset * state)) + update * state


def ragged(params, x):
    def step(state, inputs):
        frame, is_live = inputs
        return jnp.where(is_live, cell(params["gates"], state, frame), state), None

    frames = jnp.swapaxes(x["frames"], 0, 1)
    is_live = jnp.arange(len(frames))[:, None, None] < x["length"][:, None]
    state, _ = jax.lax.scan(step, jnp.zeros((frames.shape[1], UNITS)), (frames, is_live))
    return state @ params["readout"]["weights"] + params["readout"]["bias"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--inference", default="local")
    parser.add_argument("--epochs", type=int, help="by default the recipe's")
    parser.add_argument("--retrain", type=int, help="epochs of each round, by default the recipe's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheel = options.wheel or download(folder)
        train, test = read(wheel, "TRAIN"), read(wheel, "TEST")
    network = sc.networks.Gru(12, units=UNITS, outputs=9)
    init, fit_key, prune_key = jax.random.split(jax.random.key(options.seed), 3)
    model = sc.BayesianModel(
        ragged,
        network.init(init),
        likelihood=sc.CategoricalLikelihood(),
        inference=options.inference,
    )

    def accuracy(trained):
        return float(np.mean(trained.predict(test[0]).probabilities.argmax(1) == test[1]))

    begin = time.time()
    fitted = sc.fit(model, train, key=fit_key, epochs=options.epochs)
    print(f"{fitted}\naccuracy {accuracy(fitted):.3f}, {time.time() - begin:.0f} s", flush=True)
    pruned = sc.prune(fitted, train, key=prune_key, epochs=options.retrain)
    print(f"{pruned}\naccuracy {accuracy(pruned):.3f}, {time.time() - begin:.0f} s", flush=True)
    stream = dataclasses.replace(
        pruned,
        model=dataclasses.replace(pruned.model, f=network),
        scaling=dataclasses.replace(pruned.scaling, inputs=pruned.scaling.inputs["frames"]),
    )
    complete = train[0]["frames"][train[0]["length"] >= 20, :20]
    with tempfile.TemporaryDirectory() as folder:
        sheet = sc.export(stream, f"{folder}/vowels.c", inputs=complete)
    print(sheet)
    if options.json:
        results = {"before": fitted.live_weights, "accuracy_before": accuracy(fitted)}
        results |= {"after": pruned.live_weights, "accuracy": accuracy(pruned)}
        results |= {"sheet": sheet.to_dict(), "inference": options.inference}
        results |= {"epochs": [options.epochs, options.retrain], "seed": options.seed}
        results |= {"free_energy": [fitted.free_energy, pruned.free_energy]}
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
