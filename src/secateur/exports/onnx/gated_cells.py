"""Recognition of gated cells (GRU, LSTM) in the body of a loop by what it computes.

A guess is based on the few steps that all libraries share (the gates' sigmoids, the candidate's
tanh); weights are found by evaluating parts of the body on zeros and unit vectors; and the guess is
accepted only if the resulting cell equals the body on random inputs.

    GRU:   z = σ(W_z x + R_z h + b_z)      r = σ(W_r x + R_r h + b_r)
           n = tanh(W_n x + b_n + r ∘ (R_n h + c_n)),  or with R_n (r ∘ h) + c_n
           h ← (1 − z) ∘ n + z ∘ h
    LSTM:  i, o, f = σ(W x + R h + b)      g = tanh(W_g x + R_g h + b_g)
           c ← f ∘ c + i ∘ g               h ← o ∘ tanh(c)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from secateur.exports.evaluator import evaluate_graph
from secateur.exports.graph import Atom, ExportError, Graph, Node, Value

__all__ = ["GatedCell", "recognise_cell"]

_TOLERANCE = 1e-10
_TRIALS = 16  # random rows on which a guess is tested


@dataclass(frozen=True, eq=False)
class GatedCell:
    """A gated cell. Its gates are stacked in ONNX's order: GRU z, r, n; LSTM i, o, f, g.

    Attributes:
        kind: "GRU" or "LSTM".
        weights: W, of shape (gates · units, inputs).
        recurrent: R, of shape (gates · units, units).
        bias_x: Bias of shape (gates · units,).
        bias_h: Bias of the recurrent part, of the same shape; nonzero only for the candidate of a
            GRU.
        linear_before_reset: For a GRU, whether r multiplies R h + c, or h itself.
        hidden: Position of h among the values that the loop carries; an LSTM's c is the other one.
        inputs: Positions of the loop's inputs that are combined to x.
    """

    kind: str
    weights: np.ndarray
    recurrent: np.ndarray
    bias_x: np.ndarray
    bias_h: np.ndarray
    linear_before_reset: bool
    hidden: int
    inputs: tuple[int, ...]

    @property
    def units(self) -> int:
        """Return the size of the state."""
        return self.recurrent.shape[1]

    def step(self, x: np.ndarray, states: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the states after one frame, in the loop's order; rows first."""
        h, n = states[self.hidden], self.units
        from_x = x @ self.weights.T + self.bias_x
        from_h = h @ self.recurrent.T + self.bias_h
        if self.kind == "LSTM":
            i, o, f = np.split(expit((from_x + from_h)[:, : 3 * n]), 3, axis=1)
            g = np.tanh((from_x + from_h)[:, 3 * n :])
            c = f * states[1 - self.hidden] + i * g
            return [o * np.tanh(c), c] if self.hidden == 0 else [c, o * np.tanh(c)]
        z, r = np.split(expit((from_x + from_h)[:, : 2 * n]), 2, axis=1)
        if self.linear_before_reset:
            recurrent = r * from_h[:, 2 * n :]
        else:
            recurrent = (r * h) @ self.recurrent[2 * n :].T + self.bias_h[2 * n :]
        return [(1 - z) * np.tanh(from_x[:, 2 * n :] + recurrent) + z * h]


class _AffineForm(NamedTuple):
    """A quantity of the body as W x + R h + b; rows are its elements."""

    weights: np.ndarray
    recurrent: np.ndarray
    bias: np.ndarray

    def flipped(self, flip: bool) -> _AffineForm:
        """Return the form of one minus this gate: 1 − σ(a) = σ(−a)."""
        return _AffineForm(*(-a for a in self)) if flip else self

    def blocks(self, size: int) -> list[_AffineForm]:
        places = range(0, len(self.bias), size)
        return [_AffineForm(*(a[p : p + size] for a in self)) for p in places]


def recognise_cell(node: Node) -> GatedCell:
    """Recognise the cell that a `recurrent` step repeats.

    Args:
        node: The step.

    Raises:
        ExportError: Its body is not one of the supported cells.
    """
    body = _LoopBody(node)
    guesses = _lstms(body) if body.carried == 2 else _grus(body)
    cell = body.first_right(guesses)
    if cell is None:
        raise body.unsupported("its body is neither a GRU nor an LSTM cell")
    return cell


class _LoopBody:
    """The body of a loop as a function of rows."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.graph: Graph = node.attributes["body"]
        self.carried: int = node.attributes["carried"]
        self.states = self.graph.inputs[: self.carried]
        frames = self.graph.inputs[self.carried :]
        read = {a for n in self.graph.nodes for a in n.inputs if isinstance(a, Value)}
        self.places = tuple(i for i, value in enumerate(frames) if value in read)
        self.frames = [frames[i] for i in self.places]
        if self.carried not in (1, 2) or len({s.shape for s in self.states}) != 1:
            raise self.unsupported(f"its state has {self.carried} arrays")
        if not self.frames or not self.states[0].shape:
            raise self.unsupported("it reads no input")
        *self.lead, self.units = self.states[0].shape
        if any(list(v.shape[:-1]) != self.lead or not v.shape for v in self.frames):
            raise self.unsupported("inputs and state have different rows")
        self.rows = int(np.prod(self.lead, dtype=int))
        self.widths = [v.shape[-1] for v in self.frames]

    def unsupported(self, why: str) -> ExportError:
        return ExportError(
            f"this loop cannot be exported: {why} ({self.node.where}). Supported: GRU and LSTM "
            "cells with sigmoid gates and tanh, from any library or written by hand, whose state "
            "begins with constants and whose results are its states."
        )

    def steps(self, op: str) -> list[Node]:
        return [n for n in self.graph.nodes if n.op == op]

    def values(
        self,
        outputs: Sequence[Atom],
        x: np.ndarray,
        states: Sequence[np.ndarray],
        fixed: dict[Value, np.ndarray] | None = None,
    ) -> list[np.ndarray]:
        """Evaluate values inside the body for rows of inputs and states, given the `fixed` ones."""
        fixed = fixed or {}
        nodes = [n for n in self.graph.nodes if not set(n.outputs) & set(fixed)]
        graph = Graph([*self.states, *self.frames, *fixed], list(outputs), nodes)
        graph.drop_unread()
        parts = np.split(x, np.cumsum(self.widths)[:-1], axis=1)
        arrays = [*states, *parts, *(np.tile(row, (len(x), 1)) for row in fixed.values())]
        columns: list[list[np.ndarray]] = [[] for _ in outputs]
        for start in range(0, len(x), self.rows):
            here = [a[start : start + self.rows] for a in arrays]
            count = len(here[0])
            full = [np.pad(a, ((0, self.rows - count), (0, 0))) for a in here]
            results, _ = evaluate_graph(graph, [a.reshape(*self.lead, a.shape[1]) for a in full])
            for column, result in zip(columns, results, strict=True):
                column.append(result.reshape(self.rows, -1)[:count])
        return [np.concatenate(column) for column in columns]

    def affine(
        self, outputs: Sequence[Value], hidden: int, fixed: dict[Value, np.ndarray] | None = None
    ) -> list[_AffineForm]:
        """Return the weights of values that are assumed to be affine in x and h."""
        inputs, units = sum(self.widths), self.units
        x, h = np.zeros((2, 1 + inputs + units, max(inputs, units)))
        x[1 : 1 + inputs, :inputs] = np.eye(inputs)
        h[1 + inputs :, :units] = np.eye(units)
        states = [np.zeros((len(h), units))] * self.carried
        states[hidden] = h[:, :units]
        affine_values = []
        for y in self.values(outputs, x[:, :inputs], states, fixed):
            slopes = (y - y[0]).T
            affine_values.append(
                _AffineForm(slopes[:, 1 : 1 + inputs], slopes[:, 1 + inputs :], y[0])
            )
        return affine_values

    def sized(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the steps whose result, per row, consists of blocks of the state's size."""
        return [
            n for n in nodes
            if list(n.output.shape[:-1]) == self.lead and n.output.shape[-1] % self.units == 0
        ]  # fmt: skip

    def first_right(self, guesses: Iterator[GatedCell]) -> GatedCell | None:
        """Return the first guess that equals the body on random rows."""
        random = np.random.default_rng(0)
        x = random.normal(size=(_TRIALS, sum(self.widths)))
        states = [random.normal(size=(_TRIALS, self.units)) for _ in self.states]
        truth = self.values(self.graph.outputs[: self.carried], x, states)
        for cell in guesses:
            after = cell.step(x, states)
            if all(np.allclose(a, b, 0, _TOLERANCE) for a, b in zip(after, truth, strict=True)):
                return cell
        return None


def _grus(body: _LoopBody) -> Iterator[GatedCell]:
    gates, candidates = body.sized(body.steps("logistic")), body.sized(body.steps("tanh"))
    before = body.affine([n.inputs[0] for n in gates], 0) if gates else []  # type: ignore[misc]
    blocks = [block for affine in before for block in affine.blocks(body.units)]
    if len(blocks) != 2:
        return
    for reset, flip_r, candidate in product((0, 1), (False, True), candidates):
        # The candidate with the reset gate at 0 and at 1: without and with the past state.
        without, with_ = (
            body.affine(
                [candidate.inputs[0]], 0, _gate_values(body, gates, reset, value)  # type: ignore[list-item]
            )[0]
            for value in ((1.0, 0.0) if flip_r else (0.0, 1.0))
        )  # fmt: skip
        if len(with_.bias) != body.units:
            continue
        r = blocks[reset].flipped(flip_r)
        for flip_z, before_reset in product((False, True), (False, True)):
            z = blocks[1 - reset].flipped(flip_z)
            none = np.zeros(2 * body.units)
            yield GatedCell(
                "GRU",
                np.concatenate([z.weights, r.weights, without.weights]),
                np.concatenate([z.recurrent, r.recurrent, with_.recurrent]),
                np.concatenate([z.bias, r.bias, without.bias]),
                np.concatenate([none, with_.bias - without.bias]),
                before_reset, 0, body.places,
            )  # fmt: skip


def _gate_values(
    body: _LoopBody, gates: list[Node], reset: int, value: float
) -> dict[Value, np.ndarray]:
    """Return gate values of ½, except for the assumed reset gate."""
    numbers = np.full(2 * body.units, 0.5)
    numbers[reset * body.units : (reset + 1) * body.units] = value
    ends = np.cumsum([g.output.shape[-1] for g in gates])
    return dict(zip([g.output for g in gates], np.split(numbers, ends[:-1]), strict=True))


def _lstms(body: _LoopBody) -> Iterator[GatedCell]:
    gates, candidates = body.sized(body.steps("logistic")), body.sized(body.steps("tanh"))
    inner = [n.inputs[0] for n in (*gates, *candidates)]
    for hidden in (0, 1):
        before = body.affine(inner, hidden) if gates else []  # type: ignore[arg-type]
        blocks = [b for affine in before[: len(gates)] for b in affine.blocks(body.units)]
        if len(blocks) != 3:
            return
        options = product(
            before[len(gates) :], permutations(blocks), product((False, True), repeat=3)
        )
        for g, order, flips in options:
            if len(g.bias) != body.units:
                continue
            parts = [*(b.flipped(flip) for b, flip in zip(order, flips, strict=True)), g]
            weights, recurrent, bias = (
                np.concatenate(column) for column in zip(*parts, strict=True)
            )
            yield GatedCell(
                "LSTM", weights, recurrent, bias, np.zeros_like(bias), False, hidden, body.places
            )
