"""Choosing and judging models by bags alone: splitters, scores, cross-validation, search, accuracy, identifiability."""

from bagwise.model_selection.accuracy import AccuracyEstimate, estimate_accuracy
from bagwise.model_selection.identifiability import BagWarning, identifiability_warnings, noise_warnings
from bagwise.model_selection.importance import Importance, permutation_importance
from bagwise.model_selection.scores import SCORES, chi_square_score, kl_score, l1_score
from bagwise.model_selection.search import SearchResult, Trial, successive_halving
from bagwise.model_selection.splitters import BootstrapBags, HalfBags, WholeBags
from bagwise.model_selection.validation import CrossValidation, cross_validate

__all__ = [
    "SCORES",
    "AccuracyEstimate",
    "BagWarning",
    "BootstrapBags",
    "CrossValidation",
    "HalfBags",
    "Importance",
    "SearchResult",
    "Trial",
    "WholeBags",
    "chi_square_score",
    "cross_validate",
    "estimate_accuracy",
    "identifiability_warnings",
    "kl_score",
    "l1_score",
    "noise_warnings",
    "permutation_importance",
    "successive_halving",
]
