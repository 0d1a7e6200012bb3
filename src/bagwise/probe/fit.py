"""Fit a probe: smooth the rows, choose how by held-out bags, solve for the head."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout, as_layout
from bagwise.bags.seeds import derived_seed
from bagwise.bags.validation import check_enough_known_bags, check_features, check_one_per_instance, check_proportions
from bagwise.probe.choice import (
    Heads,
    averaged_probabilities,
    divergence_if_self_taught,
    fit_heads,
    heads_of_folds,
    held_out_divergence,
)
from bagwise.probe.features import principal_directions
from bagwise.probe.head import BagsInOrder
from bagwise.probe.neighbours import Bank
from bagwise.probe.network import ProbeNetwork
from bagwise.probe.self_teaching import self_taught_head
from bagwise.probe.settings import Probe
from bagwise.probe.smoothing import ComparedRows, compare, smooth

# Smoothing helps where classes are clusters, as in embeddings, and blurs columns that tell classes apart finely.
_ROUNDS = (0, 2)
_DIRECTIONS = (8, 16, 32, 64)
# Rows have this mean square length when the head sees them, so that its ridge means the same for all features.
_MEAN_SQUARE_LENGTH = 16.0
# Beyond these, labels for every row in every fold would take longer than all the rest.
_MOST_ROWS_TO_TEACH = 200_000


@dataclass(frozen=True, eq=False)
class ProbeFit:
    """A fitted probe.

    Attributes:
        network: from features `[rows, width]` to logits, for new rows too; on the CPU, in evaluation mode. Its
            docstring says what it stores.
        logits: `[rows, classes]` of the training rows, on the CPU.
        rounds: how many times rows are averaged with their neighbours.
        directions: number of principal directions that the head sees.
        criterion: mean KL(known | predicted) of held-out bags, by (rounds, directions).
        self_taught: whether the head then went on to learn from labels, on rows as they are.
        self_taught_criterion: the same mean KL if it does; None where that was not tried.
    """

    network: ProbeNetwork
    logits: Tensor
    rounds: int
    directions: int
    criterion: dict[tuple[int, int], float]
    self_taught: bool
    self_taught_criterion: float | None


@torch.no_grad()
def fit_probe(
    features: Tensor,
    layout: BagLayout | Tensor,
    proportions: Tensor,
    *,
    probe: Probe = Probe(),  # noqa: B008  (frozen)
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> ProbeFit:
    """Fit a linear classifier on frozen features that are smoothed over their neighbours.

    Every row is centred, scaled to length one, and replaced by the mean of itself and its 20 nearest rows, twice or not
    at all. The leading principal directions, which keep their scale, go into a linear head that is fitted to the KL of
    bags. The proportions of held-out bags choose whether to smooth and how many directions to keep. Neighbours need no
    proportions: the rows of bags whose proportions are unknown help too. What such heads, of several numbers of
    directions, make of each row on average is then a label to learn from, for a head on rows that are not smoothed, in
    many directions; held-out bags decide between the two.

    Seconds on a CPU for 50,000 rows, minutes for a million: beyond 8,192 rows neighbours are looked for in cells, and
    beyond 100,000 among that many rows, drawn at random.

    Args:
        features: `[rows, width]`: embeddings, or what a network computes before its last layer.
        layout: which row lies in which bag, or `[rows]` the number of its bag.
        proportions: `[bags, classes]`; a row of NaN is a bag with unknown proportions.
        probe: what can be set.
        seed: of the folds of bags, and of what is drawn among many rows.
        device: where to compute.

    Example:
        >>> rows = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
        >>> layout = BagLayout.from_sizes([20, 20, 20])
        >>> share = torch.stack([(part[:, 0] > 0).float().mean() for part in rows.split(20)])
        >>> fit = fit_probe(rows, layout, torch.stack([share, 1 - share], dim=1))
        >>> fit.network(rows[:5]).shape
        torch.Size([5, 2])
    """
    check_features(features)
    check_proportions(proportions, num_classes=proportions.shape[-1], device=proportions.device)
    layout = as_layout(layout, len(proportions))
    check_one_per_instance("features", len(features), layout.num_instances)
    known = np.flatnonzero(~proportions[:, 0].isnan().cpu().numpy() & (layout.host_sizes > 0))
    check_enough_known_bags(len(known))
    generator = torch.Generator().manual_seed(derived_seed(seed, "probe"))
    layout, proportions = layout.to(device), proportions.to(device)

    compared = compare(features, generator, device)
    views: dict[int, _View] = {}
    heads: dict[int, list[Heads]] = {}
    criterion: dict[tuple[int, int], float] = {}
    for rounds in _ROUNDS if probe.rounds is None else (probe.rounds,):
        rows = smooth(compared, probe.neighbours, rounds, generator) if rounds else compared
        wanted = max(_DIRECTIONS) if probe.directions is None else probe.directions
        view = views[rounds] = _View.of(rows, wanted, generator)
        width = view.rows.shape[1]
        candidates = sorted({min(count, width) for count in _DIRECTIONS}) if probe.directions is None else [width]
        heads[rounds] = heads_of_folds(view.rows, layout, proportions, known, candidates, seed)
        divergences = held_out_divergence(view.rows, layout, proportions, known, heads[rounds], seed)
        criterion |= {(rounds, count): value for count, value in divergences.items()}
    rounds, count = min(criterion, key=lambda candidate: criterion[candidate])
    wide = views[rounds]
    of_counts = {candidate: value for (tried, candidate), value in criterion.items() if tried == rounds}

    self_taught, self_taught_criterion = bool(probe.self_taught), None
    is_open = probe.self_taught is None and len(features) <= _MOST_ROWS_TO_TEACH
    whole = _View.of(compared, compared.rows.shape[1], generator) if self_taught or is_open else wide
    if is_open:
        starts = (averaged_probabilities(wide.rows, of_fold, of_counts) for of_fold in heads[rounds])
        self_taught_criterion = divergence_if_self_taught(starts, whole.rows, layout, proportions, known, seed)
        self_taught = self_taught_criterion < criterion[rounds, count]
    bags = BagsInOrder.of(wide.rows, layout, proportions, known)
    if self_taught:
        start = averaged_probabilities(wide.rows, fit_heads(bags, list(of_counts)), of_counts)
        view, head = whole, self_taught_head(whole.rows, layout, proportions, start)
    else:
        view, head = wide.narrowed(count), fit_heads(bags, [count])[count]
    logits = torch.addmm(head[-1], view.rows.double(), head[:-1]).float()
    network = _network(view, head).cpu().eval()
    return ProbeFit(network, logits.cpu(), rounds, count, criterion, self_taught, self_taught_criterion)


@dataclass(frozen=True, eq=False)
class _View:
    """What the head sees of compared rows.

    Attributes:
        compared: the rows, smoothed or not.
        middle: `[p]` their mean.
        axes: `[p, directions]` principal directions, all times the same scale.
        rows: `[rows, directions]`.
    """

    compared: ComparedRows
    middle: Tensor
    axes: Tensor
    rows: Tensor

    @staticmethod
    def of(compared: ComparedRows, most: int, generator: torch.Generator) -> _View:
        middle = compared.rows.mean(dim=0)
        axes = principal_directions(compared.rows, most, generator)
        rows = (compared.rows - middle) @ axes
        scale = (_MEAN_SQUARE_LENGTH / rows.square().sum(dim=1).mean().clamp(min=1e-12)).sqrt()
        return _View(compared, middle, axes * scale, rows * scale)

    def narrowed(self, count: int) -> _View:
        return replace(self, axes=self.axes[:, :count], rows=self.rows[:, :count].contiguous())


def _network(view: _View, head: Tensor) -> ProbeNetwork:
    """Return the module of `head [directions + 1, classes]`."""
    compared = view.compared
    weights = view.axes.double() @ head[:-1]  # of the rows that the axes are of
    share = 1 / (compared.neighbours + 1)  # of the row itself and of each neighbour, in one round
    empty = view.axes[:0, :1].new_zeros(0, len(weights))
    bank = Bank(empty, empty, torch.zeros(0, dtype=torch.long)) if compared.bank is None else compared.bank
    passed_on = weights.new_zeros(len(bank.rows), weights.shape[1])
    for level in compared.levels:
        passed_on = share * (passed_on + level.double() @ weights)
    return ProbeNetwork(
        centre=compared.centre,
        directions=compared.directions,
        bank=bank.rows,
        passed_on=passed_on.float(),
        cells=bank.centres,
        cell_sizes=bank.sizes,
        head=(share ** len(compared.levels) * weights).float(),
        bias=(head[-1] - view.middle.double() @ weights).float(),
        neighbours=torch.tensor(compared.neighbours),
    )
