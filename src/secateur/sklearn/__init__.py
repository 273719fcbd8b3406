"""scikit-learn estimators: dense networks that are trained and pruned like any other estimator."""

from secateur.sklearn.classification import PrunedClassifier
from secateur.sklearn.regression import PrunedRegressor

__all__ = ["PrunedClassifier", "PrunedRegressor"]
