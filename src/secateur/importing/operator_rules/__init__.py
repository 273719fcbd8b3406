"""The operators of ONNX that can be imported: a table of short rules."""

from secateur.importing.operator_rules import (
    elementwise_operators,
    recurrent_operators,
    reduction_operators,
    resize_operators,
    shape_operators,
    window_operators,
)
from secateur.importing.operator_rules.operator_table import OPERATORS, OperatorCall

__all__ = [
    "OPERATORS",
    "OperatorCall",
    "elementwise_operators",
    "recurrent_operators",
    "reduction_operators",
    "resize_operators",
    "shape_operators",
    "window_operators",
]
