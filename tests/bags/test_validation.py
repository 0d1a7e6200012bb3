"""Bad input: the rule, the value and bag, the fix."""

import math

import pytest
import torch

from bagwise import functional as BF
from bagwise.bags.validation import check_bag_index, check_proportion_values

LOGITS = torch.zeros(4, 3)
BAGS = torch.tensor([0, 0, 1, 1])
PROPORTIONS = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])


def row(*values):
    return torch.tensor([[0.5, 0.5, 0.0], values])


@pytest.mark.parametrize(
    ("logits", "bags", "proportions", "error", "message"),
    [
        ([[0.0, 1.0]], BAGS, PROPORTIONS, TypeError, r"logits must be a torch.Tensor.*got list"),
        (LOGITS[0], BAGS, PROPORTIONS, ValueError, r"shape \[instances, classes\], but got \[3\]"),
        (LOGITS.long(), BAGS, PROPORTIONS, TypeError, r"floating point, but got torch.int64; call .float\(\)"),
        (LOGITS[:, :1], BAGS, PROPORTIONS[:, :1], ValueError, "at least 2 classes, but got 1.*binary model"),
        (LOGITS, [0, 0, 1, 1], PROPORTIONS, TypeError, "bag_index must be a torch.Tensor of integers or a BagLayout"),
        (LOGITS, BAGS[None], PROPORTIONS, ValueError, r"bag_index must have shape \[instances\]"),
        (LOGITS, BAGS.float(), PROPORTIONS, TypeError, r"must hold integers, but got torch.float32; call .long\(\)"),
        (LOGITS, BAGS.bool(), PROPORTIONS, TypeError, "must hold integers, but got torch.bool"),
        (LOGITS, BAGS - 1, PROPORTIONS, ValueError, "must not be negative, but holds -1"),
        (LOGITS, BAGS + 1, PROPORTIONS, ValueError, "holds bag 2, but there are only 2 bags.*numbered 0 to 1"),
        (LOGITS[:3], BAGS, PROPORTIONS, ValueError, r"logits has 3 instances \(rows\), but bag_index has 4"),
        (LOGITS, BAGS, PROPORTIONS.tolist(), TypeError, "proportions must be a torch.Tensor.*got list"),
        (LOGITS, BAGS, PROPORTIONS[0], ValueError, r"proportions must have shape \[bags, classes\], but got \[3\]"),
        (LOGITS, BAGS, PROPORTIONS.half(), TypeError, "float32 or float64, but got torch.float16"),
        (LOGITS, BAGS, PROPORTIONS.long(), TypeError, "float32 or float64, but got torch.int64"),
        (LOGITS, BAGS, PROPORTIONS[:, :2], ValueError, r"proportions has 2 classes \(columns\), but logits has 3"),
        (LOGITS, BAGS, row(0.5, -0.1, 0.6), ValueError, r"not be negative, but bag 1 has \[0.5, -0.1, 0.6\].*Clip"),
        (LOGITS, BAGS, row(3.0, 2.0, 1.0), ValueError, "bag 1 sums to 6. If these are counts.*counts=True"),
        (LOGITS, BAGS, row(33.3, 33.3, 33.4), ValueError, "bag 1 sums to 100. If these are percentages, divide by 100"),
        (LOGITS, BAGS, row(0.5, 0.4, 0.0), ValueError, "bag 1 sums to 0.9. Divide each row by its sum"),
        (LOGITS, BAGS, row(0.33, 0.33, 0.33), ValueError, r"bag 1 sums to 0.99. .*counts=True .*--counts.*rounded"),
        (LOGITS, BAGS, row(0.4, 0.6, 48.0), ValueError, r"sums to 49. .* look for a column that is no class"),
        (LOGITS, BAGS, row(0.5, 0.4, 0.0), ValueError, "look for a missing class"),
        (LOGITS, BAGS, row(0.0, 0.0, 0.0), ValueError, "bag 1 sums to 0. .*make the whole row NaN"),
        (LOGITS, BAGS, row(0.5, math.nan, 0.5), ValueError, "for all classes or for none, but bag 1 has NaN for some"),
        (LOGITS, BAGS, row(math.inf, 0.5, 0.5), ValueError, "bag 1 sums to inf"),
        (LOGITS, BAGS, PROPORTIONS.to("meta"), ValueError, r"proportions is on meta, but logits is on cpu.*\.to\(\)"),
    ],
)
def test_messages(logits, bags, proportions, error, message):
    with pytest.raises(error, match=message):
        BF.bag_kl(logits, bags, proportions)


def test_sums_are_tolerated_to_one_in_ten_thousand():
    BF.bag_kl(LOGITS, BAGS, row(0.5, 0.5, 0.00009))
    with pytest.raises(ValueError, match=r"sums to 1\.0002"):
        BF.bag_kl(LOGITS, BAGS, row(0.5, 0.5, 0.0002))


def test_bags_are_named_where_names_are_known():
    with pytest.raises(ValueError, match="bag 'ward-3' sums to 6"):
        check_proportion_values(row(3.0, 2.0, 1.0), ["ward-1", "ward-3"])


def test_long_rows_are_cut_in_messages():
    values = torch.full((1, 8), 0.25)
    values[0, 0] = -0.75
    with pytest.raises(ValueError, match=r"-0.75, 0.25, 0.25, 0.25, 0.25, 0.25, \.\.\.\]"):
        check_proportion_values(values)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64])
def test_any_integer_type_will_do_as_an_index(dtype):
    check_bag_index(torch.tensor([0, 1], dtype=dtype), 2)
    expected = BF.bag_kl(LOGITS, BAGS, PROPORTIONS)
    torch.testing.assert_close(BF.bag_kl(LOGITS, BAGS.to(dtype), PROPORTIONS), expected)


def test_unknown_divergence_suggests_the_nearest():
    with pytest.raises(
        ValueError, match=r"divergence must be one of 'kl', 'l1', 'l2', but got 'KL'. Did you mean 'kl'"
    ):
        BF.proportion_loss(LOGITS, BAGS, PROPORTIONS, divergence="KL")
