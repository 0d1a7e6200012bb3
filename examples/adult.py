"""Who earns more than 50,000? Learned from the share of each occupation and education, on the Adult census data.

    python examples/adult.py FOLDER

FOLDER holds adult.data and adult.test (or adult.data.xz and adult.test.xz), from
https://archive.ics.uci.edu/dataset/2/adult. A bag is all people of one occupation and education; what is known of it
is the share that earns more. The labels of people are used to compute these shares, as a statistical office would,
and at the end to say how good the model is. Nothing is learned or chosen by them.

Such bags are groups of their own kind, unlike random ones: whatever differs between occupations may pass for what
makes people rich. So the result stands beside that of the same network trained on labels.
"""

import argparse
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from bagwise import BagWarning, ProportionClassifier
from bagwise.model_selection import WholeBags, cross_validate

COLUMNS = (
    *("age", "workclass", "final weight", "education", "years of education", "marital status", "occupation"),
    *("relationship", "race", "sex", "capital gain", "capital loss", "hours a week", "native country", "income"),
)
GROUPS = ("occupation", "education")


@dataclass(frozen=True)
class People:
    """Rows of the census and, kept apart from them, who is rich."""

    inputs: pd.DataFrame
    rich: np.ndarray


def read_people(folder: Path, name: str) -> People:
    """Read a file of the census; adult.test starts with a comment and ends its labels with a full stop."""
    path = next((path for path in (folder / name, folder / f"{name}.xz") if path.exists()), None)
    if path is None:
        raise SystemExit(f"{folder} must hold {name} or {name}.xz, from https://archive.ics.uci.edu/dataset/2/adult.")
    table = pd.read_csv(path, names=list(COLUMNS), comment="|", skipinitialspace=True, na_values="?")
    return People(table.drop(columns="income"), (table["income"].str.rstrip(".") == ">50K").to_numpy())


def describe(classifier: ProportionClassifier, test: People) -> str:
    """Say how well a model does on people whose labels are known."""
    probability = classifier.predict_proba(test.inputs)[:, 1]
    accuracy = ((probability > 0.5) == test.rich).mean()
    return f"AUC {roc_auc_score(test.rich, probability):.3f}, accuracy {accuracy:.1%}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with adult.data and adult.test, plain or .xz")
    parser.add_argument("--rows", type=int, help="learn from the first so many people, to try it quickly")
    parser.add_argument("--epochs", type=int, default=30, help="most passes over the bags")
    options = parser.parse_args(arguments)
    train, test = read_people(options.folder, "adult.data"), read_people(options.folder, "adult.test")
    train = People(train.inputs[: options.rows], train.rich[: options.rows])

    # all that is known: how many of each occupation and education there are, and which share of them is rich
    bags = train.inputs[list(GROUPS)].fillna("unknown").agg(", ".join, axis=1).to_numpy()
    rich = pd.Series(train.rich).groupby(bags).mean()
    shares = pd.DataFrame({"bag": rich.index, "no": 1 - rich.to_numpy(), "yes": rich.to_numpy()})
    print(f"{len(bags):,} people in {len(shares)} bags by {' and '.join(GROUPS)}; {train.rich.mean():.1%} are rich")

    classifier = ProportionClassifier(epochs=options.epochs, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BagWarning)  # kept in `warnings_`
        classifier.fit(train.inputs, bags=bags, proportions=shares)
        folds = cross_validate(classifier, train.inputs, bags, shares, splitter=WholeBags(folds=5))
    for warning in classifier.warnings_ or ("none: the bags differ enough to learn from",):
        print(f"warnings: {warning}")
    print(f"on {len(test.rich):,} other people, from shares: {describe(classifier, test)}")

    right = (folds.probabilities[:, 1] > 0.5) == train.rich
    print(f"on held-out bags, from shares: {folds.accuracy()}")
    print(f"on held-out bags, in truth: accuracy {right.mean():.1%}")

    yardstick = ProportionClassifier(epochs=options.epochs, random_state=0).fit(train.inputs, train.rich)
    print(f"on {len(test.rich):,} other people, had labels been known: {describe(yardstick, test)}")


if __name__ == "__main__":
    main()
