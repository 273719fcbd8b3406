"""The end of a run, for a person to read."""

from __future__ import annotations

from typing import Any

from rich.table import Table

__all__ = ["summary", "uncut_and_cut"]


def summary(record: dict[str, Any]) -> Table:
    """Return a table of what there was before pruning and what is left after.

    Args:
        record: from `secateur.report.make_record`.
    """
    table = Table(title="Before and after pruning", title_justify="left")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    weights, energy, held_out = record["weights"], record["energy"], record["held_out"]
    table.add_row("weights", f"{weights['before']:,}", f"{weights['after']:,}")
    if weights["hidden_before"]:
        hidden = (f"{weights[f'hidden_{when}']:,}" for when in ("before", "after"))
        table.add_row("hidden units", *hidden)
    columns = uncut_and_cut(record)
    table.add_row("columns in use", str(len(columns[0]) + len(columns[1])), str(len(columns[0])))
    bytes_ = (f"{4 * weights[when]:,}" for when in ("before", "after"))
    table.add_row("bytes of the weights (4 each)", *bytes_)
    table.add_row("free energy (nats)", *_both(energy, "free_energy", ",.1f"))
    if held_out is not None:
        table.add_section()
        table.add_row(f"{held_out['rows']:,} rows held out:", "", "")
        for name, heading, form in (
            ("rmse", "root-mean-square error", ".4g"),
            ("accuracy", "share of right answers", ".1%"),
            ("log_likelihood", "log-likelihood (nats per row)", ".3f"),
            ("coverage_95", "95 % coverage", ".1%"),
        ):
            if name in held_out["before"]:
                table.add_row(f"  {heading}", *_both(held_out, name, form))
    return table


def uncut_and_cut(record: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the columns that still have an influence, and those that have none."""
    alive: dict[str, bool] = {}
    for entry in record["inputs"]:
        alive[entry["column"]] = alive.get(entry["column"], False) or not entry.get("cut", False)
    return [c for c, yes in alive.items() if yes], [c for c, yes in alive.items() if not yes]


def _both(parts: dict[str, Any], name: str, form: str) -> tuple[str, str]:
    values = (parts[when].get(name) for when in ("before", "after"))
    before, after = ("–" if value is None else format(value, form) for value in values)
    return before, after
