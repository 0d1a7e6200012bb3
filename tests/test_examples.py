"""The examples run, on small files in the official formats and, where it lies beside the repository, on real data."""

import importlib.util
import lzma
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from bagwise import BagWarning
from reference.official_files import idx

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def percentages(text, pattern):
    return [float(value) for value in re.findall(pattern, text)]


# Adult


def census_row(rng, rich):
    """A line of adult.data: the rich are older and work longer; occupation and education go with it."""
    age, hours = int(rng.normal(52 if rich else 32, 6)), int(rng.normal(52 if rich else 36, 4))
    occupation = rng.choice(["Sales", "Tech-support", "?"], p=[0.2, 0.7, 0.1] if rich else [0.6, 0.2, 0.2])
    years = int(rng.choice([9, 13], p=[0.3, 0.7] if rich else [0.7, 0.3]))
    education = {9: "HS-grad", 13: "Bachelors"}[years]
    return (
        f"{age}, Private, 77516, {education}, {years}, Never-married, {occupation}, Not-in-family, White, "
        f"{rng.choice(['Male', 'Female'])}, 0, 0, {hours}, United-States, {'>50K' if rich else '<=50K'}"
    )


@pytest.fixture
def census(tmp_path):
    rng = np.random.default_rng(0)
    train = [census_row(rng, rich) for rich in rng.random(600) < 0.3]
    test = ["|1x3 Cross validator", *(f"{census_row(rng, rich)}." for rich in rng.random(200) < 0.3)]
    (tmp_path / "adult.data").write_text("\n".join(train) + "\n\n")
    with lzma.open(tmp_path / "adult.test.xz", "wt") as file:
        file.write("\n".join(test) + "\n\n")
    return tmp_path


def test_adult_reads_the_official_format(census):
    adult = example("adult")
    train, test = adult.read_people(census, "adult.data"), adult.read_people(census, "adult.test")
    assert (len(train.rich), len(test.rich)) == (600, 200)
    assert 0.2 < train.rich.mean() < 0.4
    assert 0.2 < test.rich.mean() < 0.4
    assert "income" not in train.inputs
    assert train.inputs["occupation"].isna().any()
    with pytest.raises(SystemExit, match=r"must hold adult\.names or adult\.names\.xz"):
        adult.read_people(census, "adult.names")


def test_adult(census, capsys):
    example("adult").main([str(census), "--epochs", "8"])
    printed = capsys.readouterr().out
    assert printed.startswith("600 people in 6 bags by occupation and education")
    by_shares, by_labels = percentages(printed, r"AUC (\d\.\d+)")
    assert by_shares > 0.9
    assert by_labels > 0.9
    assert "estimated accuracy" in printed
    assert "in truth: accuracy" in printed


@pytest.mark.skipif(not (DATA / "tabular" / "adult.data.xz").exists(), reason="Adult is not here")
def test_adult_in_truth(capsys):
    example("adult").main([str(DATA / "tabular"), "--rows", "2000", "--epochs", "5"])
    by_shares, by_labels = percentages(capsys.readouterr().out, r"AUC (\d\.\d+)")
    assert by_shares > 0.75
    assert by_labels > 0.85


# precincts


@pytest.fixture
def senc(tmp_path):
    """60 precincts in the format of senc.csv: party follows race and county, the mix of races the precinct."""
    rng = np.random.default_rng(0)
    by_race = np.array([[0.5, 0.35, 0.15], [0.9, 0.04, 0.06], [0.8, 0.1, 0.1]])  # dem, rep, non
    races, parties = ("white", "black", "natam"), ("dem", "rep", "non")
    joint = [prefix + party for prefix in ("wh", "bl", "natam") for party in parties]
    lines = [",".join(["county", "precinct", "total", *races, *parties, *joint])]
    for number in range(60):
        county = ("Bladen", "Robeson")[number % 2]
        mood = rng.dirichlet(60 * (by_race if county == "Bladen" else by_race[:, [1, 0, 2]])[0])
        shares = np.stack([mood, *by_race[1:]])
        counts = np.array([rng.multinomial(n, row) for n, row in zip(rng.integers(5, 300, 3), shares, strict=True)])
        totals = [counts.sum(), *counts.sum(axis=1), *counts.sum(axis=0)]
        lines.append(",".join(map(str, [county, f"NO {number}", *totals, *counts.ravel()])))
    path = tmp_path / "senc.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def check_precincts(printed):
    independence, _, with_totals, misled = percentages(printed, r"(\d+\.\d)%  ")
    assert with_totals < independence / 2
    assert with_totals < misled


def test_precincts(senc, capsys):
    with pytest.warns(BagWarning, match="columns 'share white', 'share black' have one value in each bag"):
        example("precincts").main([str(senc), "--people", "60"])
    check_precincts(capsys.readouterr().out)


def test_precincts_keep_the_truth_apart(senc):
    precincts = example("precincts").read_precincts(senc)
    assert (precincts.truth.sum(axis=2) == precincts.people).all()
    assert (precincts.truth.sum(axis=1) == precincts.parties).all()
    assert set(precincts.cells) == {"precinct", "county", "race", "share white", "share black"}


def test_representatives_keep_the_shares_and_the_size():
    people = np.array([[700, 200, 101], [3, 4, 0], [1, 1, 1]])
    chosen = example("precincts").representatives(people, most=10)
    assert chosen.tolist() == [[7, 2, 1], [3, 4, 0], [1, 1, 1]]
    assert example("precincts").representatives(np.array([[1, 1, 1]]), most=2).sum() == 2


@pytest.mark.skipif(not (DATA / "aggregated" / "senc.csv").exists(), reason="the precincts are not here")
def test_precincts_in_truth(capsys):
    with pytest.warns(BagWarning, match="columns 'share white', 'share black' have one value in each bag"):
        example("precincts").main([str(DATA / "aggregated" / "senc.csv"), "--people", "40"])
    printed = capsys.readouterr().out
    assert "366,290 people in 212 precincts" in printed
    check_precincts(printed)


# images


@pytest.fixture
def idx_folder(tmp_path):
    """scikit-learn's digits as IDX files."""
    bunch = load_digits()
    images, labels = (bunch.images * 15).astype(int), bunch.target
    for prefix, part in (("train", slice(None, 960)), ("t10k", slice(-200, None))):
        of_part = images[part]
        (tmp_path / f"{prefix}-images-idx3-ubyte").write_bytes(idx(of_part.shape, of_part.ravel().tolist()))
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(idx((len(of_part),), labels[part].tolist()))
    return tmp_path


def test_images(idx_folder, capsys):
    example("images").main([str(idx_folder), "--pictures", "900", "--epochs", "6", "--bag-size", "8"])
    printed = capsys.readouterr().out
    assert printed.startswith("learning from Bags(808 instances in 101 bags of 8, 10 classes)")
    assert "from held-out bags: estimated accuracy" in printed
    assert percentages(printed, r"in truth: accuracy (\d+\.\d)%")[0] > 70


def test_images_without_a_folder_are_digits(capsys):
    example("images").main(["--epochs", "1"])
    assert "learning from Bags(1296 instances" in capsys.readouterr().out


def test_images_say_which_file_is_missing(tmp_path):
    with pytest.raises(SystemExit, match="must hold train-images-idx3-ubyte"):
        example("images").main([str(tmp_path)])


# your own network


def test_own_network(capsys):
    own_network = example("own_network")
    before = torch.random.get_rng_state()
    own_network.main(epochs=8)
    torch.random.set_rng_state(before)  # the example seeds torch, as a program of its own may
    own_loop, by_train = percentages(capsys.readouterr().out, r"(\d+)% of new waves")
    assert own_loop > 50
    assert by_train > 50


# Embeddings


def test_embeddings_of_digits(capsys):
    example("embeddings").main([])
    printed = capsys.readouterr().out
    assert "1,792 rows in 14 bags" in printed
    assert printed.count("<- chosen") == 1
    assert min(percentages(printed, r"rightly by the .*: ([\d.]+)%")) > 80


def test_embeddings_of_a_file(tmp_path, capsys):
    rng = np.random.default_rng(0)
    bags, labels = np.arange(300) % 5, rng.integers(2, size=300)
    features = rng.normal(size=(300, 6)) + 4 * labels[:, None]
    shares = np.array([labels[bags == bag].mean() for bag in range(5)])
    known = {"features": features, "bags": bags, "proportions": np.stack([1 - shares, shares], axis=1)}
    np.savez(tmp_path / "known.npz", **known)
    example("embeddings").main([str(tmp_path / "known.npz")])
    assert "rightly" not in capsys.readouterr().out
    np.savez(tmp_path / "labelled.npz", **known, labels=labels)
    example("embeddings").main([str(tmp_path / "labelled.npz")])
    assert min(percentages(capsys.readouterr().out, r"rightly by the .*: ([\d.]+)%")) > 90
    np.savez(tmp_path / "less.npz", features=features)
    with pytest.raises(SystemExit, match=r"must hold bags, proportions; see"):
        example("embeddings").main([str(tmp_path / "less.npz")])
