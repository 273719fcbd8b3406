"""`PrunedClassifier`: two or more classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets

from secateur.likelihoods import BernoulliLikelihood, CategoricalLikelihood
from secateur.likelihoods.base import Likelihood
from secateur.report.performance import find_class_probabilities
from secateur.sklearn.estimator import PrunedEstimator, Rows, name_targets
from secateur.tables import Target
from secateur.training.recipe import Recipe

__all__ = ["PrunedClassifier"]


class PrunedClassifier(ClassifierMixin, PrunedEstimator):
    """A Bayesian neural network for classification, pruned as far as the evidence favours it.

        p(y | x, θ) = σ(f(θ, x)) for two classes, softmax(f(θ, x))_y for more        θ ~ N(0, v)

    There is one logit for two classes, and one per class for more. Targets with a single class, or
    a single row, raise an error. Probabilities are averaged over the posterior of the weights, so
    they are less extreme than those of a single best network. `X` may be an array, a sparse matrix,
    which is converted to a dense one, or a table: columns of booleans, text and pandas categories
    become inputs of 0 and 1. `transform` selects the columns that the network still uses.

    Args:
        hidden: "auto", which trains and prunes linear, narrow and wide networks and keeps the one
            with the lowest free energy; or the number of units of every hidden layer, () for none.
        activation: Activation function; see `secateur.networks.ACTIVATIONS`.
        inference: "moments", "local" or "global": how the free energy is computed.
        posterior: "mean-field"; "unit", which gives the weights of a unit a covariance; "linear",
            which tries both for the linear model and lets the free energy after pruning choose; or
            "auto", which tries both for all structures.
        prior_variance: Prior variance v of every weight, for standardised inputs, where it is not
            learnt.
        learn_priors: Prior variances that are learnt: "inputs", "leaves" or None for none; see
            `secateur.fit`. "auto" learns those of inputs in wide networks, none in narrow ones, and
            a common one in a linear model that is trained by itself.
        class_weight: Weights of the rows by their class, which multiply `sample_weight`: None for
            1; a dict, with 1 for classes that are not in it; or "balanced", which gives all classes
            the same total weight, with a mean row weight of 1.
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
        classes_: Labels, in the order of the columns of `predict_proba`.
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
        >>> X = rng.normal(size=(100, 3))
        >>> y = np.where(X[:, 0] > 0, "yes", "no")
        >>> estimator = PrunedClassifier(hidden=(5,), epochs=500, random_state=0).fit(X, y)
        >>> estimator.predict([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]).tolist()
        ['yes', 'no']
        >>> estimator.selected_features_.tolist()
        [True, False, False]
    """

    class_weight: Any

    def __init__(
        self,
        hidden: Any = "auto",
        *,
        activation: str = "relu",
        inference: str = "moments",
        posterior: str = "linear",
        prior_variance: float = 1.0,
        learn_priors: str | None = "auto",
        class_weight: Any = None,
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> PrunedClassifier:
        """Train and prune.

        Args:
            X: Inputs, of shape (rows, features).
            y: Labels, of shape (rows,).
            sample_weight: Weight of each row, at least 0. A row of weight 2 counts as two rows, a
                row of weight 0 is left out.
        """
        rows = self._read_labels(X, y, sample_weight, reset=True)
        self._fit_classes(rows, np.unique(rows.y), name_targets(y, 1)[0])
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> PrunedClassifier:
        """Learn from new rows without the old ones; the first call is `fit`.

        The current posterior is the prior of the new rows; see `secateur.update`. Rows are
        standardised and encoded like the first ones, and pruned weights stay pruned.

        Args:
            X: Inputs, of shape (rows, features).
            y: Labels, of shape (rows,). In the first call there must be at least two classes.
            classes: All classes that will occur, for the first call. Defaults to those of its rows.
            sample_weight: Weight of each row, as in `fit`.
        """
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs all rows at once, but partial_fit sees only some of "
                "them. Give a dict of weights."
            )
        if not hasattr(self, "result_"):
            rows = self._read_labels(X, y, sample_weight, reset=True)
            labels = np.unique(rows.y if classes is None else np.asarray(classes))
            self._fit_classes(rows, labels, name_targets(y, 1)[0])
            return self
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"classes are {np.unique(classes).tolist()}, and in the first call they were "
                f"{self.classes_.tolist()}. They cannot change."
            )
        rows = self._read_labels(X, y, sample_weight, reset=False)
        self._update(self._weight_classes(rows), self._make_targets(rows.y))
        return self

    def _read_labels(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Rows:
        rows = self._read_rows(X, y, sample_weight, reset=reset)
        check_classification_targets(rows.y)
        return rows._replace(y=column_or_1d(rows.y, warn=True))

    def _fit_classes(self, rows: Rows, classes: np.ndarray, name: str) -> None:
        """Train on rows that contain at least two classes."""
        if len(rows.y) > 1 and len(np.unique(rows.y)) < 2:
            raise ValueError(
                f"the targets have one class only, {rows.y.tolist()[0]!r}. Classification needs at "
                "least 2 classes in the training data."
            )
        self.classes_ = classes
        likelihood: Likelihood = CategoricalLikelihood()
        target = Target(name, tuple(map(str, classes.tolist())))
        if len(classes) <= 2:  # one output, the logit of the second class
            likelihood, target = BernoulliLikelihood(), Target(f"{name}={classes[-1]}")
        targets = self._make_targets(rows.y)
        self._fit_first(self._weight_classes(rows), targets, likelihood, [target])

    def _make_targets(self, y: np.ndarray) -> np.ndarray:
        """Return the indices of classes, as the likelihood expects them."""
        numbers = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        unknown = np.flatnonzero(self.classes_[numbers] != y)
        if len(unknown):
            label = y.tolist()[unknown[0]]
            raise ValueError(
                f"y is {label!r} in row {unknown[0]}, which is not one of the classes: "
                f"{self.classes_.tolist()}."
            )
        numbers = numbers.astype(np.int32)
        return numbers[:, None] if len(self.classes_) <= 2 else numbers

    def _weight_classes(self, rows: Rows) -> Rows:
        """Multiply the weights of rows by those of their classes."""
        if self.class_weight is None:
            return rows
        numbers = self._make_targets(rows.y).reshape(-1)
        weights = np.ones(len(numbers)) if rows.weights is None else rows.weights
        if self.class_weight == "balanced":
            totals = np.bincount(numbers, weights, minlength=len(self.classes_))
            present = totals > 0
            by_class = totals.sum() / (present.sum() * np.where(present, totals, 1))
        else:
            by_class = compute_class_weight(self.class_weight, classes=self.classes_, y=rows.y)
        return rows._replace(weights=weights * by_class[numbers])

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
