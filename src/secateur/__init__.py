"""secateur: Bayesian neural networks, pruned without thresholds."""

import lazy_loader

__version__ = "0.2.0"

# The public names are listed in __init__.pyi.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
