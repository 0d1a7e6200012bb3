"""A small problem that a linear model can solve, and an estimator that is quick to fit."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator

from bagwise import functional as BF
from bagwise.bags.data import number_bags


class SoftmaxRegression(BaseEstimator):
    """Linear softmax regression by full-batch Adam on the bag loss: the least that `cross_validate` can work with."""

    def __init__(self, epochs=60, learning_rate=0.1, penalty=1e-3):
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.penalty = penalty

    def fit(self, X, y=None, *, bags=None, proportions=None):
        if not np.isfinite(self.learning_rate):
            raise FloatingPointError("the loss is not finite")
        index, names = number_bags(bags)
        self.bag_names_, self.num_rows_ = names, len(X)
        shares = proportions.rows_of(names, allow_others=True)
        self.shares_ = shares = torch.from_numpy(shares / shares.sum(axis=1, keepdims=True))
        X, index = torch.from_numpy(np.asarray(X, dtype=np.float64)), torch.from_numpy(index)
        self.weights_ = torch.zeros(X.shape[1] + 1, shares.shape[1], dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([self.weights_], lr=self.learning_rate)
        for _ in range(self.epochs):
            optimizer.zero_grad()
            logits = X @ self.weights_[1:] + self.weights_[0]
            (BF.bag_kl(logits, index, shares) + self.penalty * self.weights_.square().sum()).backward()
            optimizer.step()
        return self

    def predict_proba(self, X):
        X = torch.from_numpy(np.asarray(X, dtype=np.float64))
        return (X @ self.weights_[1:] + self.weights_[0]).softmax(dim=1).detach().numpy()


@pytest.fixture
def estimator():
    return SoftmaxRegression()


@pytest.fixture
def problem():
    """Three Gaussian classes in the plane in ragged bags of 3 to 14; `labels` are for the tests' eyes only."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(3, 15, size=60)
    bags = np.repeat([f"bag-{number:02d}" for number in range(60)], sizes)
    labels = rng.integers(3, size=len(bags))
    centres = np.array([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])
    X = centres[labels] + rng.normal(size=(len(labels), 2))
    index = np.repeat(np.arange(60), sizes)
    counts = np.zeros((60, 3))
    np.add.at(counts, (index, labels), 1)
    order = rng.permutation(len(bags))  # bags in no order
    return SimpleNamespace(
        X=X[order],
        bags=bags[order],
        labels=labels[order],
        index=index[order],
        counts=counts,
        sizes=sizes,
        proportions=counts / sizes[:, None],
    )
