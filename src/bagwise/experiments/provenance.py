"""Where a number comes from: commit, versions, hardware."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from bagwise.experiments.records import Provenance


def collect_provenance(*, is_small: bool = False) -> Provenance:
    """Describe this process, from now on: call it when the work starts.

    Args:
        is_small: the work is too small for a GPU and is done on the CPU, also where there is one.
    """
    import torch

    import bagwise

    commit, dirty = _git_state()
    return Provenance(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit,
        dirty=dirty,
        bagwise=bagwise.__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        hardware=_cpu_name() if is_small or not torch.cuda.is_available() else torch.cuda.get_device_name(),
        cores=os.cpu_count() or 1,
    )


def _git_state() -> tuple[str | None, bool | None]:
    """Return the commit of the source tree and whether it has local changes; None where that is unknown.

    A machine that holds a bare copy of the tree (no `.git`, or somebody else's) is told the commit by `BAGWISE_COMMIT`.
    """
    if told := os.environ.get("BAGWISE_COMMIT"):
        return told, None
    this_file = Path(__file__)
    package = this_file.parents[1]
    # an installed bagwise may lie inside somebody else's repository (a venv in a project): not our commit
    is_tracked = _git(package, "ls-files", "--error-unmatch", str(this_file)) is not None
    commit = _git(package, "rev-parse", "HEAD") if is_tracked else None
    if commit is None:
        return None, None
    # of the package alone: a sweep writes its records into the same repository
    return commit, bool(_git(package, "status", "--porcelain", "--", "."))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine() or "unknown CPU"
