"""C functions that take a row of a table: numbers, booleans and named categories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from secateur.exports.c.c_names import escape_comment, make_identifiers, make_members
from secateur.exports.c.expressions import format_number
from secateur.exports.model_labels import InputColumn

__all__ = ["RowCode", "RowField", "make_fields"]

_NAN = "(sc_to_bits({}) & 0x7fffffffu) > 0x7f800000u"
_INFINITE = "(sc_to_bits({}) & 0x7fffffffu) == 0x7f800000u"


@dataclass(frozen=True)
class RowField:
    """A field of a row, and the inputs made from it.

    Attributes:
        name: Name of the column, or of the one input that the caller has to compute.
        kind: "number", "boolean", "category", or "presence" if it only matters whether the value
            is missing.
        categories: Names of the categories.
        fill: Number or category that replaces a missing value, or None if that is an error.
        limits: Smallest and largest number in the training data, or None.
        inputs: Pairs of the category that an input represents (None for a number) and the position
            of the input.
        indicator: Position of the input that indicates a missing value, or None.
        is_used: Whether predictions depend on it.
    """

    name: str
    kind: str
    categories: tuple[str, ...] = ()
    fill: Any = None
    limits: tuple[float, float] | None = None
    inputs: tuple[tuple[int | None, int], ...] = ()
    indicator: int | None = None
    is_used: bool = True

    @property
    def can_be_missing(self) -> bool:
        """Whether a row without this value has a prediction."""
        return self.fill is not None or self.kind == "presence" or not self.is_used


def make_fields(columns: Sequence[InputColumn], used: np.ndarray) -> list[RowField]:
    """Return the fields of a row of a table.

    Columns other than numbers, booleans and categories (such as dates) are represented by the
    inputs made from them, one number each.

    Args:
        columns: Columns of the table.
        used: For each input of the model, whether predictions depend on it.
    """
    fields = []
    for column in columns:
        if column.kind not in ("number", "boolean", "category", "presence"):
            fields += _make_single_fields(column, used)
            continue
        codes: Sequence[int | None] = [None] * len(column.value_inputs)
        if column.kind == "category":
            codes = range(len(column.categories))[-len(column.value_inputs) :]
        pairs = zip(codes, column.value_inputs, strict=True)
        inputs = tuple((code, place) for code, place in pairs if place is not None)
        indicator = column.inputs[-1] if column.has_indicator else None
        places = [place for place in column.inputs if place is not None]
        fields.append(
            RowField(
                name=column.name,
                kind=column.kind,
                categories=column.categories,
                fill=column.fill,
                limits=column.limits if column.kind == "number" else None,
                inputs=inputs,
                indicator=indicator,
                is_used=bool(np.any(used[places])),
            )
        )
    return fields


def _make_single_fields(column: InputColumn, used: np.ndarray) -> list[RowField]:
    fills = column.fill if isinstance(column.fill, tuple) else ()
    fills = (*fills, *[None] * (len(column.inputs) - len(fills)))
    triples = zip(column.input_names, column.inputs, fills, strict=True)
    return [
        RowField(name, "number", fill=fill, inputs=((None, place),), is_used=bool(used[place]))
        for name, place, fill in triples
        if place is not None
    ]


@dataclass
class RowCode:
    """Writes a struct for the rows of a table, and the functions that take it.

    Args:
        name: Prefix of all names.
        fields: Fields of a row.
        reserved: Names, without the prefix, that are already in use.
    """

    name: str
    fields: Sequence[RowField]
    reserved: Sequence[str] = ()
    columns: list[str] = field(init=False)
    members: list[str] = field(init=False)
    categories: list[list[str]] = field(init=False)

    def __post_init__(self) -> None:
        upper, names = self.name.upper(), [f.name for f in self.fields]
        self.columns = make_identifiers(names)
        self.members = make_members(names)
        taken = [*self.reserved]
        for kind in ("COLUMN", "MIN", "MAX", "FILL"):
            taken += [f"{kind}_{column}" for column in self.columns]
        texts = [[*f.categories, "missing"] if f.categories else [] for f in self.fields]
        joined = [f"{c}_{t}" for c, ts in zip(self.columns, texts, strict=True) for t in ts]
        constants = iter(make_identifiers([*taken, *joined])[len(taken) :])
        self.categories = [[f"{upper}_{next(constants)}" for _ in ts] for ts in texts]

    # --- the header -----------------------------------------------------------------------------

    def declare(self) -> list[str]:
        """Return the lines of the header."""
        upper = self.name.upper()
        lines = ["/* Column numbers, as returned by the functions that take a row. */", "enum {"]
        lines += [
            f"    {upper}_COLUMN_{column} = {number}, /* {escape_comment(f.name)} */"
            for number, (column, f) in enumerate(zip(self.columns, self.fields, strict=True), 1)
        ]
        lines += ["};", ""]
        for f, member, constants in zip(self.fields, self.members, self.categories, strict=True):
            if constants:
                lines += [f"/* Values of {escape_comment(f.name)}. */", "typedef enum {"]
                lines.append(f"    {constants[-1]} = -1,")
                pairs = zip(constants[:-1], f.categories, strict=True)
                lines += [
                    f"    {constant} = {code}, /* {escape_comment(text)} */"
                    for code, (constant, text) in enumerate(pairs)
                ]
                lines += [f"}} {self.name}_{member}_value;", ""]
        return [*lines, *self._declare_numbers(), *self._declare_row(), *self._declare_functions()]

    def _declare_numbers(self) -> list[str]:
        upper = self.name.upper()
        lines = ["/* Smallest and largest value in the training data. */"]
        for f, column in zip(self.fields, self.columns, strict=True):
            if f.limits is not None:
                for kind, value in zip(("MIN", "MAX"), f.limits, strict=True):
                    lines.append(f"#define {upper}_{kind}_{column} {format_number(value)}")
        limits = [*lines, ""] if len(lines) > 1 else []
        lines = ["/* Replacement for a missing number. */"]
        for f, column in zip(self.fields, self.columns, strict=True):
            if f.kind in ("number", "boolean") and f.fill is not None:
                lines.append(f"#define {upper}_FILL_{column} {format_number(f.fill)}")
        return [*limits, *([*lines, ""] if len(lines) > 1 else [])]

    def _declare_row(self) -> list[str]:
        lines = ["/* A row of the table. */", "typedef struct {"]
        for f, member, constants in zip(self.fields, self.members, self.categories, strict=True):
            verb = "stands for a missing value" if f.can_be_missing else "is an error"
            kind, comment = {
                "number": ("float", f"NaN {verb}"),
                "boolean": ("int", f"0 or 1; -1 {verb}"),
                "category": (f"{self.name}_{member}_value", f"{(constants or [''])[-1]} {verb}"),
                "presence": ("int", "1 if there is a value, 0 if it is missing"),
            }[f.kind]
            note = "" if f.is_used else "; has no effect on predictions"
            lines.append(f"    {kind} {member}; /* {escape_comment(f.name)}: {comment}{note} */")
        return [*lines, f"}} {self.name}_row;", ""]

    def _declare_functions(self) -> list[str]:
        lines = []
        for comment, prototype in zip(
            (
                "Convert a row to inputs. Returns 0, or the number of the first column whose value "
                "is missing, infinite or unknown.",
                "Predict for a row of the table. Returns the result of "
                f"{self.name}_encode_row; all outputs are NaN if it is not 0.",
                "Return 1 if a row can be predicted and all its numbers are within the range of "
                "the training data, else 0.",
            ),
            self._prototypes(),
            strict=True,
        ):
            lines += [f"/* {comment} */", f"{prototype};", ""]
        return lines

    def _prototypes(self) -> tuple[str, str, str]:
        name, upper = self.name, self.name.upper()
        row = f"const {name}_row *row"
        return (
            f"int {name}_encode_row({row}, float x[{upper}_INPUTS])",
            f"int {name}_predict_row({row}, float y[{upper}_OUTPUTS])",
            f"int {name}_in_range({row})",
        )

    # --- the source -----------------------------------------------------------------------------

    def define(self) -> list[str]:
        """Return the lines of the source; they need `sc_to_bits` and `sc_from_bits`."""
        encode, predict, in_range = self._prototypes()
        name, upper = self.name, self.name.upper()
        body = []
        for number, f in enumerate(self.fields):
            body += self._encode_field(number, f)
        checks = [
            f"x[{f.inputs[0][1]}] >= {upper}_MIN_{c} && x[{f.inputs[0][1]}] <= {upper}_MAX_{c}"
            for f, c in zip(self.fields, self.columns, strict=True)
            if f.limits is not None and f.is_used and f.inputs
        ]
        return [
            encode,
            "{",
            *(f"    {line}" for line in [*body, "return 0;"]),
            "}",
            "",
            predict,
            "{",
            f"    float x[{upper}_INPUTS];",
            f"    const int column = {name}_encode_row(row, x);",
            "    if (column) {",
            f"        for (int i = 0; i < {upper}_OUTPUTS; ++i) y[i] = sc_from_bits(0x7fc00000u);",
            "        return column;",
            "    }",
            f"    {name}_predict(x, y);",
            "    return 0;",
            "}",
            "",
            in_range,
            "{",
            f"    float x[{upper}_INPUTS];",
            f"    if ({name}_encode_row(row, x)) return 0;",
            "    return " + "\n        && ".join(checks or ["1"]) + ";",
            "}",
            "",
        ]

    def _encode_field(self, number: int, f: RowField) -> list[str]:
        """Return a block that sets the inputs made from one field."""
        member, failure = f"row->{self.members[number]}", self._failure(number)
        writers = {
            "number": self._encode_number,
            "boolean": self._encode_truth,
            "category": self._encode_category,
        }
        if f.kind == "presence":
            return [f"x[{f.indicator}] = {member} ? 0.0f : 1.0f;"]
        return ["{", *(f"    {line}" for line in writers[f.kind](f, member, number, failure)), "}"]

    def _failure(self, number: int) -> str:
        return f"return {self.name.upper()}_COLUMN_{self.columns[number]};"

    def _encode_number(self, f: RowField, member: str, number: int, failure: str) -> list[str]:
        is_missing = _NAN.format("value")
        fill = f"value = {self._fill(f, number)};" if f.can_be_missing else failure
        return [
            f"float value = {member};",
            *self._indicate(f, is_missing),
            f"if ({is_missing}) {fill}",
            f"if ({_INFINITE.format('value')}) {failure}",
            *(f"x[{place}] = value;" for _, place in f.inputs),
        ]

    def _encode_truth(self, f: RowField, member: str, number: int, failure: str) -> list[str]:
        lines = [
            f"const int value = {member};",
            *self._indicate(f, "value == -1"),
            f"if (value < {-1 if f.can_be_missing else 0} || value > 1) {failure}",
        ]
        number_of_value = "(float)value"
        if f.can_be_missing:
            number_of_value = f"value < 0 ? {self._fill(f, number)} : (float)value"
        return [*lines, *(f"x[{place}] = {number_of_value};" for _, place in f.inputs)]

    def _encode_category(self, f: RowField, member: str, number: int, failure: str) -> list[str]:
        constants = self.categories[number]
        is_missing = f"value == {constants[-1]}"
        lines = [f"int value = (int){member};", *self._indicate(f, is_missing)]
        if f.can_be_missing:
            fill = f.categories.index(f.fill) if f.fill in f.categories else 0
            lines.append(f"if ({is_missing}) value = {constants[fill]};")
        lines.append(f"if (value < 0 || value >= {len(f.categories)}) {failure}")
        return lines + [
            f"x[{place}] = value == {constants[code]} ? 1.0f : 0.0f;"
            for code, place in f.inputs
            if code is not None
        ]

    def _fill(self, f: RowField, number: int) -> str:
        if f.fill is None:
            return "0.0f"  # of a column without effect
        return f"{self.name.upper()}_FILL_{self.columns[number]}"

    def _indicate(self, f: RowField, is_missing: str) -> list[str]:
        if f.indicator is None:
            return []
        return [f"x[{f.indicator}] = {is_missing} ? 1.0f : 0.0f;"]
