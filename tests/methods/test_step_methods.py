"""Methods that run the network: each against a literal loop, and one suite for all of them."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from bagwise import functional as BF
from bagwise.bags import BagLayout
from bagwise.functional.inputs import prepare
from bagwise.methods import METHODS, StepMethod, get_method
from bagwise.methods.mixbag import draw_mixture
from reference import step_methods as reference

STEP_METHODS = [name for name in METHODS if isinstance(get_method(name), StepMethod)]
TWO_VIEWS = [name for name in STEP_METHODS if get_method(name).needs_strong_view]
every_step_method = pytest.mark.parametrize("name", STEP_METHODS)
every_two_view_method = pytest.mark.parametrize("name", TWO_VIEWS)

SIZES = (3, 5, 2, 4)


def problem(seed=0, scale=2.0, sizes=SIZES):
    """Instances that are their own logits, a strong view, bags in any order and whole counts; float64."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    index = index[torch.randperm(len(index), generator=generator)]
    weak, strong = scale * torch.randn(2, len(index), 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (len(index),), generator=generator)
    one_hot = torch.eye(3, dtype=torch.float64)[labels]
    counts = torch.zeros(len(sizes), 3, dtype=torch.float64).index_add_(0, index, one_hot)
    return weak, strong, index, counts / counts.sum(dim=1, keepdim=True)


def bag_by_bag(weak, strong, index, proportions):
    return [
        (weak[index == bag].numpy(), strong[index == bag].numpy(), proportions[bag].numpy())
        for bag in range(len(proportions))
    ]


def losses_of(method, step):
    return method.bag_losses(step).detach().numpy()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("method", "literal"),
    [
        (get_method("fixmatch", threshold=0.8, weight=0.7), lambda *bag: reference.fixmatch(*bag, 0.8, 0.7)),
        (
            get_method("ahil", weight=0.7, beta_instance=2.0, beta_bag=3.0),
            lambda *bag: reference.ahil(*bag, 2.0, 3.0, 0.7),
        ),
        (get_method("llp-dc", threshold=0.4, weight=0.7), lambda *bag: reference.llp_dc(*bag, 0.4, 0.7)),
    ],
    ids=["fixmatch", "ahil", "llp-dc"],
)
def test_two_views_are_the_literal_loop(make_step, method, literal, seed):
    weak, strong, index, proportions = problem(seed)
    step = make_step(method, nn.Identity(), weak, index, proportions, strong=strong)
    expected = [literal(*bag) for bag in bag_by_bag(weak, strong, index, proportions)]
    np.testing.assert_allclose(losses_of(method, step), expected, rtol=1e-10)


def test_softmatch_is_the_literal_loop_over_many_steps(make_step):
    method = get_method("softmatch", momentum=0.7, sharpness=1.5, weight=0.6)
    state = {name: tensor.double() for name, tensor in method.initial_state(3).items()}
    problems = [problem(seed) for seed in range(6)]
    got = [
        losses_of(method, make_step(method, nn.Identity(), weak, index, z, strong=strong, state=state))
        for weak, strong, index, z in problems
    ]
    expected = reference.softmatch([bag_by_bag(*given) for given in problems], 3, 0.7, 1.5, 0.6)
    np.testing.assert_allclose(got, expected, rtol=1e-6)  # the state starts in single precision


@pytest.mark.parametrize("progress", [0.0, 0.1, 0.4, 0.9])
def test_llp_vat_is_the_literal_loop(make_step, progress):
    generator = torch.Generator().manual_seed(3)
    network = nn.Linear(4, 3).double()
    instances = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    proportions = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    method = get_method("llp-vat", weight=2.0, length=0.3, probe=1e-6, ramp=0.4)
    step = make_step(method, network, instances, torch.zeros(6).long(), proportions, progress=progress, seed=8)
    noise = torch.randn(6, 4, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    ramp = 2.0 * np.exp(-5 * (1 - min(progress / 0.4, 1)) ** 2)
    given = (tensor.detach().numpy() for tensor in (instances, proportions[0], network.weight, network.bias, noise))
    expected = reference.llp_vat(*given, 0.3, ramp)
    np.testing.assert_allclose(losses_of(method, step), [expected], rtol=1e-5)


@pytest.mark.parametrize("confidence", [0.5, 0.99])
@pytest.mark.parametrize("seed", range(5))
def test_mixbag_is_the_literal_loop(make_step, seed, confidence):
    logits, _, index, proportions = problem(seed, sizes=(6, 1, 8, 5, 7))
    method = get_method("mixbag", chance=0.8, confidence=confidence)
    step = make_step(method, nn.Identity(), logits, index, proportions, seed=seed)
    inputs = prepare(logits, step.batch.layout, proportions)
    mixture = draw_mixture(inputs, 0.8, torch.Generator().manual_seed(seed))
    expected = []
    for bag in range(5):
        partner = int(mixture.partner[bag])
        own, got = logits[(index == bag) & mixture.own], logits[(index == partner) & mixture.lent]
        if mixture.mixed[bag]:
            both = own.numpy(), proportions[bag].numpy(), got.numpy(), proportions[partner].numpy()
            expected.append(reference.mixbag(*both, confidence))
        else:
            expected.append(reference.bag_kl(logits[index == bag].numpy(), proportions[bag].numpy()))
    assert mixture.mixed.any()
    np.testing.assert_allclose(losses_of(method, step), expected, rtol=1e-10)


@pytest.mark.parametrize("seed", range(20))
def test_a_mixture_takes_shares_of_two_bags(seed):
    sizes = (10, 10, 10, 1, 4)
    logits, _, index, proportions = problem(seed, sizes=sizes)
    proportions[1] = torch.nan
    inputs = prepare(logits, BagLayout.from_index(index), proportions)
    mixture = draw_mixture(inputs, 1.0, torch.Generator().manual_seed(seed))
    assert sorted(mixture.partner.tolist()) == list(range(5))
    assert (mixture.partner != torch.arange(5)).all()
    own = torch.zeros(5).index_add_(0, index, mixture.own.float())
    lent = torch.zeros(5).index_add_(0, index, mixture.lent.float())
    assert torch.equal(own.double(), mixture.kept)
    assert torch.equal(lent[mixture.partner].double(), mixture.got)
    for bag in range(5):
        partner = int(mixture.partner[bag])
        # neither an unknown bag is mixed, nor another with it
        assert bool(mixture.mixed[bag]) == (1 not in (bag, partner))
        if not mixture.mixed[bag]:
            assert (own[bag], lent[partner]) == (sizes[bag], 0)
        elif sizes[bag] == sizes[partner] == 10:
            assert own[bag] + lent[partner] in (10, 11)  # 11: one of each at least
        assert own[bag] >= 1


def test_every_instance_is_taken_as_often_as_the_others():
    logits, _, index, proportions = problem(sizes=(8, 8))
    inputs = prepare(logits, BagLayout.from_index(index), proportions)
    generator = torch.Generator().manual_seed(0)
    taken = torch.zeros(16)
    for _ in range(600):
        mixture = draw_mixture(inputs, 1.0, generator)
        taken += mixture.own + mixture.lent.float()
    assert (taken / 600 - 1).abs().max() < 0.15  # own and lent share the bag out


def test_a_mixed_class_within_the_interval_gives_no_gradient(make_step):
    index = torch.arange(200) // 100
    proportions = torch.tensor([[0.6, 0.4], [0.5, 0.5]])
    logits = proportions.log()[index].requires_grad_()  # right on average
    sure = (10 * torch.eye(2)[torch.zeros(200).long()]).requires_grad_()  # far from right
    for given, moved in ((logits, False), (sure, True)):
        method = get_method("mixbag", chance=1.0)
        method.bag_losses(make_step(method, nn.Identity(), given, index, proportions)).sum().backward()
        assert bool((given.grad != 0).any()) is moved


def test_a_bag_alone_and_bags_never_mixed_have_the_loss_of_their_proportions(make_step):
    logits, _, index, proportions = problem()
    never, always = get_method("mixbag", chance=0.0), get_method("mixbag", chance=1.0)
    expected = BF.bag_kl(logits, index, proportions, reduction="none")
    torch.testing.assert_close(never.bag_losses(make_step(never, nn.Identity(), logits, index, proportions)), expected)
    alone = make_step(always, nn.Identity(), logits[index == 1], torch.zeros(5).long(), proportions[[1]])
    torch.testing.assert_close(always.bag_losses(alone), expected[[1]])


# ---- one suite for all


def perceptron(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()


@pytest.mark.parametrize("scale", [1.0, 1e4])
@every_step_method
def test_values_and_gradients_are_finite(make_step, name, scale):
    weak, strong, index, proportions = problem(scale=1.0)
    network, method = perceptron(), get_method(name)
    with torch.no_grad():
        network[-1].weight.mul_(scale)
    losses = method.bag_losses(make_step(method, network, weak, index, proportions, strong=strong))
    losses.sum().backward()
    gradients = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
    assert losses.shape == (4,)
    assert losses.isfinite().all()
    assert gradients.isfinite().all()
    if scale == 1:
        assert gradients.abs().sum() > 0


@every_step_method
def test_unknown_bags_give_no_loss_and_no_gradient(make_step, name):
    weak, strong, index, proportions = problem()
    proportions[1] = torch.nan
    weak, strong = weak.requires_grad_(), strong.requires_grad_()
    method = get_method(name)
    losses = method.bag_losses(make_step(method, nn.Identity(), weak, index, proportions, strong=strong))
    losses.sum().backward()
    assert losses[1] == 0
    for view in (weak, strong):
        if view.grad is not None:
            assert view.grad.isfinite().all()
            assert (view.grad[index == 1] == 0).all()


@every_two_view_method
def test_an_unknown_bag_changes_nothing_for_the_others(make_step, name):
    """So a process without a bag may be given one with hidden proportions."""
    weak, strong, index, proportions = problem()
    proportions[1] = torch.nan
    method, known = get_method(name), index != 1
    together = losses_of(method, make_step(method, nn.Identity(), weak, index, proportions, strong=strong))
    others = torch.tensor([0, -1, 1, 2])[index[known]], proportions[[0, 2, 3]]
    apart = losses_of(method, make_step(method, nn.Identity(), weak[known], *others, strong=strong[known]))
    np.testing.assert_allclose(together[[0, 2, 3]], apart, rtol=1e-6)


@every_two_view_method
def test_the_order_of_instances_does_not_matter(make_step, name):
    weak, strong, index, proportions = problem()
    order = torch.randperm(len(index), generator=torch.Generator().manual_seed(1))
    method = get_method(name)
    first = losses_of(method, make_step(method, nn.Identity(), weak, index, proportions, strong=strong))
    shuffled = make_step(method, nn.Identity(), weak[order], index[order], proportions, strong=strong[order])
    np.testing.assert_allclose(losses_of(method, shuffled), first, rtol=1e-6)


@every_step_method
def test_a_bag_of_one_is_supervision(make_step, name):
    """Without its second term, or without a mixture, every one of them is the loss of the proportions."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    method = get_method(name, **({"chance": 0.0} if name == "mixbag" else {"weight": 0.0}))
    one_hot = torch.eye(3, dtype=torch.float64)[labels]
    step = make_step(method, nn.Identity(), logits, torch.arange(6), one_hot, strong=logits)
    torch.testing.assert_close(method.bag_losses(step), nn.functional.cross_entropy(logits, labels, reduction="none"))


@every_two_view_method
def test_no_gradient_flows_through_the_labels(make_step, name):
    weak, strong, index, proportions = problem()
    weak = weak.requires_grad_()
    method = get_method(name)
    method.bag_losses(make_step(method, nn.Identity(), weak, index, proportions, strong=strong)).sum().backward()
    alone = weak.detach().clone().requires_grad_()
    BF.bag_kl(alone, index, proportions, reduction="sum").backward()
    torch.testing.assert_close(weak.grad, alone.grad)


@every_step_method
def test_the_generator_decides_and_nothing_else(make_step, name):
    weak, strong, index, proportions = problem()
    network, method = perceptron(), get_method(name)

    def losses(seed):
        given = {"strong": strong, "seed": seed}
        return losses_of(method, make_step(method, network, weak, index, proportions, **given))

    before = torch.get_rng_state()
    np.testing.assert_array_equal(losses(1), losses(1))
    drawn = {losses(seed).tobytes() for seed in range(5)}
    assert (len(drawn) > 1) is (name in ("mixbag", "llp-vat"))
    assert torch.equal(before, torch.get_rng_state())


def test_a_search_leaves_batch_norm_alone(make_step):
    weak, _, index, proportions = problem()
    network, method = perceptron(), get_method("llp-vat")
    network.append(nn.Dropout(0.5))
    seen = []
    network.register_forward_hook(lambda _m, inputs, _o: seen.append(len(inputs[0])))
    before = network[1].running_mean.clone()
    method.bag_losses(make_step(method, network, weak, index, proportions)).sum().backward()
    assert seen == [14, 14, 28]  # two passes of the search, one that trains
    assert network[1].num_batches_tracked == 1
    assert network[1].track_running_stats
    assert network[-1].training
    assert not torch.equal(before, network[1].running_mean)


def test_a_search_is_not_misled_by_dropout(make_step):
    weak = problem()[0]
    plain, method = perceptron(), get_method("llp-vat")
    dropping = nn.Sequential(*plain[:3], nn.Dropout(0.5), plain[3])
    found = [method._worst_direction(network, weak, torch.Generator().manual_seed(0)) for network in (plain, dropping)]
    torch.testing.assert_close(*found)


def test_the_worst_direction_is_worse_than_any(make_step):
    generator = torch.Generator().manual_seed(0)
    instances = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    network = perceptron().eval()
    proportions = torch.full((1, 3), 1 / 3, dtype=torch.float64)
    method = get_method("llp-vat", weight=1.0, length=0.05)
    step = make_step(method, network, instances, torch.zeros(50).long(), proportions)
    logits = network(instances).detach()
    worst = losses_of(method, step)[0] - float(BF.bag_kl(logits, torch.zeros(50).long(), proportions))
    here = logits.log_softmax(dim=1)
    for _ in range(20):
        noise = torch.randn(50, 3, generator=generator, dtype=torch.float64)
        shift = 0.05 * noise / noise.square().mean(dim=1, keepdim=True).sqrt()
        there = network(instances + shift).log_softmax(dim=1)
        assert (here.exp() * (here - there)).sum(dim=1).mean() < worst


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: get_method("fixmatch", threshold=1.0), "threshold must be at least 0 and less than 1"),
        (lambda: get_method("softmatch", momentum=1.0), "momentum must be at least 0 and less than 1"),
        (lambda: get_method("ahil", beta_bag=0), "beta_bag must be positive"),
        (lambda: get_method("mixbag", chance=2), "chance must lie between 0 and 1"),
        (lambda: get_method("llp-vat", ramp=-1), "ramp must be at least 0"),
    ],
)
def test_what_is_wrong_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_inputs_that_cannot_be_shifted_are_refused(make_step):
    method = get_method("llp-vat")
    whole = torch.ones(4, 3, dtype=torch.long)
    step = make_step(method, nn.Identity(), whole, torch.zeros(4).long(), torch.full((1, 3), 1 / 3))
    with pytest.raises(TypeError, match=r"needs floating point, but they are torch\.int64"):
        method.bag_losses(step)


def test_a_step_holds_no_labels(make_step):
    method = get_method("fixmatch")
    weak, strong, index, proportions = problem()
    step = make_step(method, nn.Identity(), weak, index, proportions, strong=strong)
    seen = {field.name for thing in (step, step.batch) for field in dataclasses.fields(thing)}
    assert not {name for name in seen if "label" in name or name == "y"}
