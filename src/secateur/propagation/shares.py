"""Softmax and related functions: recognition in a program, and their moments as a whole.

A softmax is several equations, e = exp(x − max x), e/Σe, in which the same uncertain values meet
three times. Evaluated one by one, they would be treated as independent. Here the share of an
element among the elements that are summed together, along an axis or by segments, is one function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from secateur import quadrature
from secateur.equations import Atom, Equation, Program, Slot, compat, primitives, uniform_value

# Represents −∞ in a mask: its exponential is 0 in every precision.
_MASKED = -1e30
# Numbers that users write instead of −∞ are at most this.
_MASKING = -1e4


@dataclass(frozen=True)
class Sharing:
    """The elements that share a sum, and how the sum is mapped back to each element.

    Attributes:
        exponentials: The operand of the sum: exp of the logarithms.
        total: For each element, the sum over those that it shares with.
        largest: For each element, the largest of them.
        axis: The axis along which they lie; None for segments.
        chosen: Which elements count, or None for all.
    """

    exponentials: Atom
    total: Callable[[Array], Array]
    largest: Callable[[Array], Array]
    axis: int | None
    chosen: Atom | None = None


class ShareSearch:
    """Finds softmax-like parts of a program.

    Args:
        program: Flat equations.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.producers: dict[Atom, Equation] = {s: n for n in program.equations for s in n.outputs}
        self.users: dict[Any, list[Equation]] = {}
        for equation in program.equations:
            for atom in dict.fromkeys(equation.inputs):
                self.users.setdefault(atom, []).append(equation)

    # --- shifts -----------------------------------------------------------------------------------

    def differences_from(self, equation: Equation) -> list[Equation]:
        """Return where a maximum is subtracted from its own operand, if that has no effect.

        There are none if it is used in another way. It has no effect if the user has applied
        stop_gradient, or if the difference is only used in exponentials divided by their sum.
        """
        origin = self.unmasked(
            equation.inputs[-1] if len(equation.inputs) == 3 else equation.inputs[0]
        )
        frontier, stopped, differences = [equation.outputs[0]], set[Any](), []
        seen = set[Any](frontier)
        while frontier:
            slot = frontier.pop()
            if slot in self.program.outputs:
                return []
            for user in self.users.get(slot, ()):
                is_difference = user.name == "sub" and user.inputs[1] is slot
                if is_difference and self.unmasked(user.inputs[0]) is origin:
                    differences.append((user, slot in stopped))
                elif user.name in primitives.SHIFT_CARRIERS:
                    out = user.outputs[0]
                    if user.name == "stop_gradient" or slot in stopped:
                        stopped.add(out)
                    if out not in seen or user.name == "stop_gradient":
                        seen.add(out)
                        frontier.append(out)
                elif user.name != "add" or not self._adds_back(user, slot):
                    return []
        if not all(stops or self._in_proportion(user) for user, stops in differences):
            return []
        return [user for user, _ in differences]

    def unmasked(self, atom: Atom) -> Atom:
        """Return what an atom is where it is not masked by −∞ or a number like it."""
        while isinstance(atom, Slot):
            producer = self.producers.get(atom)
            if producer is None or producer.name != "select_n" or len(producer.inputs) != 3:
                break
            kept = [a for a in producer.inputs[1:] if not self._is_masking(a)]
            if len(kept) != 1:
                break
            (atom,) = kept
        return atom

    def _is_masking(self, atom: Atom) -> bool:
        number = uniform_value(atom)
        return number is not None and number <= _MASKING

    def _adds_back(self, equation: Equation, slot: Slot) -> bool:
        """Whether a shift is added to the logarithm of a sum."""
        other = next((a for a in equation.inputs if a is not slot), slot)
        return self._origin(other, primitives.SPREADS, "log") is not None

    def _in_proportion(self, difference: Equation) -> bool:
        """Whether a difference is only used as exp(…)/Σ exp(…), or as the logarithm of the sum."""
        for exponential in self.users.get(difference.outputs[0], ()):
            if exponential.name != "exp":
                return False
            for user in self.users.get(exponential.outputs[0], ()):
                if user.name == "div" and user.inputs[0] is exponential.outputs[0]:
                    if self.find(user) is None:
                        return False
                elif user.name not in ("reduce_sum", *primitives.SEGMENT_SUMS):
                    return False
        return True

    # --- shares -----------------------------------------------------------------------------------

    def find(self, equation: Equation) -> Sharing | None:
        """Return the sharing elements of a division e/Σe, or of a difference ln e − ln Σe."""
        if equation.name == "div":
            sharing = self.sharing(equation.inputs[1])
            return sharing if sharing and sharing.exponentials is equation.inputs[0] else None
        for logarithm, added in self._logarithms(equation.inputs[1]):
            sharing = self.sharing(logarithm.inputs[0])
            producer = self.producers.get(sharing.exponentials) if sharing else None
            if sharing is None or sharing.chosen is not None or producer is None:
                continue
            if producer.name == "exp" and self._is_left(producer.inputs[0], added, equation):
                return sharing
        return None

    def _logarithms(self, atom: Atom) -> Iterator[tuple[Equation, Atom | None]]:
        """Yield the logarithm that an atom may come from, and what is added to it, if anything."""
        logarithm = self._origin(atom, primitives.SPREADS, "log")
        if logarithm is not None:
            yield logarithm, None
        addition = self._origin(atom, primitives.SPREADS, "add")
        terms = () if addition is None else addition.inputs
        for one, other in zip(terms, reversed(terms), strict=True):
            logarithm = self._origin(one, primitives.SPREADS, "log")
            if logarithm is not None:
                yield logarithm, other

    def _is_left(self, exponent: Atom, added: Atom | None, equation: Equation) -> bool:
        """Whether a difference is x − (ln Σ e^(x−s) + s), or (x−s) − ln Σ e^(x−s)."""
        left = equation.inputs[0]
        if added is None:
            return exponent is left
        difference = self.producers.get(exponent)
        if difference is None or difference.name != "sub" or difference.inputs[0] is not left:
            return False
        return self._largest(difference.inputs[1]) is self._largest(added) is not None

    def _largest(self, atom: Atom) -> Equation | None:
        """The maximum that a shift comes from."""
        while isinstance(atom, Slot) and atom in self.producers:
            producer = self.producers[atom]
            if producer.name == "reduce_max":
                return producer
            if producer.name not in primitives.SHIFT_CARRIERS:
                return None
            atom = producer.inputs[-1]
        return None

    def centring(self, equation: Equation) -> float | None:
        """Return c where an equation is x − c·Σx, with the sum along axes of x; or None."""
        factor, through = 1.0, primitives.SPREADS | {primitives.CONVERSION}
        for producer in self._ancestry(equation.inputs[1]):
            if producer.name == "reduce_sum":
                return factor if producer.inputs[0] is equation.inputs[0] else None
            if producer.name in ("div", "mul"):
                number = uniform_value(producer.inputs[1])
                if not number:
                    return None
                factor = factor / number if producer.name == "div" else factor * number
            elif producer.name not in through:
                return None
        return None

    def sharing(self, atom: Atom) -> Sharing | None:
        """Return which elements a sum is over, if it is one that a softmax may be made with."""
        lookup = self._origin(atom, (), "gather")
        if lookup is not None:
            return self._sharing_by_segment(lookup)
        total = self._origin(atom, primitives.SPREADS, "reduce_sum")
        if total is None or len(total.params["axes"]) != 1:
            return None
        axis = int(total.params["axes"][0])
        operand, chosen = total.inputs[0], None
        producer = self.producers.get(operand)
        if producer is not None and producer.name == "select_n" and len(producer.inputs) == 3:
            operand, chosen = producer.inputs[2], producer.inputs[0]
        return Sharing(
            operand,
            lambda a: jnp.sum(a, axis=axis, keepdims=True),
            lambda a: jnp.max(a, axis=axis, keepdims=True),
            axis,
            chosen,
        )

    def _sharing_by_segment(self, lookup: Equation) -> Sharing | None:
        table = lookup.inputs[0]
        total = self.producers.get(table) if isinstance(table, Slot) else None
        if total is None or total.name not in primitives.SEGMENT_SUMS:
            return None
        places, back = total.inputs[1], lookup.inputs[1]
        if self._same_source(places) is not self._same_source(back):
            return None
        shape, params = total.outputs[0].shape, total.params
        kept = {k: params[k] for k in ("indices_are_sorted", "unique_indices", "mode")}

        def gathered(scatter: Callable, start: float, array: Array) -> Array:
            with_start = jnp.full(shape, start, array.dtype)
            sums = scatter(
                with_start, self.read(places), array, params["dimension_numbers"], **kept
            )
            return compat.bind(lookup.eqn, sums, self.read(back))[0]

        return Sharing(
            total.inputs[2],
            lambda a: gathered(jax.lax.scatter_add, 0.0, a),
            lambda a: gathered(jax.lax.scatter_max, _MASKED, a),
            None,
        )

    read: Callable[[Atom], Any]  # set by the walk: the value of an operand

    def _same_source(self, atom: Atom) -> Atom:
        """Return where indices come from, before they are reshaped and made non-negative."""
        while isinstance(atom, Slot):
            producer = self.producers.get(atom)
            if producer is None:
                break
            if producer.name == "select_n":
                atom = producer.inputs[1]
            elif producer.name in primitives.SPREADS | {primitives.CONVERSION}:
                atom = producer.inputs[0]
            else:
                break
        return atom

    def _origin(self, atom: Atom, through: Any, name: str) -> Equation | None:
        """The equation of a name that an atom comes from through equations of other names."""
        for producer in self._ancestry(atom):
            if producer.name == name:
                return producer
            if producer.name not in through and producer.name not in _HARMLESS:
                return None
        return None

    def _ancestry(self, atom: Atom) -> Iterator[Equation]:
        while isinstance(atom, Slot) and atom in self.producers:
            producer = self.producers[atom]
            yield producer
            atom = producer.inputs[0]


_HARMLESS = ("stop_gradient", "abs")


# Sums of more exponentials than this count as log-normal.
MOST_IN_PAIRS = 64


def logsumexp_moments(mean: Array, variance: Array, axis: int) -> tuple[Array, Array]:
    """Mean and variance of ln Σ_j exp(x_j) along an axis, which keeps length one: pair by pair.

    ln(e^x + e^y) = x + softplus(y − x) of two independent Gaussians, x the larger on average, by

        Var = Var[x] + Var[softplus] − 2 Var[x] E[σ(y − x)].

    A sum of log-normals with the same two moments would be far off where variances are large.
    """
    mean, variance = (jnp.moveaxis(a, axis, 0) for a in (mean, variance))
    while mean.shape[0] > 1:
        half = mean.shape[0] // 2
        pair = _add_exponentials(
            (mean[:half], variance[:half]), (mean[half : 2 * half], variance[half : 2 * half])
        )
        mean = jnp.concatenate([pair[0], mean[2 * half :]])
        variance = jnp.concatenate([pair[1], variance[2 * half :]])
    return jnp.moveaxis(mean, 0, axis), jnp.moveaxis(variance, 0, axis)


def _add_exponentials(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """Mean and variance of ln(e^x + e^y); what is masked by −∞ or a number like it is left out."""
    swap = other[0] > one[0]
    (m, v), (smaller, w) = (
        tuple(jnp.where(swap, a, b) for a, b in zip(*pair, strict=True))
        for pair in ((other, one), (one, other))
    )
    masked = smaller < 0.5 * _MASKED
    gap = jnp.where(masked, -1.0, smaller - jnp.where(masked, 0.0, m))
    width = jnp.where(masked, 1.0, v + w)
    excess, spread, share = quadrature.moments_and_slope(jax.nn.softplus, gap, width)
    mean = m + jnp.where(masked, 0.0, excess)
    variance = v + jnp.where(masked, 0.0, spread - 2.0 * v * share)
    return mean, jnp.maximum(variance, 0.0)


def share_argument(
    sharing: Sharing, mean: Array, variance: Array, chosen: Any = None
) -> tuple[Array, Array, Array, Array]:
    """The share of an element is σ(t): mean and variance of t, what is masked, and ln of the sum.

    t = x_i − ln Σ_{j≠i} e^{x_j}; the sum of log-normals counts as one log-normal of the same two
    moments (Fenton–Wilkinson), so that t is Gaussian. Elements masked by −∞ or a similar number are
    left out exactly; if all are masked, all shares are equal.
    """
    if chosen is not None:
        mean = jnp.where(chosen, mean, _MASKED)
    out = mean < 0.5 * _MASKED
    mean, variance = jnp.where(out, _MASKED, mean), jnp.where(out, 0.0, variance)
    top = jax.lax.stop_gradient(sharing.largest(mean + 0.5 * variance))
    first = jnp.exp(mean + 0.5 * variance - top)
    second = first * first * jnp.expm1(jnp.minimum(variance, 30.0))
    tiny = jnp.finfo(first.dtype).tiny ** 0.25
    total = sharing.total(first)
    others = jnp.maximum(total - first, tiny)
    spread = jnp.maximum(sharing.total(second) - second, 0.0)
    log_variance = jnp.log1p(spread / others / others)  # not others²: its derivative overflows
    masked = first == 0.0
    centre = jnp.where(masked, 0.0, mean - top) - (jnp.log(others) - 0.5 * log_variance)
    width = jnp.where(masked, 0.0, variance) + log_variance
    return centre, width, masked, jnp.broadcast_to(jnp.log(total) + top, mean.shape)


def share_moments(
    sharing: Sharing, mean: Array, variance: Array, chosen: Any = None
) -> tuple[Array, Array]:
    """Mean and variance of exp(x_i)/Σ_j exp(x_j) for independent Gaussian x."""
    centre, width, masked, _ = share_argument(sharing, mean, variance, chosen)
    share, spread = quadrature.moments(jax.nn.sigmoid, centre, width)
    share, spread = jnp.where(masked, 0.0, share), jnp.where(masked, 0.0, spread)
    # The shares sum to one by construction, their moment-matched means only nearly.
    return share / sharing.total(share), spread


def log_share_moments(sharing: Sharing, mean: Array, variance: Array) -> tuple[Array, Array]:
    """Mean and variance of x_i − ln Σ_j exp(x_j) for independent Gaussian x."""
    centre, width, masked, log_total = share_argument(sharing, mean, variance)
    value, spread = quadrature.moments(jax.nn.log_sigmoid, centre, width)
    at_mean = jnp.maximum(mean, _MASKED) - log_total
    return jnp.where(masked, at_mean, value), jnp.where(masked, 0.0, spread)
