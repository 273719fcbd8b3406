"""Export of a pruned network as C for a microcontroller, in floats and in integers, with costs.

    python examples/to_c.py [FOLDER] [--quick]

Writes into FOLDER, or into a temporary folder. `--quick` trains only briefly. Flash, RAM and
instructions are measured if `secateur[device]` is installed.
"""

import sys
import tempfile
from pathlib import Path

import jax
from sklearn.datasets import load_diabetes

import secateur as sc

QUICK = "--quick" in sys.argv
EPOCHS, RETRAIN = (40, 10) if QUICK else (None, None)
HELD_OUT = 60


def main(folder: Path) -> None:
    """Train, prune and export."""
    data = load_diabetes(scaled=False)
    x, y = data.data, data.target[:, None]
    rows, held_out = (x[HELD_OUT:], y[HELD_OUT:]), (x[:HELD_OUT], y[:HELD_OUT])
    network = sc.networks.Dense(x.shape[1], hidden=(12,))
    model = sc.BayesianModel(network, network.init(jax.random.key(0)))
    fitted = sc.fit(model, rows, key=jax.random.key(1), epochs=EPOCHS)
    pruned = sc.prune(fitted, rows, key=jax.random.key(2), epochs=RETRAIN)
    print(pruned)
    for quantise in (None, "int16x8", "int8"):
        path = folder / f"sugar_{quantise or 'float32'}.c"
        sheet = sc.export(
            pruned,
            path,
            inputs=held_out[0],
            targets=held_out[1],
            quantise=quantise,
            input_names=data.feature_names,
            measured=not QUICK,
        )
        if not QUICK:
            print(f"\n{path.name}\n{sheet}\n")
        bits = ", ".join(str(tensor.bits) for tensor in sheet.arithmetic.tensors) or "32"
        print(
            f"{quantise or 'float32':8} {sheet.arithmetic.multiply_adds} multiply-adds, "
            f"{path.stat().st_size} bytes of source, {bits} bits per weight"
        )


places = [Path(word) for word in sys.argv[1:] if not word.startswith("-")]
if places:
    places[0].mkdir(parents=True, exist_ok=True)
    main(places[0])
else:
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
