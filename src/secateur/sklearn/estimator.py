"""Code shared by the estimators: parameters, input rows, training, and remaining features."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse
from jax import Array
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import _safe_indexing, check_random_state, check_X_y
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from secateur.averaging import Average, check_weighting
from secateur.caveats import CaveatWarning, find_caveats
from secateur.dense_structures import STRUCTURES, Structure
from secateur.distributions import Normal
from secateur.likelihoods.base import Likelihood
from secateur.options import check_count
from secateur.predictive import Predictive
from secateur.report.network import find_dense_graph
from secateur.selection import select_structure
from secateur.sklearn.features import FeatureEncoding, has_categories
from secateur.tables import Encoding, Target
from secateur.trained import Trained
from secateur.training.blocks import check_weights
from secateur.training.recipe import Recipe
from secateur.updating import update

__all__ = ["PrunedEstimator", "Rows", "name_targets"]

_MISSING = ("mean", "error")


class Rows(NamedTuple):
    """Rows of X that have a positive weight, their targets, and their weights, if there are any."""

    X: Any
    y: np.ndarray
    weights: np.ndarray | None


class PrunedEstimator(SelectorMixin, BaseEstimator):
    """Base class of `PrunedRegressor` and `PrunedClassifier`, which document the parameters."""

    hidden: Any
    activation: str
    inference: str
    posterior: str
    prior_variance: float
    learn_priors: str | None
    missing: str
    prune: bool
    what: str
    grow: bool
    restarts: int
    average: str | None
    recipe: str | Recipe
    epochs: int | None
    retrain_epochs: int | None
    batch_size: int | None
    rate: float | None
    trust: float
    random_state: Any
    verbose: bool

    def _store_parameters(self, arguments: dict[str, Any]) -> None:
        """Store the arguments of `__init__` unchanged, as scikit-learn requires."""
        for name in self._get_param_names():
            setattr(self, name, arguments[name])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.missing == "mean"
        return tags

    # --- rows -----------------------------------------------------------------------------------

    def _read_rows(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool, **target_checks: Any
    ) -> Rows:
        """Check rows for training, and leave out those of weight 0.

        Args:
            X: Inputs.
            y: Targets.
            sample_weight: Weights of the rows, or None.
            reset: Whether these are the first rows, which later ones must match.
            target_checks: `multi_output` and `y_numeric` of `sklearn.utils.check_X_y`.
        """
        if self.missing not in _MISSING:
            raise ValueError(f"missing={self.missing!r}. Supported: {', '.join(_MISSING)}.")
        if has_categories(X) if reset else self._encoding.needs_table(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            _, y = check_X_y(np.zeros((len(X), 1)), y, estimator=self, **target_checks)
        else:
            X, y = validate_data(self, X, y, reset=reset, **self._array_checks, **target_checks)
            X = _densify(X)
        weights = check_weights(sample_weight, len(y))
        if weights is None:
            return Rows(X, y, None)
        is_used = weights > 0
        if not is_used.any():
            raise ValueError(
                "all sample weights are zero. Give at least one row a positive weight."
            )
        if not is_used.all():
            used = np.flatnonzero(is_used)
            X, y, weights = _safe_indexing(X, used), y[used], weights[used]
        return Rows(X, y, np.asarray(weights))

    @property
    def _array_checks(self) -> dict[str, Any]:
        return {
            "dtype": np.float64,
            "accept_sparse": ("csr", "csc"),
            "ensure_all_finite": "allow-nan" if self.missing == "mean" else True,
        }

    def encode(self, X: Any) -> np.ndarray:
        """Return the inputs of the network for rows of X, as an exported network takes them.

        Args:
            X: Inputs, of shape (rows, features).

        Returns:
            An array with one column for each of `input_names_`. This is X itself if X is a numeric
            array and nothing was missing in training.
        """
        check_is_fitted(self)
        if self._encoding.needs_table(X):
            validate_data(self, X, reset=False, skip_check_array=True)
        else:
            X = _densify(validate_data(self, X, reset=False, **self._array_checks))
        return self._encoding.encode(X, missing=self.missing)

    def _predict(self, X: Any) -> Predictive:
        """Return the predictions of the network, or of the average of several."""
        check_is_fitted(self)
        model = self.result_ if self.average_ is None else self.average_
        return model.predict(self.encode(X))

    # --- training -------------------------------------------------------------------------------

    def _fit_first(
        self, rows: Rows, targets: np.ndarray, likelihood: Likelihood, table_targets: list[Target]
    ) -> None:
        """Learn the encoding of the features, train, prune, and set the attributes.

        Args:
            rows: Rows from `_read_rows`.
            targets: Their targets, as the likelihood expects them.
            likelihood: The likelihood, with one output for each of the table's targets or, if it
                is categorical, for each class.
            table_targets: Names of the targets, for exports.
        """
        if len(targets) < 2:
            raise ValueError("the data have 1 sample (n_samples=1). At least 2 are needed.")
        names = [str(name) for name in _check_feature_names_in(self)]
        self._encoding = FeatureEncoding.from_rows(rows.X, names, rows.weights)
        x = self._encoding.encode(rows.X, missing=self.missing)
        classes = table_targets[0].classes
        task = "regression" if classes is None else "classification"
        table = Encoding(
            columns=self._encoding.input_columns,
            targets=tuple(table_targets),
            task=task,
            missing=self.missing,
        )
        restarts = self._train((x, targets, rows.weights), table.outputs, likelihood)
        average, extra = None, {"table": table.to_json()}
        if self.average is not None:
            average = Average.from_models(restarts, self.average)
            extra |= {"average": average.describe()}
            models = tuple(replace(model, extra=extra) for model in average.models)
            average, restarts = replace(average, models=models), models
        self._set_result(
            replace(restarts[0], extra=extra) if average is None else restarts[0], average
        )

    def _train(self, data: tuple, outputs: int, likelihood: Likelihood) -> tuple[Trained, ...]:
        """Choose a network, train it and prune it; return all of its restarts, the best one first.

        Args:
            data: Inputs, targets, and weights of the rows or None.
            outputs: Number of outputs of the network.
            likelihood: The likelihood.
        """
        if not self.prior_variance > 0:
            raise ValueError(f"prior_variance={self.prior_variance}. It must be positive.")
        self._check_average()
        selection = select_structure(
            data,
            outputs=outputs,
            likelihood=likelihood,
            key=self._make_key(),
            structures=self._find_structures(),
            activation=self.activation,
            inference=self.inference,
            posterior=self.posterior,
            prior=Normal(0.0, float(self.prior_variance)),
            learn_priors=self.learn_priors,
            restarts=check_count(self.restarts, "restarts"),
            recipe=self.recipe,
            epochs=self.epochs,
            batch_size=self.batch_size,
            rate=self.rate,
            prune=self.prune,
            prune_options={
                "what": self.what,
                "grow": self.grow,
                "epochs": self.retrain_epochs,
            },
            progress=bool(self.verbose),
        )
        self.structures_ = selection.table()
        for caveat in find_caveats(selection.best.pruned, data):
            warnings.warn(f"{type(self).__name__}: {caveat}.", CaveatWarning, stacklevel=4)
        return selection.best.restarts

    def _check_average(self) -> None:
        if self.average is None:
            return
        check_weighting(self.average)
        if self.restarts < 2:
            raise ValueError(
                f"average={self.average!r} needs several restarts, and restarts={self.restarts}. "
                "Set restarts=5, or more."
            )

    def _find_structures(self) -> tuple[Structure, ...]:
        hidden = self.hidden
        if isinstance(hidden, str):
            if hidden != "auto":
                raise ValueError(f'hidden={hidden!r}. Give "auto", or the units of every layer.')
            return STRUCTURES
        sizes = tuple(hidden) if isinstance(hidden, tuple | list) else (hidden,)
        return (Structure(sizes, linear_path=not sizes),)

    def _update(self, rows: Rows, targets: np.ndarray) -> None:
        """Learn from more rows, with the current posterior as the prior."""
        x = self._encoding.encode(rows.X, missing=self.missing)
        key = jax.random.fold_in(self._make_key(), self.n_iter_)

        def learn(old: Trained) -> Trained:
            new = update(
                old,
                (x, targets, rows.weights),
                key=key,
                trust=self.trust,
                epochs=self.epochs,
                progress=bool(self.verbose),
            )
            return replace(
                new,
                epochs=old.epochs + new.epochs,
                rounds=old.rounds,
                weights_before=old.weights_before,
                extra=old.extra,
            )

        if self.average_ is None:
            self._set_result(learn(self.result_), None)
        else:
            average = self.average_.update(learn)
            self._set_result(average.models[0], average)

    def _make_key(self) -> Array:
        return jax.random.key(check_random_state(self.random_state).randint(2**31))

    def _set_result(self, result: Trained, average: Average | None) -> None:
        """Set the attributes that describe a trained model, or several that predict together."""
        self.result_, self.average_ = result, average
        self.free_energy_ = result.free_energy
        self.n_weights_ = result.live_weights
        self.pruned_fraction_ = result.pruned_fraction
        self.rounds_ = result.rounds
        self.n_iter_ = result.epochs
        self.input_names_ = self._encoding.input_names
        self.selected_features_ = np.zeros(self.n_features_in_, bool)
        for model in (result,) if average is None else average.models:
            graph = find_dense_graph(model.beliefs)
            assert graph is not None
            self.selected_features_[self._encoding.sources[graph.inputs_in_use]] = True

    def _get_support_mask(self) -> np.ndarray:
        check_is_fitted(self)
        return self.selected_features_


def _densify(X: Any) -> np.ndarray:
    return X.toarray(order="C") if scipy.sparse.issparse(X) else X


def name_targets(y: Any, outputs: int) -> list[str]:
    """Return the names of targets: those of a table, or y, or y0, y1, … for several."""
    names = list(y.columns) if hasattr(y, "columns") else [y.name] if hasattr(y, "name") else []
    if len(names) == outputs and all(isinstance(name, str) for name in names):
        return names
    return ["y"] if outputs == 1 else [f"y{number}" for number in range(outputs)]
