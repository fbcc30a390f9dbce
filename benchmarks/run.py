"""Every speed figure of the project, measured: `make bench`, or `make bench-quick`.

    python benchmarks/run.py [--quick] [--only rates,growth]

Writes benchmarks/results.json, docs/results/speed.md and the plots beside it. `--only` measures
some sections anew and keeps the others.
"""

import argparse
import inspect
import json
import os
import sys
from datetime import date
from pathlib import Path
from time import perf_counter

os.environ.setdefault(
    "GOMP_SPINCOUNT", "20000"
)  # as the command does, before torch is imported

import measure
from corrective_rate import corrective, scope
from edits import edits
from engines import engines
from page import write_page
from profile_step import profile
from rates import lengths, paper, rates
from serving import serving
from spaces import build, growth, size
from start import start

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results.json"
QUICK = RESULTS.with_name("quick.json")  # not kept
SECTIONS = {
    "corrective": corrective,
    "scope": scope,
    "rates": rates,
    "engines": engines,
    "paper": paper,
    "lengths": lengths,
    "size": size,
    "build": build,
    "growth": growth,
    "edits": edits,
    "start": start,
    "serving": serving,
    "profile": profile,
}


def main():
    """Measure, keep, and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, shorter answers")
    parser.add_argument("--only", help="sections, separated by commas: " + ", ".join(SECTIONS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    options = parser.parse_args()
    options.out = options.out or (QUICK if options.quick else RESULTS)
    names = options.only.split(",") if options.only else list(SECTIONS)
    if unknown := set(names) - set(SECTIONS):
        parser.error(f"there is no section {', '.join(sorted(unknown))}")
    measure.pin(options.threads)
    if options.quick:
        measure.ENTRIES = 1_000
    is_partial = bool(options.only) and options.out.exists()
    found = json.loads(options.out.read_text("utf-8")) if is_partial else {}
    for name in names:
        print(f"== {name}", file=sys.stderr)
        begun = perf_counter()
        figures = SECTIONS[name](options.quick)
        found[name] = {
            "about": inspect.getdoc(SECTIONS[name]),
            "figures": figures,
            "quick": options.quick,
            "date": str(date.today()),
            "took_seconds": round(perf_counter() - begun, 1),
            "where": measure.where(options.threads),
        }
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(write_page(json.loads(options.out.read_text("utf-8")), ROOT / "docs" / "results"))
    print(json.dumps({"benchmark": "speed", "sections": names, "quick": options.quick}))


if __name__ == "__main__":
    main()
