"""What new rows hold that was not there at the fit, counted slice by slice."""

import datetime as dt

import polars as pl
import pytest

from bagwise.tables.columns import MAX_CATEGORIES
from bagwise.tables.preprocessing import fit_preprocessing
from bagwise.tables.reading import read_table
from bagwise.tables.surprises import Surprise, Surprises

FITTED = pl.DataFrame(
    {
        "age": [31.0, 45.0, 62.0],
        "gaps": [1.0, None, 3.0],
        "constant": [7, 7, 7],
        "member": [True, False, True],
        "home": ["own", "rent", "own"],
        "joined": [dt.date(2020, 1, 1), dt.date(2021, 7, 4), dt.date(2022, 1, 1)],
        "text": [[0.1, 0.2], [0.5, 0.9], [0.3, -0.4]],
    }
)


def found_in(*frames, fitted=FITTED):
    surprises = Surprises(fit_preprocessing(read_table(fitted)))
    for frame in frames:
        surprises.count(frame)
    return surprises.found()


def test_rows_of_the_fit_are_no_surprise():
    assert found_in(FITTED, FITTED[:1]) == ()


def test_every_kind_of_column_may_lack_values():
    empty = FITTED.with_columns(pl.lit(None).cast(dtype).alias(name) for name, dtype in FITTED.schema.items())
    found = found_in(FITTED, empty)
    # not "gaps", which had some at the fit, nor "constant", which makes no input
    assert found == tuple(Surprise(name, 0, None, 3) for name in ("age", "member", "home", "joined", "text"))
    assert Surprise("gaps", 0, None, 3) in found_in(empty)


def test_nan_is_a_missing_number():
    assert found_in(FITTED.with_columns(age=pl.Series([1.0, float("nan"), None]))) == (Surprise("age", 0, None, 2),)


@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical])
def test_new_categories_over_all_slices(dtype):
    new = FITTED.with_columns(home=pl.Series(["OWN", None, "RENT"], dtype=dtype))
    assert found_in(FITTED, new, new) == (Surprise("home", 4, "OWN", 2),)


def test_a_column_without_a_single_value_has_no_type():
    assert found_in(FITTED.with_columns(home=pl.Series([None] * 3))) == (Surprise("home", 0, None, 3),)


def test_where_rare_categories_share_an_input_only_a_column_of_strangers_counts():
    towns = [f"town {place}" for place in range(MAX_CATEGORIES + 3) for _ in range(2)]
    fitted = pl.DataFrame({"town": towns})
    assert found_in(pl.DataFrame({"town": ["new", "town 0"]}), fitted=fitted) == ()
    shouted = fitted.select(pl.col("town").str.to_uppercase())
    assert found_in(shouted, fitted=fitted) == (Surprise("town", len(towns), "TOWN 0", 0),)
