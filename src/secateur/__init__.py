"""secateur: Bayesian neural networks, pruned without thresholds."""

from secateur.distributions import Normal
from secateur.propagation import (
    UnsupportedOperation,
    coverage,
    propagate,
    register_rule,
    unregister_rule,
)

__version__ = "0.1.0"
