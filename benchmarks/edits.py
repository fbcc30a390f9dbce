"""What an edit of a space costs, by the number of entries that are there already."""

import sys
import tempfile
from itertools import count
from pathlib import Path
from statistics import median

from measure import model, rate, seconds, space
from spaces import enlarged

import trueline as tl

COUNTS = (1_000, 100_000)


def edits(quick):
    """Milliseconds of one edit, committed to disk; medians of rounds, the sizes take turns.

    An added example has one answer of a few tokens: its pass of the model is part of the time.
    """
    opened, times = {}, {kind: {n: [] for n in COUNTS} for kind in ("add", "remove", "current")}
    numbers = count()
    with tempfile.TemporaryDirectory() as folder:
        for entries in COUNTS:
            enlarged(entries).save(Path(folder) / str(entries))
            opened[entries] = tl.open(Path(folder) / str(entries))
        for turn in range(4 if quick else 12):
            for entries in COUNTS:
                taken = _edited(opened, entries, f"added-{next(numbers)}")
                print(f"  {entries:,}: {taken}", file=sys.stderr)
                for kind in times if turn else ():  # the first round opens the embedder
                    times[kind][entries].append(taken[kind])
    small, large = COUNTS
    return {
        "milliseconds": {
            f"{kind}, {entries:,} entries": round(1000 * median(found), 2)
            for kind, by_count in times.items()
            for entries, found in by_count.items()
        },
        f"add_{large}_over_{small}": rate(times["add"], small, large),
        "bytes_per_example": space().info()["bytes_per_example"],
    }


def _edited(opened, entries, name):
    """The seconds of an addition, of noticing it elsewhere, and of taking it back."""
    example = tl.Example(f"Is {name} new?", "Yes, it was added just now.", id=name)
    reader = opened[entries]
    made = {}
    add = seconds(lambda: made.update(added=reader.add([example], model())))
    current = seconds(reader.current)
    remove = seconds(lambda: made.update(left=made["added"].remove(name)))
    opened[entries] = made["left"]
    return {"add": add, "remove": remove, "current": current}
