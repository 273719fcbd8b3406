"""All of the ONNX project's tests of single operators that are supported, and those left out.

    python benchmarks/onnx_operators.py

The test suite runs those of operators; this adds functions that the onnx package writes out in
other operators (`…_expanded`). Ends with the number of tests that pass with each operator.
"""

import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import jax

from onnx_cases import collect_cases, kinds_of, load_cases, reason_to_leave_out
from secateur.importing.operator_rules import OPERATORS


def main():
    start = time.perf_counter()
    cases = collect_cases(expanded=True)
    left_out = Counter(filter(None, (reason_to_leave_out(c.name) for c in cases)))
    passed, failed, by_operator = 0, [], Counter()
    for case in cases:
        try:
            for loaded in load_cases([case]):
                loaded.check(jax.jit(loaded.f)(loaded.params, loaded.inputs))
                passed += 1
                by_operator.update(set(kinds_of(case.model.graph)) & set(OPERATORS))
        except Exception as error:
            failed.append((case.name, " ".join(str(error).split())[:160]))
    print(f"{passed} pass, {len(failed)} fail, {sum(left_out.values())} are left out:")
    for reason, count in left_out.items():
        print(f"  {count:4d} {reason}")
    for name, reason in failed:
        print(f"  FAILED {name}: {reason}")
    untested = sorted(n for n in set(OPERATORS) - set(by_operator) if "secateur." not in n)
    print(", ".join(f"{name} {by_operator[name]}" for name in sorted(by_operator)))
    print(f"without a test: {', '.join(untested)}")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
