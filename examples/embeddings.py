"""Embeddings and a dozen large bags: a classifier in seconds, without a GPU and without a label.

    python examples/embeddings.py                    # the pixels of scikit-learn's digits stand in for embeddings
    python examples/embeddings.py FILE.npz           # your own

FILE.npz holds `features` [rows, width] and `bags` [rows], the number of each row's bag, and `proportions`
[bags, classes], NaN where those of a bag are not known. Where it also holds `labels` [rows], they say at the end how
many rows are labelled rightly; nothing is learned from them.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from bagwise.bags import uniform_bags
from bagwise.functional import apportion
from bagwise.probe import fit_probe


def read_embeddings(path: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return features, the bag of each row, proportions, and labels where there are some."""
    with np.load(path, allow_pickle=False) as file:
        missing = {"features", "bags", "proportions"} - set(file.files)
        if missing:
            raise SystemExit(
                f"{path} must hold {', '.join(sorted(missing))}; see python examples/embeddings.py --help."
            )
        labels = torch.from_numpy(file["labels"]).long() if "labels" in file.files else None
        features, proportions = (torch.from_numpy(file[name]).float() for name in ("features", "proportions"))
        return features, torch.from_numpy(file["bags"]).long(), proportions, labels


def digits_in_bags() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return 14 bags of 128 digits. Their labels ride along as another column, to be told apart again at once."""
    pixels, labels = load_digits(return_X_y=True)
    both = np.concatenate([pixels, labels[:, None]], axis=1).astype(np.float32)
    bags = uniform_bags(both, labels, num_classes=10, bag_size=128, seed=0)
    rows = torch.as_tensor(bags.instances)
    return rows[:, :-1], bags.layout.bag_index, bags.proportions, rows[:, -1].long()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="with the embeddings; the digits if there is none")
    options = parser.parse_args(arguments)
    features, bag_of, proportions, labels = read_embeddings(options.file) if options.file else digits_in_bags()

    started = time.perf_counter()
    fit = fit_probe(features, bag_of, proportions)
    print(f"{len(features):,} rows in {len(proportions)} bags: {time.perf_counter() - started:.1f} s")
    print("mean KL of bags that were held out, by rounds of smoothing and number of directions:")
    for (rounds, directions), divergence in fit.criterion.items():
        chosen = " <- chosen" if (rounds, directions) == (fit.rounds, fit.directions) else ""
        print(f"  {rounds} rounds, {directions:2} directions: {divergence:.4f}{chosen}")

    # the probe for new rows; for the rows of the bags themselves, what their bags are known to hold helps too
    plan = apportion(fit.logits, bag_of, proportions, how="lp")
    if labels is not None:
        for name, scores in (("probe", fit.network(features)), ("probe and proportions", plan.labels)):
            right = (scores.argmax(dim=1) == labels).float().mean()
            print(f"rows labelled rightly by the {name}: {right:.1%}")


if __name__ == "__main__":
    main()
