"""`ProportionClassifier`: learning from label proportions with the conventions of scikit-learn."""

from bagwise.estimator.classifier import ProportionClassifier

__all__ = ["ProportionClassifier"]
