"""A head that learns from its own labels, one row and one class at a time, in NumPy. Never imports bagwise."""

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax

ALPHA = 0.005  # of the plans


def plan_of(probabilities, z, steps=20_000):
    """The paper's Algorithm 1 at epsilon = 1 for one bag: labels [n, K]."""
    scores = np.log(np.maximum(probabilities, 1e-8))
    scores -= logsumexp(scores, axis=1, keepdims=True)
    tau = (1 - ALPHA) / ALPHA / (1 + (1 - ALPHA) / ALPHA)
    x, n = np.zeros(len(z)), len(scores)
    for _ in range(steps):
        log_b = -logsumexp(scores + x, axis=1)
        x = tau * (np.log(n * z) - logsumexp(scores + log_b[:, None], axis=0))
    return softmax(scores + x, axis=1)


def is_sure(labels, cut, least):
    confidence, winner = labels.max(axis=1), labels.argmax(axis=1)
    sure = confidence >= cut
    for k in set(winner):
        members = [j for j in range(len(labels)) if winner[j] == k]
        members.sort(key=lambda j: -confidence[j])
        for place, j in enumerate(members):
            sure[j] |= place < least * len(members)
    return sure


def head_by_turns(rows, bags, proportions, start, turns, steps, ridge, temperature, cut, least, memory):
    """Weights and, in the last row, biases; a bag whose proportions are None keeps what is thought of it."""
    bank, head = start.copy(), np.zeros((rows.shape[1] + 1, start.shape[1]))
    for _ in range(turns):
        labels = bank.copy()
        for members, z in zip(bags, proportions, strict=True):
            if z is not None:
                labels[members] = plan_of(bank[members], z)
        labels = softmax(np.log(np.maximum(labels, 1e-8)) / temperature, axis=1)
        sure = is_sure(labels, cut, least)

        def loss(flat, labels=labels, sure=sure, shape=head.shape):
            weights = flat.reshape(shape)
            total = 0.5 * ridge * sum(w * w for w in weights[:-1].flat)
            for j in np.flatnonzero(sure):
                total -= labels[j] @ log_softmax(rows[j] @ weights[:-1] + weights[-1]) / len(rows)
            return total

        head = minimize(loss, head.ravel(), method="L-BFGS-B", options={"maxiter": steps}).x.reshape(head.shape)
        bank = memory * bank + (1 - memory) * softmax(rows @ head[:-1] + head[-1], axis=1)
    return temperature * head
