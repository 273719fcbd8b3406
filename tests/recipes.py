"""A recipe for tests whose exact result is known: nothing standardised, and long enough."""

from dataclasses import replace

from secateur.training.recipe import RECIPES

PLAIN = replace(
    RECIPES["default"],
    standardise_inputs=False,
    standardise_targets=False,
    warm_steps=0,
    rate=2e-2,
    epochs=600,
    retrain_epochs=200,
)
