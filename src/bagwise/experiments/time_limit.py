"""A limit on the time of a sweep, for machines that are lent by the hour."""

from __future__ import annotations

import time


class OutOfTimeError(Exception):
    """The next run would end after the time limit; what is done is kept."""


class TimeLimit:
    """Refuses a run that would end after the limit, by the mean time of an epoch in the runs so far.

    Args:
        seconds: from now on; None for no limit.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._epochs = 0
        self._seconds = 0.0

    def check(self, epochs: int) -> None:
        """Raise `OutOfTimeError` when a run of this many epochs does not fit any more."""
        if self._end is None:
            return
        expected = epochs * self._seconds / self._epochs if self._epochs else 0.0
        if time.monotonic() + expected >= self._end:
            raise OutOfTimeError

    def note(self, epochs: int, seconds: float) -> None:
        """Learn from a run that has ended."""
        self._epochs += epochs
        self._seconds += seconds
