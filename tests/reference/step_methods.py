"""Losses of whole training steps as literal loops over bags, instances and classes, in NumPy. Never imports bagwise."""

import itertools

import numpy as np
from scipy.special import log_softmax
from scipy.stats import norm


def bag_kl(logits, z):
    p = np.exp(log_softmax(logits, axis=1)).mean(axis=0)
    return -sum(z[k] * np.log(p[k]) for k in range(len(z)) if z[k] > 0)


def two_views(weak, strong, z, labels, weights, mu):
    """The loss of one bag: proportions on the weak view, given labels and weights on the strong one."""
    log_g = log_softmax(strong, axis=1)
    total = 0.0
    for j in range(len(strong)):
        total -= weights[j] * log_g[j, labels[j]]
    return bag_kl(weak, z) + mu * total / len(strong)


def fixmatch(weak, strong, z, threshold, mu):
    f = np.exp(log_softmax(weak, axis=1))
    labels = [int(np.argmax(row)) for row in f]
    weights = [1.0 if row.max() >= threshold else 0.0 for row in f]
    return two_views(weak, strong, z, labels, weights, mu)


def softmatch(batches, num_classes, momentum, sharpness, mu):
    """The losses of the bags of each batch, one after the other; a batch is a list of (weak, strong, z)."""
    mean, variance = 1 / num_classes, 1.0
    losses = []
    for bags in batches:
        sure = np.concatenate([np.exp(log_softmax(weak, axis=1)).max(axis=1) for weak, _, _ in bags])
        mean = momentum * mean + (1 - momentum) * sure.mean()
        variance = momentum * variance + (1 - momentum) * sure.var(ddof=1)
        values = []
        for weak, strong, z in bags:
            f = np.exp(log_softmax(weak, axis=1))
            weights = []
            for row in f:
                if row.max() >= mean:
                    weights.append(1.0)
                else:
                    weights.append(norm.pdf(row.max(), mean, variance**0.5 / sharpness))
                    weights[-1] /= norm.pdf(mean, mean, variance**0.5 / sharpness)
            values.append(two_views(weak, strong, z, f.argmax(axis=1), weights, mu))
        losses.append(values)
    return losses


def ahil(weak, strong, z, beta_instance, beta_bag, mu):
    f = np.exp(log_softmax(weak, axis=1))
    n, num_classes = f.shape
    weights, labels = [], []
    for j in range(n):
        k = int(np.argmax(f[j]))
        of_instance = -sum(f[j, c] * np.log(f[j, c]) for c in range(num_classes))
        column = f[:, k] / f[:, k].sum()
        of_class = -sum(value * np.log(value) for value in column)
        weight = 0.0
        if z[k] > 0:
            weight = np.exp(-(of_instance**2) / beta_instance)
            weight *= np.exp(-((of_class - np.log(n * z[k])) ** 2) / beta_bag)
        weights.append(weight)
        labels.append(k)
    return two_views(weak, strong, z, labels, weights, mu)


def llp_dc(weak, strong, z, threshold, mu):
    """All labelings with the right counts are tried."""
    log_f = log_softmax(weak, axis=1)
    n = len(weak)
    counts = np.rint(n * np.asarray(z)).astype(int)
    slots = [k for k, count in enumerate(counts) for _ in range(count)]
    labels = max(set(itertools.permutations(slots)), key=lambda t: sum(log_f[j, t[j]] for j in range(n)))
    weights = [1.0 if np.exp(log_f[j, labels[j]]) >= threshold else 0.0 for j in range(n)]
    return two_views(weak, strong, z, labels, weights, mu)


def llp_vat(instances, z, matrix, bias, noise, length, weight):
    """One bag and a linear network, whose second derivative at an instance is known in closed form."""
    total = 0.0
    for x, start in zip(instances, noise, strict=True):
        p = np.exp(log_softmax(matrix @ x + bias))
        curvature = matrix.T @ (np.diag(p) - np.outer(p, p)) @ matrix
        direction = curvature @ start
        shift = length * direction / np.sqrt((direction**2).mean())
        q = np.exp(log_softmax(matrix @ (x + shift) + bias))
        total += sum(p[k] * np.log(p[k] / q[k]) for k in range(len(p)))
    return bag_kl(instances @ matrix.T + bias, z) + weight * total / len(instances)


def mixbag(own, z, got, z_partner, confidence):
    """One mixed bag, from the logits of the instances that it keeps and of those that it gets."""
    m, m_partner = len(own), len(got)
    p = np.exp(log_softmax(np.concatenate([own, got]), axis=1)).mean(axis=0)
    t = norm.isf((1 - confidence) / 2)
    total = 0.0
    for k in range(len(z)):
        expected = (m * z[k] + m_partner * z_partner[k]) / (m + m_partner)
        cover = t * np.sqrt(z[k] * (1 - z[k]) / m)
        cover_partner = t * np.sqrt(z_partner[k] * (1 - z_partner[k]) / m_partner)
        width = (m * cover + m_partner * cover_partner) / (m + m_partner)
        inside = expected - width <= p[k] <= expected + width
        if expected > 0:
            total -= expected * np.log(expected if inside else p[k])
    return total
