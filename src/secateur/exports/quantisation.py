"""Quantised graphs: weights of at most eight bits, activations of eight or sixteen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from secateur.exports.evaluator import FloatArithmetic, evaluate_graph
from secateur.exports.graph import PRODUCTS, Atom, Constant, Graph, Node, StateVariable, Value
from secateur.exports.integers import multiplier_and_shift
from secateur.exports.model_graph import ModelGraph
from secateur.exports.rounding import (
    choose_bits,
    find_lookups,
    has_zero,
    measure_bfloat16,
    round_to_bfloat16,
)
from secateur.exports.sheet import TensorBits

__all__ = ["MODES", "QuantisedGraph", "quantise_graph"]

MODES = {"int8": np.int8, "int16x8": np.int16, "weights8": None, "weights16": None}
_TANH, _SIGMOID = 1 / 4096, 1 / 2048  # steps of the arguments of tanh_q15 and sigmoid_q15
_Q15 = 1 / 32768
_LARGEST_SUM = 2**30  # half of the range of 32 bits, so that two such sums can be added
_LOOKUP_ERROR = 2e-3  # relative to the largest value of a function in a lookup table
_ROWS = 256  # number of rows used to determine the ranges of values
_HEADROOM = {"int8": 1.0, "int16": 2.0}  # factor on the largest values seen


@dataclass(frozen=True, eq=False)
class QuantisedGraph:
    """A graph in integers.

    Attributes:
        graph: The steps; inputs and outputs are floats.
        tensors: Rounding of each product's weights.
        weights: Rounded weights of each product, in the graph's units.
        mode: One of `MODES`.
        in_floats: Names of the steps that stayed in floating point.
    """

    graph: Graph
    tensors: list[TensorBits]
    weights: list[np.ndarray]
    mode: str
    in_floats: list[str]


def quantise_graph(model: ModelGraph, mode: str, *, most_noise: float = 0.1) -> QuantisedGraph:
    """Round a model's weights and activations to integers.

    Args:
        model: A model's graph, with example rows that determine the ranges of activations.
        mode: "int8" for activations of 8 bits where they meet weights (except the inputs, which
            have 16), "int16x8" for 16 bits, "weights8" for activations in floats, "weights16" for
            weights of 16 bits as well.
        most_noise: Maximum noise of rounding; weights get as few bits, up to 8, as it allows.
    """
    if mode not in MODES:
        raise ValueError(f"quantise={mode!r}. Supported: {', '.join(MODES)}.")
    if mode in ("weights8", "weights16"):
        return _weights_only(model, mode, most_noise)
    return _Quantiser(model, mode, most_noise).run()


def _weights_only(model: ModelGraph, mode: str, most_noise: float) -> QuantisedGraph:
    """Return the same steps with weights rounded to multiples of a step, or to bfloat16."""
    tensors, rounded, nodes = [], [], []
    deviations = iter(model.deviations)
    for node in model.graph.nodes:
        attributes = dict(node.attributes)
        if node.op in PRODUCTS:
            weights, deviation = attributes["weights"], next(deviations)
            if mode == "weights16":
                tensor = measure_bfloat16(weights, deviation)
                attributes |= {"weights": round_to_bfloat16(weights), "half": True}
                rounded.append(attributes["weights"])
            else:
                tensor = choose_bits(weights, deviation, most_noise)
                whole = np.rint(weights / tensor.step).astype(np.int8)
                attributes |= {"weights": whole, "step": tensor.step}
                rounded.append(whole * tensor.step)
            tensors.append(tensor)
        nodes.append(Node(node.op, list(node.inputs), node.outputs, attributes, node.where))
    graph = Graph(model.graph.inputs, model.graph.outputs, nodes, model.graph.states)
    return QuantisedGraph(graph, tensors, rounded, mode, [])


@dataclass(frozen=True)
class _Whole:
    """A value as integers times a scale."""

    value: Value
    scale: float


class _Quantiser:
    def __init__(self, model: ModelGraph, mode: str, most_noise: float) -> None:
        self.source, self.mode, self.most_noise = model, mode, most_noise
        self.graph = model.graph
        self.largest = _find_largest(model)
        self.users = self.graph.users()
        self.nodes: list[Node] = []
        self.whole: dict[Value, _Whole] = {}
        self.floats: dict[Value, Atom] = {}
        self.operands: dict[Value, _Whole] = {}
        self.tensors: list[TensorBits] = []
        self.weights: list[np.ndarray] = []
        self.in_floats: list[str] = []
        self.left: set[Atom] = set()  # float results that were computed from integers
        self.deviations = iter(model.deviations)
        self.groups = find_lookups(self.graph)

    def run(self) -> QuantisedGraph:
        (source,) = self.graph.inputs
        self.floats[source] = source
        states = []
        for state in self.graph.states:
            scale = self.step(state.before, np.int16, state.after)
            before = Value(state.before.shape, np.int16)
            self.whole[state.before] = _Whole(before, scale)
            states.append((state, before, scale))
        for node in self.graph.nodes:
            self.quantise_node(node)
        output = self.graph.outputs[0]
        result = self.to_float(output)
        after = [self.at_scale(s.after, scale, np.int16) for s, _, scale in states]
        kept_states = [
            StateVariable(before, end, np.rint(s.initial / scale).astype(np.int16))
            for (s, before, scale), end in zip(states, after, strict=True)
        ]
        graph = Graph([source], [result], self.nodes, kept_states)
        graph.drop_unread()
        return QuantisedGraph(graph, self.tensors, self.weights, self.mode, self.in_floats)

    # --- values -----------------------------------------------------------------------------------

    def add(self, op: str, inputs: list[Atom], shape: Any, dtype: Any, **attributes: Any) -> Value:
        value = Value(shape, dtype)
        self.nodes.append(Node(op, inputs, [value], attributes))
        return value

    def step(self, value: Atom, dtype: Any, other: Atom | None = None) -> float:
        """Return the quantisation step for a value of this range."""
        limit = np.iinfo(dtype)
        size = max(self.largest.get(v, 0.0) for v in (value, other) if isinstance(v, Value))
        return max(size, 1e-6) * _HEADROOM[np.dtype(dtype).name] / limit.max

    def rescale(
        self, whole: _Whole, scale: float, dtype: Any, low: int | None = None, high: int = 2**31
    ) -> _Whole:
        limit = np.iinfo(dtype)
        high = min(int(limit.max), high)
        low = max(int(limit.min), -high - 1) if low is None else low
        if np.isclose(whole.scale, scale, rtol=1e-12) and whole.value.dtype == dtype and low < 0:
            return whole
        multiplier, shift = multiplier_and_shift(whole.scale / scale)
        limits = {"multiplier": multiplier, "shift": shift, "low": low, "high": high}
        value = self.add("requantise", [whole.value], whole.value.shape, dtype, **limits)
        return _Whole(value, scale)

    def to_float(self, atom: Atom) -> Atom:
        if isinstance(atom, Constant):
            return atom
        if atom not in self.floats:
            whole = self.whole[atom]
            self.floats[atom] = self.add(
                "dequantise", [whole.value], atom.shape, np.float32, scale=float(whole.scale)
            )
        return self.floats[atom]

    def to_whole(self, atom: Value, dtype: Any = np.int16) -> _Whole:
        """Return the value as integers, quantising it if necessary."""
        if atom not in self.whole:
            scale, limit = self.step(atom, dtype), np.iinfo(dtype)
            value = self.add("quantise", [self.floats[atom]], atom.shape, dtype,
                             inverse=float(np.float32(1 / scale)), low=int(limit.min),
                             high=int(limit.max))  # fmt: skip
            self.whole[atom] = _Whole(value, scale)
        return self.whole[atom]

    def at_scale(self, atom: Atom, scale: float, dtype: Any) -> Atom:
        limit = min(np.iinfo(dtype).max, _LARGEST_SUM)  # of which two can be added
        if isinstance(atom, Constant):
            whole = np.clip(np.rint(atom.array / scale), -limit, limit)
            return Constant(whole.astype(dtype), atom.shape)
        return self.rescale(self.to_whole(atom), scale, dtype, high=int(limit)).value

    def operand(self, atom: Value) -> _Whole:
        """Return a value in the form in which it is multiplied with weights."""
        if atom not in self.operands:
            # Float values such as the inputs differ widely in range: eight bits for all of them
            # would cost more accuracy than those of all activations together.
            dtype = MODES[self.mode] if atom in self.whole else np.int16
            whole = self.to_whole(atom, dtype)
            if whole.value.dtype != dtype:
                whole = self.rescale(whole, self.step(atom, dtype), dtype)
            self.operands[atom] = whole
        return self.operands[atom]

    def choose_step(self, value: Value) -> tuple[float, Any]:
        """Choose the step and type that the readers of a value require."""
        readers = self.users.get(value, [])
        ops = {n.op for n in readers}
        if value not in self.graph.results():
            if ops == {"tanh"}:
                return _TANH, np.int16
            if ops == {"logistic"}:
                return _SIGMOID, np.int16
            if ops and ops <= {*PRODUCTS}:
                return self.step(value, MODES[self.mode]), MODES[self.mode]
        return self.step(value, np.int16), np.int16

    # --- steps ------------------------------------------------------------------------------------

    def quantise_node(self, node: Node) -> None:
        operands = [a for a in node.inputs if isinstance(a, Value)]
        if node.op in PRODUCTS:
            self.product(node)
        elif node.output in self.groups.inner:
            return  # part of a function that is one lookup table
        elif node.output in self.groups.looked_up:
            self.lookup(node)
        elif all(a not in self.whole for a in operands):
            self.float_step(node)
        elif node.op in ("reshape", "transpose", "slice", "reverse", "expand"):
            whole = self.to_whole(operands[0])
            value = self.add(node.op, [whole.value], node.output.shape, whole.value.dtype,
                             **node.attributes)  # fmt: skip
            self.whole[node.output] = _Whole(value, whole.scale)
        elif node.op in ("tanh", "logistic"):
            self.gate(node)
        elif node.op == "max" and has_zero(node):
            self.relu(node, operands[0])
        elif node.op in ("add", "sub", "mul", "div", "neg") and self.arithmetic(node):
            return
        elif node.op in ("pool", "reduce") and node.attributes["kind"] in ("sum", "max"):
            self.reduce(node)
        else:
            self.float_step(node)

    def float_step(self, node: Node) -> None:
        inputs = [self.to_float(a) for a in node.inputs]
        if any(a in self.whole or a in self.left for a in node.inputs):
            self.in_floats.append(node.op)
            self.left.add(node.output)
        op = node.op
        divisor = inputs[1] if op == "div" else None
        if isinstance(divisor, Constant):  # a product in C, so also in Python, to match bit for bit
            op, inverse = "mul", (1 / divisor.array.astype(np.float64)).astype(np.float32)
            inputs = [inputs[0], Constant(inverse, divisor.shape)]
        self.floats[node.output] = self.add(
            op, inputs, node.output.shape, node.output.dtype, **node.attributes
        )

    def product(self, node: Node) -> None:
        x = self.operand(node.inputs[0])  # type: ignore[arg-type]
        weights = node.attributes["weights"]
        tensor = choose_bits(weights, next(self.deviations), self.most_noise)
        self.tensors.append(tensor)
        rounded = np.rint(weights / tensor.step).astype(np.int8)
        self.weights.append(rounded * tensor.step)
        x = self.small_enough(node.inputs[0], x, rounded)  # type: ignore[arg-type]
        scale = x.scale * tensor.step
        bias = node.attributes["bias"]
        offset = None if bias is None else np.rint(bias / scale)
        if offset is not None and np.max(np.abs(offset)) >= _LARGEST_SUM:
            self.product_with_float_bias(node, x, rounded, scale)
            return
        offset = None if offset is None else offset.astype(np.int32)
        attributes = node.attributes | {"weights": rounded, "bias": offset}
        total = self.add(node.op, [x.value], node.output.shape, np.int32, **attributes)
        raw = _Whole(total, scale)
        relu = self.only_relu(node.output)
        if relu is not None:
            step, dtype = self.choose_step(relu.output)
            self.whole[relu.output] = self.rescale(raw, step, dtype, low=0)
            self.whole[node.output] = raw
        elif node.output is self.graph.outputs[0] and not self.users.get(node.output):
            self.whole[node.output] = raw  # 32 bits go straight to the output
        else:
            step, dtype = self.choose_step(node.output)
            self.whole[node.output] = self.rescale(raw, step, dtype)

    def small_enough(self, atom: Value, x: _Whole, weights: np.ndarray) -> _Whole:
        """Reduce the operand's bits so that no sum can exceed 32 bits, whatever the input."""
        rows = np.abs(weights.astype(np.int64)).reshape(len(weights), -1).sum(1)
        limit, halved = int(np.iinfo(x.value.dtype).max), 0
        while (int(rows.max(initial=0)) * (limit >> halved)) >= _LARGEST_SUM:
            halved += 1
        if not halved:
            return x
        whole = self.to_whole(atom)
        multiplier, shift = multiplier_and_shift(whole.scale / (x.scale * 2**halved))
        limits = {"low": -(limit >> halved), "high": limit >> halved}
        value = self.add("requantise", [whole.value], x.value.shape, x.value.dtype,
                         multiplier=multiplier, shift=shift, **limits)  # fmt: skip
        return _Whole(value, x.scale * 2**halved)

    def product_with_float_bias(
        self, node: Node, x: _Whole, weights: np.ndarray, scale: float
    ) -> None:
        """Write a product whose bias exceeds 32 bits at its scale."""
        shape = node.output.shape
        attributes = node.attributes | {"weights": weights, "bias": None}
        total = self.add(node.op, [x.value], shape, np.int32, **attributes)
        rest = self.add("dequantise", [total], shape, np.float32, scale=float(scale))
        last = node.op == "linear" or node.attributes["channels_last"]
        spread = [1] * len(shape)
        spread[-1 if last else 1] = -1
        bias = Constant.of(node.attributes["bias"].astype(np.float32).reshape(spread))
        self.floats[node.output] = self.add("add", [rest, bias], shape, np.float32)
        self.in_floats.append("a large bias")

    def only_relu(self, value: Value) -> Node | None:
        readers = self.users.get(value, [])
        if len(readers) == 1 and readers[0].op == "max" and has_zero(readers[0]):
            return readers[0]
        return None

    def relu(self, node: Node, x: Value) -> None:
        if node.output in self.whole:
            return  # handled together with the preceding product
        step, dtype = self.choose_step(node.output)
        self.whole[node.output] = self.rescale(self.to_whole(x), step, dtype, low=0)

    def gate(self, node: Node) -> None:
        scale = _TANH if node.op == "tanh" else _SIGMOID
        x = self.rescale(self.to_whole(node.inputs[0]), scale, np.int16)  # type: ignore[arg-type]
        op = "tanh_q15" if node.op == "tanh" else "sigmoid_q15"
        value = self.add(op, [x.value], node.output.shape, np.int16)
        self.whole[node.output] = _Whole(value, _Q15)

    def arithmetic(self, node: Node) -> bool:
        """Write sums and products in integers; returns whether that was possible."""
        step, dtype = self.choose_step(node.output)
        shape = node.output.shape
        known = [a for a in node.inputs if isinstance(a, Constant)]
        if node.op == "neg" or (known and node.op in ("mul", "div")):
            factor = -1.0 if node.op == "neg" else _factor(node)
            value = next(a for a in node.inputs if isinstance(a, Value))
            if factor is None or factor <= 0 or (node.op == "div" and value is not node.inputs[0]):
                return False
            whole = self.to_whole(value)
            self.whole[node.output] = self.rescale(
                _Whole(whole.value, whole.scale * factor), step, dtype
            )
            return True
        if node.op == "mul":
            a, b = (self.to_whole(v) for v in node.inputs)  # type: ignore[arg-type]
            if a.value.dtype.itemsize + b.value.dtype.itemsize > 4:
                a, b = (self.rescale(w, self.step(v, np.int16), np.int16)
                        for w, v in zip((a, b), node.inputs, strict=True))  # fmt: skip
            product = self.add("mul", [a.value, b.value], shape, np.int32)
            self.whole[node.output] = self.rescale(_Whole(product, a.scale * b.scale), step, dtype)
            return True
        if node.op == "div":
            return False
        terms = [self.at_scale(a, step, np.int32) for a in node.inputs]
        total = self.add(node.op, terms, shape, np.int32)
        limit = np.iinfo(dtype)
        ends = (np.full((1,) * len(shape), end, np.int32) for end in (limit.min, limit.max))
        low, high = map(Constant.of, ends)
        value = self.add("clamp", [low, total, high], shape, dtype)
        self.whole[node.output] = _Whole(value, step)
        return True

    def reduce(self, node: Node) -> None:
        x = self.to_whole(node.inputs[0])  # type: ignore[arg-type]
        kind = node.attributes["kind"]
        dtype = np.int32 if kind == "sum" else x.value.dtype
        value = self.add(node.op, [x.value], node.output.shape, dtype, **node.attributes)
        whole = _Whole(value, x.scale)
        if kind == "sum":
            step, kept = self.choose_step(node.output)
            whole = self.rescale(whole, step, kept)
        self.whole[node.output] = whole

    def lookup(self, node: Node) -> None:
        """Write a function of one value as a lookup table."""
        root, nodes = self.groups.looked_up[node.output]
        scale, dtype = self.choose_step(node.output)
        unit = self.step(root, np.int16)
        table = _table(root, nodes, unit, scale, np.iinfo(dtype), self.largest.get(root, 0.0))
        if table is None:
            for step in nodes:
                if step.output not in self.floats:
                    self.float_step(step)
            return
        x = self.rescale(self.to_whole(root), unit, np.int16)
        value = self.add("lookup", [x.value], node.output.shape, dtype, table=tuple(table.tolist()))
        self.whole[node.output] = _Whole(value, scale)


def _table(
    root: Value, nodes: list[Node], unit: float, scale: float, limit: Any, largest: float
) -> np.ndarray | None:
    """Tabulate a function at 257 points; None if linear interpolation is too inaccurate."""
    numbers = FloatArithmetic()

    def function(x: np.ndarray) -> np.ndarray:
        values: dict[Value, Any] = {root: x}
        with np.errstate(all="ignore"):
            for step in nodes:
                arguments = [values[a] if isinstance(a, Value) else a.number for a in step.inputs]
                values[step.output] = numbers.elementwise(step.op, step.attributes, *arguments)
            whole = np.asarray(values[nodes[-1].output], np.float64) / scale
        return np.clip(np.broadcast_to(whole, x.shape), limit.min, limit.max)

    places = (np.arange(257) * 256 - 32768) * unit
    table = function(places)
    middles = places[:-1] + 128 * unit
    between, straight = function(middles), (table[:-1] + table[1:]) / 2
    seen = np.abs(middles) <= largest
    gap = np.abs(between - straight)[seen]
    if not np.all(np.isfinite(table)) or not np.all(gap <= max(_LOOKUP_ERROR * limit.max, 0.5)):
        return None
    return np.rint(table).astype(int)


def _factor(node: Node) -> float | None:
    constant = next(a for a in node.inputs if isinstance(a, Constant))
    if constant.number is None:
        return None
    return constant.number if node.op == "mul" else 1 / constant.number


def _find_largest(model: ModelGraph) -> dict[Value, float]:
    """Return the largest absolute value of every result over the example rows."""
    graph = model.graph
    largest: dict[Value, float] = {}

    def note(value: Value, array: Any) -> None:
        size = float(np.max(np.abs(np.asarray(array, np.float64)), initial=0.0))
        largest[value] = max(largest.get(value, 0.0), size)

    chosen = np.linspace(0, len(model.rows) - 1, min(_ROWS, len(model.rows))).astype(int)
    for row in model.rows[chosen]:
        frames = row.reshape(-1, *graph.inputs[0].shape)
        states: list[Any] = [s.initial for s in graph.states]
        for frame in frames:
            for state, value in zip(graph.states, states, strict=True):
                note(state.before, value)
            _, states = evaluate_graph(graph, [frame], states, watch=note)
            note(graph.inputs[0], frame)
    return largest
