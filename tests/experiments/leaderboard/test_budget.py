import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bagwise.experiments.leaderboard.budget import FORWARD, split_budget


@given(
    budget=st.floats(20, 2000),
    passes_per_epoch=st.sampled_from([1.0, 4 / 3, 2.0, 8 / 3, 3.0]),
    candidates=st.integers(1, 5),
    search_share=st.floats(0, 0.9),
)
def test_a_budget_is_kept_and_used_up_to_less_than_an_epoch(budget, passes_per_epoch, candidates, search_share):
    spending = split_budget(budget, passes_per_epoch, candidates, search_share)
    spent = passes_per_epoch * (spending.candidates * spending.search_epochs + spending.epochs)
    assert spending.passes == pytest.approx(spent)
    assert budget - passes_per_epoch < spending.passes <= budget * (1 + 1e-9)
    if candidates == 1:
        assert spending.search_epochs == 0
    else:
        shortest = passes_per_epoch * candidates  # an epoch each, however small the share
        assert spending.search_epochs >= 1
        assert spending.search_epochs * shortest <= max(search_share * budget, shortest) * (1 + 1e-9)


@pytest.mark.parametrize("passes_per_epoch", [1.0, 4 / 3, 2.0, 3.0])
def test_epochs_are_in_inverse_proportion_to_their_cost(passes_per_epoch):
    assert split_budget(120, passes_per_epoch, 1, 0.3).epochs == round(120 / passes_per_epoch)


def test_thirds_do_not_cost_an_epoch_by_rounding():
    assert split_budget(20, 4 / 3, 1, 0.3).epochs == 15
    assert split_budget(8 * (2 + 2 * FORWARD), 2 + 2 * FORWARD, 1, 0).epochs == 8


@pytest.mark.parametrize(("budget", "candidates"), [(0.5, 1), (3, 3), (0, 1)])
def test_a_budget_that_buys_nothing_is_refused(budget, candidates):
    with pytest.raises(ValueError, match="Raise the budget"):
        split_budget(budget, 1, candidates, 0.3)


def test_the_cost_of_a_forward_pass():
    assert math.isclose(3 * FORWARD, 1)
