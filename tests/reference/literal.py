"""The losses as the paper writes them, one bag and one loop at a time, in NumPy. Never imports bagwise."""

import numpy as np
from scipy.special import log_softmax, logsumexp


def bags_of(bag_index, num_bags):
    return [np.flatnonzero(np.asarray(bag_index) == bag) for bag in range(num_bags)]


def bag_kl(logits, z):
    f = np.exp(log_softmax(logits, axis=1))
    p = f.mean(axis=0)
    return -sum(z[k] * np.log(p[k]) for k in range(len(z)) if z[k] > 0)


def avg_kl(logits, z):
    log_f = log_softmax(logits, axis=1)
    total = 0.0
    for j in range(len(logits)):
        for k in range(len(z)):
            if z[k] > 0:
                total -= z[k] * log_f[j, k]
    return total / len(logits)


def l1(logits, z):
    p = np.exp(log_softmax(logits, axis=1)).mean(axis=0)
    return sum(abs(z[k] - p[k]) for k in range(len(z)))


def l2(logits, z):
    p = np.exp(log_softmax(logits, axis=1)).mean(axis=0)
    return sum((z[k] - p[k]) ** 2 for k in range(len(z)))


def generalised_kl(a, b):
    total = 0.0
    for a_k, b_k in zip(a, b, strict=True):
        if a_k > 0:
            total += a_k * np.log(a_k / b_k)
        total += b_k - a_k
    return total


def rot_objective(plan, logits, z, alpha, epsilon):
    """alpha/n (<C,U> - eps H(U)) + (1-alpha) KL(U1/n | z) for a plan U given as [n, K]; Shannon's entropy."""
    cost = -log_softmax(logits, axis=1)
    n, num_classes = cost.shape
    transport = entropy = 0.0
    for j in range(n):
        for k in range(num_classes):
            u = plan[j, k]
            if u > 0:
                transport += cost[j, k] * u
                entropy -= u * np.log(u)
    return alpha / n * (transport - epsilon * entropy) + (1 - alpha) * generalised_kl(plan.mean(axis=0), z)


def rot_plan(logits, z, alpha, epsilon, iterations=20_000):
    """Algorithm 1 of the paper on the classes with z_k > 0, in the log domain, run until nothing moves. [n, K]."""
    n, num_classes = logits.shape
    used = [k for k in range(num_classes) if z[k] > 0]
    log_kernel = log_softmax(logits, axis=1)[:, used].T / epsilon  # [K', n]
    tau = 1 / (1 + alpha * epsilon / (1 - alpha))
    log_nz = np.log(n * np.asarray(z)[used])
    log_b = np.zeros(n)
    plan = np.zeros((len(used), n))
    for _ in range(iterations):
        log_a = tau * (log_nz - logsumexp(log_kernel + log_b[None, :], axis=1))
        log_b = -logsumexp(log_kernel + log_a[:, None], axis=0)
        previous, plan = plan, np.exp(log_a[:, None] + log_kernel + log_b[None, :])
        if np.abs(plan - previous).max() < 1e-15:
            break
    full = np.zeros((n, num_classes))
    full[:, used] = plan.T
    return full
