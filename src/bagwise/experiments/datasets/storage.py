"""Where data sets lie: find an edition or have one downloaded, and check every file against its checksum."""

from __future__ import annotations

import os
from pathlib import Path

from bagwise.experiments.datasets.catalogue import Edition, OfficialDataset, OfficialFile
from bagwise.experiments.datasets.dataset import Dataset
from bagwise.experiments.datasets.download import DownloadError, download
from bagwise.experiments.datasets.source import SourceFile, read_archive, read_plain


def load_official(official: OfficialDataset, folder: str | os.PathLike[str] | None) -> Dataset:
    """Read a data set from the data folder or the system's; if it is in neither, download it into the former."""
    root = data_folder(folder)
    found = _find(official, [root, *map(Path, official.system_folders)])
    edition, path = found or _fetch(official, root)
    files = _read_checked(edition, path)
    return Dataset.from_arrays(
        official.name,
        train=edition.decode([files[file.name] for file in edition.train]),
        test=edition.decode([files[file.name] for file in edition.test]),
        class_names=official.class_names,
    )


def data_folder(folder: str | os.PathLike[str] | None) -> Path:
    """Return `folder`, else the one that BAGWISE_DATA names, else the user's cache.

    A folder that somebody named must exist: creating it would hide a misspelt path behind a long download.
    """
    named = folder or os.environ.get("BAGWISE_DATA")
    if not named:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(cache) / "bagwise"
    path = Path(named).expanduser()
    if not path.is_dir():
        who = "the argument (--data)" if folder else "BAGWISE_DATA"
        raise FileNotFoundError(
            f"the data folder must exist, but {who} names {path}, which "
            f"{'is not a folder' if path.exists() else 'does not exist'}. "
            "Correct the path, or create the folder to have data downloaded into it."
        )
    return path


def _find(official: OfficialDataset, places: list[Path]) -> tuple[Edition, Path] | None:
    """Return the first edition that is complete, with its folder or archive."""
    for place in places:
        for edition in official.editions:
            for folder in (place / edition.folder, place):  # a caller may name the inner folder itself
                if not _missing(edition, folder):
                    return edition, folder
            if edition.archive and (place / edition.archive).is_file():
                return edition, place / edition.archive
    return None


def _missing(edition: Edition, folder: Path) -> list[str]:
    """Return the names of the files of `edition` that `folder` lacks."""
    return [file.name for file in (*edition.train, *edition.test) if not _path_of(file, folder).is_file()]


def _path_of(file: OfficialFile, folder: Path) -> Path:
    plain = folder / file.name
    return plain if plain.is_file() else folder / f"{file.name}.gz"


def _fetch(official: OfficialDataset, root: Path) -> tuple[Edition, Path]:
    """Download the first edition into `root`."""
    edition = official.editions[0]
    try:
        for item in official.downloads:
            download(item.url, root / item.path, item.sha256)
    except DownloadError as error:
        steps = [
            f"  get {item.url} ({item.size / 1e6:.3g} MB) and put it at {root / item.path}"
            for item in official.downloads
        ]
        raise FileNotFoundError(
            f"{official.name} is not in {root}{_what_is_there(official, root)}, "
            f"and could not be downloaded: {error}\n"
            "Try again, name the folder that holds it with --data or BAGWISE_DATA, or do it by hand:\n"
            + "\n".join(steps)
        ) from error
    return edition, root / (edition.archive or edition.folder)


def _what_is_there(official: OfficialDataset, root: Path) -> str:
    """Say what was looked for, or what is missing if part of it was found."""
    for edition in official.editions:
        folder = root if root.name == edition.folder else root / edition.folder
        if folder.is_dir():
            return f" ({folder} lacks {', '.join(_missing(edition, folder))})"
    names = [name for edition in official.editions for name in (edition.folder, edition.archive) if name]
    return f" (looked for {', '.join(names)})"


def _read_checked(edition: Edition, path: Path) -> dict[str, SourceFile]:
    """Read all files of an edition from its folder or archive; raise unless each is the official one."""
    files = {file.name: file for file in (*edition.train, *edition.test)}
    if path.is_dir():
        contents = {name: read_plain(_path_of(file, path)) for name, file in files.items()}
    else:
        members = read_archive(path, [f"{edition.folder}/{name}" for name in files])
        contents = {name: members[f"{edition.folder}/{name}"] for name in files}
    for name, content in contents.items():
        _check_official(content, files[name])
    return contents


def _check_official(file: SourceFile, official: OfficialFile) -> None:
    size = len(file.content)
    if official.size is not None and size != official.size:
        expected, found = f"{official.size} bytes", f"{size}"
    elif (digest := file.sha256()) not in (official.sha256, official.also):
        expected, found = f"SHA-256 {official.sha256}", digest
    else:
        return
    raise ValueError(
        f"{file.origin}: the official file has {expected}, but this one has {found}. It is cut off, corrupt, "
        "altered or another data set's; delete it and download it again."
    )
