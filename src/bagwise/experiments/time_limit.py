"""A limit on the time of a sweep, for machines that are lent by the hour."""

from __future__ import annotations

import time


class OutOfTimeError(Exception):
    """The next run would end after the time limit; what is done is kept."""


class TimeLimit:
    """Refuses a run that would end after the limit, by the mean time of a unit of work in the runs so far.

    The unit is the caller's: an epoch, or a pass through the network where epochs differ in cost.

    Args:
        seconds: from now on; None for no limit.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._work = 0.0
        self._seconds = 0.0

    def check(self, work: float) -> None:
        """Raise `OutOfTimeError` when a run with this much work does not fit any more."""
        if self._end is None:
            return
        expected = work * self._seconds / self._work if self._work else 0.0
        if time.monotonic() + expected >= self._end:
            raise OutOfTimeError

    def note(self, work: float, seconds: float) -> None:
        """Learn from a run that has ended."""
        self._work += work
        self._seconds += seconds
