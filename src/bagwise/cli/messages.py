"""What a person or a program reads: errors as one line and an exit code, warnings, results as text or JSON."""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from bagwise.tables.surprises import Surprise

# exit codes: 2 for what the user can mend (arguments, files, disk); as shells have them, 130 for Ctrl-C, 141 where
# nobody reads what is printed (SIGPIPE), 143 for SIGTERM
_MENDABLE, _INTERRUPTED, _UNREAD, _TERMINATED = 2, 130, 141, 143


@contextmanager
def failures_explained(
    interrupted: str = "Nothing was written.", *, clears_up_on_sigterm: bool = True
) -> Iterator[None]:
    """Turn what a user can mend into one line and an exit code; anything else is a bug and shows itself.

    Args:
        interrupted: what to say after Ctrl-C.
        clears_up_on_sigterm: whether SIGTERM is taken like Ctrl-C, so that nothing half done is left. Not for a
            sweep: it leaves nothing behind, and would wait for the other processes at work.
    """
    signals: list[int] = []
    try:
        with (
            _warnings_said(),
            _interruptions_unwrapped(),
            _sigterm_raised(signals) if clears_up_on_sigterm else nullcontext(),
        ):
            yield
    except KeyboardInterrupt:
        say(f"{'Terminated' if signals else 'Interrupted'}. {interrupted}")
        raise typer.Exit(_TERMINATED if signals else _INTERRUPTED) from None
    except OSError as error:
        # an error of the system names a file; one of our own is a sentence
        is_system = error.filename is not None and error.strerror is not None
        _fail(f"{error.filename}: {error.strerror}." if is_system else str(error))
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("bagwise"):
            raise  # a bug
        _fail(str(error) if error.name is None else f"{error.name} is not installed: pip install {error.name}")
    except (ValueError, TypeError, FloatingPointError) as error:
        _fail(str(error))


class _Terminated(KeyboardInterrupt):
    """Raised by SIGTERM; of its own class, since a plain one may make Python end itself by SIGINT."""


@contextmanager
def _sigterm_raised(signals: list[int]) -> Iterator[None]:
    """Raise on SIGTERM while the block runs, and add it to `signals`: what is raised may be caught and raised anew."""

    def terminate(number: int, _: object) -> None:
        signals.append(number)
        raise _Terminated

    in_main_thread = threading.current_thread() is threading.main_thread()  # no other may set a handler
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield  # who started this process wants it ignored, or has a handler of their own
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _interruptions_unwrapped() -> Iterator[None]:
    """Raise the interruption that another error stems from: Python 3.11 wraps one that strikes in `__set_name__`."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, KeyboardInterrupt):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        raise


def _fail(message: str) -> None:
    say(f"error: {_one_line(message)}")
    raise typer.Exit(_MENDABLE) from None


@contextmanager
def _warnings_said() -> Iterator[None]:
    """Show a warning as a line of its own, as soon as it comes, without the place in the code."""

    def show(message: Warning | str, *_: Any) -> None:
        say(f"warning: {_one_line(str(message))}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes of libraries to their programmers
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = show
        yield


def say(message: str) -> None:
    """Print to the standard error output; plain, so that nothing in a path is taken for markup."""
    print(message, file=sys.stderr)  # noqa: T201


def say_unused(columns: Sequence[str]) -> None:
    """Tell which columns of a table made no difference."""
    if columns:
        say(f"note: columns that the model does not use: {_listed(columns)}.")


def say_surprises(surprises: Sequence[Surprise], rows: int) -> None:
    """Tell in which columns of a table of `rows` rows the model met what it does not know."""
    unknown = [
        f"{found.column} in {found.unknown_rows:,} of {rows:,} rows (such as {reprlib.repr(found.example)})"
        for found in surprises
        if found.unknown_rows
    ]
    if unknown:
        say(f"note: categories that the model does not know: {_listed(unknown)}.")
    missing = [
        f"{found.column} in {found.missing_rows:,} of {rows:,} rows" for found in surprises if found.missing_rows
    ]
    if missing:
        say(f"note: values missing, unlike when the model was fitted: {_listed(missing)}.")


def _listed(entries: Sequence[str]) -> str:
    more = f" and {len(entries) - 8} more" if len(entries) > 8 else ""
    return f"{', '.join(entries[:8])}{more}"


def show(text: str) -> None:
    """Print a result to the standard output; end quietly where who read it has left, as `head` does: the work is done.

    Only here, where the broken pipe is that of the standard output and not one that work was lost in.
    """
    try:
        print(text, flush=True)  # noqa: T201
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        raise typer.Exit(_UNREAD) from None


def show_json(result: dict[str, Any]) -> None:
    """Print a result as one JSON object on the standard output; null stands for NaN and infinities."""
    show(json.dumps(_finite(result), ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def command_line() -> str:
    """Return the command that is running, to be run again."""
    return f"bagwise {shlex.join(sys.argv[1:])}"


def _one_line(message: str) -> str:
    # names in it keep their spaces: two of them may be all that is wrong
    return re.sub(r"\s*[\r\n]\s*", " ", message.strip())
