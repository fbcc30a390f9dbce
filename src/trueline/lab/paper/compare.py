"""Our numbers next to the figures of the paper, and why they are comparable or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import isnan
from pathlib import Path
from typing import Any

from trueline.explain.text import moves
from trueline.lab.benchmarks.tables import bare_letters
from trueline.lab.cells import benchmark_of, model_of
from trueline.lab.findings import agreement_notes
from trueline.lab.measures import MEASURES, Average, Column
from trueline.lab.paper.recipes import EXAMPLES, PaperBlock, PaperRecipe, paper
from trueline.lab.plan import PAPER, Plan
from trueline.lab.report.plots import edit_quartiles
from trueline.lab.report.tables import (
    DASH,
    Grid,
    GridText,
    MethodRow,
    Table,
    entry_of,
    sweeps_of,
    swept_settings,
)
from trueline.lab.statistics import rank_correlation

_JUDGED = ("truth", "info", "truth_info", "hallucination")
_MAIN = ("truth_info", "hallucination")  # the measures by which methods are ranked
_CASES = 6  # questions of a table
_MOVES = 4  # tokens of a question
_ORDER = (
    "Questions the paper shows come first, if they are in the benchmark, then those on which "
    f"RAD's answer is not greedy's: at most {_CASES}."
)
_CUT = ("over 1,500 characters",)  # counts of rows that only we leave out
_LABELS = {True: "yes", False: "no", None: "unscored"}
PARTS = (  # figures can be compared if all of them are the paper's
    "model",
    "benchmark",
    "judge",
    "the judge's question",
    "questions judged",
    "generation prompt",
    "token limit",
    "examples",
    "documents",
)


@dataclass(frozen=True, slots=True)
class FigurePair:
    """One figure: ours by judge, and the paper's by model and judge."""

    benchmark: str
    row: str
    metric: str
    ours: dict[str, Average]  # by judge; "" if none is needed
    paper: dict[str, float]

    def plain(self) -> dict[str, Any]:
        """As JSON: shares in percent, as the paper gives them."""
        scale, ours = 100 if MEASURES[self.metric].is_percent else 1, []
        for judge, value in self.ours.items():
            numbers = {name: getattr(value, name) for name in ("mean", "low", "high")}
            numbers["difference"] = value.difference and value.difference.mean
            scaled = {n: None if x is None else round(scale * x, 3) for n, x in numbers.items()}
            counts = {name: getattr(value, name) for name in ("n", "unscored", "to_come", "p")}
            ours.append({"judge": judge, **scaled, **counts})
        where = {"benchmark": self.benchmark, "row": self.row, "metric": self.metric}
        return {**where, "ours": ours, "paper": self.paper}


def figure_pairs(recipe: PaperRecipe, table: Table) -> list[FigurePair]:
    """Every figure of a table that the paper has, we have, or both have."""
    blocks = _blocks_for(recipe, table.benchmark)
    rows = {key: row_for(key, table.rows) for block in blocks for key in block.rows}
    matched = {id(row) for row in rows.values()}
    rows |= {row.label: row for row in table.rows if id(row) not in matched}
    judged = dict.fromkeys(x.measure.key for x in table.columns if x.measure.key in _JUDGED)
    metrics = dict.fromkeys(metric for block in blocks for metric in block.metrics) or judged
    is_other = bool(blocks) and blocks[0].benchmark != table.benchmark
    on, pairs = f"on {blocks[0].benchmark}" if is_other else "", []
    for (key, row), metric in product(rows.items(), metrics):
        theirs = {
            ", ".join(filter(None, (block.model, block.judge, on))): block.rows[key][
                block.metrics.index(metric)
            ]
            for block in blocks
            if metric in block.metrics and key in block.rows
        }
        columns = [column for column in table.columns if column.measure.key == metric]
        values = row.values if row else {}
        ours = {column.judge: values[column.id] for column in columns if column.id in values}
        if ours or theirs:
            pairs.append(FigurePair(table.benchmark, key, metric, ours, theirs))
    return pairs


def _blocks_for(recipe: PaperRecipe, benchmark: str) -> list[PaperBlock]:
    """The paper's figures for a recipe on a benchmark, or on its first one if it has none."""
    blocks = [block for block in paper().blocks if block.recipe == recipe.name]
    if recipe.show == "judges":  # the figures of the other judge are in the main tables
        models = {block.model for block in blocks}
        main = [b for b in paper().blocks if b.recipe in ("main", "halueval")]
        blocks = [*(b for b in main if b.model in models), *blocks]
    first = recipe.plan["benchmarks"][0]
    own = [block for block in blocks if block.benchmark == benchmark]
    return own or [block for block in blocks if block.benchmark == first]


def row_for(key: str, rows: Sequence[MethodRow]) -> MethodRow | None:
    """Our row for a row of the paper, as in `rad tau=0.1`; the plainest if several fit."""
    method, *wanted = key.split()
    found = []
    for row in rows:
        known = swept_settings(row.first).items()  # an embedder may have an owner
        texts = {f"{name}={str(x).lower().rpartition('/')[2]}" for name, x in known}
        if row.method == method and texts.issuperset(wanted):
            found += [row] if wanted or not row.first.head.changed else []
    return min(found, key=lambda row: len(row.label), default=None)


def pair_grid(table: Table, pairs: Sequence[FigurePair]) -> Grid:
    """Ours and the paper's in columns; below ours its interval and its change from greedy."""
    judges = list(dict.fromkeys(judge for pair in pairs for judge in pair.ours)) or [""]
    theirs = list(dict.fromkeys(name for pair in pairs for name in pair.paper))
    rows = []
    for pair in pairs:
        column = Column(MEASURES[pair.metric])
        row = [GridText(pair.row), GridText(column.measure.title)]
        for value in map(pair.ours.get, judges):
            entry = entry_of(value and replace(value, is_best=False), column)
            unscored = (f"{value.unscored} unscored",) if value and value.unscored else ()
            to_come = (f"{value.to_come} to come",) if value and value.to_come else ()
            row.append(replace(entry, below=(*entry.below, *unscored, *to_come)))
        numbers = map(pair.paper.get, theirs)
        row += [GridText(DASH if x is None else f"{x:.1f}") for x in numbers]
        rows.append(tuple(row))
    names = [f"ours ({judge})" if judge else "ours" for judge in judges]
    head = ("method", "measure", *names, *(f"paper: {name}" for name in theirs))
    return Grid(f"{table.title} next to the paper", head, tuple(rows))


def caveats(recipe: PaperRecipe, tables: Sequence[Table]) -> list[str]:
    """Why our figures are not the paper's: model, judge, questions, examples, misprints."""
    pairs = list(differences(recipe, tables))
    first = f"All is as in the paper ({', '.join(PARTS)}): the figures can be compared."
    if differing := [part for part in PARTS if part in dict(pairs)]:
        first = (
            "The figures cannot be compared with the paper's, only the direction in which a "
            f"method moves them. What differs: {', '.join(differing)}."
        )
    cells = [cell for table in tables for cell in table.cells]
    notes = [first, *dict.fromkeys(note for _, note in pairs if note), *agreement_notes(cells)]
    keys = {column.measure.key for table in tables for column in table.columns}
    if "bertscore" in keys and any("bertscore_baseline" not in x.head.fidelity for x in cells):
        notes.append(
            "BERTScore: ours is F1 as the encoder gives it, not rescaled by a baseline; the "
            "authors' code rescales that of deberta-xlarge-mnli (bertscore_baseline)."
        )
    is_ours = any("confidence" not in cell.head.fidelity for cell in cells)
    if recipe.show == "reliability" and is_ours:
        notes.append(
            "Confidence: the paper takes the mean of the tokens' probabilities, ours is their "
            "geometric mean, so the levels of ECE and AUROC cannot be compared (confidence)."
        )
    return notes + [
        f"A misprint of the paper: {one.model}, {one.benchmark}, {one.row}, "
        f"{one.metric}: {one.about} (printed {one.printed:g}, worked {one.worked:g})."
        for one in paper().misprints
        if one.recipe == recipe.name
    ]


def differences(recipe: PaperRecipe, tables: Sequence[Table]) -> Iterator[tuple[str, str]]:
    """The PARTS in which ours differ from the paper's, each with a note or ""."""
    heads = [cell.head for table in tables for row in table.rows for cell in row.cells]
    answered = [head for head in heads if head.task == "generate"]
    if note := model_note(head.model for head in heads):
        yield "model", note
    for table in tables:
        yield from _differences_of(recipe, table)
    if any(x.fidelity.get("prompts") != PAPER["prompts"] for x in answered):
        yield "generation prompt", ""
    if any(x.max_new_tokens != PAPER["max_new_tokens"] for x in answered):
        yield "token limit", ""
    grounded = {(x.ground, x.draw, x.rule) for x in heads if x.space is not None}
    wanted = {(count, None, "all") for count in recipe.grounds or (EXAMPLES,)}
    if grounded and grounded != wanted:
        counts = ", ".join(map(str, sorted({count for count, *_ in grounded})))
        theirs = ", ".join(map(str, recipe.grounds or (EXAMPLES,)))
        yield (
            "examples",
            f"Grounded in {counts} examples; the paper takes the first {theirs} of all "
            "questions.",
        )
    if left := sum(count for x in heads for name, count in x.counts.items() if name in _CUT):
        yield "documents", f"Long documents are left out ({left} rows); the paper keeps them."


def model_note(models: Iterable[str]) -> str:
    """A note on models that are not the paper's, or ""; folders and owners do not count."""
    theirs = paper().models
    known = {name.lower().rpartition("/")[2] for name in theirs.values()}
    others = sorted({name for name in models if name.lower().rpartition("/")[2] not in known})
    text = f"Another model: ours is {', '.join(others)}, the paper's are {', '.join(theirs)}."
    return text if others else ""


def _differences_of(recipe: PaperRecipe, table: Table) -> Iterator[tuple[str, str]]:
    name, blocks = table.benchmark, _blocks_for(recipe, table.benchmark)
    known = [block.benchmark for block in blocks[:1]] or recipe.plan["benchmarks"]
    other = ", ".join(known)
    if name not in known:
        where = "" if name in paper().tests else f"{name} is not in the paper; "
        yield (
            "benchmark",
            f"Another benchmark: {where}the paper's figures next to {name} are for {other} and "
            "cannot be compared.",
        )
    keys = {column.measure.key for column in table.columns}
    # Where the paper gives no figures, it judged as it did for its main table.
    kinds = [b.judge for b in blocks if b.judge] if blocks else [*paper().judges][:1]
    if theirs := [f"{kind}:{paper().judges[kind]}" for kind in dict.fromkeys(kinds)]:
        ours = [judge for judge in table.judges if judge.removesuffix("+paper") not in theirs]
        if not table.judges:
            yield "judge", "No judge was used: the paper's judged figures stand alone."
        elif ours:
            yield (
                "judge",
                f"Another judge: ours is {', '.join(ours)}, the paper's {', '.join(theirs)}. "
                "Shares by different judges cannot be compared.",
            )
        # The paper prints its question about hallucinations only.
        is_paper = all(judge.endswith("+paper") for judge in table.judges)
        if not is_paper or keys & {"truth", "info", "truth_info"}:
            yield "the judge's question", ""
    metrics = {metric for block in blocks for metric in block.metrics}
    columns = [column.id for column in table.columns if column.measure.key in metrics]
    counts = {row.values[id].n for row in table.rows for id in columns if id in row.values}
    if not columns:  # figures that are not means
        counts = {sum(len(cell.answers) for cell in row.cells) for row in table.rows}
    if counts != {wanted := paper().tests.get(name)}:
        size = " to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else "0"
        text = f"Other numbers of questions on {name}: ours {size}, the paper's {wanted}."
        yield "questions judged", text if wanted else ""


def cases_of(plan: Plan, folder: Path, table: Table) -> list[dict[str, Any]]:
    """The questions the paper shows, then the first on which RAD differs from greedy; JSON.

    RAD's answers are decoded once more with a trace; its space is in the folder already.
    """
    from trueline.decode.generate import generate
    from trueline.lab.cells import cells_of, grounding_space

    cells = {row.method: row.first for row in table.rows if not row.first.head.is_instead}
    texts = {name: {x.sample: x.text for x in cell.answers} for name, cell in cells.items()}
    ours, greedy = cells["rad"].answers, texts["greedy"]
    printed = {bare_letters(case.question) for case in paper().cases}
    named = {line.sample for line in ours if bare_letters(line.question) in printed}
    lines = [x for x in ours if x.sample in named or x.text != greedy.get(x.sample, x.text)]
    lines = sorted(lines, key=lambda line: line.sample not in named)[:_CASES]
    if not lines:
        return []
    questions, limit = [line.question for line in lines], plan.sampling.max_new_tokens
    read = benchmark_of(plan, table.benchmark)
    lm = next(lm for lm in (model_of(plan, x) for x in plan.models) if lm.id == table.model)
    variant = next(x for x in plan.variants if x.method == "rad" and x.control is None)
    assert variant.build is not None
    space = grounding_space(lm, read, variant.build, folder / "spaces", None)
    method = cells_of(plan, lm, read, variant, space)[0].method
    traced = generate(lm, method, questions, max_new_tokens=limit, trace=True)
    cases = []
    for line, answer in zip(lines, traced, strict=True):
        answers = {}
        for name, cell in cells.items():
            given = [x for x in cell.verdicts if x.sample == line.sample]
            verdicts = [f"{x.about}: {_LABELS[x.label]} ({x.judge})" for x in given]
            if (text := texts[name].get(line.sample)) is not None:
                answers[name] = {"text": text.strip(), "verdicts": verdicts}
        case = {"benchmark": table.benchmark, "question": line.question, "answers": answers}
        moved = list(moves(answer.trace))  # the tokens that RAD changed
        cases.append({**case, "moves": moved, "is_of_the_paper": line.sample in named})
    return cases


def paper_grid() -> Grid:
    """The paper's cases: the answer of each method in substance, and its verdicts."""
    cases = []
    for case in paper().cases:
        judged, answers = {"truth": case.truth, "info": case.info}.items(), {}
        for name, text in case.answers.items():
            verdicts = [f"{x}: {_LABELS[each[name]]}" for x, each in judged if name in each]
            answers[name] = {"text": text, "verdicts": verdicts}
        one = {"benchmark": case.benchmark, "question": case.question, "answers": answers}
        cases.append({**one, "moves": [case.moved or "not given"], "is_of_the_paper": True})
    note = "Answers are given in our words; the paper ran Qwen2.5-7B."
    return case_grid(cases, "The paper's cases", note)


def case_grid(
    cases: Sequence[dict[str, Any]], title: str = "Cases", note: str = _ORDER
) -> Grid:
    """A question a row, a method a column."""
    methods = list(dict.fromkeys(name for case in cases for name in case["answers"]))
    rows = []
    for case in cases:
        of = case["benchmark"] + (", a case of the paper" if case["is_of_the_paper"] else "")
        found = [case["answers"].get(x, {"text": DASH, "verdicts": ()}) for x in methods]
        answers = (GridText(one["text"], tuple(one["verdicts"])) for one in found)
        moved, more = case["moves"][:_MOVES], len(case["moves"]) - _MOVES
        moved += [f"{more} more"] if more > 0 else []
        last = GridText("; ".join(moved) or "none")
        rows.append((GridText(case["question"], (of,)), *answers, last))
    return Grid(title, ("question", *methods, "tokens that changed"), tuple(rows), (note,))


def our_text_figures(show: str, tables: Sequence[Table]) -> dict[str, str]:
    """Our figures by their key in paper.toml; a second table adds its name to a key."""
    figures = {
        "interventions": _interventions,
        "reliability": _reliability,
        "best": _best,
        "judges": _judge_correlations,
    }
    found: dict[str, str] = {}
    for table in tables if show in figures else ():
        for key, text in figures[show](table).items():
            found[f"{key} ({table.title})" if key in found else key] = text
    return found


def _interventions(table: Table) -> dict[str, str]:
    row = row_for("rad", table.rows)
    return {
        f"edit_q{number}": f"{100 * (q.share or 0.0):.1f} % of {q.n} tokens "
        f"(entropy {q.low:.2f} to {q.high:.2f})"
        for number, q in enumerate(edit_quartiles(row) if row else [], 1)
    }


def _reliability(table: Table) -> dict[str, str]:
    """AUROC a method, and the ECE of both, by every judge."""
    texts: dict[str, list[str]] = {}
    for method, column in product(("greedy", "rad"), table.columns):
        row, measure = row_for(method, table.rows), column.measure.key
        value = row.values.get(column.id) if row else None
        if value and measure == "auroc":
            text = f"{value.mean:.2f} ({column.judge})"
            texts.setdefault(f"auroc {method}", []).append(text)
        elif value and measure == "ece":
            text = f"{method} {value.mean:.3f} ({column.judge})"
            texts.setdefault("ece", []).append(text)
    return {key: ", ".join(each) for key, each in texts.items()}


def _best(table: Table) -> dict[str, str]:
    """The best value of each sweep, by the first judge."""
    found: dict[str, str] = {}
    columns = [column for column in table.columns if column.measure.key in _MAIN]
    for sweep in sweeps_of(table) if columns else ():
        id, measure = columns[0].id, columns[0].measure
        scored = [
            (row.values[id].mean * measure.better, value)
            for value, row in zip(sweep.values, sweep.rows, strict=True)
            if id in row.values
        ]
        top = max((score for score, _ in scored), default=0.0)
        best = ", ".join(str(value) for score, value in scored if score == top)
        text = f"{best} ({measure.title} by {columns[0].judge})"
        found.setdefault(f"best_{sweep.name}", text)
    return found


def _judge_correlations(table: Table) -> dict[str, str]:
    """How the ranks of methods by two judges correlate; the first pair is the paper's."""
    key, found = f"rho {table.benchmark}", dict[str, str]()
    methods = [row for row in table.rows if not row.first.head.is_instead]
    columns = [column for column in table.columns if column.measure.key in _MAIN]
    for pair in combinations(columns, 2):
        rows = [row for row in methods if {x.id for x in pair} <= row.values.keys()]
        names, text = " and ".join(x.judge for x in pair), "needs three methods or more"
        if len(rows) >= 3:
            rho, p = rank_correlation(*([row.values[x.id].mean for row in rows] for x in pair))
            same = "none: a judge gave every method the same"
            text = same if isnan(rho) else f"{rho:.2f}, p {p:.3f}"
            text += f" ({names}, {len(rows)} methods)"
        found[f"{key}, {names}" if found else key] = text
    return found or {key: "needs two judges whose verdicts can be read"}
