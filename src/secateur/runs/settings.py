"""What a run can be told."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Settings", "layers"]

# An epoch has about so many steps at most, unless the size of batches is given.
_STEPS_PER_EPOCH = 1000
_SMALLEST_BATCH = 64


@dataclass(frozen=True)
class Settings:
    """What a run can be told, beside its data and targets.

    Attributes:
        task: "regression" or "classification"; None lets the target decide.
        hidden: units of every hidden layer; empty for a linear model.
        inference: "moments", "local" or "global".
        what: to prune: "weights", "units" or "both".
        grow: whether weights may come back.
        seed: of everything random.
        restarts: initialisations trained side by side.
        minutes: at most, for the whole run; None for no limit.
        held_out: share of the rows that training does not see.
        missing: what to do with missing values: "error", "drop" or "mean".
        drop: columns not to use.
        epochs: at most, of the training and of each one between rounds of pruning.
        batch_size: rows in a step; None chooses by the number of rows.
        most_categories: how many different texts a column of categories may have.
        encoding: of a text file; None is UTF-8.
    """

    task: str | None = None
    hidden: tuple[int, ...] = (50,)
    inference: str = "moments"
    what: str = "weights"
    grow: bool = False
    seed: int = 0
    restarts: int = 1
    minutes: float | None = None
    held_out: float = 0.2
    missing: str = "error"
    drop: tuple[str, ...] = ()
    epochs: int | None = None
    batch_size: int | None = None
    most_categories: int = 50
    encoding: str | None = None

    def batch_for(self, rows: int) -> int:
        """Return rows in a step: 64, or as many times two as keep an epoch near 1000 steps."""
        if self.batch_size is not None:
            return self.batch_size
        doublings = math.ceil(math.log2(max(1.0, rows / _SMALLEST_BATCH / _STEPS_PER_EPOCH)))
        return _SMALLEST_BATCH * 2**doublings

    def shown(self) -> dict[str, Any]:
        """Return what a person should see, without what was left to be chosen."""
        given = asdict(self)
        given["hidden"] = ", ".join(map(str, self.hidden)) or "none"
        given["drop"] = ", ".join(self.drop)
        return {name: value for name, value in given.items() if value not in (None, "", False)}


def layers(text: str) -> tuple[int, ...]:
    """Return the sizes of hidden layers from "50", "64,32", or "0" for none.

    Raises:
        ValueError: it is something else.

    Example:
        >>> layers("64,32"), layers("0")
        ((64, 32), ())
    """
    if text.strip() == "0":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise ValueError(
            f"--hidden {text}: give the units of each hidden layer, such as 50 or 64,32; 0 for "
            "none."
        )
    return tuple(map(int, parts))
