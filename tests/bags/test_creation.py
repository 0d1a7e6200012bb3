import numpy as np
import pytest
import torch

from bagwise.bags import Bags, bags_by_column, clustered_bags, dirichlet_bags, uniform_bags

N, K = 203, 4
LABELS = np.random.default_rng(0).integers(0, K, N)
# the instance carries its label, so that a test can look into a bag
INSTANCES = np.stack([np.arange(N), LABELS], axis=1).astype(np.float32)


def check_proportions(bags: Bags) -> None:
    """The proportions are those of the labels that the instances of each bag carry."""
    for bag in range(bags.num_bags):
        labels = bags.instances[bags.layout.bag_index == bag][:, 1].long()
        shares = torch.bincount(labels, minlength=K) / len(labels)
        torch.testing.assert_close(bags.proportions[bag], shares)


MAKERS = {
    "uniform": lambda seed: uniform_bags(INSTANCES, LABELS, K, 16, seed),
    "dirichlet": lambda seed: dirichlet_bags(INSTANCES, LABELS, K, 16, 0.5, seed),
    "clustered": lambda seed: clustered_bags(INSTANCES, LABELS, K, 16, seed),
}


@pytest.mark.parametrize("name", MAKERS)
def test_full_bags_without_replacement(name):
    bags = MAKERS[name](0)
    assert bags.layout.common_size == 16
    assert len(torch.unique(bags.instances[:, 0])) == bags.num_instances
    check_proportions(bags)


@pytest.mark.parametrize("name", MAKERS)
def test_the_seed_decides(name):
    first, same, other = MAKERS[name](0), MAKERS[name](0), MAKERS[name](1)
    assert torch.equal(first.instances, same.instances)
    assert not torch.equal(first.instances, other.instances)


@pytest.mark.parametrize("name", MAKERS)
def test_global_random_state_is_left_alone(name):
    before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    MAKERS[name](0)
    assert (before[0] == np.random.get_state()[1]).all()  # noqa: NPY002
    assert torch.equal(before[1], torch.get_rng_state())


@pytest.mark.parametrize("name", ["uniform", "dirichlet"])
def test_as_many_bags_as_fit(name):
    assert MAKERS[name](0).num_bags == N // 16


def test_concentration_sets_how_pure_bags_are():
    def purity(concentration):
        bags = dirichlet_bags(INSTANCES, LABELS, K, 8, concentration, 0)
        return bags.proportions[: bags.num_bags // 2].amax(dim=1).mean()  # later bags get what is left

    assert purity(0.1) > purity(2.0) > purity(1000.0)


def test_the_place_in_a_dirichlet_bag_does_not_tell_the_class():
    labels = np.tile(np.arange(2), 2000)
    bags = dirichlet_bags(labels[:, None].astype(np.float32), labels, 2, 10, 5.0, 0)
    first = bags.instances.view(-1, 10)[:, 0].mean()
    assert abs(first - 0.5) < 0.1


def test_a_class_that_never_occurs_is_fine():
    bags = dirichlet_bags(INSTANCES, LABELS, K + 1, 16, 0.5, 0)
    assert (bags.proportions[:, K] == 0).all()


def test_clusters_hold_what_is_alike():
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1], 60)
    points = generator.normal(size=(120, 2)) + 20 * labels[:, None]
    bags = clustered_bags(points, labels, 2, 10, seed=0)
    assert (bags.proportions.amax(dim=1) == 1).all()
    assert bags.num_bags == 12
    # features of a dataset's instances come from elsewhere
    dataset = torch.utils.data.Subset(torch.zeros(120, 3), range(120))
    assert clustered_bags(dataset, labels, 2, 10, seed=0, features=points).num_bags == 12


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_labels_may_be_integers_of_any_type(dtype):
    bags = uniform_bags(INSTANCES, np.asarray(LABELS).astype(dtype), K, 16, 0)
    torch.testing.assert_close(bags.proportions, uniform_bags(INSTANCES, LABELS, K, 16, 0).proportions)


def test_a_column_makes_the_bags():
    column = np.array(["north", "south", "west"])[np.arange(N) % 3]
    bags = bags_by_column(INSTANCES, LABELS, column, K)
    assert bags.bag_names == ("north", "south", "west")
    assert torch.equal(bags.instances[:, 0], torch.arange(float(N)))
    check_proportions(bags)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: uniform_bags(INSTANCES, LABELS, K, N + 1, 0), ValueError, "no bag fits"),
        (lambda: uniform_bags(INSTANCES, LABELS, 2, 4, 0), ValueError, "range from 0 to 3"),
        (lambda: uniform_bags(INSTANCES, LABELS[:-1], K, 4, 0), ValueError, "one entry per instance"),
        (lambda: uniform_bags(INSTANCES, LABELS[:, None], K, 4, 0), ValueError, "shape"),
        (lambda: uniform_bags(INSTANCES, LABELS / 2, K, 4, 0), TypeError, "integers"),
        (lambda: uniform_bags(INSTANCES, LABELS, K, 0, 0), ValueError, "bag_size must be at least 1"),
        (lambda: uniform_bags(INSTANCES, LABELS, K, 1.5, 0), TypeError, "bag_size must be an integer"),
        (lambda: dirichlet_bags(INSTANCES, LABELS, K, 4, 0.0, 0), ValueError, "concentration"),
        (lambda: clustered_bags(INSTANCES, LABELS, K, N, 0), ValueError, "no cluster holds a full bag"),
        (lambda: clustered_bags([torch.zeros(1)] * N, LABELS, K, 4, 0), ValueError, "pass features"),
        (lambda: bags_by_column(INSTANCES, LABELS, [0, 1], K), ValueError, "column"),
    ],
)
def test_what_is_wrong_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
