"""Likelihoods: how a model's output becomes a probability of the data.

All follow one small protocol, `Likelihood`. What a likelihood has to learn about its noise is kept
beside the weights as `noise` and is updated in closed form. Values are in nats, one per row.
"""

from secateur.likelihoods.base import (
    Likelihood,
    Prediction,
    sampled_predictive_log_density,
)
from secateur.likelihoods.bernoulli import BernoulliLikelihood
from secateur.likelihoods.categorical import CategoricalLikelihood
from secateur.likelihoods.gaussian import GaussianLikelihood
from secateur.likelihoods.poisson import PoissonLikelihood

__all__ = [
    "BernoulliLikelihood",
    "CategoricalLikelihood",
    "GaussianLikelihood",
    "Likelihood",
    "PoissonLikelihood",
    "Prediction",
    "sampled_predictive_log_density",
]
