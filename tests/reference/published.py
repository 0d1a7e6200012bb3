"""Losses of published methods as literal loops, in NumPy. Never imports bagwise."""

import itertools

import numpy as np
from scipy.special import log_softmax, logsumexp


def easy_llp(logits, z, prior):
    log_f = log_softmax(logits, axis=1)
    n, num_classes = logits.shape
    total = 0.0
    for j in range(n):
        for k in range(num_classes):
            total -= (n * z[k] - (n - 1) * prior[k]) * log_f[j, k]
    return total / n


def debiased_squares(bags, proportions):
    """One value per bag, from the mean over all pairs that it forms with another."""
    gaps = [np.exp(log_softmax(logits, axis=1)).mean(axis=0) - z for logits, z in zip(bags, proportions, strict=True)]
    values = []
    for b, logits in enumerate(bags):
        n = len(logits)
        others = [gaps[b] @ gaps[c] for c in range(len(bags)) if c != b]
        values.append(n * gaps[b] @ gaps[b] - (n - 1) * (np.mean(others) if others else 0.0))
    return values


def count_likelihood(logits, counts):
    """Dynamic programming over the instances, in log space, one class after the other."""
    log_f = log_softmax(logits, axis=1)
    n, num_classes = logits.shape
    total = 0.0
    for k in range(num_classes):
        log_law = np.full(n + 1, -np.inf)
        log_law[0] = 0.0
        for j in range(n):
            log_rest = logsumexp(np.delete(log_f[j], k))  # log(1 - f), without cancellation
            one_more = np.concatenate([[-np.inf], log_law[:-1]])
            log_law = np.logaddexp(log_law + log_rest, one_more + log_f[j, k])
        total -= log_law[counts[k]]
    return total


def count_likelihood_by_outcomes(logits, counts):
    """The definition: sum the probability of all 2^n outcomes with the right count, for each class."""
    f = np.exp(log_softmax(logits, axis=1))
    n, num_classes = f.shape
    total = 0.0
    for k in range(num_classes):
        likelihood = 0.0
        for outcome in itertools.product([0, 1], repeat=n):
            if sum(outcome) == counts[k]:
                likelihood += np.prod([f[j, k] if outcome[j] else 1 - f[j, k] for j in range(n)])
        total -= np.log(likelihood)
    return total


def moment_matching(logits, labels, order, smoothing=1e-4):
    """List every draw of r different instances, with one labeling that has the right counts standing for the truth."""
    f = np.exp(log_softmax(logits, axis=1))
    n, num_classes = f.shape
    total = 0.0
    for r in range(1, min(order, n) + 1):
        known, predicted = np.zeros((num_classes,) * r), np.zeros((num_classes,) * r)
        draws = list(itertools.permutations(range(n), r))
        for draw in draws:
            known[tuple(labels[j] for j in draw)] += 1 / len(draws)
            for classes in itertools.product(range(num_classes), repeat=r):
                predicted[classes] += np.prod([f[j, c] for j, c in zip(draw, classes, strict=True)]) / len(draws)
        if r > 1:
            predicted = (1 - smoothing) * predicted + smoothing / num_classes**r
        total -= (known[known > 0] * np.log(predicted[known > 0])).sum()
    return total


def forward_correction(bags, proportions):
    """One value per bag; the bags of the batch are the noisy labels."""
    values = []
    for logits, z in zip(bags, proportions, strict=True):
        f = np.exp(log_softmax(logits, axis=1))
        total = 0.0
        for j in range(len(logits)):
            chance = 0.0
            for k in range(len(z)):
                if z[k] > 0:
                    chance += f[j, k] * z[k] / sum(other[k] for other in proportions)
            total -= np.log(chance)
        values.append(total / len(logits))
    return values
