"""scikit-learn estimators: dense networks that are trained, pruned and asked like any other.

Training twice on data of the same shape compiles nothing the second time, so a grid search costs
compilation once for every size of its folds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from secateur.distributions import Normal
from secateur.fitting import Recipe, fit
from secateur.fitting.result import Fitted
from secateur.likelihoods import BernoulliLikelihood, CategoricalLikelihood, GaussianLikelihood
from secateur.likelihoods.base import Likelihood
from secateur.model import BayesianModel
from secateur.networks import Dense
from secateur.pruning import prune

__all__ = ["PrunedClassifier", "PrunedRegressor"]

# Rows are predicted in blocks of a few sizes, each compiled once for a network.
_SMALLEST_BLOCK, _LARGEST_BLOCK = 64, 8192


class _Pruned(BaseEstimator):
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
        """Train and prune, and note what came of it."""
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
        result: Fitted = fit(
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
        weights = result.live_weights
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
        self.pruned_fraction_ = 1 - self.n_weights_ / weights
        self.rounds_ = getattr(result, "rounds", ())
        self.selected_features_ = _inputs_in_use(result.beliefs)

    def _predictions(self, X: Any) -> Iterator[tuple[Normal, int]]:
        """Yield, block by block, the network's outputs in the data's units, and how many count.

        Always by moments: the beliefs are the same whichever algorithm found them, and so every row
        gets the same answer whatever other rows there are.
        """
        check_is_fitted(self)
        x = validate_data(self, X, reset=False, dtype=np.float64)
        model = replace(self.result_.model, inference="moments")
        result = replace(self.result_, model=model)
        for start in range(0, len(x), _LARGEST_BLOCK):
            rows = x[start : start + _LARGEST_BLOCK]
            size = max(_SMALLEST_BLOCK, 1 << (len(rows) - 1).bit_length())
            padding = np.broadcast_to(rows[:1], (size - len(rows), rows.shape[1]))
            prediction = result.predict(np.concatenate([rows, padding]))
            assert isinstance(prediction, Normal)
            yield prediction, len(rows)

    def get_support(self, indices: bool = False) -> np.ndarray:
        """Return which inputs the network still uses.

        Args:
            indices: return their numbers and not a mask.
        """
        check_is_fitted(self)
        return np.flatnonzero(self.selected_features_) if indices else self.selected_features_

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the inputs that the network still uses.

        Args:
            input_features: names of all inputs; by default those seen in `fit`, or x0, x1, …
        """
        check_is_fitted(self)
        return _check_feature_names_in(self, input_features)[self.selected_features_]


class PrunedRegressor(MultiOutputMixin, RegressorMixin, _Pruned):
    """A Bayesian neural network for regression, pruned to what the evidence asks for.

        y = f(θ, x) + noise        θ ~ N(0, prior_variance)        noise ~ N(0, 1/γ_m), γ_m unknown

    Inputs and targets are standardised inside. A target column with one value only is refused, as
    is a single row.

    Args:
        hidden: units of every hidden layer.
        activation: see `secateur.networks.ACTIVATIONS`.
        inference: "moments", "local" or "global": how the free energy is found in training.
        prior_variance: of every weight, for standardised data.
        prune: whether to prune after training.
        what: to prune: "weights", "units" (also inputs) or "both".
        grow: whether weights that were cut may come back; see `secateur.prune`.
        restarts: how many initialisations to train; the one of least free energy is kept.
        recipe: "default", "paper" or a `secateur.Recipe`.
        epochs: at most so many; by default training ends by itself.
        retrain_epochs: at most so many after each round of pruning.
        batch_size: rows in a step; by default the recipe's.
        rate: learning rate; by default the recipe's.
        random_state: an int for results that can be repeated.
        verbose: whether to show progress.

    Attributes:
        result_: what `secateur.fit` or `secateur.prune` returned; `secateur.save` takes it.
        free_energy_: in nats, lower is better; comparable between settings on the same data.
        n_weights_: how many weights are left.
        pruned_fraction_: share of the weights that are gone.
        rounds_: of pruning; see `secateur.Round`.
        selected_features_: for every input whether the network still uses it.
        n_features_in_: number of inputs.
        feature_names_in_: their names, if `X` had any.

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
            X: inputs, (rows, features).
            y: targets, (rows,) or (rows, outputs).
        """
        x, targets = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self._flat = targets.ndim == 1
        targets = targets.reshape(len(targets), -1).astype(np.float64)
        self._train(x, targets, targets.shape[1], GaussianLikelihood())
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict targets.

        Args:
            X: inputs, (rows, features).
            return_std: also return the standard deviation of the targets: that of f(θ, x) under the
                beliefs about the weights, and the noise.

        Returns:
            The means, in the shape of `y`; with return_std a pair of means and deviations.
        """
        noise_variance = self._noise_variance() if return_std else np.zeros(1)
        means, deviations = [], []
        for prediction, rows in self._predictions(X):
            means.append(np.asarray(prediction.mean, np.float64)[:rows])
            variance = np.asarray(prediction.variance, np.float64)[:rows] + noise_variance
            deviations.append(np.sqrt(variance))
        mean, deviation = np.concatenate(means), np.concatenate(deviations)
        if self._flat:
            mean, deviation = mean[:, 0], deviation[:, 0]
        return (mean, deviation) if return_std else mean

    def _noise_variance(self) -> np.ndarray:
        """E[1/γ] = β/(α − 1) for every output, in the units of the targets."""
        check_is_fitted(self)
        noise, targets = self.result_.noise, self.result_.scaling.targets
        scale = 1.0 if targets is None else np.asarray(targets.scale, np.float64)
        return np.asarray(noise.rate / (noise.shape - 1), np.float64) * np.square(scale)


class PrunedClassifier(ClassifierMixin, _Pruned):
    """A Bayesian neural network for classification, pruned to what the evidence asks for.

        p(y | x, θ) = σ(f(θ, x)) for two classes, softmax(f(θ, x))_y for more        θ ~ N(0, v)

    Two classes have one logit, more have one each. Targets of one class only are refused, as is a
    single row. Probabilities are averages over what is believed of the weights, and so less extreme
    than those of a single best network.

    Args:
        hidden: units of every hidden layer.
        activation: see `secateur.networks.ACTIVATIONS`.
        inference: "moments", "local" or "global": how the free energy is found in training.
        prior_variance: v, of every weight, for standardised inputs.
        prune: whether to prune after training.
        what: to prune: "weights", "units" (also inputs) or "both".
        grow: whether weights that were cut may come back; see `secateur.prune`.
        restarts: how many initialisations to train; the one of least free energy is kept.
        recipe: "default", "paper" or a `secateur.Recipe`.
        epochs: at most so many; by default training ends by itself.
        retrain_epochs: at most so many after each round of pruning.
        batch_size: rows in a step; by default the recipe's.
        rate: learning rate; by default the recipe's.
        random_state: an int for results that can be repeated.
        verbose: whether to show progress.

    Attributes:
        classes_: the labels, in the order of the columns of `predict_proba`.
        result_: what `secateur.fit` or `secateur.prune` returned; `secateur.save` takes it.
        free_energy_: in nats, lower is better; comparable between settings on the same data.
        n_weights_: how many weights are left.
        pruned_fraction_: share of the weights that are gone.
        rounds_: of pruning; see `secateur.Round`.
        selected_features_: for every input whether the network still uses it.
        n_features_in_: number of inputs.
        feature_names_in_: their names, if `X` had any.

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
            X: inputs, (rows, features).
            y: labels, (rows,).
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
        """Return the probability of every class, (rows, classes).

        Args:
            X: inputs, (rows, features).
        """
        found = []
        for logits, rows in self._predictions(X):
            logs = _log_probabilities(self.result_.model.likelihood, logits, len(self.classes_))
            likely = np.exp(np.asarray(logs, np.float64).T[:rows])
            found.append(likely / likely.sum(axis=1, keepdims=True))
        return np.concatenate(found)

    def predict(self, X: Any) -> np.ndarray:
        """Return the likeliest class of every row.

        Args:
            X: inputs, (rows, features).
        """
        chosen = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[chosen]


@partial(jax.jit, static_argnums=2)
def _log_probabilities(likelihood: Any, logits: Normal, classes: int) -> jax.Array:
    """ln p of every class (first axis) and row, the uncertainty of the logits integrated out."""
    shape = logits.mean.shape if classes == 2 else logits.mean.shape[:1]
    each = [
        likelihood.predictive_log_density(None, logits, jnp.full(shape, label, jnp.int32))
        for label in range(classes)
    ]
    return jnp.stack(each)


def _inputs_in_use(beliefs: Any) -> np.ndarray:
    """Follow the live weights of a dense network back from its outputs."""
    reached: Any = slice(None)
    for layer in reversed(beliefs["layers"]):
        alive = np.asarray(layer["weights"].variance) > 0
        reached = np.any(alive[:, reached], axis=1)
    return reached
