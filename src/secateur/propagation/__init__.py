"""How uncertainty travels through a model function."""

from secateur.propagation.propagator import UnsupportedOperation
from secateur.propagation.rules import register_rule, unregister_rule
from secateur.propagation.transform import Coverage, coverage, draws, propagate

__all__ = [
    "Coverage",
    "UnsupportedOperation",
    "coverage",
    "draws",
    "propagate",
    "register_rule",
    "unregister_rule",
]
