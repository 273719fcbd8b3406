"""Random damage to ONNX files: each is imported or refused, without a crash and without a hang.

    python benchmarks/onnx_mutations.py FILE.onnx … [--count 2000] [--run RUN]

Every file that is imported is traced; with --run, every RUN-th of them is also evaluated.
"""

import argparse
import faulthandler
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import jax
import numpy as np

from mutated_files import mutate
from secateur.importing import OnnxError, from_onnx


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--run", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    counts, imported, slowest = Counter(), 0, 0.0
    for number in range(options.count):
        path = options.files[number % len(options.files)]
        content = mutate(path.read_bytes(), rng)
        faulthandler.dump_traceback_later(300, exit=True)  # a hang
        start = time.perf_counter()
        try:
            f, params = from_onnx(content)
            counts["imported"] += 1
            imported += 1
            if options.run and imported % options.run == 0:
                shapes = {v.name: [2 if not isinstance(n, int) else n for n in v.shape or ()]
                          for v in f.inputs}  # fmt: skip
                zeros = {v.name: np.zeros(shapes[v.name], v.dtype) for v in f.inputs}
                jax.jit(f)(params, zeros)
                counts["evaluated"] += 1
        except OnnxError:
            counts["refused"] += 1
        except Exception as error:
            counts[f"CRASHED: {type(error).__name__}: {str(error)[:150]}"] += 1
        slowest = max(slowest, time.perf_counter() - start)
    faulthandler.cancel_dump_traceback_later()
    for name, count in counts.items():
        print(f"{count:6d} {name}")
    print(f"slowest: {slowest:.1f} s")


if __name__ == "__main__":
    main()
