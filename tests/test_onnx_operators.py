"""Operators of ONNX, by the ONNX project's own tests of them."""

import re
from pathlib import Path

import jax
import pytest

pytest.importorskip("onnx")

from onnx_cases import collect_cases, load_cases
from secateur.importing.operator_rules import OPERATORS

GROUP = 50  # cases in one compiled program


@pytest.mark.slow
def test_the_tests_of_onnx_pass():
    """Every test of the onnx wheel made of supported operators, but those in `LEFT_OUT`.

    `benchmarks/onnx_operators.py` adds those of functions written out in operators.
    """
    loaded = list(load_cases(collect_cases(expanded=False)))
    assert len(loaded) > 700
    for start in range(0, len(loaded), GROUP):
        group = loaded[start : start + GROUP]

        def evaluate(operands, group=group):
            return [case.f(*both) for case, both in zip(group, operands, strict=True)]

        results = jax.jit(evaluate)([(case.params, case.inputs) for case in group])
        for case, result in zip(group, results, strict=True):
            case.check(result)


def test_the_documentation_lists_every_operator():
    page = (Path(__file__).parent.parent / "docs" / "operators.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    listed = set(re.findall(r"`(\w+)`", "\n".join(rows)))
    known = {name.rpartition(".")[2] for name in OPERATORS if not name.startswith("secateur.")}
    assert listed == known
