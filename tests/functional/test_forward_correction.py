"""LLPFC: a literal loop, and that the right predictions are where the loss is lowest."""

import numpy as np
import torch
from hypothesis import given, settings

from bagwise import functional as BF
from reference import literal, published
from reference.strategies import bag_problems


@given(problem=bag_problems())
def test_equals_the_literal_loop(problem):
    logits, bag_index, proportions = problem
    members = literal.bags_of(bag_index, len(proportions))
    expected = published.forward_correction([logits.numpy()[j] for j in members], proportions.numpy())
    values = BF.forward_correction(logits, bag_index, proportions, reduction="none")
    np.testing.assert_allclose(values, expected, rtol=1e-10, atol=1e-12)


def test_the_right_predictions_are_a_minimum():
    """Three kinds of instances, drawn by class; each bag holds them in exactly the shares that its classes imply."""
    shares = torch.tensor([[6, 2, 2], [1, 8, 1], [2, 3, 5]], dtype=torch.float64) / 10  # [class, kind]
    proportions = torch.tensor([[7, 2, 1], [1, 6, 3], [2, 2, 6]], dtype=torch.float64) / 10
    kinds = (100 * proportions @ shares).round().long()  # [bag, kind]
    joint = proportions.sum(0)[:, None] * shares
    posterior = (joint / joint.sum(0)).T.log().requires_grad_()  # [kind, class]

    instances = torch.arange(3).repeat(3).repeat_interleave(kinds.flatten())
    bag_index = torch.arange(3).repeat_interleave(kinds.sum(1))
    best = BF.forward_correction(posterior[instances], bag_index, proportions)
    best.backward()
    torch.testing.assert_close(posterior.grad, torch.zeros_like(posterior), rtol=0, atol=1e-12)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        other = posterior.detach() + 0.3 * torch.randn(3, 3, dtype=torch.float64, generator=generator)
        assert BF.forward_correction(other[instances], bag_index, proportions) > best


@settings(max_examples=25)
@given(problem=bag_problems(max_bags=1))
def test_a_bag_alone_teaches_nothing(problem):
    logits, bag_index, _ = problem
    every_class = torch.full((1, logits.shape[1]), 1 / logits.shape[1], dtype=torch.float64)
    value = BF.forward_correction(logits, bag_index, every_class)
    torch.testing.assert_close(value, torch.zeros_like(value))


def test_an_instance_that_rules_out_its_bag_costs_infinity_and_poisons_no_gradient():
    inf = float("inf")
    logits = torch.tensor([[0.0, -inf, 0.0], [-inf, 0.0, 0.0]], requires_grad=True)
    values = BF.forward_correction(
        logits, torch.tensor([0, 1]), torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.5, 0.5]]), reduction="none"
    )
    assert values.isposinf().tolist() == [True, False]
    values.sum().backward()
    assert logits.grad.isfinite().all()
