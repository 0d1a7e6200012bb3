"""MixBag: new bags from parts of two."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_between, check_share
from bagwise.functional.inputs import Inputs, prepare, reduce_bags
from bagwise.functional.segments import expand, segment_logsumexp
from bagwise.methods.base import Step


@dataclass(frozen=True)
class MixBag:
    r"""`bag_kl`, where some bags are replaced by a random part of themselves and a random part of another one.

    A mixed bag of m instances of one bag and m' of another is expected to have the proportions
    (m z + m' z') / (m + m'), but those of the parts are drawn by chance. So a class whose mean prediction lies within

    .. math:: \frac{m z_k + m' z'_k}{m + m'} \pm \frac{t}{m + m'}
              \Big(m \sqrt{z_k (1 - z_k) / m} + m' \sqrt{z'_k (1 - z'_k) / m'}\Big)

    is taken to be right and gives no gradient. After Asanomi, Matsuo, Suehiro, Bise: *MixBag* (2023). Both parts come
    from bags of the same batch: give it several bags a batch. A bag that is alone is never mixed.

    Attributes:
        chance: of each bag to be mixed.
        confidence: of the interval; t is the quantile of the normal law.
    """

    chance: float = 0.5
    confidence: float = 0.99

    needs_strong_view: ClassVar[bool] = False
    compares_bags: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_share("chance", self.chance)
        check_between("confidence", self.confidence, 0, 1)

    def bag_losses(self, step: Step) -> Tensor:
        """Return the loss of each bag, mixed or not."""
        inputs = prepare(step.model(step.batch.instances), step.batch.layout, step.batch.proportions)
        mixture = draw_mixture(inputs, self.chance, step.generator)
        partner, kept, got = mixture.partner, mixture.kept[:, None], mixture.got[:, None]
        log_f = inputs.logits.log_softmax(dim=1)
        log_own = _log_sums(log_f, mixture.own, inputs.layout)
        log_got = _log_sums(log_f, mixture.lent, inputs.layout)[partner]
        log_p = torch.logaddexp(log_own, log_got) - (kept + got).log()  # [bags, classes]
        z, z_partner = inputs.proportions, inputs.proportions[partner]
        expected = (kept * z + got * z_partner) / (kept + got)
        deviation = ((kept * z * (1 - z)).sqrt() + (got * z_partner * (1 - z_partner)).sqrt()) / (kept + got)
        width = NormalDist().inv_cdf((1 + self.confidence) / 2) * deviation
        right = mixture.mixed[:, None] & ((log_p.detach().exp() - expected).abs() <= width)
        # a class that is right enough contributes its least value, one of proportion 0 exactly 0
        log_p = torch.where(right, expected.log(), log_p)
        return reduce_bags(-(expected * torch.where(expected > 0, log_p, 0)).sum(dim=1), inputs.counted, "none")


@dataclass(frozen=True, eq=False)
class Mixture:
    """Which bags of a batch are mixed, and which instances go where.

    Attributes:
        mixed: `[bags]` true where a bag is mixed.
        partner: `[bags]` the bag that it is mixed with; no two bags have the same.
        kept: `[bags]` how many of its own instances it keeps (all, where it is not mixed).
        got: `[bags]` how many it gets from its partner (none, where it is not mixed).
        own: `[instances]` true for those that their bag keeps.
        lent: `[instances]` true for those that go to the bag whose partner theirs is.
    """

    mixed: Tensor
    partner: Tensor
    kept: Tensor
    got: Tensor
    own: Tensor
    lent: Tensor


def draw_mixture(inputs: Inputs, chance: float, generator: torch.Generator) -> Mixture:
    """Mix each bag by `chance`: a random share of its instances, and the rest of a share from its partner."""
    layout, counted = inputs.layout, inputs.counted
    dtype, device = inputs.logits.dtype, inputs.logits.device
    decision, share, place = torch.rand(3, layout.num_bags, generator=generator, device=device, dtype=dtype)
    circle = place.argsort()  # each bag has the one before it as its partner
    partner = torch.empty_like(circle).scatter(0, circle, circle.roll(1))
    alone = layout.num_bags == 1
    mixed = (decision < (0 if alone else chance)) & counted & counted[partner]
    sizes = layout.sizes.to(dtype)
    kept = torch.where(mixed, (share * sizes).round().clamp(min=1), sizes)
    got = torch.where(mixed, ((1 - share) * sizes[partner]).round().clamp(min=1), 0)
    lent = torch.zeros_like(got).scatter(0, partner, got)
    return Mixture(
        mixed=mixed,
        partner=partner,
        kept=kept,
        got=got,
        own=_random_ranks(layout, generator) < expand(kept, layout),
        lent=_random_ranks(layout, generator) < expand(lent, layout),
    )


def _random_ranks(layout: BagLayout, generator: torch.Generator) -> Tensor:
    """`[instances]` the place of each instance, from 0, in a random order of its bag."""
    shuffled = torch.rand(layout.num_instances, generator=generator, device=layout.device).argsort()
    order = shuffled[layout.bag_index[shuffled].argsort(stable=True)]  # bag after bag, each in random order
    place = torch.arange(layout.num_instances, device=layout.device)
    return torch.empty_like(place).scatter(0, order, place - layout.offsets[layout.bag_index[order]])


def _log_sums(log_f: Tensor, chosen: Tensor, layout: BagLayout) -> Tensor:
    """Log of the sum of the chosen predictions of each bag, `[bags, classes]`; -inf where none is chosen."""
    return segment_logsumexp(torch.where(chosen[:, None], log_f, -torch.inf), layout)
