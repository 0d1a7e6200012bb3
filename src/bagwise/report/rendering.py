"""Templates into one self-contained page: style and script inside, nothing fetched, nothing of the data executed."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from bagwise.experiments.records import write_file

_LOADER = jinja2.PackageLoader("bagwise.report")


def write_html(path: Path, template: str, values: dict[str, Any]) -> None:
    """Render a template into a file. Every value is escaped but `Markup`; a name that is missing is an error."""
    environment = jinja2.Environment(
        loader=_LOADER,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    page = environment.get_template(template).render(values)
    # text of unknown origin may hold half a surrogate pair, which no file can
    write_file(path, page.encode("utf-8", "replace"))


def read_script(name: str) -> tuple[Markup, str]:
    """Return a script among the templates, and its hash for the page's security policy: no other script may run."""
    source = _LOADER.get_source(jinja2.Environment(), name)[0]
    digest = hashlib.sha256(source.encode()).digest()
    return Markup(source), f"sha256-{base64.b64encode(digest).decode()}"
