"""Pages whose code runs: the blocks of a Markdown file, and what they print.

A block of ```python or ```bash runs; a ```text block right after it is what it prints. All blocks of a page run in
order, in one empty folder and (Python) in one interpreter, so that a page reads as a session. In the text, "..."
stands for any words in a line, and a percentage may be 1 off: processors round differently, and trainings amplify it.

    python tests/reference/pages.py README.md docs/*.md      # write what the blocks print into these pages
"""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", flags=re.DOTALL | re.MULTILINE)
_LOOSE = re.compile(r"( *\d+(?:\.\d+)? ?%|\.\.\.)")
_PERCENTAGE = r" *(\d+(?:\.\d+)?) ?%"


@dataclass(frozen=True)
class Block:
    """Code of a page, and what the page says that it prints."""

    language: str
    code: str
    printed: str


def blocks_of(text):
    return [Block(language, code, printed or "") for language, code, printed in _BLOCK.findall(text)]


def run(blocks, folder):
    """Run blocks one after the other in `folder`, in a fresh process; return what each prints."""
    sources = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "src"), str(Path(__file__).parent)])}
    done = subprocess.run(
        [sys.executable, "-c", "import pages; pages.execute_input()"],
        input=json.dumps([(block.language, block.code) for block in blocks]),
        cwd=folder,
        env=os.environ | sources,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def execute_input():
    """In that process: execute the blocks that come as JSON, and answer with what each prints."""
    namespace, printed = {"__name__": "__main__"}, []
    for language, code in json.load(sys.stdin):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(code, namespace)
            printed.append(output.getvalue())
        else:  # a terminal shows both outputs
            command = f'bagwise() {{ "{sys.executable}" -m bagwise "$@"; }}\nset -e\n{code}'
            done = subprocess.run(["bash", "-c", command], stdout=-1, stderr=-2, text=True, check=False)
            assert done.returncode == 0, done.stdout
            printed.append(done.stdout)
    sys.stdout.write(json.dumps(printed))


def agree(said, printed):
    """Whether what was printed is what a page said, by the rules above."""
    parts = _LOOSE.split(said)  # the loose ones are at odd places
    loose = {place: ".*" if part == "..." else _PERCENTAGE for place, part in enumerate(parts) if place % 2}
    found = re.fullmatch("".join(loose.get(place, re.escape(part)) for place, part in enumerate(parts)), printed)
    if found is None:
        return False
    numbers = [re.fullmatch(_PERCENTAGE, parts[place])[1] for place, kind in loose.items() if kind == _PERCENTAGE]
    return all(abs(float(a) - float(b)) <= 1.001 for a, b in zip(numbers, found.groups(), strict=True))


def rewrite(path):
    """Write what the blocks of a page print into it, where that differs."""
    text = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        outputs = iter(run(blocks_of(text), folder))

    def renewed(match):
        language, code, said = match.groups(default="")
        printed = next(outputs)
        kept = said if agree(said, printed) else printed
        return f"```{language}\n{code}```\n" + (f"```text\n{kept}```\n" if kept else "")

    path.write_text(_BLOCK.sub(renewed, text), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name))
