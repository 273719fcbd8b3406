"""How each kind of primitive carries uncertainty. Importing this package declares the rules."""

from secateur.propagation.rules import (
    binary,
    maxima,
    orderings,
    rearrangements,
    running,
    steps,
    sums,
)
from secateur.propagation.rules.registry import RULES, Rule, register_rule, seal, unregister_rule

__all__ = [
    "RULES",
    "Rule",
    "binary",
    "maxima",
    "orderings",
    "rearrangements",
    "register_rule",
    "running",
    "steps",
    "sums",
    "unregister_rule",
]

seal()
