"""How each kind of primitive carries uncertainty. Importing this package declares the rules."""

from secateur.propagation.rules import binary, linear, maxima, moves
from secateur.propagation.rules.registry import RULES, Rule, register_rule, seal, unregister_rule

__all__ = [
    "RULES",
    "Rule",
    "binary",
    "linear",
    "maxima",
    "moves",
    "register_rule",
    "unregister_rule",
]

seal()
