"""A dataset that draws from the global generators, as other people's datasets do."""

import random

import numpy as np
import torch


class Jittered:
    """Rows with random numbers added to them, anew each time they are read."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        return self.rows[place] + torch.rand(()) + np.random.rand() + random.random()  # noqa: NPY002
