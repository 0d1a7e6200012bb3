"""What can be set of a probe."""

from __future__ import annotations

from dataclasses import dataclass

from bagwise.bags.setting_checks import check_count


@dataclass(frozen=True)
class Probe:
    """A linear classifier on frozen features that may be smoothed over their neighbours.

    Attributes:
        neighbours: how many of the nearest rows a row is averaged with.
        rounds: how many times; 0 leaves the features as they are. None chooses 0 or 2 by held-out bags.
        directions: number of principal directions that the classifier sees; None chooses 8 to 64 by held-out bags.
        self_taught: whether it then goes on to learn from its own labels of the rows, as they are and in many
            directions; None chooses by held-out bags, and does without beyond 200,000 rows.
    """

    neighbours: int = 20
    rounds: int | None = None
    directions: int | None = None
    self_taught: bool | None = None

    def __post_init__(self) -> None:
        check_count("neighbours", self.neighbours)
        if self.rounds is not None and self.rounds != 0:
            check_count("rounds", self.rounds)
        if self.directions is not None:
            check_count("directions", self.directions)
        if self.self_taught not in (None, True, False):
            raise ValueError(f"self_taught must be True, False or None, but got {self.self_taught!r}.")
