"""`PrunedRegressor`: regression of numbers or counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin

from secateur.distributions import Gamma
from secateur.likelihoods import GaussianLikelihood, PoissonLikelihood
from secateur.likelihoods.base import Likelihood
from secateur.sklearn.estimator import PrunedEstimator, name_targets
from secateur.tables import Target
from secateur.training.recipe import Recipe

__all__ = ["PrunedRegressor"]

_LIKELIHOODS = ("gaussian", "poisson")


class PrunedRegressor(MultiOutputMixin, RegressorMixin, PrunedEstimator):
    """A Bayesian neural network for regression, pruned as far as the evidence favours it.

        y = f(θ, x) + noise        θ ~ N(0, prior_variance)        noise ~ N(0, 1/γ_m), γ_m unknown
        y ~ Poisson(exp f(θ, x))                                   with likelihood="poisson"

    Inputs and targets (except counts) are standardised internally. A target column with a single
    value, or a single row, raises an error. `X` may be an array, a sparse matrix, which is
    converted to a dense one, or a table: columns of booleans, text and pandas categories become
    inputs of 0 and 1. `transform` selects the columns that the network still uses.

    Args:
        hidden: "auto", which trains and prunes linear, narrow and wide networks and keeps the one
            with the lowest free energy; or the number of units of every hidden layer, () for none.
        activation: Activation function; see `secateur.networks.ACTIVATIONS`.
        inference: "moments", "local" or "global": how the free energy is computed.
        posterior: "mean-field"; "unit", which gives the weights of a unit a covariance; "linear",
            which tries both for the linear model and lets the free energy after pruning choose; or
            "auto", which tries both for all structures.
        prior_variance: Prior variance of every weight, for standardised data, where it is not
            learnt.
        learn_priors: Prior variances that are learnt: "inputs", "leaves" or None for none; see
            `secateur.fit`. "auto" learns those of inputs in wide networks, none in narrow ones, and
            a common one in a linear model that is trained by itself.
        noise_prior: Shape and rate of the Gamma prior of the noise's precision, for standardised
            targets. Defaults to the recipe's, (1, 0.01).
        likelihood: "gaussian", or "poisson" for targets that are counts.
        missing: Treatment of missing values (nan, None) in `X`: "mean" imputes the mean of the
            column, or its most frequent category, and adds an indicator input for columns with
            missing values in the training data; "error" raises an error.
        prune: Whether to prune after training.
        what: What to prune: "weights", "units" (also inputs) or "both".
        grow: Whether pruned weights may grow back; see `secateur.prune`.
        restarts: Number of initialisations; the one with the lowest free energy is kept.
        average: None, or how to average the predictions of all pruned restarts: "equal" weights, or
            "evidence" for weights in proportion to exp(−free energy); see `secateur.Average`.
        recipe: "default", "paper" or a `secateur.Recipe`.
        epochs: Maximum number of epochs. By default, training ends when the free energy has
            levelled off.
        retrain_epochs: Maximum number of epochs after each round of pruning.
        batch_size: Number of rows in a step. Defaults to the recipe's.
        rate: Learning rate. Defaults to the recipe's.
        trust: Weight of the previous posterior in `partial_fit`, above 0 and up to 1; see
            `secateur.update`.
        random_state: An int for reproducible results.
        verbose: Whether to show progress.

    Attributes:
        result_: The `secateur.Trained` model; `secateur.save` takes it.
        average_: The `secateur.Average` that predicts, or None if `result_` predicts alone.
        free_energy_: Free energy in nats, lower is better; comparable between settings on the same
            data.
        n_weights_: Number of remaining weights.
        structures_: Structure, weights and free energy of every candidate.
        pruned_fraction_: Fraction of the weights that was removed.
        rounds_: Rounds of pruning; see `secateur.Round`.
        n_iter_: Total number of epochs.
        selected_features_: For every column of `X`, whether the network still uses it.
        input_names_: Names of the network's inputs; a column of categories becomes several.
        n_features_in_: Number of columns of `X`.
        feature_names_in_: Their names, if `X` had any.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(100, 4))
        >>> y = 2 * X[:, 1] + 0.1 * rng.normal(size=100)
        >>> estimator = PrunedRegressor(hidden=(5,), random_state=0).fit(X, y)
        >>> estimator.selected_features_.tolist()
        [False, True, False, False]
        >>> mean, deviation = estimator.predict(X, return_std=True)
        >>> mean.shape, bool(estimator.score(X, y) > 0.99)
        ((100,), True)
    """

    likelihood: str

    def __init__(
        self,
        hidden: Any = "auto",
        *,
        activation: str = "relu",
        inference: str = "moments",
        posterior: str = "linear",
        prior_variance: float = 1.0,
        learn_priors: str | None = "auto",
        noise_prior: tuple[float, float] | None = None,
        likelihood: str = "gaussian",
        missing: str = "mean",
        prune: bool = True,
        what: str = "weights",
        grow: bool = False,
        restarts: int = 1,
        average: str | None = None,
        recipe: str | Recipe = "default",
        epochs: int | None = None,
        retrain_epochs: int | None = None,
        batch_size: int | None = None,
        rate: float | None = None,
        trust: float = 1.0,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self._store_parameters(locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.likelihood == "poisson"
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> PrunedRegressor:
        """Train and prune.

        Args:
            X: Inputs, of shape (rows, features).
            y: Targets, of shape (rows,) or (rows, outputs).
            sample_weight: Weight of each row, at least 0. A row of weight 2 counts as two rows, a
                row of weight 0 is left out.
        """
        if self.likelihood not in _LIKELIHOODS:
            supported = ", ".join(_LIKELIHOODS)
            raise ValueError(f"likelihood={self.likelihood!r}. Supported: {supported}.")
        rows = self._read_rows(X, y, sample_weight, reset=True, multi_output=True, y_numeric=True)
        self._is_flat = rows.y.ndim == 1
        targets = self._make_targets(rows.y)
        self._outputs = targets.shape[1]
        names = name_targets(y, self._outputs)
        self._fit_first(rows, targets, self._make_likelihood(), list(map(Target, names)))
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> PrunedRegressor:
        """Learn from new rows without the old ones; the first call is `fit`.

        The current posterior is the prior of the new rows; see `secateur.update`. Rows are
        standardised and encoded like the first ones, and pruned weights stay pruned.

        Args:
            X: Inputs, of shape (rows, features).
            y: Targets, with the same shape as in the first call, except for the number of rows.
            sample_weight: Weight of each row, as in `fit`.
        """
        if not hasattr(self, "result_"):
            return self.fit(X, y, sample_weight)
        rows = self._read_rows(X, y, sample_weight, reset=False, multi_output=True, y_numeric=True)
        targets = self._make_targets(rows.y)
        if (rows.y.ndim == 1) != self._is_flat or targets.shape[1] != self._outputs:
            expected = "(rows,)" if self._is_flat else f"(rows, {self._outputs})"
            raise ValueError(f"y has shape {rows.y.shape}, and in the first call {expected}.")
        self._update(rows, targets)
        return self

    def _make_likelihood(self) -> Likelihood:
        if self.likelihood == "poisson":
            return PoissonLikelihood()
        if self.noise_prior is None:
            return GaussianLikelihood()
        parameters = np.asarray(self.noise_prior)
        if parameters.shape != (2,) or not np.issubdtype(parameters.dtype, np.number):
            raise ValueError(
                f"noise_prior={self.noise_prior!r}. Give the shape and the rate of a Gamma "
                "distribution, such as (1, 0.01)."
            )
        return GaussianLikelihood(Gamma(*map(float, parameters)))

    def _make_targets(self, y: np.ndarray) -> np.ndarray:
        """Return targets of shape (rows, outputs)."""
        targets = y.reshape(len(y), -1).astype(np.float64)
        if self.likelihood == "poisson":
            bad = np.argwhere((targets < 0) | (targets != np.floor(targets)))
            if len(bad):
                raise ValueError(
                    f"y is {targets[tuple(bad[0])]:g} in row {bad[0][0]}. Targets of "
                    "likelihood='poisson' are counts: integers, at least 0."
                )
        return targets

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict targets.

        Args:
            X: Inputs, of shape (rows, features).
            return_std: Whether to also return the standard deviation of the targets, which includes
                the uncertainty about the weights and the noise.

        Returns:
            The means (of counts, the mean rates) in the shape of `y`; with return_std a pair of
            means and deviations.
        """
        prediction = self._predict(X)
        mean = self._as_targets(prediction.mean)
        if not return_std:
            return mean
        return mean, self._as_targets(prediction.standard_deviation)

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the central interval that contains a target with a given probability.

        Args:
            X: Inputs, of shape (rows, features).
            level: Probability of the interval.
        """
        low, high = self._predict(X).interval(level)
        return self._as_targets(low), self._as_targets(high)

    def _as_targets(self, values: np.ndarray) -> np.ndarray:
        """Return predictions in the shape of the targets that were given to `fit`."""
        return values[:, 0] if self._is_flat else values
