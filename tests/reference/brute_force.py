"""Exact assignment by looking at every labeling, and by general-purpose solvers. Never imports bagwise."""

import itertools

import numpy as np
from scipy.optimize import linear_sum_assignment, linprog
from scipy.special import log_softmax


def divergence(counts, z, name):
    """d(counts/n, z), one class at a time."""
    n = sum(counts)
    total = 0.0
    for c, z_k in zip(counts, z, strict=True):
        a = c / n
        if name == "l1":
            total += abs(a - z_k)
        elif name == "l2":
            total += (a - z_k) ** 2
        else:
            if a > 0:
                total += a * np.log(a / z_k) if z_k > 0 else np.inf
            total += z_k - a
    return total


def labeling_cost(cost, labels):
    """Sum of `cost [n, K]` at the labels."""
    return sum(cost[j, k] for j, k in enumerate(labels))


def all_labelings(n, num_classes):
    return itertools.product(range(num_classes), repeat=n)


def combinatorial_value(cost, labels, z, alpha, name):
    """The paper's l^comb at one labeling."""
    counts = np.bincount(labels, minlength=len(z))
    return alpha / len(cost) * labeling_cost(cost, labels) + (1 - alpha) * divergence(counts, z, name)


def combinatorial(logits, z, alpha, name):
    """The least of them over all K^n labelings."""
    cost = -log_softmax(logits, axis=1)
    n, num_classes = cost.shape
    by_counts = {}  # the divergence depends on the counts alone
    best = np.inf
    for labels in all_labelings(n, num_classes):
        counts = tuple(labels.count(k) for k in range(num_classes))
        if counts not in by_counts:
            by_counts[counts] = (1 - alpha) * divergence(counts, z, name)
        best = min(best, alpha / n * labeling_cost(cost, labels) + by_counts[counts])
    return best


def transport(logits, counts):
    """Least mean cost over all labelings with these counts."""
    cost = -log_softmax(logits, axis=1)
    n, num_classes = cost.shape
    counts = tuple(int(c) for c in counts)
    fitting = (
        labels
        for labels in all_labelings(n, num_classes)
        if tuple(labels.count(k) for k in range(num_classes)) == counts
    )
    return min(labeling_cost(cost, labels) for labels in fitting) / n


def combinatorial_by_slots(logits, z, alpha, name):
    """The same as an assignment of instances to slots: slot c of class k costs (1-alpha) times d's increment at c."""
    cost = alpha / len(logits) * -log_softmax(logits, axis=1)
    n = len(cost)
    slots, constant = [], 0.0
    for k in range(len(z)):
        if name == "kl" and z[k] == 0:
            continue  # no instance may get this class
        alone = [one_class(c / n, z[k], name) for c in range(n + 1)]
        constant += alone[0]
        slots.extend(cost[:, k] + (1 - alpha) * (alone[c + 1] - alone[c]) for c in range(n))
    slots = np.stack(slots, axis=1)  # [n, slots]
    rows, columns = linear_sum_assignment(slots)
    return slots[rows, columns].sum() + (1 - alpha) * constant


def one_class(a, z_k, name):
    if name == "l1":
        return abs(a - z_k)
    if name == "l2":
        return (a - z_k) ** 2
    return (a * np.log(a / z_k) if a > 0 else 0.0) - a + z_k


def transport_by_highs(logits, z):
    """min <C,U>/n with U1 = nz as a linear program, written out row by row."""
    cost = -log_softmax(logits, axis=1)
    n, num_classes = cost.shape
    rows, sides = [], []
    for j in range(n):
        row = np.zeros((n, num_classes))
        row[j] = 1
        rows.append(row.ravel())
        sides.append(1.0)
    for k in range(num_classes):
        row = np.zeros((n, num_classes))
        row[:, k] = 1
        rows.append(row.ravel())
        sides.append(n * z[k])
    solution = linprog(cost.ravel(), A_eq=np.array(rows), b_eq=sides, method="highs")
    return solution.fun / n


def largest_remainder(target):
    """Hare's rule: round down, then hand the missing ones to the largest remainders."""
    counts = [int(np.floor(t)) for t in target]
    remainders = [t - c for t, c in zip(target, counts, strict=True)]
    for _ in range(round(sum(target)) - sum(counts)):
        k = remainders.index(max(remainders))
        counts[k] += 1
        remainders[k] = -1.0
    return counts
