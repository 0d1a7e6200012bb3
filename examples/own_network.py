"""Your own network and your own loop: one loss to drop in. Then the same network through `bagwise.train`.

    python examples/own_network.py

The task: six classes of short sequences, in bags of 5 to 40. The network is a recurrent one, to show that bagwise
cares for nothing but its logits.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from bagwise import BagLayout, Bags, Recipe, train
from bagwise import functional as BF
from bagwise.methods import get_method
from bagwise.training import Evaluator

NUM_CLASSES, LENGTH, NUM_BAGS = 6, 16, 240
ALPHA = 0.5


class WaveReader(nn.Module):
    """A GRU over a sequence `[n, length]`, and a linear layer on its last state: logits `[n, classes]`."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(input_size=1, hidden_size=32, batch_first=True)
        self.head = nn.Linear(32, NUM_CLASSES)

    def forward(self, waves: Tensor) -> Tensor:
        """Return the logits."""
        _, state = self.gru(waves[:, :, None])
        return self.head(state[0])


def draw_waves(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Draw sine waves whose frequency tells their class, with a random phase and noise: `[n, length]`."""
    phase = 6.28 * torch.rand(len(labels), 1, generator=generator)
    time = torch.linspace(0, 6.28, LENGTH)
    noise = 0.5 * torch.randn(len(labels), LENGTH, generator=generator)
    return torch.sin((1 + labels[:, None]) * time + phase) + noise


def draw_bags(generator: torch.Generator) -> Bags:
    """Draw bags whose mix of classes varies, and forget the label of each wave."""
    sizes = torch.randint(5, 41, (NUM_BAGS,), generator=generator)
    bag_ids = torch.repeat_interleave(torch.arange(NUM_BAGS), sizes)
    mixes = torch.rand(NUM_BAGS, NUM_CLASSES, generator=generator) ** 3
    labels = torch.multinomial(mixes[bag_ids], 1, generator=generator).flatten()
    counts = torch.zeros(NUM_BAGS, NUM_CLASSES)
    counts.index_put_((bag_ids, labels), torch.ones(len(labels)), accumulate=True)
    return Bags(draw_waves(labels, generator), bag_ids, counts, counts=True)


def batches(bags: Bags, bags_per_batch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, BagLayout, Tensor]]:
    """Yield instances, their layout and proportions, a few whole bags at a time, in random order."""
    for numbers in torch.randperm(len(bags), generator=generator).split(bags_per_batch):
        batch = bags.subset(numbers)
        yield torch.as_tensor(batch.instances), batch.layout, batch.proportions


def own_loop(network: nn.Module, bags: Bags, epochs: int) -> None:
    """Plain PyTorch. On a GPU: `.to(device)` the network and the three parts of a batch; nothing else changes."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for waves, layout, proportions in batches(bags, 20, generator):
            # a layout in place of a bag index: built once, ahead of the step, so that the loss never waits for a GPU
            loss = BF.rot(network(waves), layout, proportions, alpha=ALPHA)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def main(epochs: int = 15) -> None:
    generator = torch.Generator().manual_seed(0)
    bags = draw_bags(generator)
    labels = torch.randint(NUM_CLASSES, (2000,), generator=generator)
    evaluator = Evaluator(draw_waves(labels, generator), labels)
    print(f"learning from {bags}")

    torch.manual_seed(0)
    network = WaveReader()
    own_loop(network, bags, epochs)
    print(f"own loop: {evaluator(network)['accuracy']:.0%} of new waves classified correctly")

    torch.manual_seed(0)
    result = train(
        WaveReader(),
        bags=bags,
        method=get_method("rot", alpha=ALPHA),
        recipe=Recipe(
            epochs=epochs,
            batch_instances=450,
            optimizer="adam",
            learning_rate=0.01,
            schedule="constant",
            weight_decay=0,
        ),
        evaluator=evaluator,
    )
    print(f"bagwise.train: {result.history[-1]['evaluation']['accuracy']:.0%} of new waves classified correctly")


if __name__ == "__main__":
    main()
