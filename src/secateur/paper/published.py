"""What others have published for the standard splits of the UCI sets."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["METHODS", "PUBLISHED", "Published"]

METHODS = ("PBP", "MC dropout", "DVI")


class Published(NamedTuple):
    """Means over the 20 standard splits; None where a number was not published.

    Attributes:
        rmse: test error, in the targets' units.
        log_likelihood: of test rows, nats per row.
    """

    rmse: float | None
    log_likelihood: float


def _row(pbp: tuple[float, float], dropout: tuple[float, float], dvi: float) -> dict:
    methods = (Published(*pbp), Published(*dropout), Published(None, dvi))
    return dict(zip(METHODS, methods, strict=True))


# PBP: Hernández-Lobato and Adams (2015). MC dropout: Gal and Ghahramani (2016). DVI: Wu et al.
# (2019), homoscedastic, which is the noise model here. Energy and naval: first target only.
PUBLISHED: dict[str, dict[str, Published]] = {
    "boston": _row((3.01, -2.57), (2.97, -2.46), -2.58),
    "concrete": _row((5.67, -3.16), (5.23, -3.04), -3.23),
    "energy": _row((1.80, -2.04), (1.66, -1.99), -2.09),
    "kin8nm": _row((0.10, 0.90), (0.10, 0.95), 1.01),
    "naval": _row((0.01, 3.73), (0.01, 3.80), 5.84),
    "powerplant": _row((4.12, -2.84), (4.02, -2.80), -2.82),
    "wine": _row((0.64, -0.97), (0.62, -0.93), -0.96),
    "yacht": _row((1.02, -1.63), (1.11, -1.55), -1.41),
}
