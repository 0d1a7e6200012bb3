"""Keep what an example prints on real data, with how and where it ran: the record behind what docs/ quotes.

    python examples/record.py precincts senc.csv
    python examples/record.py adult FOLDER

Writes results/examples/NAME.json.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from bagwise.experiments.provenance import collect_provenance

ROOT = Path(__file__).parents[1]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("adult", "images", "precincts"))
    parser.add_argument("data", help="path that the example takes")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "examples", help="folder of the record")
    options = parser.parse_args(arguments)
    provenance, started = collect_provenance(), time.perf_counter()
    program = ROOT / "examples" / f"{options.name}.py"
    done = subprocess.run([sys.executable, str(program), options.data], stdout=subprocess.PIPE, text=True, check=True)
    record = {
        "command": f"python examples/{options.name}.py {Path(options.data).name}",
        "seconds": round(time.perf_counter() - started, 1),
        "provenance": asdict(provenance),
        "printed": done.stdout.splitlines(),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{options.name}.json"
    staged = path.with_suffix(".partial")
    staged.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    staged.replace(path)
    print(done.stdout, end="")


if __name__ == "__main__":
    main()
