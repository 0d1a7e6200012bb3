"""What every loss must do, run over all of them: gradients, invariances, unknown and empty bags, hostile input."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bagwise import functional as BF
from bagwise import losses
from bagwise.bags import BagLayout
from reference.strategies import bag_problems


def easy_llp(logits, bag_index, proportions, **options):
    prior = torch.arange(1.0, logits.shape[1] + 1)
    return BF.easy_llp(logits, bag_index, proportions, prior=prior / prior.sum(), **options)


LOSSES = {
    "bag_kl": (BF.bag_kl, {}),
    "avg_kl": (BF.avg_kl, {}),
    "l1": (BF.proportion_loss, {"divergence": "l1"}),
    "l2": (BF.proportion_loss, {"divergence": "l2"}),
    "rot": (BF.rot, {"alpha": 0.3}),
    "rot-sharp": (BF.rot, {"alpha": 0.6, "epsilon": 0.1}),
    "rot-unrolled": (BF.rot, {"gradient": "unrolled", "iterations": 10}),
    "transport_lp": (BF.transport_lp, {}),
    "transport_lp-rounded": (BF.transport_lp, {"marginals": "rounded"}),
    "combinatorial-kl": (BF.combinatorial, {}),
    "combinatorial-l1": (BF.combinatorial, {"divergence": "l1", "alpha": 0.3}),
    "combinatorial-l2": (BF.combinatorial, {"divergence": "l2", "alpha": 0.2}),
    "easy_llp": (easy_llp, {}),
    "easy_llp-plain": (easy_llp, {"correction": "none"}),
    "debiased_squares": (BF.debiased_squares, {}),
    "count_likelihood": (BF.count_likelihood, {}),
    "moment_matching": (BF.moment_matching, {}),
    "forward_correction": (BF.forward_correction, {}),
}
MODULES = {
    "bag_kl": losses.BagKLLoss(),
    "avg_kl": losses.AvgKLLoss(),
    "l1": losses.ProportionLoss("l1"),
    "rot": losses.ROTLoss(alpha=0.3),
    "transport_lp-rounded": losses.TransportLPLoss(marginals="rounded"),
    "combinatorial-l1": losses.CombinatorialLoss(alpha=0.3, divergence="l1"),
    "easy_llp": losses.EasyLLPLoss(prior=torch.tensor([1 / 6, 2 / 6, 3 / 6])),
    "debiased_squares": losses.DebiasedSquaresLoss(),
    "count_likelihood": losses.CountLikelihoodLoss(),
    "moment_matching": losses.MomentMatchingLoss(),
    "forward_correction": losses.ForwardCorrectionLoss(),
}
# what one instance with a known label gives, as a multiple of its cross-entropy
CROSS_ENTROPY_WEIGHT = {
    "bag_kl": 1.0,
    "avg_kl": 1.0,
    "rot": 0.3,
    "rot-sharp": 0.6,
    "rot-unrolled": 0.5,
    "transport_lp": 1.0,
    "transport_lp-rounded": 1.0,
    "combinatorial-kl": 0.5,
    "easy_llp": 1.0,
    "easy_llp-plain": 1.0,
    "moment_matching": 1.0,
}
every_loss = pytest.mark.parametrize("name", LOSSES)
# these two compare the bags of a batch with each other
one_bag_loss = pytest.mark.parametrize(
    "name", [name for name in LOSSES if name not in ("debiased_squares", "forward_correction")]
)


def compute(name, logits, bag_index, proportions, reduction="none"):
    loss, options = LOSSES[name]
    return loss(logits, bag_index, proportions, reduction=reduction, **options)


@every_loss
@settings(max_examples=25)
@given(problem=bag_problems(), seed=st.integers(0, 2**32 - 1))
def test_the_order_of_instances_and_bags_does_not_matter(name, problem, seed):
    logits, bag_index, proportions = problem
    generator = torch.Generator().manual_seed(seed)
    values = compute(name, logits, bag_index, proportions)
    instances = torch.randperm(len(logits), generator=generator)
    torch.testing.assert_close(compute(name, logits[instances], bag_index[instances], proportions), values)
    bags = torch.randperm(len(proportions), generator=generator)
    renumbered = torch.argsort(bags)[bag_index]
    torch.testing.assert_close(compute(name, logits, renumbered, proportions[bags]), values[bags])


@one_bag_loss
@settings(max_examples=25)
@given(problem=bag_problems())
def test_each_bag_stands_alone(name, problem):
    logits, bag_index, proportions = problem
    together = compute(name, logits, bag_index, proportions)
    for bag in range(len(proportions)):
        members = bag_index == bag
        alone = compute(name, logits[members], torch.zeros(int(members.sum()), dtype=torch.long), proportions[[bag]])
        torch.testing.assert_close(together[[bag]], alone)


@every_loss
@settings(max_examples=25)
@given(problem=bag_problems(), shift=st.floats(-50, 50))
def test_a_constant_added_to_an_instance_changes_nothing(name, problem, shift):
    logits, bag_index, proportions = problem
    values = compute(name, logits, bag_index, proportions)
    moved = logits.clone()
    moved[0] += shift
    torch.testing.assert_close(compute(name, moved, bag_index, proportions), values)


@pytest.mark.parametrize("name", CROSS_ENTROPY_WEIGHT)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), num_classes=st.integers(2, 6))
def test_bags_of_one_give_cross_entropy(name, seed, num_classes):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(5, num_classes, dtype=torch.float64, generator=generator)
    labels = torch.randint(num_classes, (5,), generator=generator)
    proportions = torch.nn.functional.one_hot(labels, num_classes).double()
    values = compute(name, logits, torch.arange(5), proportions)
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(values, CROSS_ENTROPY_WEIGHT[name] * expected)


@every_loss
@settings(max_examples=8)
@given(problem=bag_problems(max_bags=3, max_size=4, max_classes=4))
def test_gradcheck(name, problem):
    logits, bag_index, proportions = problem
    if name in ("l1", "easy_llp", "transport_lp", "transport_lp-rounded") or name.startswith("combinatorial"):
        # piecewise smooth: stay away from a kink, where a small step changes the plan or a sign
        step = 1e-4
        generator = torch.Generator().manual_seed(0)
        near = [logits + step * torch.randn(logits.shape, dtype=torch.float64, generator=generator) for _ in range(3)]
        gradients = [slope(name, point, bag_index, proportions) for point in [logits, *near]]
        assume(all((g - gradients[0]).abs().max() < 50 * step for g in gradients))
    logits = logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: compute(name, s, bag_index, proportions), logits, eps=1e-6, atol=1e-6)


def slope(name, logits, bag_index, proportions):
    logits = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(compute(name, logits, bag_index, proportions, "sum"), logits)
    return gradient


@every_loss
def test_reductions(name):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(9, 3, generator=generator)
    bag_index = torch.tensor([0, 0, 1, 1, 1, 3, 3, 3, 3])  # bag 2 is empty
    proportions = torch.tensor([[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3], [1.0, 0.0, 0.0], [0.25, 0.25, 0.5]])
    values = compute(name, logits, bag_index, proportions)
    assert values.shape == (4,)
    assert values[2] == 0  # the empty bag
    torch.testing.assert_close(compute(name, logits, bag_index, proportions, "sum"), values.sum())
    torch.testing.assert_close(compute(name, logits, bag_index, proportions, "mean"), values.sum() / 3)
    with pytest.raises(ValueError, match=r"reduction must be one of .* Did you mean 'mean'?"):
        compute(name, logits, bag_index, proportions, "meen")


@every_loss
def test_an_unknown_bag_gives_no_loss_and_poisons_nothing(name):
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(6, 3, generator=generator, requires_grad=True)
    bag_index = torch.tensor([0, 1, 2, 0, 1, 2])
    known = torch.tensor([[0.5, 0.0, 0.5], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    proportions = known.clone()
    proportions[1] = math.nan
    loss = compute(name, logits, bag_index, proportions, "mean")
    (gradient,) = torch.autograd.grad(loss, logits)
    others = torch.tensor([0, 2, 3, 5])
    alone = compute(name, logits[others], torch.tensor([0, 1, 0, 1]), known[[0, 2]], "mean")
    torch.testing.assert_close(loss, alone)
    assert (gradient[bag_index == 1] == 0).all()
    assert gradient.isfinite().all()
    nothing_known = torch.full_like(known, math.nan)
    assert compute(name, logits, bag_index, nothing_known, "mean") == 0


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_logits(name, dtype):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(12, 4, generator=generator).to(dtype).requires_grad_()
    bag_index = torch.arange(3).repeat_interleave(4)
    proportions = torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.25, 0.25]])
    values = compute(name, logits, bag_index, proportions)
    exact = compute(name, logits.detach().double(), bag_index, proportions.double())
    assert values.dtype == torch.float32
    torch.testing.assert_close(values.double(), exact, rtol=1e-5, atol=1e-5)
    values.sum().backward()
    assert logits.grad.dtype == dtype
    assert logits.grad.isfinite().all()


@every_loss
@pytest.mark.parametrize("sizes", [[4, 4], [3, 5]])
def test_huge_logits_stay_finite(name, sizes):
    generator = torch.Generator().manual_seed(4)
    logits = 1e4 * torch.randn(8, 3, generator=generator).sign()
    logits.requires_grad_()
    layout = BagLayout.from_sizes(sizes)
    proportions = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    values = compute(name, logits, layout, proportions)
    values.sum().backward()
    assert values.isfinite().all()
    assert logits.grad.isfinite().all()


@every_loss
def test_a_layout_gives_the_same_as_the_index_it_was_built_from(name):
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(7, 3, dtype=torch.float64, generator=generator)
    bag_index = torch.tensor([1, 0, 1, 2, 1, 0, 2])
    proportions = torch.tensor([[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.0, 0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(
        compute(name, logits, bag_index, proportions),
        compute(name, logits, BagLayout.from_index(bag_index), proportions),
        rtol=0,
        atol=0,
    )


@every_loss
def test_the_loss_has_the_type_of_the_logits_whatever_torchs_default_is(name):
    torch.set_default_dtype(torch.float64)
    try:
        logits, proportions = torch.zeros(2, 3, dtype=torch.float32), torch.tensor([[0.2, 0.3, 0.5]])
        assert compute(name, logits, torch.tensor([0, 0]), proportions, "mean").dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@every_loss
def test_no_bags_at_all(name):
    logits = torch.zeros(0, 3, requires_grad=True)
    loss = compute(name, logits, torch.zeros(0, dtype=torch.long), torch.zeros(0, 3), "mean")
    assert loss == 0


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_the_functions(name):
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(6, 3, generator=generator)
    bag_index = torch.tensor([0, 0, 1, 1, 1, 1])
    proportions = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])
    torch.testing.assert_close(
        MODULES[name](logits, bag_index, proportions), compute(name, logits, bag_index, proportions, "mean")
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: losses.BagKLLoss(reduction="avg"), "reduction must be one of"),
        (lambda: losses.ProportionLoss("ell1"), "Did you mean 'l1'?"),
        (lambda: losses.ROTLoss(alpha=2), "alpha must lie"),
        (lambda: losses.ROTLoss(gradient="unroled"), "Did you mean 'unrolled'?"),
        (lambda: losses.TransportLPLoss(marginals="round"), "Did you mean 'rounded'?"),
        (lambda: losses.CombinatorialLoss(divergence="KL"), "Did you mean 'kl'?"),
        (lambda: losses.EasyLLPLoss(torch.ones(2) / 2, correction="abs"), "correction must be one of"),
    ],
)
def test_modules_refuse_bad_options_when_built(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("name", ["bag_kl", "noisy_bag_kl"])
def test_nan_logits_give_nan_and_not_a_number(name):
    """An infinite loss would blame the proportions, a finite one nobody."""
    logits = torch.zeros(4, 3)
    logits[0, 0] = torch.nan
    arguments = logits, torch.tensor([0, 0, 1, 1]), torch.full((2, 3), 1 / 3)
    noise = (BF.ProportionNoise("laplace", 1.0),) if name == "noisy_bag_kl" else ()
    values = getattr(BF, name)(*arguments, *noise, reduction="none")
    assert values[0].isnan()
    assert values[1].isfinite()
