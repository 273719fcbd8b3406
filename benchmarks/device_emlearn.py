"""emlearn's C of the unpruned boston network, on the emulated Cortex-M4F of `device.py`.

    python benchmarks/device_emlearn.py [--models FOLDER] [--json FILE]

`device.py` trains the network and keeps it in FOLDER. emlearn (`pip install emlearn`) gets it as
scikit-learn's MLPRegressor, with the standardisation of inputs and targets multiplied into its
weights, so that emlearn's C needs no code around it. It is compiled by arm-none-eabi-gcc with -O2,
functions that are not called are left out, and what emlearn calls in newlib (`expf`, `tanhf`, for
activations that this network does not have) is not counted as flash.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import emlearn
import numpy as np
from device import boston
from sklearn.neural_network import MLPRegressor

from secateur.beliefs import mean_weights
from secateur.exports.device import cortex
from secateur.exports.device.emulator import Emulator

COMPILER = ("arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard",
            "-mfpu=fpv4-sp-d16")  # fmt: skip
FLAGS = ("-std=c99", "-O2", "-ffreestanding", "-ffp-contract=fast", "-fno-unwind-tables",
         "-fno-asynchronous-unwind-tables", "-ffunction-sections", "-fdata-sections")  # fmt: skip
CALL = """
void predict(const float *x, float *y);
void predict(const float *x, float *y) { *y = net_regress1(x, %d); }
"""


def as_sklearn(params, scaling) -> MLPRegressor:
    """Return the network for raw inputs and targets as scikit-learn holds it."""
    weights = [np.asarray(layer["weights"], float) for layer in params["layers"]]
    biases = [np.asarray(layer["bias"], float) for layer in params["layers"]]
    shift, scale = np.asarray(scaling.inputs.shift), np.asarray(scaling.inputs.scale)
    weights[0] = weights[0] / scale[:, None]
    biases[0] = biases[0] - shift @ weights[0]
    if scaling.targets is not None:
        weights[-1] = weights[-1] * scaling.targets.scale
        biases[-1] = biases[-1] * scaling.targets.scale + scaling.targets.shift
    model = MLPRegressor([len(bias) for bias in biases[:-1]])
    model.coefs_, model.intercepts_ = weights, biases
    model.n_layers_, model.n_outputs_, model.out_activation_ = len(weights) + 1, 1, "identity"
    return model


def measure(model: MLPRegressor, rows: np.ndarray) -> dict:
    """Return flash, RAM and instructions per row, and what the C predicts."""
    headers = str(Path(emlearn.__file__).parent)
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):  # emlearn writes here, too
        folder = Path(name)
        code = emlearn.convert(model, return_type="regressor").save(name="net")
        (folder / "net.c").write_text(code + CALL % rows.shape[1])
        whole, needed = folder / "whole.o", folder / "needed.o"
        run(*COMPILER, *FLAGS, "-isystem", headers, "-c", folder / "net.c", "-o", whole)
        run(*COMPILER, "-nostdlib", "-r", "-Wl,--gc-sections,-e,predict", whole, "-o", needed)
        sizes = cortex.sizes(needed)
        elf = cortex.link([needed], folder, compiler="gcc", libraries=["-lm", "-lc"])
        machine, counts, outputs = Emulator(elf), [], []
        for row in np.asarray(rows, np.float32):
            y = np.zeros(1, np.float32)
            counts.append(machine.call("predict", np.ascontiguousarray(row), y).instructions)
            outputs.append(y[0])
    return {
        "flash": sizes.flash, "ram": sizes.ram, "instructions": round(float(np.mean(counts))),
        "outputs": np.array(outputs),
    }  # fmt: skip


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=Path, default=Path("build/device-models"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.models.mkdir(parents=True, exist_ok=True)
    full, _, x = boston(options.models)
    rows = np.asarray(x[:32], np.float32)
    found = measure(as_sklearn(mean_weights(full.beliefs), full.scaling), rows)
    expected = np.asarray(full.predict(rows, at_means=True).mean)[:, 0]
    gap = np.abs(found.pop("outputs") - expected).max()
    print(f"emlearn {version('emlearn')} is within {gap:.1e} of the model")
    print("  {instructions:,d} instructions, {flash:,d} B flash, {ram:,d} B RAM".format(**found))
    if options.json:
        options.json.write_text(json.dumps({"emlearn": version("emlearn"), **found}, indent=2))


if __name__ == "__main__":
    main()
