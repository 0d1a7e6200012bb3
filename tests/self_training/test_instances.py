import numpy as np
import pytest
import torch

from bagwise.self_training.instances import ShuffledInstances, rows_in_memory

CPU = torch.device("cpu")


def test_an_epoch_has_whole_batches_of_different_instances():
    instances = torch.arange(103) * 10
    batches = ShuffledInstances(instances, batch_instances=20, seed=0, device=CPU)
    seen = []
    for rows, values in batches.epoch(0):
        assert len(rows) == 20
        assert torch.equal(values, instances[rows])
        seen += rows.tolist()
    assert len(seen) == len(set(seen)) == 100
    assert batches.num_batches == 5


def test_the_order_follows_from_seed_and_epoch():
    def order(seed, epoch):
        batches = ShuffledInstances(torch.arange(50), batch_instances=10, seed=seed, device=CPU)
        return torch.cat([rows for rows, _ in batches.epoch(epoch)]).tolist()

    assert order(0, 3) == order(0, 3)
    assert order(0, 3) != order(0, 4)
    assert order(0, 3) != order(1, 3)


def test_fewer_instances_than_a_batch_are_one_batch():
    (rows, _), *others = ShuffledInstances(torch.arange(7), batch_instances=10, seed=0, device=CPU).epoch(0)
    assert sorted(rows.tolist()) == list(range(7))
    assert not others


def test_in_order_gives_every_instance_at_its_place():
    instances = torch.randn(25, 3)
    got = torch.empty_like(instances)
    for place, part in ShuffledInstances(instances, 10, seed=0, device=CPU).in_order(8):
        got[place] = part
    assert torch.equal(got, instances)


def test_a_dataset_is_read_as_a_tensor_is():
    class Squares:
        def __len__(self):
            return 12

        def __getitem__(self, index):
            return torch.tensor([float(index) ** 2])

    for rows, values in ShuffledInstances(Squares(), 5, seed=0, device=CPU).epoch(0):
        np.testing.assert_allclose(values[:, 0].numpy(), rows.numpy() ** 2)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float64])
def test_rows_for_a_probe_are_flat_and_floating_point(dtype):
    instances = torch.randint(0, 255, (2500, 1, 2, 3), generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = instances.flatten(1) if dtype.is_floating_point else instances.flatten(1).float()
    for given in (instances, torch.utils.data.Subset(instances, range(2500))):
        got = rows_in_memory(given)
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)
