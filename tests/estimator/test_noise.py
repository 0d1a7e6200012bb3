"""Counts that were made noisy before they were published."""

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.base import clone

from bagwise import ProportionClassifier, ProportionNoise


@pytest.fixture(scope="module")
def world():
    """Instances, their true class probabilities, the bag of each, true counts and sizes of ragged random bags."""

    def make(seed, num_bags=150):
        rng = np.random.default_rng(seed)
        sizes = rng.choice([4, 8, 16, 64, 128], size=num_bags)
        index = np.repeat(np.arange(num_bags), sizes)
        X, weights = rng.normal(size=(len(index), 4)), 1.5 * rng.normal(size=(4, 3))
        f = np.exp(log_softmax(X @ weights, axis=1))
        labels = (f.cumsum(axis=1) > rng.random((len(f), 1))).argmax(axis=1)
        counts = np.zeros((num_bags, 3))
        np.add.at(counts, (index, labels), 1)
        return X, f, index, counts, rng

    return make


def divergence(model, X, f):
    """How far, in KL, the model is from the probabilities that the labels were drawn from."""
    return (f * (np.log(f) - np.log(model.predict_proba(X)))).sum(axis=1).mean()


@pytest.mark.parametrize(
    "noise", [ProportionNoise("laplace", 2.0), ProportionNoise("gaussian", 3.0), ProportionNoise("rounding", 8.0)]
)
def test_declaring_the_noise_beats_ignoring_it(world, classifier, noise):
    ignoring, knowing = [], []
    for seed in range(2):
        X, f, bags, counts, rng = world(seed, num_bags=100)
        if noise.kind == "rounding":
            published = noise.scale * np.round(counts / noise.scale)
        else:
            draw = {"laplace": rng.laplace, "gaussian": rng.normal}[noise.kind]
            published = counts + draw(0, noise.scale, counts.shape)
        assert noise.kind == "rounding" or (published < 0).any()
        clipped = np.maximum(published, 0) + 1e-9  # what one does who knows nothing of the noise
        model = classifier(batch_size=1024, learning_rate=0.05, epochs=25, validation_fraction=0)
        ignoring.append(divergence(model.fit(X, bags=bags, proportions=clipped), X, f))
        model = clone(model).set_params(proportion_noise=noise)
        knowing.append(divergence(model.fit(X, bags=bags, proportions=published), X, f))
    assert np.mean(knowing) < 0.85 * np.mean(ignoring)


def test_held_out_bags_are_judged_with_the_noise_in_mind(world, classifier):
    X, _, bags, counts, _ = world(2, num_bags=40)
    noise = ProportionNoise("gaussian", 2.5)
    model = classifier(epochs=2, learning_rate=1e-9, proportion_noise=noise).fit(X, bags=bags, proportions=counts)
    report = model.bag_report_
    held_out = report["held_out"]
    known, predicted = (
        np.stack([report[f"{kind} {label}"] for label in (0, 1, 2)], axis=1)[held_out]
        for kind in ("known", "predicted")
    )
    # to second order: squared residuals over the variance of a share and of its noise, times the size
    variance = predicted + noise.count_variance / report["size"][held_out, None]
    expected = ((known - predicted) ** 2 / (2 * variance)).sum(axis=1).mean()
    assert model.history_[-1]["held_out"]["kl"] == pytest.approx(expected, rel=0.1)


def test_a_tally_of_a_sample_needs_no_noise(world, classifier):
    X, f, bags, counts, rng = world(0, num_bags=100)
    tally = np.stack([rng.multivariate_hypergeometric(row.astype(int), min(20, int(row.sum()))) for row in counts])
    model = classifier(batch_size=1024, learning_rate=0.05).fit(X, bags=bags, proportions=tally)
    shares = np.repeat((tally / tally.sum(axis=1, keepdims=True)).mean(axis=0)[None], len(f), axis=0)
    baseline = (f * (np.log(f) - np.log(shares))).sum(axis=1).mean()
    assert divergence(model, X, f) < 0.3 * baseline


def test_noisy_shares_are_noisy_counts_of_a_known_size(world, classifier):
    X, _, bags, counts, rng = world(1, num_bags=40)
    noise = ProportionNoise("laplace", 1.0)
    published = counts + rng.laplace(0, 1.0, counts.shape)
    of_counts = classifier(epochs=2, proportion_noise=noise).fit(X, bags=bags, proportions=published)
    sizes = np.bincount(bags)[:, None]
    of_shares = classifier(epochs=2, proportion_noise=noise, counts=False).fit(
        X, bags=bags, proportions=published / sizes
    )
    np.testing.assert_allclose(of_shares.predict_proba(X), of_counts.predict_proba(X), atol=1e-5)
    assert of_counts.score(X, bags=bags, proportions=published) < 0


@pytest.mark.parametrize("kind", ["laplace", "rounding"])
def test_noisy_counts_that_nobody_declared_as_such_are_told_from_shares(world, classifier, kind):
    X, _, bags, counts, rng = world(1, num_bags=40)
    published = counts + rng.laplace(0, 1.0, counts.shape) if kind == "laplace" else counts
    model = classifier(proportion_noise=ProportionNoise(kind, 1.0), counts=False)
    with pytest.raises(ValueError, match=r"sum to 1 .* those of 40 bags .* If these are counts, pass counts=True"):
        model.fit(X, bags=bags, proportions=published)


def test_it_is_saved_and_cloned_with_the_model(world, classifier, tmp_path):
    X, _, bags, counts, _ = world(1, num_bags=20)
    model = classifier(epochs=1, proportion_noise=ProportionNoise("gaussian", 0.5))
    model.fit(X, bags=bags, proportions=counts).save(tmp_path)
    loaded = ProportionClassifier.load(tmp_path)
    assert loaded.proportion_noise == clone(model).proportion_noise == ProportionNoise("gaussian", 0.5)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_other_methods_know_no_noise(world, classifier):
    X, _, bags, counts, _ = world(1, num_bags=20)
    model = classifier(method="rot", proportion_noise=ProportionNoise("laplace", 1.0))
    with pytest.raises(ValueError, match="known to method 'kl' alone, but the method is 'rot'"):
        model.fit(X, bags=bags, proportions=counts)


def test_counts_that_no_noise_explains_are_refused(world, classifier):
    X, _, bags, counts, _ = world(1, num_bags=20)
    counts[3] += 100
    model = classifier(proportion_noise=ProportionNoise("laplace", 1.0))
    with pytest.raises(ValueError, match=r"bag 3 has \d+ instances and its counts sum to"):
        model.fit(X, bags=bags, proportions=counts)
    counts[3] = [1.0, np.inf, 2.0]
    with pytest.raises(ValueError, match="noisy counts must be finite, but bag 3"):
        model.fit(X, bags=bags, proportions=counts)
