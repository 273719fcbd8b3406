"""The ONNX project's own tests of single operators, as the onnx wheel generates them."""

import importlib
import pkgutil
import warnings
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from onnx import TensorProto, numpy_helper

from secateur.importing import from_onnx
from secateur.importing.operator_rules import OPERATORS

# What this importer does not do, by the beginning or a part of the names of the tests.
LEFT_OUT = {
    "texts": ("equal_string", "cast_FLOAT_to_STRING", "cast_STRING", "constant_of_shape_string"),
    "numbers of fewer than 8 bits, or floating-point numbers of 8": (
        "FLOAT8", "FLOAT4", "INT4", "INT2", "int4", "int2", "e4m3fn", "e5m2", "float4e2m1", "e8m0",
        "float8",
    ),
    "sums in bfloat16 that are rounded in another order": ("_bf16_expanded",),
    "blocks of scales": ("dequantizelinear_blocked", "quantizelinear_blocked"),
    "training": ("training_dropout", "batchnorm_example_training", "batchnorm_epsilon_training"),
    "resizing with antialiasing, of a region, or to a fixed aspect ratio": (
        "antialias", "tf_crop_and_resize", "_not_larger", "_not_smaller",
    ),
    "resizing to no whole length with aligned corners, which onnxruntime does as we do": (
        "downsample_scales_linear_align_corners", "downsample_scales_cubic_align_corners",
    ),
    "indices of maxima": ("maxpool_with_argmax",),
    "sequences and optional values": ("loop13", "loop16", "if_seq", "if_opt", "identity_sequence",
                                      "identity_opt"),
    "a branch or loop within a function that depends on the data": (
        "affine_grid", "range_float", "range_int32", "range_bfloat16",
    ),
}  # fmt: skip
# Operators all of whose operands are lengths and conditions.
ALL_KNOWN = {"ConstantOfShape", "Range", "If", "Loop"}
# Operators whose second and further operands are lengths or scales.
SCALED = {"Resize", "Upsample"}


def reason_to_leave_out(name):
    """The reason why a test is left out, or None."""
    for reason, parts in LEFT_OUT.items():
        if any(part in name for part in parts):
            if "range" in name and not name.endswith("_expanded"):
                continue
            return reason
    return None


def kinds_of(graph):
    """The kinds of all operators in a graph and in those within it."""
    for node in graph.node:
        own = "" if node.domain in ("", "ai.onnx") else f"{node.domain}."
        yield own + node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from kinds_of(attribute.g)


def collect_cases(*, expanded):
    """All tests made of operators that are supported.

    Args:
        expanded: Whether to collect also those of functions, written out in other operators.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = importlib.import_module("onnx.backend.test.case.node")
        wanted = {name.rpartition(".")[2].lower() for name in OPERATORS}
        expand = _expansion(package, expanded)
        with mock.patch.object(package, "function_testcase_helper", expand):
            for _, name, is_package in pkgutil.iter_modules(package.__path__):
                plain = name.replace("_", "")
                if is_package:
                    continue
                if (
                    expanded
                    or plain in wanted
                    or plain in ("ifop", "if", "rangeop", "poolopcommon")
                ):
                    importlib.import_module(f"{package.__name__}.{name}")
    cases = {case.name: case for case in package._NodeTestCases}
    chosen = [c for c in cases.values() if set(kinds_of(c.model.graph)) <= set(OPERATORS)]
    return [c for c in chosen if expanded or not c.name.endswith("_expanded")]


def _expansion(package, expanded):
    if expanded:
        return package.function_testcase_helper
    return lambda *arguments, **options: ([], 0)


def read_arrays(values):
    """The arrays of a data set; None for what is left out or is not an array."""
    arrays = []
    for value in values:
        if isinstance(value, TensorProto):
            value = numpy_helper.to_array(value)
        arrays.append(None if value is None or isinstance(value, list) else np.asarray(value))
    return arrays


def write_known(model, arrays):
    """The model with lengths, indices and conditions written into it, and its other inputs."""
    known = type(model)()
    known.CopyFrom(model)
    first = {node.op_type for node in model.graph.node} & ALL_KNOWN
    is_scaled = any(node.op_type in SCALED for node in model.graph.node)
    inputs = {}
    for place, (value, array) in enumerate(zip(model.graph.input, arrays, strict=False)):
        is_fixed = array.dtype.kind in "iub" or array.ndim == 0 or (is_scaled and place)
        if (place or first) and (is_fixed or first == {"Range"}):
            known.graph.initializer.append(numpy_helper.from_array(array, value.name))
        else:
            inputs[value.name] = array
    return known, inputs


@dataclass(frozen=True)
class LoadedCase:
    """A test with its function, operands and results."""

    name: str
    f: Any
    params: dict
    inputs: dict
    outputs: dict

    def check(self, result):
        """Compare what the function returned with what the operator should."""
        results = result if len(self.outputs) > 1 else dict.fromkeys(self.outputs, result)
        for name, expected in self.outputs.items():
            array = np.asarray(results[name])
            assert array.shape == expected.shape, self.name
            np.testing.assert_allclose(
                array.astype(float), expected.astype(float), 1e-3, 1e-7, err_msg=self.name
            )


def load_cases(cases):
    """Yield every test that is not left out, read by `from_onnx`."""
    for case in cases:
        if reason_to_leave_out(case.name):
            continue
        for inputs, outputs in case.data_sets:
            model, arrays = write_known(case.model, read_arrays(inputs))
            names = [value.name for value in model.graph.output]
            f, params = from_onnx(model, outputs=names)
            read = {value.name: arrays[value.name] for value in f.inputs}
            expected = dict(zip(names, read_arrays(outputs), strict=True))
            yield LoadedCase(case.name, f, params, read, expected)
