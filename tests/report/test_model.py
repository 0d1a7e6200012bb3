import base64
import hashlib
import json
import random
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from bagwise import ProportionClassifier
from bagwise.bags import Memberships
from bagwise.model_selection import AccuracyEstimate, SearchResult, Trial
from bagwise.report import model as report
from bagwise.report.model import write_model_report
from bagwise.tables import read_proportions
from fakes.fitted import Fitted, fit_votes


@pytest.fixture(scope="module")
def votes():
    return fit_votes(num_bags=60, largest=12, validation_fraction=0.4)


@pytest.fixture(scope="module")
def page(votes, tmp_path_factory):
    return Page(write(tmp_path_factory.mktemp("votes"), votes, title="Votes & <voters>"))


def write(folder, fitted: Fitted, **options):
    write_model_report(folder / "report.html", fitted.classifier, fitted.X, fitted.bags, fitted.proportions, **options)
    return (folder / "report.html").read_text(encoding="utf-8")


class Page(HTMLParser):
    """The words of a page, its scripts, attributes and tables; checks that tags are closed in order."""

    void = frozenset({"meta", "br", "img", "path", "rect", "line", "circle", "polyline", "input"})

    def __init__(self, source):
        super().__init__()
        self.source, self.scripts, self.attributes, self.tables = source, [], [], {}
        self.words, self._open, self._table = "", [], None
        self.feed(source)
        assert self._open == []
        self.words = " ".join(self.words.split())

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        if tag == "table":
            self._table = self.tables.setdefault(dict(attrs).get("id", ""), [])
        if tag == "tr":
            self._table.append([])
        if tag in ("td", "th"):
            self._table[-1].append("")
        if tag == "script":
            self.scripts.append("")
        if tag not in self.void:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self._open.pop() == tag
        if tag in ("dt", "td", "th"):
            self.words += " "

    def handle_data(self, data):
        if self._open and self._open[-1] == "script":
            self.scripts[-1] += data
        elif self._open and self._open[-1] != "style":
            self.words += data
            if {"td", "th"} & set(self._open):
                self._table[-1][-1] += data

    @property
    def scatter(self):
        return json.loads(self.scripts[0])


def test_the_page_refers_to_nothing_outside_itself_and_runs_only_its_own_script(page):
    links = [value for name, value in page.attributes if name in ("href", "src", "xlink:href")]
    assert all(value.startswith("#") for value in links)
    assert not re.search(r"url\((?!#)|@import|https?://", page.source)
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    policy = next(value for name, value in page.attributes if name == "content" and "script-src" in value)
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert "@media print" in page.source
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_it_says_what_was_learned_from_what(page, votes):
    assert f"{len(votes.X):,} rows in 60 groups" in page.words
    assert "Votes & <voters>" in page.words
    for text in ("linear", "learning rate 0.1", "Conservative, Green, Liberal", "bagwise 0.1.0", torch.__version__):
        assert text in page.words
    assert [row[:2] for row in page.tables[""][1:4]] == [["age", "number"], ["income", "number"], ["town", "category"]]


def test_the_fit_is_that_of_the_bag_report(page, votes):
    known, predicted, held_out = _of_bag_report(votes)
    _, first, second = page.tables["fits"]
    for row, part in ((first, held_out), (second, ~held_out)):
        assert row[1] == str(part.sum())
        assert row[3] == f"{50 * np.abs(known - predicted)[part].sum(axis=1).mean():.1f}"
    assert (first[0], second[0]) == ("held out", "trained on")


def test_every_bag_is_drawn_with_its_shares(page, votes):
    known, predicted, held_out = _of_bag_report(votes)
    scatter = page.scatter
    assert scatter["bags"] == votes.classifier.bag_report_["bag"].tolist()
    assert scatter["heldOut"] == held_out.astype(int).tolist()
    assert scatter["sizes"] == votes.classifier.bag_report_["size"].tolist()
    labels = votes.classifier.classes_.tolist()
    for panel in scatter["classes"]:
        place = labels.index(panel["label"])
        assert np.array(panel["known"]) / 1e4 == pytest.approx(known[:, place], abs=1e-4)
        assert np.array(panel["predicted"]) / 1e4 == pytest.approx(predicted[:, place], abs=1e-4)
    assert "Drawn are" not in page.words


def test_the_worst_bags_are_named_the_worst_first(page):
    rows = page.tables["worst"][1:]
    strays = [abs(float(row[-1].replace("−", "-"))) for row in rows]
    assert len(rows) == 25
    assert strays == sorted(strays, reverse=True)
    for row in rows:
        known, predicted = (float(cell.removesuffix(" %")) for cell in row[4:6])
        assert float(row[6].replace("−", "-")) == pytest.approx(known - predicted, abs=0.11)


def test_accuracy_is_estimated_from_held_out_bags_with_its_assumptions(page):
    assert re.search(
        r"About \d\d of 100 rows get the right class \(95 % interval: \d\d to \d\d\), judged by 24 bags", page.words
    )
    assert "assumes that" in page.words or "sharper or flatter" in page.words
    assert "flatters a little" in page.words


def test_the_kept_epoch_is_named_with_its_rule(page, votes):
    assert f"Epoch {votes.classifier.best_epoch_} of 8 was kept: the last that met the proportions" in page.words


def test_a_probe_has_no_settings_of_a_training(tmp_path):
    page = Page(write(tmp_path, fit_votes(num_bags=60, validation_fraction=0.4, method="probe")))
    assert re.search(r"How it was trained A probe, a linear head on \d+ directions? of .* What these", page.words)
    for word in (
        "epoch",
        "patience",
        "learning rate",
        "batch size",
        "weight decay",
        "training loss",
        "flatters a little",
    ):
        assert word not in page.words, word
    assert "method probe" in page.words


def test_importances_are_those_of_the_columns_that_decide(page):
    columns = [row[0] for row in page.tables["importance"][1:]]
    assert set(columns[:2]) == {"age", "income"}
    assert columns[2] == "town"


def test_an_estimate_and_a_search_are_shown_as_given(votes, tmp_path):
    accuracy = AccuracyEstimate(0.871, 0.82, 0.91, 0.9, "residuals", 1.02, 77)
    trials = (
        Trial({"method": "rot", "method_parameters": {"alpha": 0.3}}, 1, 9, 0.01234, 0.001, 3.2),
        Trial({"method": "<b>kl</b>"}, 0, 3, float("inf"), float("nan"), float("nan"), "diverged (loss is nan)"),
    )
    page = Page(write(tmp_path, votes, accuracy=accuracy, search=SearchResult({}, 0.01, trials, "epochs", "kl")))
    assert "About 87 of 100 rows get the right class (90 % interval: 82 to 91), judged by 77 bags" in page.words
    assert "mistake in one row says nothing" in page.words
    assert "flatters a little" not in page.words  # these are not the bags that chose the epoch
    assert page.tables["search"][1] == [
        "method = rot, method_parameters = {'alpha': 0.3}",
        "9",
        "0.01234",
        "0.00100",
        "3.2",
    ]
    assert page.tables["search"][2] == ["method = <b>kl</b>", "3", "diverged (loss is nan)"]


def test_without_held_out_bags_it_says_so(tmp_path):
    page = Page(write(tmp_path, fit_votes(num_bags=12)))
    assert "No bag was kept from training" in page.words
    assert "No bag was held out; it takes 20 or more" in page.words
    assert [row[0] for row in page.tables["fits"]] == ["bags", "trained on"]
    assert (
        "The last of 8 epochs was kept: no bags were held out to choose one. No label of a row was used. An"
        in page.words
    )


def test_a_page_about_bags_of_single_rows_does_not_say_that_nobody_knows_their_labels(tmp_path, page):
    votes = fit_votes(num_bags=60)
    X, rows = votes.X[:400], np.arange(400)
    labels = np.where(X["age"] > 45, "old", "young")
    shares = {row: {name: float(labels[row] == name) for name in ("old", "young")} for row in rows}
    model = ProportionClassifier(network="linear", epochs=4, learning_rate=0.1, random_state=0)
    single = Page(write(tmp_path, Fitted(model.fit(X, bags=rows, proportions=shares), X, rows, shares)))
    nobody = [
        "without the label of any row",
        "nobody knows their labels",
        "Only some rows with known labels can settle",
    ]
    nobody += [
        "ecological fallacy",
        "within a bag, and different classifiers",
        "breach of the assumption",
        "half of them",
    ]
    for words in nobody:
        assert words not in single.words
        assert words in page.words
    for words in (
        "of 1 row classes",
        "400, each of a single row",
        "Here every bag is a single row, whose class is known",
    ):
        assert words in single.words
    assert re.search(r"interval: \d+ to \d+\), judged by 40 rows whose class is known\. The interval", single.words)


def test_a_few_held_out_bags_are_not_made_much_of(tmp_path):
    page = Page(write(tmp_path, fit_votes(num_bags=40)))
    assert "Only 4 bags could be held out. What is said of held-out bags is mostly luck" in page.words
    assert "Only 4 bags could be held out; it takes 20 or more" in page.words
    assert "Calibration by all bags" in page.words
    assert re.search(r"5 shuffles, on [\d,]+ rows of 40 bags", page.words)


def test_notes_come_first_then_what_the_classifier_warned_of(tmp_path, votes):
    fitted = fit_votes(num_bags=12)
    fitted.classifier.warnings_ = ("the proportions of 'a' against 'b' hardly differ <here>",)
    page = Page(write(tmp_path, fitted, notes=["column 'vote' is an input."]))
    first = "Read this first Column 'vote' is an input. The proportions of 'a' against 'b' hardly differ <here> No bag"
    assert first in page.words


HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\"'&\u202e"
HALF = "\ud800"  # half a surrogate pair, which no file can hold


def test_nothing_of_the_data_becomes_markup(tmp_path):
    fitted = fit_votes(num_bags=40, classes=(f"{HOSTILE}a", f"{HOSTILE}b"), prefix=HOSTILE + HALF)
    fitted.X.columns = [f"{HOSTILE}{name}" for name in fitted.X.columns]
    classifier = ProportionClassifier(network="linear", epochs=2, counts=True, random_state=0)
    classifier.fit(fitted.X, bags=fitted.bags, proportions=fitted.proportions)
    page = Page(write(tmp_path, Fitted(classifier, fitted.X, fitted.bags, fitted.proportions), title=HOSTILE))
    assert len(page.scripts) == 2
    assert "hacked" not in page.scripts[1]
    assert not [value for name, value in page.attributes if name in ("src", "onerror")]
    assert page.scatter["bags"][0] == f"{HOSTILE}{HALF}-000"  # JSON can spell it
    assert page.tables["worst"][1][0].startswith(f"{HOSTILE}?-0")
    assert page.words.count("window.hacked") > 30


def test_more_bags_than_can_be_drawn(tmp_path, monkeypatch, votes):
    monkeypatch.setattr(report, "MOST_BAGS_DRAWN", 30)
    monkeypatch.setattr(report, "WORST_BAGS_DRAWN", 10)
    page = Page(write(tmp_path, votes))
    assert "Drawn are 30 of 60 bags: the 10 that stray furthest and others at random" in page.words
    assert len(page.scatter["bags"]) == 30
    worst = [row[0] for row in page.tables["worst"][1:11]]
    assert set(worst) <= set(page.scatter["bags"])


def test_many_classes_and_columns_are_cut_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "MOST_PANELS", 2)
    monkeypatch.setattr(report, "MOST_CLASSES", 3)
    monkeypatch.setattr(report, "MOST_SHUFFLED_COLUMNS", 2)
    page = Page(write(tmp_path, fit_votes(classes=tuple("abcde"), epochs=2)))
    assert len(page.scatter["classes"]) == 2
    assert "The 2 most frequent of 5 classes have a panel" in page.words
    assert "a, b, c and 2 more" in page.words
    assert "With 3 columns, more than 2, single ones" in page.words
    assert "importance" not in page.tables


def test_a_large_table_is_described_by_some_of_its_bags(tmp_path, monkeypatch, votes):
    monkeypatch.setattr(report.describe_rows, "__kwdefaults__", {"most_rows": 350, "seed": 0})
    page = Page(write(tmp_path, votes))
    assert f"{len(votes.X):,} rows in 60 groups" in page.words
    assert re.search(
        r"60, half of them with \d+ rows or more, of which this page describes \d\d with 3\d\d rows", page.words
    )
    assert 24 < len(page.scatter["bags"]) < 50
    assert sum(page.scatter["heldOut"]) == 24


def test_the_sizes_of_bags_are_those_of_all_and_not_of_the_described_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(report.describe_rows, "__kwdefaults__", {"most_rows": 80, "seed": 0})
    fitted = fit_votes()
    sizes = fitted.classifier.bag_report_["size"]
    page = Page(write(tmp_path, fitted))
    assert f"of {sizes.min()} to {sizes.max()} rows" in page.words
    assert f"60, half of them with {int(np.median(sizes))} rows or more, of which this page describes" in page.words


def test_rows_may_come_in_every_form_that_fit_takes(tmp_path, votes):
    plain = Page(write(tmp_path, votes))
    frame = pl.from_pandas(votes.X).with_columns(pl.Series("ward", votes.bags))
    by_column = Page(write(tmp_path, Fitted(votes.classifier, frame.lazy(), "ward", votes.proportions)))
    assert by_column.scatter == plain.scatter
    pairs = Memberships(np.arange(len(votes.bags)), votes.bags)
    overlapping = Page(write(tmp_path, Fitted(votes.classifier, votes.X, pairs, votes.proportions)))
    assert overlapping.scatter == plain.scatter
    some = votes.bags < "precinct-040"
    table = read_proportions(votes.proportions)
    part = Page(write(tmp_path, Fitted(votes.classifier, votes.X[some], votes.bags[some], table)))
    assert part.scatter["bags"] == plain.scatter["bags"][:40]


def test_a_column_that_is_not_there_is_named(tmp_path, votes):
    with pytest.raises(
        ValueError, match=r"bags must be one of 'age', 'income', 'town', but got 'ages'\. Did you mean 'age'"
    ):
        write(tmp_path, Fitted(votes.classifier, votes.X, "ages", votes.proportions))
    with pytest.raises(TypeError, match="names a column, so X must be a data frame"):
        write(tmp_path, Fitted(votes.classifier, votes.X.to_numpy(), "age", votes.proportions))
    assert list(tmp_path.iterdir()) == []


def test_a_bag_that_the_model_never_saw_is_named(tmp_path, votes):
    bags = np.where(votes.bags == "precinct-003", "precinct-3", votes.bags)
    table = votes.proportions | {"precinct-3": votes.proportions["precinct-003"]}
    with pytest.raises(ValueError, match="bag 'precinct-3' is none of them"):
        write(tmp_path, Fitted(votes.classifier, votes.X, bags, read_proportions(table)))


def test_a_saved_model_knows_its_bags_by_dates(tmp_path):
    fitted = fit_votes()
    first = pd.Timestamp("2024-01-01")
    days = {name: first + pd.Timedelta(number, unit="D") for number, name in enumerate(fitted.proportions)}
    table = {days[name]: row for name, row in fitted.proportions.items()}
    bags = pd.Series(fitted.bags).map(days)
    fitted.classifier.fit(fitted.X, bags=bags, proportions=table).save(tmp_path / "model")
    loaded = type(fitted.classifier).load(tmp_path / "model")
    pages = [Page(write(tmp_path, Fitted(model, fitted.X, bags, table))) for model in (fitted.classifier, loaded)]
    assert pages[0].scatter == pages[1].scatter


def test_a_bag_with_unknown_proportions_is_counted_and_not_drawn(tmp_path):
    fitted = fit_votes()
    fitted.proportions["precinct-007"] = dict.fromkeys(fitted.proportions["precinct-007"], float("nan"))
    fitted.classifier.fit(fitted.X, bags=fitted.bags, proportions=fitted.proportions)
    page = Page(write(tmp_path, fitted))
    assert "the proportions of 1 are unknown" in page.words
    assert "precinct-007" not in page.scatter["bags"]
    assert len(page.scatter["bags"]) == 59


def test_the_same_model_gives_the_same_page_and_global_random_state_stays(tmp_path, votes):
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = (Page(write(tmp_path, votes)) for _ in range(2))
    undated = [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "", page.source) for page in (first, second)]
    assert undated[0] == undated[1]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])  # noqa: NPY002


def _of_bag_report(fitted):
    columns, classes = fitted.classifier.bag_report_, fitted.classifier.classes_
    known, predicted = (
        np.stack([columns[f"{kind} {label}"] for label in classes], 1) for kind in ("known", "predicted")
    )
    return known, predicted, columns["held_out"]
