"""How each kind of primitive carries uncertainty. Importing this package declares the rules."""

from secateur.propagation.rules import binary, maxima, rearrangements, rounded, sums
from secateur.propagation.rules.registry import RULES, Rule, register_rule, seal, unregister_rule

__all__ = [
    "RULES",
    "Rule",
    "binary",
    "maxima",
    "rearrangements",
    "register_rule",
    "rounded",
    "sums",
    "unregister_rule",
]

seal()
