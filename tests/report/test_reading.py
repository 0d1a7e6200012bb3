from bagwise.report.reading import (
    FAILS,
    HOLDS,
    IN_PART,
    UNDECIDED,
    UNMEASURED,
    headline,
    missing_cells,
    read_findings,
)
from bagwise.report.summary import summarise
from fakes.records import BAG_SIZES, LOSSES, make_grid, make_record


def verdicts(records, bag_sizes=BAG_SIZES, losses=LOSSES):
    return [finding.verdict for finding in read_findings(summarise(records, bag_sizes, losses))]


def made_of(accuracy, seeds=1, bag_sizes=BAG_SIZES, dataset="cifar10"):
    """Records whose accuracy is `accuracy(loss, bag size)`, seeds apart by 0.2 points."""
    return [
        make_record(loss, size, seed, dataset=dataset, accuracy=accuracy(loss, size) + 0.002 * seed)
        for seed in range(seeds)
        for size in bag_sizes
        for loss in LOSSES
    ]


def test_the_papers_own_picture_holds_in_all_points():
    def as_in_the_paper(loss, size):
        if loss == "avg-kl":
            return 0.93 if size == 1 else 0.12
        level = {1: 0.93, 2: 0.93, 4: 0.925, 8: 0.92, 16: 0.91}.get(size, max(0.9 - 0.0012 * size, 0.15))
        return level + (0.02 if loss == "rot" and size >= 512 else 0)

    assert verdicts(made_of(as_in_the_paper, seeds=3)) == [HOLDS] * 6


def test_the_opposite_holds_in_none():
    def upside_down(loss, size):
        low = 0.8 - 0.01 * size if size <= 16 else 0.64
        return {"avg-kl": low, "kl": low, "rot": low - 0.1}[loss]

    assert verdicts(made_of(upside_down, seeds=3)) == [FAILS] * 6


def test_the_baseline_is_not_excused_by_bags_from_which_nobody_learns():
    records = made_of(lambda loss, size: 0.1 if size == 1024 or (loss == "avg-kl" and size > 1) else 0.92)
    assert verdicts(records)[3] == HOLDS


def test_one_seed_cannot_decide_who_is_ahead():
    assert verdicts(make_grid(seeds=1))[-1] == UNDECIDED


def test_a_lead_within_the_noise_is_undecided():
    records = made_of(lambda loss, size: 0.5 + (0.001 if loss == "rot" else 0), seeds=3)
    finding = read_findings(summarise(records, BAG_SIZES, LOSSES))[-1]
    assert finding.verdict == UNDECIDED
    assert "standard error" in finding.evidence


def test_ahead_at_one_of_two_sizes_holds_in_part():
    records = made_of(lambda loss, size: 0.5 + (loss == "rot") * (0.1 if size == 512 else -0.1), seeds=3)
    assert verdicts(records)[-1] == IN_PART


def test_what_was_not_measured_is_said_to_be():
    findings = read_findings(summarise([make_record("avg-kl", 4)], BAG_SIZES, LOSSES))
    assert [finding.verdict for finding in findings] == [UNMEASURED] * 6
    assert all("need" in f.evidence or "no record" in f.evidence for f in findings)


def test_the_claim_on_large_bags_is_left_out_where_there_are_none():
    sizes = BAG_SIZES[:9]
    records = made_of(lambda loss, size: 0.9, bag_sizes=sizes, dataset="digits")
    claims = [finding.claim for finding in read_findings(summarise(records, sizes, LOSSES))]
    assert len(claims) == 5
    assert not any("512" in claim or "thousand" in claim or "CIFAR" in claim for claim in claims)


def test_bags_that_are_not_large_cannot_deny_that_large_ones_cost_accuracy():
    def finding(bag_sizes, lost):
        records = made_of(lambda loss, size: 0.98 - lost * (size > 16), bag_sizes=bag_sizes, dataset="digits")
        return read_findings(summarise(records, bag_sizes, LOSSES))[2]

    assert finding([1, 16, 64], lost=0.026).verdict == UNMEASURED
    assert finding([1, 16, 64], lost=0.026).evidence == (
        "From bags of 16 to bags of 64: KL 98.0 % to 95.4 %; ROT 98.0 % to 95.4 % (chance 10.0 %). "
        "To tell, it needs records at bag size 256 or more."
    )
    assert finding([1, 16, 256], lost=0.026).verdict == FAILS
    assert finding([1, 16, 64], lost=0.2).verdict == HOLDS


def test_evidence_has_the_numbers():
    findings = read_findings(summarise(make_grid(), BAG_SIZES, LOSSES))
    assert findings[0].evidence == "At bag size 1: AvgKL 93.2 %, KL 95.0 %, ROT 95.0 %."
    assert "KL −0.6 at 8 and −1.7 at 16" in findings[1].evidence


def test_a_change_of_nothing_has_no_minus_sign():
    findings = read_findings(summarise(made_of(lambda loss, size: 0.9 - 1e-5 * (size > 1)), BAG_SIZES, LOSSES))
    assert "−0.0" not in " ".join(finding.evidence for finding in findings)


def test_headline():
    summary = summarise(make_grid(), BAG_SIZES, LOSSES)
    assert headline(summary) == (
        "KL reaches 95.0 % from bags of 1, 93.2 % from bags of 16 and 15.1 % from bags of 1024 (chance: 10.0 %)."
    )
    assert headline(summarise([make_record("rot", 16, accuracy=0.5)], [16], ["rot"])) == (
        "ROT reaches 50.0 % from bags of 16."
    )


def test_missing_cells_are_named():
    assert missing_cells(summarise(make_grid(), BAG_SIZES, LOSSES)) is None
    records = [r for r in make_grid() if (r.cell.loss, r.cell.bag_size) not in {("rot", 8), ("rot", 512), ("kl", 1)}]
    assert missing_cells(summarise(records, BAG_SIZES, LOSSES)) == (
        "3 of 33 combinations have no record yet: KL at 1; ROT at 8, 512."
    )
