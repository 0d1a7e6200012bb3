import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bagwise.bags import BagLoader, Bags
from bagwise.bags.source import Streamed
from fakes.jittered import Jittered


def make_bags(sizes, unknown=()):
    """Bags whose instances say where they belong: instance = [row, bag]."""
    index = np.repeat(np.arange(len(sizes)), sizes)
    index = np.random.default_rng(0).permutation(index)
    proportions = np.random.default_rng(1).dirichlet(np.ones(3), size=len(sizes))
    proportions[list(unknown)] = np.nan
    instances = torch.stack([torch.arange(len(index)), torch.from_numpy(index)], dim=1).float()
    return Bags(instances, index, proportions)


class Noise:
    """An augmentation that adds a whole random number to what it sees."""

    def __call__(self, instances, generator):
        return instances + torch.randint(0, 10**6, instances.shape, generator=generator)

    def normalise(self, instances):
        return instances


sizes_strategy = st.lists(st.integers(1, 30), min_size=1, max_size=25)


@given(sizes_strategy, st.integers(1, 60), st.integers(0, 3))
def test_every_bag_comes_once_and_whole(sizes, batch_instances, epoch):
    bags = make_bags(sizes)
    seen = []
    for batch in BagLoader(bags, batch_instances, seed=3).epoch(epoch):
        assert batch.layout.num_instances <= batch_instances or batch.layout.num_bags == 1
        assert len(batch.instances) == batch.layout.num_instances
        assert torch.equal(batch.proportions, bags.proportions[batch.bag_numbers])
        own = batch.bag_numbers[batch.layout.bag_index.numpy()]
        assert batch.instances[:, 1].tolist() == own.tolist()
        assert batch.layout.host_sizes.tolist() == [sizes[bag] for bag in batch.bag_numbers]
        seen += batch.instances[:, 0].tolist()
    assert sorted(seen) == list(range(sum(sizes)))


@given(sizes_strategy, st.integers(1, 60), st.integers(1, 4))
def test_processes_share_every_batch(sizes, batch_instances, world_size):
    bags = make_bags(sizes, unknown=[0])
    loaders = [BagLoader(bags, batch_instances, seed=0, rank=r, world_size=world_size) for r in range(world_size)]
    plan = loaders[0].plan(0)
    for number, shares in enumerate(zip(*(loader.epoch(0) for loader in loaders), strict=True)):
        known = [~share.proportions[:, 0].isnan().numpy() for share in shares]
        together = np.concatenate([share.bag_numbers[k] for share, k in zip(shares, known, strict=True)])
        expected = [bag for bag in plan.batches[number] if bag != 0]
        assert sorted(together) == sorted(expected)
        assert len(together) == plan.known_bags[number]
        assert all(share.layout.num_instances > 0 for share in shares)
    assert plan.instances.sum() == sum(sizes)


def test_equal_bags_are_shared_equally():
    bags = make_bags([8] * 16)
    counts = [
        [batch.layout.num_bags for batch in BagLoader(bags, 64, seed=0, rank=r, world_size=2).epoch(0)]
        for r in range(2)
    ]
    assert counts == [[4, 4], [4, 4]]


def order(loader, epoch):
    return np.concatenate([batch.bag_numbers for batch in loader.epoch(epoch)]).tolist()


def test_the_order_follows_from_seed_and_epoch_alone():
    bags = make_bags([3] * 20)
    loader = BagLoader(bags, 9, seed=0)
    list(loader.epoch(0))
    assert order(loader, 5) == order(BagLoader(bags, 9, seed=0), 5)
    assert order(loader, 5) != order(loader, 6)
    assert order(loader, 5) != order(BagLoader(bags, 9, seed=1), 5)


def test_drop_last_leaves_batches_of_one_shape():
    bags = make_bags([4] * 11)
    assert [b.layout.num_bags for b in BagLoader(bags, 16, seed=0).epoch(0)] == [4, 4, 3]
    assert [b.layout.num_bags for b in BagLoader(bags, 16, seed=0, drop_last=True).epoch(0)] == [4, 4]
    # a full last batch stays, and so does an only one
    assert len(BagLoader(bags.subset(range(8)), 16, seed=0, drop_last=True).plan(0).batches) == 2
    assert len(BagLoader(bags.subset(range(2)), 16, seed=0, drop_last=True).plan(0).batches) == 1
    # a batch size that the bags do not divide is as full as it can be
    assert [b.layout.num_bags for b in BagLoader(bags, 18, seed=0, drop_last=True).epoch(0)] == [4, 4]


def test_layouts_of_equal_batches_are_built_once():
    loader = BagLoader(make_bags([4] * 8), 16, seed=0)
    layouts = [batch.layout for epoch in range(2) for batch in loader.epoch(epoch)]
    assert all(layout is layouts[0] for layout in layouts)


def test_large_batches_come_in_pieces_that_can_be_read_twice():
    bags = make_bags([10, 3])
    loader = BagLoader(bags, 10, seed=0, chunk_instances=4, augment=Noise())
    for batch in loader.epoch(0):
        assert batch.is_in_pieces == (batch.layout.num_instances == 10)
        first, second = list(batch.pieces), list(batch.pieces)
        assert [len(piece) for piece in first] == ([4, 4, 2] if batch.is_in_pieces else [3])
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        assert torch.equal(batch.instances, torch.cat(first))


def test_augmentation_differs_by_batch_epoch_and_process():
    bags = make_bags([1] * 4)

    def noise(epoch, rank=0):
        loader = BagLoader(bags, 2, seed=0, augment=Noise(), rank=rank, world_size=1 + rank)
        return [(batch.instances - bags.instances[batch.bag_numbers]).tolist() for batch in loader.epoch(epoch)]

    assert noise(0) == noise(0)
    assert noise(0)[0] != noise(0)[1]
    assert noise(0) != noise(1)
    assert noise(0) != noise(0, rank=1)


def test_a_strong_view_is_drawn_from_the_same_raw_instances():
    bags = make_bags([10, 3, 2])
    weak, strong = 1, 2

    class Shift(Noise):
        def __init__(self, by):
            self.by = by

        def __call__(self, instances, generator):
            return super().__call__(instances, generator) * self.by

    loader = BagLoader(bags, 10, seed=0, augment=Shift(weak), strong_augment=Shift(strong), chunk_instances=8)
    alone = list(BagLoader(bags, 10, seed=0, augment=Shift(weak), chunk_instances=8).epoch(0))
    seen = 0
    for batch, other in zip(loader.epoch(0), alone, strict=True):
        assert torch.equal(batch.instances, other.instances)  # the weak view does not depend on the strong one
        assert other.strong is None
        assert (batch.strong is None) is batch.is_in_pieces
        if batch.strong is not None:
            seen += len(batch.strong)
            assert batch.strong.shape == batch.instances.shape
            assert not torch.equal(batch.strong / strong, batch.instances / weak)  # drawn apart
    assert seen == 5
    again = [batch.strong for batch in loader.epoch(0)]
    first = [batch.strong for batch in loader.epoch(0)]
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(again, first, strict=True))


class Rows(torch.utils.data.Dataset):
    def __init__(self, tensor):
        self.tensor = tensor

    def __len__(self):
        return len(self.tensor)

    def __getitem__(self, index):
        return self.tensor[index]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_gives_the_same_batches_as_a_tensor(workers):
    bags = make_bags([3, 5, 9, 2])
    dataset = Bags(Rows(bags.instances), bags.layout.bag_index, bags.proportions)
    settings = {"batch_instances": 8, "seed": 0, "chunk_instances": 8}
    tensors = [b.instances for b in BagLoader(bags, **settings).epoch(0)]
    streamed = [b.instances for b in BagLoader(dataset, workers=workers, **settings).epoch(0)]
    assert all(torch.equal(a, b) for a, b in zip(tensors, streamed, strict=True))


def test_a_tensor_too_large_for_the_device_is_streamed(monkeypatch):
    monkeypatch.setattr("bagwise.bags.source._fits", lambda *_: False)
    # "meta" stands for a device that is not where the tensor is
    bags = make_bags([2, 2])
    loader = BagLoader(bags, 4, seed=0, device="meta")
    assert isinstance(loader._source, Streamed)
    (batch,) = loader._source.batches([np.array([3, 1])], seed=0)
    assert batch.device.type == "meta"
    assert batch.shape == (2, 2)


def test_labels_in_a_dataset_are_refused():
    pairs = [(torch.zeros(2), 1)] * 4
    with pytest.raises(TypeError, match="the instance alone"):
        list(BagLoader(Bags(pairs, [0, 0, 1, 1], np.full((2, 2), 0.5)), 4, seed=0).epoch(0))


def test_global_random_state_is_left_alone():
    bags = make_bags([3, 5])
    dataset = Bags(Rows(bags.instances), bags.layout.bag_index, bags.proportions)
    before = torch.get_rng_state()
    for each in (bags, dataset):
        list(BagLoader(each, 4, seed=0, augment=Noise()).epoch(0))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("argument", ["batch_instances", "chunk_instances"])
def test_sizes_must_be_positive(argument):
    with pytest.raises(ValueError, match=f"{argument} must be at least 1"):
        BagLoader(make_bags([1]), **{"batch_instances": 1, "seed": 0, argument: 0})


def test_the_pieces_of_a_dataset_that_draws_are_equal_in_every_pass():
    bags = Bags(Jittered(torch.randn(20, 3)), [0] * 20, torch.tensor([[0.5, 0.5]]))
    (batch,) = BagLoader(bags, 4, seed=0, chunk_instances=6).epoch(0)
    first, second = (torch.cat(list(batch.pieces)) for _ in range(2))
    assert torch.equal(first, second)
    assert len({float(row) for row in (first - bags.instances.rows).flatten()}) > 20  # and yet random


def test_instances_of_several_shapes_are_refused_when_they_meet_in_a_batch():
    parts = [torch.zeros(3, 4), torch.zeros(2, 4)]
    known = torch.full((2, 2), 0.5)
    bags = Bags(parts, [0, 1], known)  # a loop of one's own may pad them
    with pytest.raises(ValueError, match=r"one shape, but have \(\d, 4\), \(\d, 4\)\. Pad .* bag_ids=np\.repeat"):
        list(BagLoader(bags, 2, seed=0).epoch(0))
    ids = np.repeat(np.arange(len(parts)), [len(bag) for bag in parts])  # as the message says
    assert Bags(torch.cat(parts), ids, known).num_instances == 5
