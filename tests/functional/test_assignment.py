"""The solver behind the exact losses: its certificate, its start and its count costs."""

import itertools

import numpy as np
import pytest
import torch

from bagwise.functional.assignment import cancel_cycles, is_optimal, solve_assignment
from bagwise.functional.assignment_problem import AssignmentProblem
from bagwise.functional.count_costs import ExactCounts, KLCounts, L1Counts, L2Counts
from bagwise.functional.prices import priced_labels
from reference import brute_force

KINDS = {"exact": ExactCounts, "kl": KLCounts, "l1": L1Counts, "l2": L2Counts}


def random_problem(kind, bags, n, num_classes, seed=0, ties=False, inside=None):
    rng = np.random.default_rng(seed)
    shape = (bags, num_classes, n)
    logits = rng.integers(0, 3, shape).astype(float) if ties else rng.normal(scale=2, size=shape)
    cost = -torch.from_numpy(logits).log_softmax(dim=1)
    sizes = np.full(bags, n) if inside is None else inside.sum(dim=1).numpy()
    z = rng.dirichlet(np.ones(num_classes), size=bags)
    target = np.stack([rng.multinomial(size, p) for size, p in zip(sizes, z, strict=True)])
    size = torch.from_numpy(sizes.astype(float))[:, None]
    mu = torch.from_numpy(target.astype(float)) if kind == "exact" else size * torch.from_numpy(z)
    count_cost = ExactCounts(mu, size) if kind == "exact" else KINDS[kind](mu, size, 0.7)
    return AssignmentProblem.build(cost, inside, count_cost)


def objective(problem, labels, bag=0):
    """sum_j C + sum_k G_k as the module's table has it, in plain numbers; infinite where counts must be exact."""
    cost, mu = problem.cost[bag].T.numpy(), problem.count_cost.target[bag].numpy()
    n, rho = len(labels), problem.count_cost.weight
    counts = np.bincount(labels, minlength=len(mu))
    total = brute_force.labeling_cost(cost, labels)
    if isinstance(problem.count_cost, ExactCounts):
        return total if (counts == mu).all() else np.inf
    name = next(name for name, kind in KINDS.items() if isinstance(problem.count_cost, kind))
    return total + n * rho * brute_force.divergence(counts, mu / n, name)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_certificate_holds_for_the_optimal_labelings_and_no_other(kind, ties):
    for seed in range(4):
        problem = random_problem(kind, 1, 5, 3, seed=seed, ties=ties)
        labelings = list(brute_force.all_labelings(5, 3))
        values = np.array([objective(problem, labels) for labels in labelings])
        many = problem.select(torch.zeros(len(labelings), dtype=torch.long))
        proved = is_optimal(many, torch.tensor(labelings)).numpy()
        np.testing.assert_array_equal(proved, values <= values.min() + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_cancelling_from_any_start_ends_at_the_optimum(kind):
    problem = random_problem(kind, 30, 6, 3, seed=1)
    start = torch.randint(3, (30, 6), generator=torch.Generator().manual_seed(0))
    result = cancel_cycles(problem, start, torch.zeros(30, 3, dtype=torch.float64))
    assert result.optimal.all()
    assert result.rounds.max() > 0
    for bag in range(30):
        best = min(objective(problem, labels, bag) for labels in brute_force.all_labelings(6, 3))
        assert objective(problem, result.labels[bag].tolist(), bag) == pytest.approx(best, abs=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_worse_labeling_loses_its_certificate(kind):
    problem = random_problem(kind, 1, 80, 6)
    labels = solve_assignment(problem).labels
    assert is_optimal(problem, labels).all()
    for first, second in itertools.pairwise(range(0, 80, 7)):
        worse = labels.clone()
        worse[0, first], worse[0, second] = labels[0, second], labels[0, first]
        if labels[0, first] != labels[0, second]:
            assert not is_optimal(problem, worse).any()


@pytest.mark.parametrize("kind", KINDS)
def test_prices_leave_almost_nothing_to_cancel(kind):
    problem = random_problem(kind, 4, 500, 8)
    result = solve_assignment(problem)
    assert result.optimal.all()
    assert result.rounds.max() <= 5
    unpriced = cancel_cycles(problem, problem.cost.argmin(dim=1), torch.zeros(4, 8, dtype=torch.float64))
    assert unpriced.rounds.min() > 10
    np.testing.assert_allclose(*(_total(problem, r.labels) for r in (result, unpriced)), rtol=1e-12)


def _total(problem, labels):
    return [objective(problem, labels[bag].tolist(), bag) for bag in range(len(labels))]


@pytest.mark.parametrize("logits", ["equal rows", "few distinct rows", "nearly equal rows", "heavy tails", "huge"])
@pytest.mark.parametrize("kind", KINDS)
def test_prices_cope_with(kind, logits):
    rng = np.random.default_rng(0)
    n, num_classes = 400, 6
    scores = {
        "equal rows": lambda: np.tile(rng.normal(size=(2, num_classes, 1)), (1, 1, n)),
        "few distinct rows": lambda: rng.normal(size=(2, num_classes, 9))[:, :, rng.integers(9, size=n)],
        "nearly equal rows": lambda: rng.normal(size=(2, num_classes, 1)) + 1e-4 * rng.normal(size=(2, num_classes, n)),
        "heavy tails": lambda: rng.standard_cauchy((2, num_classes, n)),
        "huge": lambda: 1e4 * rng.normal(size=(2, num_classes, n)),
    }[logits]()
    like = random_problem(kind, 2, n, num_classes)
    problem = AssignmentProblem.build(-torch.from_numpy(scores).log_softmax(dim=1), None, like.count_cost)
    result = solve_assignment(problem)
    assert result.optimal.all()
    assert result.rounds.max() < 60  # without the tie-break it is hundreds


@pytest.mark.parametrize("kind", KINDS)
def test_prices_do_not_count_the_padding(kind):
    inside = torch.arange(600) < torch.tensor([[600], [200], [90]])
    result = solve_assignment(random_problem(kind, 3, 600, 5, inside=inside))
    assert result.optimal.all()
    assert result.rounds.max() <= 5


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind):
    inside = torch.arange(30) < torch.tensor([[30], [17], [1]])
    padded = random_problem(kind, 3, 30, 4, inside=inside)
    result = solve_assignment(padded)
    assert result.optimal.all()
    for bag, size in enumerate([30, 17, 1]):
        cost_of = padded.count_cost.select(torch.tensor([bag]))
        alone = AssignmentProblem.build(padded.cost[bag : bag + 1, :, :size], None, cost_of)
        mine, theirs = result.labels[bag, :size].tolist(), solve_assignment(alone).labels[0].tolist()
        assert objective(alone, mine) == pytest.approx(objective(alone, theirs), abs=1e-10)


@pytest.mark.parametrize("kind", ["kl", "l1", "l2"])
def test_increments_are_differences_of_the_divergence(kind):
    n, mu, rho = 50, torch.tensor([[0.0, 3.25, 20.0, 26.75]], dtype=torch.float64), 0.7
    count_cost = KINDS[kind](mu, torch.full((1, 1), float(n), dtype=torch.float64), rho)
    for c in range(n):
        increment = count_cost.increment(torch.full((1, 4), float(c), dtype=torch.float64))[0]
        for k in range(4):
            z_k = mu[0, k].item() / n
            if kind == "kl" and z_k == 0:
                assert increment[k] == torch.inf
                continue
            before, after = (brute_force.one_class(x / n, z_k, kind) for x in (c, c + 1))
            assert increment[k].item() == pytest.approx(n * rho * (after - before), abs=1e-12)


@pytest.mark.parametrize("kind", ["kl", "l2"])
def test_slope_of_the_supply_is_its_derivative(kind):
    count_cost = random_problem(kind, 2, 40, 5).count_cost
    prices = torch.linspace(-0.1, 0.1, 10, dtype=torch.float64).view(2, 5)
    _, slope = count_cost.supply(prices, prices)
    jacobian = torch.autograd.functional.jacobian(lambda p: count_cost.supply(p, p)[0].sum(dim=0), prices)
    torch.testing.assert_close(slope, jacobian.transpose(0, 1))


def test_supply_of_kl_meets_its_slope_of_cost():
    count_cost = random_problem("kl", 1, 1000, 4).count_cost
    prices = torch.tensor([[0.3, -0.2, 0.1, 0.0]], dtype=torch.float64)
    counts, _ = count_cost.supply(prices, prices)
    marginal = count_cost.increment(counts - 0.5)  # between c - 1/2 and c + 1/2
    offset = marginal - prices
    assert counts.sum().item() == pytest.approx(1000)
    assert (offset.max() - offset.min()).item() < 1e-5


def test_same_answer_twice_and_global_random_state_untouched():
    problem = random_problem("kl", 3, 200, 5, ties=True)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, second = priced_labels(problem), priced_labels(problem)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.labels, second.labels)
