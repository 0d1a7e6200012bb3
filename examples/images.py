"""A convolutional network for pictures, learned from the class proportions of bags of pictures.

    python examples/images.py                    # the digits inside scikit-learn
    python examples/images.py FOLDER             # Fashion-MNIST or MNIST

FOLDER holds the four official files, plain or .gz: train-images-idx3-ubyte, train-labels-idx1-ubyte,
t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte; for Fashion-MNIST from
https://github.com/zalandoresearch/fashion-mnist, or Debian's package dataset-fashion-mnist.

The labels of the training pictures make the bags and are then forgotten: `Bags` has no field for them. A tenth of the
bags is held out to tell, from proportions alone, how good the network is. At the end an evaluator that holds the
labels of the test pictures says whether that was true.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from bagwise import Recipe, train
from bagwise.bags import ImageAugment, uniform_bags
from bagwise.experiments.datasets import load_dataset
from bagwise.experiments.datasets.dataset import Dataset
from bagwise.experiments.datasets.idx import decode_idx
from bagwise.experiments.datasets.source import SourceFile, read_plain
from bagwise.model_selection import estimate_accuracy
from bagwise.networks import build_network
from bagwise.training import Evaluator

NUM_CLASSES = 10


def read_images(folder: Path) -> Dataset:
    """Read the four IDX files of MNIST or of a set in its format, whatever their number of pictures."""

    def read(name: str) -> SourceFile:
        path = next((path for path in (folder / name, folder / f"{name}.gz") if path.exists()), None)
        if path is None:
            raise SystemExit(f"{folder} must hold {name} or {name}.gz; see python examples/images.py --help.")
        return read_plain(path)

    def part(prefix: str) -> tuple[np.ndarray, np.ndarray]:
        files = [read(f"{prefix}-images-idx3-ubyte"), read(f"{prefix}-labels-idx1-ubyte")]
        return decode_idx(files, num_classes=NUM_CLASSES)

    return Dataset.from_arrays(folder.name, part("train"), part("t10k"), tuple(map(str, range(NUM_CLASSES))))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="with the IDX files; the digits if there is none")
    parser.add_argument("--bag-size", type=int, default=16, help="pictures in a bag")
    parser.add_argument("--epochs", type=int, default=15, help="passes over the bags")
    parser.add_argument("--pictures", type=int, help="learn from the first so many pictures, to try it quickly")
    options = parser.parse_args(arguments)
    pictures = read_images(options.folder) if options.folder else load_dataset("digits")

    images, labels = pictures.train_images[: options.pictures], pictures.train_labels[: options.pictures]
    bags = uniform_bags(images, labels, NUM_CLASSES, options.bag_size, seed=0)
    last = len(bags) - len(bags) // 10
    training, held_out = bags.subset(range(last)), bags.subset(range(last, len(bags)))
    print(f"learning from {training}")

    augment = ImageAugment(pictures.pixel_mean, pictures.pixel_std, shift=1, flip=False)
    result = train(
        build_network("small-convnet", pictures.input_shape, NUM_CLASSES, seed=0),  # any nn.Module will do
        bags=training,
        method="kl",
        recipe=Recipe(epochs=options.epochs, batch_instances=64, schedule="one-cycle"),
        augment=augment,
        held_out=held_out,
    )
    for entry in result.history:
        print(f"epoch {entry['epoch']:2}: held-out bags missed by {entry['held_out']['l1'] / 2:.1%} of their pictures")

    device = next(result.network.parameters()).device
    with torch.no_grad():
        logits = result.network(augment.normalise(torch.as_tensor(held_out.instances).to(device)))
    estimate = estimate_accuracy(
        held_out.proportions.numpy(), logits.softmax(dim=1).cpu().numpy(), held_out.layout.bag_index.numpy()
    )
    print(f"from held-out bags: {estimate}")
    evaluator = Evaluator(pictures.test_images, pictures.test_labels, augment.normalise)
    print(f"on the test pictures, in truth: accuracy {evaluator(result.network)['accuracy']:.1%}")


if __name__ == "__main__":
    main()
