"""scikit-learn estimators: dense networks that are trained and pruned like any other estimator.

Training twice on data of the same shape compiles nothing the second time, so a grid search costs
compilation once for every size of its folds.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from secateur.distributions import Normal
from secateur.fitting import fit
from secateur.likelihoods import BernoulliLikelihood, CategoricalLikelihood, GaussianLikelihood
from secateur.likelihoods.base import Likelihood
from secateur.model import BayesianModel
from secateur.networks import Dense
from secateur.predictive import Predictive
from secateur.pruning import prune
from secateur.report.network import find_dense_graph
from secateur.report.performance import find_class_probabilities
from secateur.training.recipe import Recipe

__all__ = ["PrunedClassifier", "PrunedRegressor"]


class _PrunedEstimator(BaseEstimator):
    """What the two estimators share: their parameters, training, and what is left of the inputs."""

    def __init__(
        self,
        hidden: Any = (50,),
        *,
        activation: str = "relu",
        inference: str = "moments",
        prior_variance: float = 1.0,
        prune: bool = True,
        what: str = "weights",
        grow: bool = False,
        restarts: int = 1,
        recipe: str | Recipe = "default",
        epochs: int | None = None,
        retrain_epochs: int | None = None,
        batch_size: int | None = None,
        rate: float | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.hidden = hidden
        self.activation = activation
        self.inference = inference
        self.prior_variance = prior_variance
        self.prune = prune
        self.what = what
        self.grow = grow
        self.restarts = restarts
        self.recipe = recipe
        self.epochs = epochs
        self.retrain_epochs = retrain_epochs
        self.batch_size = batch_size
        self.rate = rate
        self.random_state = random_state
        self.verbose = verbose

    def _train(self, x: np.ndarray, targets: np.ndarray, outputs: int, likelihood: Any) -> None:
        """Train and prune, and set the attributes that describe the result."""
        if len(x) < 2:
            raise ValueError("the data have 1 sample (n_samples=1). At least 2 are needed.")
        if not self.prior_variance > 0:
            raise ValueError(f"prior_variance={self.prior_variance}. It must be positive.")
        seed = check_random_state(self.random_state).randint(2**31)
        start, fit_key, prune_key = jax.random.split(jax.random.key(seed), 3)
        network = Dense(x.shape[1], self.hidden, outputs, self.activation)
        model = BayesianModel(
            network,
            network.init(start),
            likelihood=likelihood,
            prior=Normal(0.0, float(self.prior_variance)),
            inference=self.inference,
        )
        result = fit(
            model,
            (x, targets),
            key=fit_key,
            recipe=self.recipe,
            epochs=self.epochs,
            batch_size=self.batch_size,
            rate=self.rate,
            restarts=self.restarts,
            progress=bool(self.verbose),
        )
        if self.prune:
            result = prune(
                result,
                (x, targets),
                key=prune_key,
                what=self.what,
                grow=self.grow,
                epochs=self.retrain_epochs,
                progress=bool(self.verbose),
            )
        self.result_ = result
        self.free_energy_ = result.free_energy
        self.n_weights_ = result.live_weights
        self.pruned_fraction_ = result.pruned_fraction
        self.rounds_ = result.rounds
        graph = find_dense_graph(result.beliefs)
        assert graph is not None
        self.selected_features_ = graph.inputs_in_use

    def _predict(self, X: Any) -> Predictive:
        """Return what the network says of rows."""
        check_is_fitted(self)
        x = validate_data(self, X, reset=False, dtype=np.float64)
        return self.result_.predict(x)

    def get_support(self, indices: bool = False) -> np.ndarray:
        """Return which inputs the network still uses.

        Args:
            indices: Whether to return their numbers instead of a mask.
        """
        check_is_fitted(self)
        return np.flatnonzero(self.selected_features_) if indices else self.selected_features_

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the inputs that the network still uses.

        Args:
            input_features: Names of all inputs. Defaults to those seen in `fit`, or x0, x1, …
        """
        check_is_fitted(self)
        return _check_feature_names_in(self, input_features)[self.selected_features_]


class PrunedRegressor(MultiOutputMixin, RegressorMixin, _PrunedEstimator):
    """A Bayesian neural network for regression, pruned as far as the evidence favours it.

        y = f(θ, x) + noise        θ ~ N(0, prior_variance)        noise ~ N(0, 1/γ_m), γ_m unknown

    Inputs and targets are standardised inside. A target column with only one value is refused, as
    is a single row.

    Args:
        hidden: Number of units of every hidden layer.
        activation: Activation function; see `secateur.networks.ACTIVATIONS`.
        inference: "moments", "local" or "global": how the free energy is computed.
        prior_variance: Prior variance of every weight, for standardised data.
        prune: Whether to prune after training.
        what: What to prune: "weights", "units" (also inputs) or "both".
        grow: Whether weights that were cut may come back; see `secateur.prune`.
        restarts: Number of initialisations to train, of which the one of least free energy is kept.
        recipe: "default", "paper" or a `secateur.Recipe`.
        epochs: Maximum number of epochs. By default training ends by itself.
        retrain_epochs: Maximum number of epochs after each round of pruning.
        batch_size: Number of rows in a step. Defaults to the recipe's.
        rate: Learning rate. Defaults to the recipe's.
        random_state: An int for results that can be repeated.
        verbose: Whether to show progress.

    Attributes:
        result_: The `secateur.Trained` model; `secateur.save` takes it.
        free_energy_: Free energy in nats, lower is better; comparable between settings on the same
            data.
        n_weights_: Number of weights that are left.
        pruned_fraction_: Share of the weights that was removed.
        rounds_: Rounds of pruning; see `secateur.Round`.
        selected_features_: For every input, whether the network still uses it.
        n_features_in_: Number of inputs.
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

    def fit(self, X: Any, y: Any) -> PrunedRegressor:
        """Train and prune.

        Args:
            X: Inputs, of shape (rows, features).
            y: Targets, of shape (rows,) or (rows, outputs).
        """
        x, targets = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self._flat = targets.ndim == 1
        targets = targets.reshape(len(targets), -1).astype(np.float64)
        self._train(x, targets, targets.shape[1], GaussianLikelihood())
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict targets.

        Args:
            X: Inputs, of shape (rows, features).
            return_std: Whether to return the standard deviation of the targets as well: that of
                f(θ, x) under the beliefs about the weights, and the noise.

        Returns:
            The means, in the shape of `y`; with return_std a pair of means and deviations.
        """
        prediction = self._predict(X)
        mean = self._as_targets(prediction.mean)
        if not return_std:
            return mean
        return mean, self._as_targets(prediction.standard_deviation)

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the central interval that holds a target with a probability.

        Args:
            X: Inputs, of shape (rows, features).
            level: Probability of the interval.
        """
        low, high = self._predict(X).interval(level)
        return self._as_targets(low), self._as_targets(high)

    def _as_targets(self, values: np.ndarray) -> np.ndarray:
        """Return predictions in the shape of the targets that were given to `fit`."""
        return values[:, 0] if self._flat else values


class PrunedClassifier(ClassifierMixin, _PrunedEstimator):
    """A Bayesian neural network for classification, pruned as far as the evidence favours it.

        p(y | x, θ) = σ(f(θ, x)) for two classes, softmax(f(θ, x))_y for more        θ ~ N(0, v)

    Two classes have one logit, more have one each. Targets of only one class are refused, as is a
    single row. Probabilities are averages over what is believed of the weights, and so less extreme
    than those of a single best network.

    Args:
        hidden: Number of units of every hidden layer.
        activation: Activation function; see `secateur.networks.ACTIVATIONS`.
        inference: "moments", "local" or "global": how the free energy is computed.
        prior_variance: Prior variance v of every weight, for standardised inputs.
        prune: Whether to prune after training.
        what: What to prune: "weights", "units" (also inputs) or "both".
        grow: Whether weights that were cut may come back; see `secateur.prune`.
        restarts: Number of initialisations to train, of which the one of least free energy is kept.
        recipe: "default", "paper" or a `secateur.Recipe`.
        epochs: Maximum number of epochs. By default training ends by itself.
        retrain_epochs: Maximum number of epochs after each round of pruning.
        batch_size: Number of rows in a step. Defaults to the recipe's.
        rate: Learning rate. Defaults to the recipe's.
        random_state: An int for results that can be repeated.
        verbose: Whether to show progress.

    Attributes:
        classes_: Labels, in the order of the columns of `predict_proba`.
        result_: The `secateur.Trained` model; `secateur.save` takes it.
        free_energy_: Free energy in nats, lower is better; comparable between settings on the same
            data.
        n_weights_: Number of weights that are left.
        pruned_fraction_: Share of the weights that was removed.
        rounds_: Rounds of pruning; see `secateur.Round`.
        selected_features_: For every input, whether the network still uses it.
        n_features_in_: Number of inputs.
        feature_names_in_: Their names, if `X` had any.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(100, 3))
        >>> y = np.where(X[:, 0] > 0, "yes", "no")
        >>> estimator = PrunedClassifier(hidden=(5,), epochs=500, random_state=0).fit(X, y)
        >>> estimator.predict([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]).tolist()
        ['yes', 'no']
        >>> estimator.selected_features_.tolist()
        [True, False, False]
    """

    def fit(self, X: Any, y: Any) -> PrunedClassifier:
        """Train and prune.

        Args:
            X: Inputs, of shape (rows, features).
            y: Labels, of shape (rows,).
        """
        x, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(x) > 1 and len(self.classes_) < 2:
            raise ValueError(
                f"the targets have one class only, {self.classes_[0]!r}. Classification needs at "
                "least 2 classes in the training data."
            )
        likelihood: Likelihood
        if len(self.classes_) <= 2:
            likelihood, outputs, targets = BernoulliLikelihood(), 1, labels[:, None]
        else:
            likelihood, outputs, targets = CategoricalLikelihood(), len(self.classes_), labels
        self._train(x, targets.astype(np.int32), outputs, likelihood)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of every class, of shape (rows, classes).

        Args:
            X: Inputs, of shape (rows, features).
        """
        return find_class_probabilities(self._predict(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of every row.

        Args:
            X: Inputs, of shape (rows, features).
        """
        choices = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[choices]
