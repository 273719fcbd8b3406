"""The operators of ONNX that can be imported: a table of short rules."""

from secateur.importing.operators import (
    elementwise_operators,
    recurrent_operators,
    reduction_operators,
    shape_operators,
    window_operators,
)
from secateur.importing.operators.operator_table import OPERATORS, OperatorCall

__all__ = [
    "OPERATORS",
    "OperatorCall",
    "elementwise_operators",
    "recurrent_operators",
    "reduction_operators",
    "shape_operators",
    "window_operators",
]
