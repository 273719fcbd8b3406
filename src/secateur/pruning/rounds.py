"""Records of rounds: how they are made and kept in checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from secateur.pruning.moves import Change
from secateur.trained import History, Round

__all__ = ["decode_rounds", "encode_round", "make_gradual_round"]


def make_gradual_round(
    name: str,
    change: Change,
    run: int,
    weights: np.ndarray,
    history: History,
    earlier: Sequence[Round],
    first: float,
    seconds: float,
) -> Round:
    """Return the record of a round that is not judged; see `Recipe.gradual_rounds`.

    Args:
        name: What the move is called.
        change: The move.
        run: Number of the run.
        weights: Number of weights before, by run.
        history: History of the training.
        earlier: Earlier rounds of the run.
        first: Free energy before all rounds.
        seconds: Duration.
    """
    complexity, accuracy = float(history.complexity[-1]), float(history.accuracy[-1])
    before = earlier[-1].free_energy if earlier else float(first)
    return Round(
        move=name,
        before=int(weights[run]),
        changed=int(np.asarray(change.changed)[run]),
        estimated=float(np.asarray(change.estimated)[run]),
        at_once=float("nan"),
        trained=complexity - accuracy - before,
        free_energy=complexity - accuracy,
        complexity=complexity,
        accuracy=accuracy,
        standard_error=0.0,
        kept=True,
        seconds=seconds,
        history=history,
    )


def encode_round(r: Round) -> dict[str, Any]:
    """Return the facts of a round, without its history."""
    length = None if r.history is None else len(r.history)
    return asdict(replace(r, history=None)) | {"history": length}


def decode_rounds(rounds: list[dict[str, Any]], histories: np.ndarray) -> list[Round]:
    """Return rounds from their facts and their joined histories."""
    decoded, start = [], 0
    for facts in rounds:
        history, length = None, facts["history"]
        if length is not None:
            history = History(*histories[:, start : start + length])
            start += length
        decoded.append(Round(**facts | {"history": history}))
    return decoded
