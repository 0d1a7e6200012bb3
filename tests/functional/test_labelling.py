import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bagwise.bags import BagLayout
from bagwise.functional import apportion
from bagwise.functional.labelling import Labelling, apportioned, is_sure, mixed, sharpened


def random_bank(instances, classes, seed=0):
    return (2 * torch.randn(instances, classes, generator=torch.Generator().manual_seed(seed))).softmax(dim=1)


def test_the_plan_of_all_bags_is_that_of_each_bag_alone():
    sizes, bank = [1, 5, 40, 7], random_bank(53, 4)
    shuffled = torch.randperm(53, generator=torch.Generator().manual_seed(1))
    index = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))[shuffled]
    proportions = torch.tensor([[0, 1, 0, 0], [0.2, 0.2, 0.4, 0.2], [0.25, 0.25, 0.25, 0.25], [3 / 7, 4 / 7, 0, 0]])
    together = apportioned(bank, BagLayout.from_index(index, 4), proportions)
    for bag in range(4):
        rows = (index == bag).nonzero()[:, 0]
        alone = apportion(
            bank[rows].log(), torch.zeros(len(rows), dtype=torch.long), proportions[bag : bag + 1], alpha=0.005
        )
        torch.testing.assert_close(together[rows], alone.labels, atol=1e-5, rtol=0)
        torch.testing.assert_close(together[rows].mean(dim=0), proportions[bag], atol=0.01, rtol=0)


def test_bags_with_unknown_proportions_keep_what_is_thought_of_their_instances():
    bank = random_bank(6, 3)
    proportions = torch.tensor([[1 / 3] * 3, [float("nan")] * 3])
    plan = apportioned(bank, BagLayout.from_sizes([3, 3]), proportions)
    torch.testing.assert_close(plan[3:], bank[3:])
    assert not torch.allclose(plan[:3], bank[:3], atol=1e-3)


def test_a_class_that_nobody_thought_of_can_come_back():
    bank = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    plan = apportioned(bank, BagLayout.from_sizes([2]), torch.tensor([[0.5, 0.5]]))
    torch.testing.assert_close(plan, torch.full((2, 2), 0.5), atol=0.05, rtol=0)


@given(st.floats(0.1, 1.0), st.integers(0, 100))
def test_sharpening_is_the_power_of_the_labels(temperature, seed):
    labels = random_bank(20, 4, seed)
    powers = labels.double().numpy() ** (1 / temperature)
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(sharpened(labels, temperature).numpy(), expected, atol=1e-4)
    assert (sharpened(labels, temperature).amax(dim=1) >= labels.amax(dim=1) - 1e-6).all()


@given(st.floats(0, 0.99), st.floats(0, 0.99), st.integers(0, 100))
def test_learned_from_are_those_above_the_cut_and_the_surest_of_each_class(cut, least, seed):
    labels = random_bank(40, 3, seed)
    got = is_sure(labels, cut, least).numpy()
    confidence, winner = labels.numpy().max(axis=1), labels.numpy().argmax(axis=1)
    for row in range(40):
        rivals = confidence[winner == winner[row]]
        place = int((rivals > confidence[row]).sum())
        assert got[row] == (confidence[row] >= np.float32(cut) or place < np.float32(least) * len(rivals))


def test_the_bank_remembers():
    bank, predictions = torch.tensor([[0.8, 0.2]]), torch.tensor([[0.0, 1.0]])
    torch.testing.assert_close(mixed(bank, predictions, memory=0.7), torch.tensor([[0.56, 0.44]]))


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", 0.0), ("temperature", 1.5), ("cut", 1.0), ("least", -0.1), ("memory", 1.0)]
)
def test_settings_out_of_range_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        Labelling(**{field: value})
