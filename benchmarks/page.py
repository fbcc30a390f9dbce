"""Measured figures in, a page with the budgets, tables and plots out.

    python benchmarks/page.py

writes docs/results/speed.md anew from benchmarks/results.json; nothing is measured.
"""

import json
from pathlib import Path

BUDGETS = [  # what, must, aim, which way is better, where the figure stands
    ("corrective over greedy, tokens/s, in scope, batch 1", 0.97, 0.99, "corrective", "batch 1", "in_scope_over_greedy"),
    ("the same at batch 16", 0.97, 0.99, "corrective", "batch 16", "in_scope_over_greedy"),
    ("the same with nothing in scope, batch 1", 0.99, 1.0, "corrective", "batch 1", "nothing_in_scope_over_greedy"),
    ("the same at batch 16", 0.99, 1.0, "corrective", "batch 16", "nothing_in_scope_over_greedy"),
    ("RAD over greedy, tokens/s, batch 1, 5,000 entries", 0.90, 0.97, "rates", "float32, batch 1", "rad_over_greedy"),
    ("the same at batch 16", 0.90, 0.97, "rates", "float32, batch 16", "rad_over_greedy"),
    ("the same in bfloat16, batch 1", 0.90, 0.97, "rates", "bfloat16, batch 1", "rad_over_greedy"),
    ("the same in bfloat16, batch 16", 0.90, 0.97, "rates", "bfloat16, batch 16", "rad_over_greedy"),
    ("greedy over transformers' `generate`, batch 1", 1.0, 1.15, "rates", "float32, batch 1", "greedy_over_transformers"),
    ("the same at batch 16", 1.0, 1.15, "rates", "float32, batch 16", "greedy_over_transformers"),
    ("the same in bfloat16, batch 1", 1.0, 1.15, "rates", "bfloat16, batch 1", "greedy_over_transformers"),
    ("the same in bfloat16, batch 16", 1.0, 1.15, "rates", "bfloat16, batch 16", "greedy_over_transformers"),
    ("llama.cpp in our loop, greedy, batch 1, over its own loop", 0.95, 1.0, "engines", "greedy_over_own_loop"),
    ("corrective over greedy on it, in scope", 0.90, 0.97, "engines", "corrective_over_greedy_in_scope"),
    ("the same, nothing in scope", 0.99, 1.0, "engines", "corrective_over_greedy_out_of_scope"),
    ("llama.cpp over our transformers loop, greedy, batch 1", 4, 6, "engines", "greedy_over_transformers_engine"),
    ("RAD over the paper's procedure, 16 questions, 64 new tokens", 8, 20, "paper", "64", "times_as_fast"),
    ("64 clients of the server over `generate` with batch 16, tokens/s", 0.9, 1.0, "serving", "64_clients_over_generate_greedy"),
    ("the same, covered questions", 0.9, 1.0, "serving", "64_clients_over_generate_covered"),
    ("build, entries/s, over one pass an answer, then one a window", 4, 8, "build", "times_as_fast_as_window_by_window"),
]  # fmt: skip
LIMITS = [  # as above, but less is better
    ("scope, milliseconds a request, 100 examples", 15, 5, "scope", "100"),
    ("the same, 100,000 examples", 25, 8, "scope", "100000"),
    ("bytes an entry", 2300, 2000, "size", "float16_bytes_per_entry_on_disk"),
    ("steps that half precision changes", 0, 0, "size", "steps_that_differ"),
    ("add one example to 100,000 entries over adding it to 1,000", 2, 1.1, "edits", "add_100000_over_1000"),
    ("bytes of a corrective example beside its text", 4000, 2000, "edits", "bytes_per_example"),
    ("one client's stream over `stream`, seconds", 1.05, 1.02, "serving", "one_client_seconds_over_stream_greedy"),
    ("the same, a covered question", 1.05, 1.02, "serving", "one_client_seconds_over_stream_covered"),
    ("`trueline --help`, seconds", 0.5, 0.2, "start", "help_seconds"),
]  # fmt: skip


def write_page(found, folder):
    """Write speed.md and its plots, if what they show was measured in full; give the text."""
    heads = ["what", "must", "aim", "measured", "", "when, with which version"]
    parts = [_head(found), _table(heads, _budgets(found))]
    for name, section in found.items():
        measured = f"Measured {_when(section)}, {section['where']['processor']}."
        parts += [f"## {name}", measured, section["about"], section_tables(section["figures"])]
    text = "\n\n".join(parts) + "\n"
    is_whole = all(name in found for name in ("growth", "paper", "lengths"))
    if is_whole and not any(section["quick"] for section in found.values()):
        plots = _plots(found, folder)
        shown = "\n".join(f"![{what}]({path.name})" for what, path in plots.items())
        (folder / "speed.md").write_text(text + "\n## Plots\n\n" + shown + "\n", "utf-8")
    return text


def _head(found):
    places = [section["where"] for section in found.values()]
    same = {
        name: value
        for name, value in places[0].items()
        if all(place.get(name) == value for place in places)
    }
    where = ", ".join(f"{name} {value}" for name, value in same.items())
    return (
        f"# Speed\n\n`make bench`, or `python benchmarks/run.py --only` some sections, "
        f"SmolLM2-135M: {where}. Sections were measured at different times: each says its date, "
        "version of trueline and processor. What was tried, and what helped, is in "
        "[speed](../speed.md)."
    )


def _when(section):
    return f"{section['date']}, trueline {section['where']['trueline']}"


def _at(found, path):
    place = found.get(path[0], {}).get("figures")
    for name in path[1:]:
        place = None if place is None else place.get(name)
    return place


def _budgets(found):
    rows = []
    for budgets, sign in ((BUDGETS, 1), (LIMITS, -1)):
        for what, must, aim, *path in budgets:
            value = _at(found, path)
            if value is not None:
                verdict = _verdict(sign * value, sign * must, sign * aim)
                rows.append([what, must, aim, value, verdict, _when(found[path[0]])])
    growth = found.get("growth", {}).get("figures", {})
    if "1000000" in growth:
        ratio = round(growth["1000000"]["milliseconds"] / growth["10000"]["milliseconds"], 2)
        verdict = _verdict(-ratio, -4, -2)
        what, when = "retrieve and fuse, 1,000,000 over 10,000 entries", _when(found["growth"])
        rows.append([what, 4, 2, ratio, verdict, when])
    return rows


def _verdict(value, must, aim):
    return "aim met" if value >= aim else "met" if value >= must else "**missed**"


def section_tables(figures):
    """Nested figures as a table: a row for each that holds others, or one row in all."""
    if not all(isinstance(value, dict) for value in figures.values()):
        plain = {k: v for k, v in figures.items() if not isinstance(v, dict)}
        nested = {k: v for k, v in figures.items() if isinstance(v, dict)}
        tables = [_table(["figure", "value"], [[_said(k), v] for k, v in plain.items()])]
        tables += [
            _table([_said(k), ""], [[_said(a), b] for a, b in v.items()])
            for k, v in nested.items()
        ]
        return "\n\n".join(tables)
    columns = list(dict.fromkeys(key for row in figures.values() for key in row))
    rows = [[name, *(row.get(key, "") for key in columns)] for name, row in figures.items()]
    return _table(["", *map(_said, columns)], rows)


def _said(name):
    return str(name).replace("_", " ")


def _table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(value):
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return (
        f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    )


def _plots(found, folder):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = {}
    for what, path, series, axes in _curves(found):
        figure, plane = pyplot.subplots(figsize=(5.2, 3.2), layout="constrained")
        for label, points in series.items():
            plane.plot(*zip(*points, strict=True), marker="o", label=label)
        plane.set(xscale="log", ylim=(0, None), xlabel=axes[0], ylabel=axes[1], title=what)
        ticks = sorted({x for points in series.values() for x, _ in points})
        plane.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        plane.minorticks_off()
        plane.spines[["top", "right"]].set_visible(False)
        if len(series) > 1:
            plane.legend(frameon=False, loc="best")
        figure.savefig(folder / path, dpi=130)
        pyplot.close(figure)
        drawn[what] = Path(path)
    return drawn


def _curves(found):
    growth, paper = found["growth"]["figures"], found["paper"]["figures"]
    points = [(int(count), row["milliseconds"]) for count, row in growth.items()]
    yield (
        "Retrieval: exact below 50,000 entries, index above",
        "growth.png",
        {"RAD": points},
        ("entries", "ms to retrieve and fuse"),
    )
    names = {"one question": "times_as_fast_alone", "sixteen questions": "times_as_fast"}
    points = {
        label: [(int(length), row[name]) for length, row in paper.items()]
        for label, name in names.items()
    }
    yield (
        "RAD over the paper's procedure",
        "paper.png",
        points,
        ("new tokens", "times as fast"),
    )
    spans = {
        name: [
            (int(span.split()[-1]), ms) for span, ms in row.items() if span.startswith("tokens")
        ]
        for name, row in found["lengths"]["figures"].items()
    }
    yield "Time a token by length", "lengths.png", spans, ("token of the answer", "ms a token")


if __name__ == "__main__":
    here = Path(__file__).parent
    measured = json.loads((here / "results.json").read_text("utf-8"))
    write_page(measured, here.parent / "docs" / "results")
