"""People in precincts, the votes of each precinct, and the command line to be tried on them."""

import json
import shlex

import numpy as np
import polars as pl
from typer.testing import CliRunner

from bagwise.cli import app

# As small as a fit can be: these tests are about the command line.
QUICK = "--network linear --epochs 2 --no-report"
FIT = f"fit people.csv --bag precinct --proportions shares.csv --out model {QUICK}"


def run(line, *more):
    """Run a command line in this process."""
    return CliRunner().invoke(app, [*shlex.split(line), *map(str, more)])


def make_people(rows_per_bag=12, bags=30, seed=0):
    """People of whom the younger and poorer vote A, with a column of text and some missing values."""
    rng = np.random.default_rng(seed)
    rows = rows_per_bag * bags
    score = rng.normal(size=rows) + np.repeat(rng.normal(size=bags), rows_per_bag)
    age = 50 - 10 * score
    return pl.DataFrame(
        {
            "person": [f"{row:04d}" for row in range(rows)],
            "precinct": [f"ward-{row // rows_per_bag:02d}" for row in range(rows)],
            "age": [None if rng.random() < 0.05 else value for value in age.tolist()],
            "income": 30_000 - 4_000 * score + 3_000 * rng.normal(size=rows),
            "home": rng.choice(["rent", "own"], size=rows),
            "vote": np.where(score + 0.3 * rng.normal(size=rows) > 0, "A", "B"),
        }
    )


def count_votes(people):
    counts = people.group_by("precinct").agg(
        A=(pl.col("vote") == "A").sum().cast(pl.Int64), B=(pl.col("vote") == "B").sum().cast(pl.Int64)
    )
    return counts.sort("precinct")


class Workplace:
    """A folder with people.csv and people.parquet (inputs), survey.csv (with ids and votes), counts.csv, shares.csv."""

    def __init__(self, folder):
        self.folder = folder
        self.survey = make_people()
        self.people = self.survey.drop("person", "vote")
        self.counts = count_votes(self.survey)
        self.shares = self.counts.with_columns(pl.col("A", "B") / 12)
        for name in ("survey", "people", "counts", "shares"):
            self.write(f"{name}.csv", getattr(self, name))
        self.write("people.parquet", self.people)

    def __truediv__(self, name):
        return self.folder / name

    def write(self, name, frame):
        path = self.folder / name
        {".csv": frame.write_csv, ".parquet": frame.write_parquet, ".arrow": frame.write_ipc}[path.suffix](path)

    def contents(self):
        """Every file in the folder, at any depth, with its bytes."""
        return {path: path.read_bytes() if path.is_file() else None for path in self.folder.rglob("*")}


def fails_in_one_line(place, line, *fragments):
    """Check that a command line fails as it should: one line with these fragments, exit code 2, nothing written."""
    before = place.contents()
    done = run(line)
    assert done.exit_code == 2, done.output
    errors = done.stderr.splitlines()
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith("error: ")
    assert done.stdout == ""
    for fragment in fragments:
        assert fragment in errors[0]
    assert place.contents() == before
    return errors[0]


def fit_to_json(line):
    done = run(f"{line} --json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def warnings_of(done):
    assert done.exit_code == 0, done.output
    return [line.removeprefix("warning: ") for line in done.stderr.splitlines()]
