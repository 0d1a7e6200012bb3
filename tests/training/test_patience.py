"""Stopping early by held-out bags."""

import pytest

from bagwise.training import Recipe, train


class Scripted:
    """Held-out scores from a list, one for each epoch."""

    def __init__(self, *scores):
        self.scores = scores
        self.calls = 0

    def __call__(self, network):
        self.calls += 1
        return {"kl": self.scores[self.calls - 1], "l1": 0.0}


def run(make_bags, make_network, scores, **arguments):
    recipe = Recipe(epochs=8, patience=2, learning_rate=0.01, batch_instances=16)
    return train(
        make_network(), bags=make_bags(), recipe=recipe, held_out=scores, accelerator="cpu", progress=False, **arguments
    )


@pytest.mark.parametrize(
    ("scores", "epochs"),
    [
        ((5, 4, 3, 2, 1, 0, -1, -2), 8),  # always better: all epochs
        ((5, 6, 7), 3),
        ((5, 6, 4, 4, 4), 5),  # as good is not better
        ((5, 6, 4, 5, 3, 9, 9), 7),
    ],
)
def test_it_stops_after_so_many_epochs_without_progress(make_bags, make_network, scores, epochs):
    held_out = Scripted(*scores)
    result = run(make_bags, make_network, held_out)
    assert len(result.history) == epochs == held_out.calls
    assert [entry["held_out"]["kl"] for entry in result.history] == list(scores)


def test_epochs_that_were_not_evaluated_do_not_count(make_bags, make_network):
    result = run(make_bags, make_network, Scripted(5, 6, 7), evaluate_every=2)
    assert len(result.history) == 6


def test_a_stopped_run_stays_stopped_and_has_its_checkpoint(make_bags, make_network, weights, tmp_path):
    first = run(make_bags, make_network, Scripted(5, 6, 7), folder=tmp_path, checkpoint_every=5)
    again = run(make_bags, make_network, Scripted(), folder=tmp_path, checkpoint_every=5)
    assert again.resumed_from == 3
    assert [entry["loss"] for entry in again.history] == [entry["loss"] for entry in first.history]
    assert weights(again.network).equal(weights(first.network))


def test_the_bags_themselves_will_do(make_bags, make_network):
    result = run(make_bags, make_network, make_bags(seed=1))
    assert set(result.history[0]["held_out"]) == {"kl", "l1"}


def test_patience_needs_held_out_bags(make_bags, make_network):
    with pytest.raises(ValueError, match="counted on held-out bags, but there are none"):
        run(make_bags, make_network, None)
    with pytest.raises(ValueError, match="patience must be at least 1"):
        Recipe(patience=0)


def test_a_score_that_is_not_finite_is_no_progress(make_bags, make_network, tmp_path):
    scores = (5, float("nan"), float("nan"))
    assert len(run(make_bags, make_network, Scripted(*scores), folder=tmp_path).history) == 3
    assert run(make_bags, make_network, Scripted(), folder=tmp_path).resumed_from == 3  # from the log, where it is null


def test_patience_needs_a_score_to_count(make_bags, make_network):
    with pytest.raises(ValueError, match=r"a score named 'kl', but held_out returned \['l1'\]"):
        run(make_bags, make_network, lambda _network: {"l1": 0.5})
