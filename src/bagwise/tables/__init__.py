"""Tables as people bring them: columns of any kind into numbers, proportions into rows by bag."""

from bagwise.tables.preprocessing import Preprocessing, fit_preprocessing
from bagwise.tables.proportions import ProportionTable, read_proportions

__all__ = ["Preprocessing", "ProportionTable", "fit_preprocessing", "read_proportions"]
