"""Which party did people of each race register with? Inferred from the totals of precincts, compared with the truth.

    python examples/precincts.py senc.csv

senc.csv holds 212 precincts of eight counties in south-eastern North Carolina, 2001: people by race, by party, and by
both. It comes with the R package eiPack:

    Rscript -e 'data(senc, package = "eiPack"); write.csv(senc, "senc.csv", row.names = FALSE)'

This is ecological inference. The table of race by party is known for each precinct, but only its margins are used: a
precinct is a bag, its people are instances that are known by race and county, and its parties are the proportions. Two
answers are given: that of the model alone, P(party | race, county), and that of `apportion`, which shares each
precinct's own parties out among its people as the model suggests. The yardstick is independence: within a precinct,
all races register alike.

The last line is a warning by example. The make-up of a precinct is known and looks like a useful input. But it is the
same for all people of a bag, so the bags cannot tell whether Black people register as Democrats, or everyone who lives
among them does. The proportions are fitted just as well, and the answer is far off. Nothing in the totals shows it;
`fit` warns of such columns.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from bagwise import ProportionClassifier
from bagwise import functional as BF

RACES = {"white": "wh", "black": "bl", "natam": "natam"}  # column of the total, prefix of the columns by party
PARTIES = ("dem", "non", "rep")  # sorted, as classes are
PERSONAL = ("race", "county")
MAKE_UP = ("share white", "share black")


@dataclass(frozen=True)
class Precincts:
    """What is known of precincts and, kept apart from it, what is asked.

    Attributes:
        people: `[precincts, races]` counts.
        parties: `[precincts, parties]` counts.
        cells: a row for each race of each precinct, in this order: the inputs of its people, and their precinct.
        truth: `[precincts, races, parties]` counts.
    """

    people: np.ndarray
    parties: np.ndarray
    cells: pd.DataFrame
    truth: np.ndarray


@dataclass(frozen=True)
class Inference:
    """Tables of race by party, `[precincts, races, parties]`, and the KL of held-out bags that speaks for them."""

    by_model: np.ndarray
    with_totals: np.ndarray
    held_out_kl: float


def read_precincts(path: Path) -> Precincts:
    """Read senc.csv."""
    table = pd.read_csv(path, na_filter=False)
    people = table[list(RACES)].to_numpy()
    truth = table[[prefix + party for prefix in RACES.values() for party in PARTIES]].to_numpy()
    shares = people / people.sum(axis=1, keepdims=True)
    cells = pd.DataFrame(
        {
            "precinct": (table["county"] + ", " + table["precinct"]).repeat(len(RACES)),
            "county": table["county"].repeat(len(RACES)),
            "race": np.tile(list(RACES), len(table)),
            "share white": shares[:, 0].repeat(len(RACES)),
            "share black": shares[:, 1].repeat(len(RACES)),
        }
    )
    return Precincts(people, table[list(PARTIES)].to_numpy(), cells, truth.reshape(len(table), len(RACES), -1))


def representatives(people: np.ndarray, most: int) -> np.ndarray:
    """Choose at most so many people to stand for a precinct, each race by its share: `[precincts, races]` counts.

    People of one race in one precinct are all alike to the model, so a few of them teach it as much as all.
    """
    sizes = people.sum(axis=1, keepdims=True)
    exact = people * np.minimum(1, most / sizes)
    counts = np.floor(exact).astype(np.int64)
    seats_left = np.minimum(sizes, most) - counts.sum(axis=1, keepdims=True)
    rank = np.argsort(np.argsort(counts - exact, axis=1), axis=1)  # 0 for the largest remainder
    return counts + (rank < seats_left)


def infer(precincts: Precincts, inputs: tuple[str, ...], most: int, seed: int = 0) -> Inference:
    """Learn from the margins of each precinct's table to fill in its cells."""
    rows = np.arange(len(precincts.cells))
    chosen = precincts.cells.iloc[np.repeat(rows, representatives(precincts.people, most).ravel())]
    parties = pd.DataFrame(precincts.parties, columns=list(PARTIES))
    parties["precinct"] = precincts.cells["precinct"].to_numpy()[:: len(RACES)]
    classifier = ProportionClassifier(network="linear", learning_rate=0.03, counts=True, random_state=seed)
    classifier.fit(chosen[["precinct", *inputs]], bags="precinct", proportions=parties)
    probabilities = classifier.predict_proba(precincts.cells[list(inputs)])  # [precincts x races, parties]

    everyone = np.repeat(rows, precincts.people.ravel())
    plan = BF.apportion(
        torch.from_numpy(probabilities[everyone]).log(),
        torch.from_numpy(everyone // len(RACES)),
        torch.from_numpy(precincts.parties / precincts.parties.sum(axis=1, keepdims=True)),
        alpha=0.02,  # the totals are known exactly: hardly let the model overrule them
    )
    shared_out = np.zeros_like(probabilities)
    np.add.at(shared_out, everyone, plan.labels.numpy())
    return Inference(
        probabilities.reshape(precincts.truth.shape) * precincts.people[:, :, None],
        shared_out.reshape(precincts.truth.shape),
        classifier.history_[classifier.best_epoch_ - 1]["held_out"]["kl"],
    )


def misplaced(table: np.ndarray, truth: np.ndarray) -> float:
    """Return the share of people who are in the wrong cell of their precinct's table."""
    return float(np.abs(table - truth).sum() / 2 / truth.sum())


def show(table: np.ndarray, name: str) -> None:
    """Print the share of each race that registered with each party, over all precincts."""
    print(f"\n{name:<12}" + "".join(f"{party:>6}" for party in PARTIES))
    for race, counts in zip(RACES, table.sum(axis=0), strict=True):
        print(f"  {race:<10}" + "".join(f"{share:>6.0%}" for share in counts / counts.sum()))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="senc.csv")
    parser.add_argument("--people", type=int, default=100, help="people who stand for a precinct in training")
    options = parser.parse_args(arguments)
    precincts = read_precincts(options.file)
    people, parties, truth = precincts.people, precincts.parties, precincts.truth
    independence = people[:, :, None] * parties[:, None, :] / people.sum(axis=1)[:, None, None]
    print(f"{people.sum():,} people in {len(people)} precincts; known: the races and the parties of each precinct")

    found = infer(precincts, PERSONAL, options.people)
    show(truth, "truth")
    show(independence, "independent")
    show(found.with_totals, "inferred")
    print("\npeople in the wrong cell of their precinct's table")
    print(f"  {misplaced(independence, truth):5.1%}  independence within each precinct")
    print(f"  {misplaced(found.by_model, truth):5.1%}  the model of race and county")
    print(f"  {misplaced(found.with_totals, truth):5.1%}  the model, and each precinct's own totals")

    misled = infer(precincts, PERSONAL + MAKE_UP, options.people)
    print(f"  {misplaced(misled.with_totals, truth):5.1%}  the same with the precinct's make-up as a further input,")
    print(f"{'':9}though held-out precincts fit as well (KL {misled.held_out_kl:.3f} against {found.held_out_kl:.3f})")


if __name__ == "__main__":
    main()
