"""The data model: which instance lies in which bag, and what is known of each bag."""

from bagwise.bags.augment import Augment, ImageAugment
from bagwise.bags.creation import bags_by_column, clustered_bags, dirichlet_bags, uniform_bags
from bagwise.bags.crops import RandomCrops
from bagwise.bags.data import Bags
from bagwise.bags.layout import BagLayout
from bagwise.bags.loader import BagLoader, Batch
from bagwise.bags.memberships import Memberships
from bagwise.bags.random_changes import RandomChanges
from bagwise.bags.swapped_columns import SwappedColumns

__all__ = [
    "Augment",
    "BagLayout",
    "BagLoader",
    "Bags",
    "Batch",
    "ImageAugment",
    "Memberships",
    "RandomChanges",
    "RandomCrops",
    "SwappedColumns",
    "bags_by_column",
    "clustered_bags",
    "dirichlet_bags",
    "uniform_bags",
]
