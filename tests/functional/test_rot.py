"""ROT against the paper's algorithm, POT, a conic solver and finite differences, and on every edge case."""

import math
import warnings

import cvxpy
import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout
from bagwise.functional.inputs import prepare
from bagwise.functional.rot import solve_rot
from bagwise.functional.rot_problem import Anchor, RotProblem, build_problem, evaluate
from reference import literal
from reference.strategies import bag_problems


def one_bag(n, num_classes, seed=0, scale=1.0, zeros=0):
    rng = np.random.default_rng(seed)
    z = rng.dirichlet(np.ones(num_classes))
    z[:zeros] = 0
    return (
        torch.from_numpy(rng.normal(scale=scale, size=(n, num_classes))),
        torch.zeros(n, dtype=torch.long),
        torch.from_numpy(z / z.sum())[None],
    )


@settings(max_examples=60)
@given(problem=bag_problems(), alpha=st.sampled_from([0.1, 0.5, 0.9]), epsilon=st.sampled_from([0.3, 1.0, 3.0]))
def test_plan_and_value_equal_the_literal_algorithm(problem, alpha, epsilon):
    logits, bag_index, proportions = problem
    plan = BF.apportion(logits, bag_index, proportions, how="rot", alpha=alpha, epsilon=epsilon)
    values = BF.rot(logits, bag_index, proportions, alpha=alpha, epsilon=epsilon, reduction="none")
    for bag, members in enumerate(literal.bags_of(bag_index, len(proportions))):
        z = proportions[bag].numpy()
        expected = literal.rot_plan(logits.numpy()[members], z, alpha, epsilon)
        np.testing.assert_allclose(plan.labels[members], expected, atol=1e-9)
        objective = literal.rot_objective(expected, logits.numpy()[members], z, alpha, epsilon)
        np.testing.assert_allclose(values[bag], objective, atol=1e-10)
    assert plan.converged.all()
    assert (plan.gap >= 0).all()
    assert (plan.gap < 1e-12).all()


@pytest.mark.parametrize(("epsilon", "alpha"), [(1.0, 0.5), (0.1, 0.5), (0.05, 0.3)])
def test_plan_equals_pot(epsilon, alpha):
    n = 40
    logits, bag_index, z = one_bag(n, 6, seed=1, scale=2.0)
    cost = -logits.log_softmax(dim=1).T.numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # POT tells that reg_type="entropy" replaces its reference measure
        expected = ot.unbalanced.sinkhorn_unbalanced(
            z[0].numpy(),
            np.full(n, 1 / n),
            alpha * cost,
            alpha * epsilon,
            (1 - alpha, float("inf")),
            reg_type="entropy",
            numItermax=100_000,
            stopThr=1e-15,
        )
    plan = BF.apportion(logits, bag_index, z, how="rot", alpha=alpha, epsilon=epsilon)
    np.testing.assert_allclose(plan.labels.T / n, expected, atol=1e-11)


@pytest.mark.parametrize(("epsilon", "alpha", "zeros"), [(1.0, 0.5, 0), (0.2, 0.7, 1)])
def test_plan_and_value_equal_a_conic_solver(epsilon, alpha, zeros):
    n, num_classes = 7, 4
    logits, bag_index, z = one_bag(n, num_classes, seed=2, scale=1.5, zeros=zeros)
    cost = -logits.log_softmax(dim=1).numpy()
    used = z[0].numpy() > 0
    plan = cvxpy.Variable((n, int(used.sum())), nonneg=True)
    objective = alpha / n * (cvxpy.sum(cvxpy.multiply(cost[:, used], plan)) - epsilon * cvxpy.sum(cvxpy.entr(plan)))
    objective += (1 - alpha) * cvxpy.sum(cvxpy.kl_div(cvxpy.sum(plan, axis=0) / n, z[0].numpy()[used]))
    problem = cvxpy.Problem(cvxpy.Minimize(objective), [cvxpy.sum(plan, axis=1) == 1])
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    ours = BF.apportion(logits, bag_index, z, how="rot", alpha=alpha, epsilon=epsilon)
    np.testing.assert_allclose(ours.labels[:, used], plan.value, atol=3e-6)
    value = BF.rot(logits, bag_index, z, alpha=alpha, epsilon=epsilon)
    np.testing.assert_allclose(value, problem.value, atol=1e-8)


def test_envelope_equals_unrolled_equals_finite_differences():
    logits, _, _ = one_bag(9, 4, seed=3, scale=2.0)
    bag_index = torch.tensor([0, 0, 1, 1, 1, 0, 2, 1, 0])
    proportions = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(4), size=3))
    logits.requires_grad_()

    def loss(s, **options):
        return BF.rot(s, bag_index, proportions, alpha=0.4, **options)

    envelope, *_ = torch.autograd.grad(loss(logits), logits)
    unrolled, *_ = torch.autograd.grad(loss(logits, gradient="unrolled", iterations=300), logits)
    torch.testing.assert_close(envelope, unrolled, rtol=0, atol=1e-12)
    torch.testing.assert_close(loss(logits), loss(logits, gradient="unrolled", iterations=300))
    assert torch.autograd.gradcheck(loss, logits)
    assert torch.autograd.gradcheck(lambda s: loss(s, gradient="unrolled", iterations=5), logits)


def test_envelope_gradient_is_alpha_over_n_times_prediction_minus_plan():
    logits, bag_index, z = one_bag(5, 3)
    logits.requires_grad_()
    plan = BF.apportion(logits, bag_index, z, alpha=0.3)
    gradient, *_ = torch.autograd.grad(BF.rot(logits, bag_index, z, alpha=0.3), logits)
    torch.testing.assert_close(gradient, 0.3 / 5 * (logits.softmax(dim=1) - plan.labels).detach())


def test_seventy_five_sinkhorn_steps_are_wrong_at_small_epsilon_and_ours_are_not():
    logits, bag_index, z = one_bag(64, 10, seed=4, scale=3.0)
    exact = BF.rot(logits, bag_index, z, epsilon=0.05)
    ours = solve_rot(prepare(logits.float(), bag_index, z.float()), 0.5, 0.05)
    reference = literal.rot_plan(logits.float().double().numpy(), z.float().double().numpy()[0], 0.5, 0.05)
    np.testing.assert_allclose(ours.labels, reference, atol=1e-5)
    hard = BF.rot(logits * 3, bag_index, z, epsilon=0.01)
    paper = BF.rot(logits * 3, bag_index, z, epsilon=0.01, gradient="unrolled")
    assert paper - hard > 1e-4 * abs(hard)  # the primal value of an unfinished plan lies above the optimum
    assert exact.isfinite()


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 64),
    num_classes=st.integers(2, 20),
    alpha=st.floats(0.01, 0.99),
    epsilon=st.floats(0.01, 5),
    scale=st.floats(0, 12),
    zeros=st.integers(0, 3),
)
def test_every_stress_problem_converges(seed, n, num_classes, alpha, epsilon, scale, zeros):
    logits, bag_index, z = one_bag(n, num_classes, seed, scale, min(zeros, num_classes - 1))
    plan = BF.apportion(logits, bag_index, z, how="rot", alpha=alpha, epsilon=epsilon)
    assert plan.converged.all()
    torch.testing.assert_close(plan.labels.sum(dim=1), torch.ones(n, dtype=torch.float64))
    assert (plan.labels[:, z[0] == 0] == 0).all()


def test_many_classes_with_sure_logits_converge_at_small_alpha_and_epsilon():
    for seed in range(4):
        logits, bag_index, z = one_bag(30, 40, seed, scale=300, zeros=12)
        assert BF.apportion(logits, bag_index, z, alpha=0.01, epsilon=0.01).converged.all()


def test_rot_over_alpha_tends_to_the_transport_lp():
    """First alpha, then epsilon go to zero: the proportions become hard, the labels too."""
    logits, bag_index, _ = one_bag(8, 3, seed=5)
    z = torch.tensor([[3 / 8, 4 / 8, 1 / 8]], dtype=torch.float64)
    exact = BF.transport_lp(logits, bag_index, z)
    distances = []
    for epsilon in (1.0, 0.1, 0.01):
        alpha = 1e-6
        distances.append(abs(BF.rot(logits, bag_index, z, alpha=alpha, epsilon=epsilon) / alpha - exact).item())
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 0.01


class TestEdgeCases:
    """The table of edge cases: a literal log-domain Algorithm 1 gives NaN on most of them."""

    @pytest.mark.parametrize("gradient", ["envelope", "unrolled"])
    def test_zero_proportions_and_one_hot_bags_of_one(self, gradient):
        logits = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
        proportions = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]], dtype=torch.float64)
        values = BF.rot(logits, torch.tensor([0, 1]), proportions, alpha=0.3, gradient=gradient, reduction="none")
        cross_entropy = -0.3 * logits[0].log_softmax(dim=0)[1]  # Proposition 2, exactly
        torch.testing.assert_close(values[0], cross_entropy)
        values.sum().backward()
        assert logits.grad.isfinite().all()

    @pytest.mark.parametrize("gradient", ["envelope", "unrolled"])
    @pytest.mark.parametrize("scale", [1e3, 1e4])
    def test_huge_logits(self, gradient, scale):
        logits, bag_index, z = one_bag(6, 4, seed=6, scale=scale)
        logits.requires_grad_()
        loss = BF.rot(logits, bag_index, z, gradient=gradient)
        loss.backward()
        assert loss.isfinite()
        assert logits.grad.isfinite().all()

    @pytest.mark.parametrize("gradient", ["envelope", "unrolled"])
    def test_an_instance_that_rules_out_its_whole_bag_costs_infinity(self, gradient):
        inf = math.inf
        logits = torch.tensor([[-inf, -inf, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
        proportions = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]])
        values = BF.rot(logits, torch.tensor([0, 0, 1]), proportions, gradient=gradient, reduction="none")
        assert values[0] == inf
        assert values[1].isfinite()
        values[1].backward(retain_graph=True)
        values.sum().backward()
        assert not logits.grad.isnan().any()

    @pytest.mark.parametrize("gradient", ["envelope", "unrolled"])
    @pytest.mark.parametrize("z", [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    @pytest.mark.parametrize("instances", [1, 3])
    def test_a_bag_that_rules_out_all_of_its_classes_in_every_instance_costs_infinity(self, gradient, instances, z):
        inf = math.inf
        logits = torch.tensor([[-inf, -inf, 1.0]] * instances + [[0.0, 1.0, 0.0]], requires_grad=True)
        bag_index = torch.tensor([0] * instances + [1])
        proportions = torch.tensor([z, [0.5, 0.5, 0.0]])
        values = BF.rot(logits, bag_index, proportions, gradient=gradient, reduction="none")
        assert values[0] == inf
        assert values[1].isfinite()
        values.sum().backward()
        assert logits.grad.isfinite().all()
        plan = BF.apportion(logits.detach(), bag_index, proportions)
        torch.testing.assert_close(plan.labels[0], proportions[0])
        assert plan.labels.isfinite().all()

    @pytest.mark.parametrize("gradient", ["envelope", "unrolled"])
    def test_an_unknown_bag_may_rule_out_a_class(self, gradient):
        logits = torch.tensor([[-math.inf, 0.0, 0.0], [-math.inf, 1.0, 0.0], [0.0, 1.0, 2.0]], requires_grad=True)
        proportions = torch.tensor([[math.nan] * 3, [0.2, 0.3, 0.5]])
        BF.rot(logits, torch.tensor([0, 0, 1]), proportions, gradient=gradient).backward()
        assert (logits.grad[:2] == 0).all()
        assert logits.grad.isfinite().all()

    def test_a_class_that_no_instance_can_take_costs_what_is_left_of_the_kl(self):
        logits = torch.zeros(4, 3, dtype=torch.float64)
        logits[:, 2] = -torch.inf
        z = torch.tensor([[0.4, 0.4, 0.2]], dtype=torch.float64)
        value = BF.rot(logits, torch.zeros(4, dtype=torch.long), z)
        # U = 1/2, 1/2: <C,U> - H = 0 and KL((.5,.5,0) | z) = log(.5/.4)
        torch.testing.assert_close(value.item(), 0.5 * math.log(0.5 / 0.4))

    def test_alpha_near_one_leaves_the_predictions_on_the_support(self):
        logits, bag_index, z = one_bag(5, 4, zeros=1)
        plan = BF.apportion(logits, bag_index, z, alpha=1 - 1e-9, epsilon=0.5)
        expected = (logits.log_softmax(dim=1) / 0.5)[:, 1:].softmax(dim=1)
        torch.testing.assert_close(plan.labels[:, 1:], expected, rtol=0, atol=1e-7)

    @pytest.mark.parametrize(
        ("alpha", "why"), [(0, "gradient is zero"), (1, "no signal"), (-0.5, "weighs"), (math.nan, "weighs")]
    )
    def test_alpha_outside_the_open_interval_is_refused(self, alpha, why):
        logits, bag_index, z = one_bag(2, 2)
        with pytest.raises(ValueError, match=f"alpha must lie strictly between 0 and 1.*{why}"):
            BF.rot(logits, bag_index, z, alpha=alpha)

    def test_epsilon_zero_points_to_the_exact_losses(self):
        logits, bag_index, z = one_bag(2, 2)
        with pytest.raises(ValueError, match=r"transport_lp.*combinatorial"):
            BF.rot(logits, bag_index, z, epsilon=0)
        with pytest.raises(ValueError, match="positive and finite, but got -1"):
            BF.rot(logits, bag_index, z, epsilon=-1)

    def test_iterations_must_be_positive(self):
        logits, bag_index, z = one_bag(2, 2)
        with pytest.raises(ValueError, match="iterations must be at least 1"):
            BF.rot(logits, bag_index, z, gradient="unrolled", iterations=0)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_logits_get_a_half_precision_gradient_of_the_exact_problem(self, dtype):
        logits, bag_index, z = one_bag(16, 5)
        half = logits.to(dtype).requires_grad_()
        BF.rot(half, bag_index, z).backward()
        same = half.detach().double().requires_grad_()
        BF.rot(same, bag_index, z).backward()
        assert half.grad.dtype == dtype
        torch.testing.assert_close(half.grad.double(), same.grad, rtol=1e-2, atol=1e-3)

    def test_double_backward_is_refused(self):
        logits, bag_index, z = one_bag(4, 3)
        logits.requires_grad_()
        with pytest.raises(RuntimeError, match=r"no second derivative.*unrolled"):
            torch.autograd.grad(BF.rot(logits, bag_index, z), logits, create_graph=True)


@pytest.mark.parametrize("sizes", [[16, 16], [3, 40, 1, 20]], ids=["equal", "ragged"])
@pytest.mark.parametrize(("scale", "epsilon"), [(3.0, 0.1), (3.0, 1.0), (300.0, 1.0)])
def test_solving_without_looking_reaches_the_same_plan(sizes, scale, epsilon, monkeypatch):
    """On a GPU the solver takes a fixed number of steps in the log domain and never asks whether it is done."""
    logits, _, _ = one_bag(sum(sizes), 8, seed=7, scale=scale)
    z = torch.from_numpy(np.random.default_rng(7).dirichlet(np.ones(8), size=len(sizes)))
    z[0, :2] = 0
    inputs = prepare(logits, BagLayout.from_sizes(sizes), z / z.sum(dim=1, keepdim=True))
    usual = solve_rot(inputs, 0.5, epsilon)
    monkeypatch.setattr(RotProblem, "on_cpu", property(lambda _: False))
    blind = solve_rot(inputs, 0.5, epsilon)
    assert usual.converged.all()
    assert blind.converged.all()
    torch.testing.assert_close(blind.labels, usual.labels, rtol=0, atol=1e-9)
    torch.testing.assert_close(blind.values, usual.values, rtol=1e-10, atol=1e-10)


def test_a_far_move_takes_new_exponentials():
    """x + S may lie far beyond what the exponentials at the anchor can hold."""
    logits, bag_index, z = one_bag(12, 4, seed=8)
    layout = prepare(logits, bag_index, z).layout
    cut = layout.cut(4)
    problem = build_problem(cut.split(logits.log_softmax(dim=1)), cut.chunks, layout.sizes, z, 0.5, 1.0, 1e-10)
    anchor = Anchor.at(problem, torch.zeros_like(z))
    for shift in (30.0, 900.0):
        x = shift * torch.tensor([[1.0, -1.0, 0.5, 0.0]], dtype=torch.float64)
        point = evaluate(problem, x, anchor)
        assert (point.anchor is anchor) == (shift < 50)
        expected = (x + logits.log_softmax(dim=1)).softmax(dim=1)
        torch.testing.assert_close(cut.join(point.plan(cut.chunks)), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("sizes", [[4, 4, 4], [2, 9, 4]], ids=["equal", "ragged"])
def test_of_two_points_every_bag_keeps_its_own(sizes):
    logits, _, _ = one_bag(sum(sizes), 3, seed=9)
    layout = BagLayout.from_sizes(sizes)
    cut, z = layout.cut(3), torch.full((3, 3), 1 / 3, dtype=torch.float64)
    problem = build_problem(cut.split(logits.log_softmax(dim=1)), cut.chunks, layout.sizes, z, 0.5, 1.0, 1e-10)
    one, other = torch.from_numpy(np.random.default_rng(9).normal(size=(2, 3, 3)))
    accept = torch.tensor([True, False, True])
    new, old = (evaluate(problem, x, Anchor.at(problem, x)) for x in (one, other))
    point = new.where(cut.chunks, accept, old)
    x = torch.where(accept[:, None], one, other)
    expected = evaluate(problem, x, Anchor.at(problem, x))
    torch.testing.assert_close(point.plan(cut.chunks), expected.plan(cut.chunks))
    torch.testing.assert_close(cut.join(point.plan(cut.chunks)), (x[layout.bag_index] + logits).softmax(dim=1))
    for name in ("mean_plan", "q", "phi"):
        torch.testing.assert_close(getattr(point, name), getattr(expected, name))
    moved = evaluate(problem, x + 0.1, point.anchor)  # from the anchors that were kept
    assert moved.anchor is point.anchor
    torch.testing.assert_close(moved.mean_plan, point.mean_plan)
