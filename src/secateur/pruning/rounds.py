"""What a round of pruning or growing did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from secateur.fitting.result import History

__all__ = ["Round", "table"]


@dataclass(frozen=True, eq=False)
class Round:
    """One move: weights go (or come back), and the rest is trained again.

    Changes of free energy are in nats, against the beginning of the round; negative is better.

    Attributes:
        move: "cut weights", "cut units" or "grow weights".
        before: weights before the round.
        changed: how many were cut, or grown.
        estimated: change of the free energy that Bayesian model reduction expected.
        at_once: actual change right after the move, before any training.
        trained: actual change after training; nan if there was nothing left to train.
        free_energy: at the end of the round, nats, whether or not it was kept.
        complexity: of weights and noise, likewise.
        accuracy: likewise.
        standard_error: of the free energy, where the algorithm samples; else 0.
        kept: False if the round was undone because it ended worse than it began.
        seconds: that it took; all runs together where several are pruned at once.
        history: its training by epoch.
    """

    move: str
    before: int
    changed: int
    estimated: float
    at_once: float
    trained: float
    free_energy: float
    complexity: float
    accuracy: float
    standard_error: float
    kept: bool
    seconds: float
    history: History | None = field(repr=False)

    @property
    def left(self) -> int:
        """Return the number of weights at the end of the round, had it been kept."""
        return self.before + (self.changed if self.move.startswith("grow") else -self.changed)

    @property
    def divergence(self) -> float:
        """Return actual minus estimated change right after the move: what the estimate missed."""
        return self.at_once - self.estimated


def table(rounds: Sequence[Round]) -> str:
    """Return the rounds as lines for people to read."""
    heads = ("round", "move", "changed", "left", "estimated", "at once", "divergence", "trained",
             "free energy", "complexity", "accuracy", "s", "")  # fmt: skip
    rows: list[tuple[str, ...]] = [heads]
    for number, r in enumerate(rounds, 1):
        rows.append(
            (
                str(number),
                r.move,
                str(r.changed),
                str(r.left),
                *(f"{v:.1f}" for v in (r.estimated, r.at_once, r.divergence, r.trained)),
                *(f"{v:.1f}" for v in (r.free_energy, r.complexity, r.accuracy, r.seconds)),
                "" if r.kept else "undone",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
