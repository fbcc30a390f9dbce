"""Our numbers next to the figures of the paper, and why they are comparable or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import isnan
from pathlib import Path
from typing import Any, get_args

from trueline.explain.text import moves
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
from trueline.lab.results import CellResults
from trueline.lab.samples import About, bare_letters
from trueline.lab.statistics import rank_correlation

_JUDGED = ("truth", "info", "truth_info", "hallucination")
_MAIN = ("truth_info", "hallucination")  # the measures by which methods are ranked
_CASES = 6  # questions of a table
_MOVES = 4  # tokens of a question
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
        scale = 100 if MEASURES[self.metric].is_percent else 1
        ours = []
        for judge, value in self.ours.items():
            numbers = {name: getattr(value, name) for name in ("mean", "low", "high")}
            numbers["difference"] = value.difference.mean if value.difference else None
            scaled = {n: None if x is None else round(scale * x, 3) for n, x in numbers.items()}
            counts = {name: getattr(value, name) for name in ("n", "unscored", "to_come", "p")}
            ours.append({"judge": judge, **scaled, **counts})
        where = {"benchmark": self.benchmark, "row": self.row, "metric": self.metric}
        return {**where, "ours": ours, "paper": self.paper}


def blocks_for(recipe: PaperRecipe, benchmark: str) -> list[PaperBlock]:
    """The paper's figures for a recipe on a benchmark, or on its first one if it has none."""
    blocks = [block for block in paper().blocks if block.recipe == recipe.name]
    if recipe.show == "judges":  # the figures of the other judge are in the main tables
        models = {block.model for block in blocks}
        main = [b for b in paper().blocks if b.recipe in ("main", "halueval")]
        blocks = [*(b for b in main if b.model in models), *blocks]
    first = recipe.plan["benchmarks"][0]
    own = [block for block in blocks if block.benchmark == benchmark]
    return own or [block for block in blocks if block.benchmark == first]


def figure_pairs(recipe: PaperRecipe, table: Table) -> list[FigurePair]:
    """Every figure of a table that the paper has, we have, or both have."""
    blocks = blocks_for(recipe, table.benchmark)
    rows = {key: row_for(key, table.rows) for block in blocks for key in block.rows}
    matched = {id(row) for row in rows.values()}
    rows |= {row.label: row for row in table.rows if id(row) not in matched}
    metrics = dict.fromkeys(metric for block in blocks for metric in block.metrics)
    judged = [c.measure.key for c in table.columns if c.measure.key in _JUDGED]
    pairs = []
    for key, row in rows.items():
        for metric in metrics or dict.fromkeys(judged):
            theirs = {
                _column_of_the_paper(block, table): block.rows[key][block.metrics.index(metric)]
                for block in blocks
                if metric in block.metrics and key in block.rows
            }
            columns = [c for c in table.columns if row and c.measure.key == metric]
            ours = {c.judge: row.values[c.id] for c in columns if row and c.id in row.values}
            pairs.append(FigurePair(table.benchmark, key, metric, ours, theirs))
    return [pair for pair in pairs if pair.ours or pair.paper]


def row_for(key: str, rows: Sequence[MethodRow]) -> MethodRow | None:
    """Our row for a row of the paper, as in `rad tau=0.1`; the plainest if several fit."""
    method, *settings = key.split()
    wanted = dict(text.split("=", 1) for text in settings)
    fitting = [
        row
        for row in rows
        if row.method == method
        and (wanted or not row.first.head.changed)
        and all(_is_equal(swept_settings(row.first).get(k), v) for k, v in wanted.items())
    ]
    return min(fitting, key=lambda row: len(row.label), default=None)


def _is_equal(ours: object, theirs: str) -> bool:
    """Whether two settings are equal; an embedder may have its owner's name before it."""
    try:
        return float(str(ours)) == float(theirs)
    except ValueError:
        return str(ours).lower().rpartition("/")[2] == theirs.lower()


def _column_of_the_paper(block: PaperBlock, table: Table) -> str:
    """The model and judge of the paper, and its benchmark if ours is another."""
    on = "" if block.benchmark == table.benchmark else f"on {block.benchmark}"
    return ", ".join(filter(None, (block.model, block.judge, on)))


def pair_grid(table: Table, pairs: Sequence[FigurePair]) -> Grid:
    """Ours and the paper's in columns; below ours its interval and its change from greedy."""
    judges = list(dict.fromkeys(judge for pair in pairs for judge in pair.ours)) or [""]
    theirs = list(dict.fromkeys(name for pair in pairs for name in pair.paper))
    rows = []
    for pair in pairs:
        column = Column(MEASURES[pair.metric])
        numbers = [pair.paper.get(name) for name in theirs]
        texts = [pair.row, column.measure.title]
        ours = [_entry(pair.ours.get(judge), column) for judge in judges]
        of_paper = [GridText(DASH if x is None else f"{x:.1f}") for x in numbers]
        rows.append((*map(GridText, texts), *ours, *of_paper))
    names = [f"ours{f' ({judge})' if judge else ''}" for judge in judges]
    head = ("method", "measure", *names, *(f"paper: {name}" for name in theirs))
    return Grid(f"{table.title} next to the paper", head, tuple(rows))


def _entry(value: Average | None, column: Column) -> GridText:
    entry = entry_of(value and replace(value, is_best=False), column)
    counts = ((value.unscored, "unscored"), (value.to_come, "to come")) if value else ()
    return replace(entry, below=(*entry.below, *(f"{x} {what}" for x, what in counts if x)))


def differences(recipe: PaperRecipe, tables: Sequence[Table]) -> Iterator[tuple[str, str]]:
    """The PARTS in which ours differ from the paper's, each with a note or ""."""
    heads = [cell.head for table in tables for row in table.rows for cell in row.cells]
    answered = [head for head in heads if head.task == "generate"]
    if note := model_note(head.model for head in heads):
        yield "model", note
    for table in tables:
        yield from _differences_of_a_table(recipe, table)
    if any(x.fidelity.get("prompts") != PAPER["prompts"] for x in answered):
        yield "generation prompt", ""
    if any(x.max_new_tokens != PAPER["max_new_tokens"] for x in answered):
        yield "token limit", ""
    grounded = [(x.ground, x.draw, x.rule) for x in heads if x.space is not None]
    if not recipe.grounds and any(x != (EXAMPLES, None, "all") for x in grounded):
        counts = ", ".join(str(count) for count in sorted({ground for ground, *_ in grounded}))
        yield (
            "examples",
            f"Grounded in {counts} examples; the paper takes the first {EXAMPLES} of all "
            "questions unless a row gives another number.",
        )


def model_note(models: Iterable[str]) -> str:
    """A note on models that are not the paper's, or ""; folders and owners do not count."""
    theirs = paper().models
    known = {name.lower().rpartition("/")[2] for name in theirs.values()}
    others = sorted({name for name in models if name.lower().rpartition("/")[2] not in known})
    text = f"Another model: ours is {', '.join(others)}, the paper's are {', '.join(theirs)}."
    return text if others else ""


def _differences_of_a_table(recipe: PaperRecipe, table: Table) -> Iterator[tuple[str, str]]:
    name, blocks = table.benchmark, blocks_for(recipe, table.benchmark)
    others = {b.benchmark: None for b in blocks} or {recipe.plan["benchmarks"][0]: None}
    if [*others] != [name]:
        where = "" if name in paper().tests else f"{name} is not in the paper; "
        yield (
            "benchmark",
            f"Another benchmark: {where}the paper's figures next to {name} are for "
            f"{', '.join(others)} and cannot be compared.",
        )
    theirs = [paper().judges[x] for x in dict.fromkeys(b.judge for b in blocks if b.judge)]
    ours = [judge for judge in table.judges if not any(x in judge for x in theirs)]
    if theirs and ours:
        yield (
            "judge",
            f"Another judge: ours is {', '.join(ours)}, the paper's {', '.join(theirs)}. "
            "Shares by different judges cannot be compared.",
        )
    elif theirs and not table.judges:
        yield "judge", "No judge was used: the paper's judged figures stand alone."
    keys = {column.measure.key for column in table.columns}
    # The paper prints its question about hallucinations only.
    has_own = any(not judge.endswith("+paper") for judge in table.judges)
    if theirs and (has_own or keys & {"truth", "info", "truth_info"}):
        yield "the judge's question", ""
    metrics = {metric for block in blocks for metric in block.metrics}
    columns = [column.id for column in table.columns if column.measure.key in metrics]
    counts = {row.values[id].n for row in table.rows for id in columns if id in row.values}
    if not columns:  # figures that are not means
        counts = {sum(len(cell.answers) for cell in row.cells) for row in table.rows}
    wanted = paper().tests.get(name)
    if counts != {wanted}:
        size = " to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else "0"
        text = f"Other numbers of questions on {name}: ours {size}, the paper's {wanted}."
        yield "questions judged", text if wanted else ""


def caveats(recipe: PaperRecipe, tables: Sequence[Table]) -> tuple[str, ...]:
    """Why our figures are not the paper's: model, judge, questions, examples, misprints."""
    pairs = list(differences(recipe, tables))
    differing = [part for part in PARTS if part in dict(pairs)]
    if differing:
        first = (
            "The figures cannot be compared with the paper's, only the direction in which a "
            f"method moves them. What differs: {', '.join(differing)}."
        )
    else:
        first = f"All is as in the paper ({', '.join(PARTS)}): the figures can be compared."
    cells = [cell for table in tables for cell in table.cells]
    notes = [first, *dict.fromkeys(note for _, note in pairs), *agreement_notes(cells)]
    settings = [cell.head.fidelity for cell in cells]
    keys = {column.measure.key for table in tables for column in table.columns}
    if "bertscore" in keys and any("bertscore_baseline" not in x for x in settings):
        notes.append(
            "BERTScore: ours is F1 as the encoder gives it, not rescaled by a baseline; the "
            "authors' code rescales that of deberta-xlarge-mnli (bertscore_baseline)."
        )
    if recipe.show == "reliability" and any("confidence" not in x for x in settings):
        notes.append(
            "Confidence: the paper takes the mean of the tokens' probabilities, ours is their "
            "geometric mean, so the levels of ECE and AUROC cannot be compared (confidence)."
        )
    notes += [
        f"A misprint of the paper: {one.model}, {one.benchmark}, {one.row}, "
        f"{one.metric}: {one.about} (printed {one.printed:g}, worked {one.worked:g})."
        for one in paper().misprints
        if one.recipe == recipe.name
    ]
    return tuple(filter(None, notes))


def cases_of(plan: Plan, folder: Path, table: Table) -> list[dict[str, Any]]:
    """The questions the paper shows, then the first on which RAD differs from greedy; JSON."""
    cells = {row.method: row.first for row in table.rows if not row.first.head.is_instead}
    greedy = {line.sample: line.text for line in cells["greedy"].answers}
    printed = {bare_letters(case.question) for case in paper().cases}
    both = [line for line in cells["rad"].answers if line.sample in greedy]
    named = [line for line in both if bare_letters(line.question) in printed]
    differing = [line for line in both if line.text != greedy[line.sample]]
    lines = [*named, *(line for line in differing if line not in named)][:_CASES]
    questions = [line.question for line in lines]
    moved = _moves(plan, folder, table, questions) if lines else []
    return [
        {
            "benchmark": table.benchmark,
            "question": line.question,
            "answers": _answers(cells, line.sample),
            "moves": tokens,  # the tokens that RAD changed
            "is_of_the_paper": line in named,
        }
        for line, tokens in zip(lines, moved, strict=True)
    ]


def _moves(plan: Plan, folder: Path, table: Table, questions: list[str]) -> list[list[str]]:
    """Decode RAD's answers once more with a trace; its space is in the folder already."""
    from trueline.decode.generate import generate
    from trueline.lab.cells import cells_of, grounding_space

    read = benchmark_of(plan, table.benchmark)
    models = (model_of(plan, name) for name in plan.models)
    lm = next(lm for lm in models if lm.id == table.model)
    variant = next(x for x in plan.variants if x.method == "rad" and x.control is None)
    assert variant.build is not None
    space = grounding_space(lm, read, variant.build, folder / "spaces", None)
    cell, *_ = cells_of(plan, lm, read, variant, space)
    limit = plan.sampling.max_new_tokens
    answers = generate(lm, cell.method, questions, max_new_tokens=limit, trace=True)
    return [list(moves(answer.trace)) for answer in answers]


def _answers(cells: Mapping[str, CellResults], sample: str) -> dict[str, dict[str, Any]]:
    """The answers to a sample by method, each with the verdict of every judge."""
    found = {}
    for name, cell in cells.items():
        verdicts = [
            f"{about}: {_LABELS[labels[sample]]} ({judge})"
            for judge in cell.judges
            for about in get_args(About)
            if sample in (labels := cell.labels(about, judge))
        ]
        for line in cell.answers:
            if line.sample == sample:
                found[name] = {"text": line.text.strip(), "verdicts": verdicts}
    return found


def case_grid(cases: Sequence[dict[str, Any]]) -> Grid:
    """A question a row, a method a column."""
    rows = []
    for case in cases:
        moved, more = case["moves"][:_MOVES], len(case["moves"]) - _MOVES
        text = "; ".join([*moved, f"{more} more"] if more > 0 else moved) or "none"
        answers = case["answers"].items()
        texts = {name: GridText(x["text"], tuple(x["verdicts"])) for name, x in answers}
        below = ("a case of the paper",) if case["is_of_the_paper"] else ()
        rows.append((GridText(case["question"], below), texts, text))
    note = (
        "Questions the paper shows come first, if they are in the benchmark, then those on "
        f"which RAD's answer is not greedy's: at most {_CASES}."
    )
    return _case_grid("Cases", rows, note)


def paper_grid() -> Grid:
    """The paper's cases: the answer of each method in substance, and its verdicts."""
    rows = []
    for case in paper().cases:
        judged = {"truth": case.truth, "info": case.info}
        answers = {}
        for name, text in case.answers.items():
            labels = {about: each[name] for about, each in judged.items() if name in each}
            below = (f"{about}: {_LABELS[label]}" for about, label in labels.items())
            answers[name] = GridText(text, tuple(below))
        question = GridText(case.question, (case.benchmark,))
        rows.append((question, answers, case.moved or "not given"))
    note = "Answers are given in our words; the paper ran Qwen2.5-7B."
    return _case_grid("The paper's cases", rows, note)


def _case_grid(
    title: str, cases: Sequence[tuple[GridText, Mapping[str, GridText], str]], note: str
) -> Grid:
    methods = list(dict.fromkeys(name for _, answers, _ in cases for name in answers))
    rows = tuple(
        (question, *(answers.get(x, GridText(DASH)) for x in methods), GridText(moved))
        for question, answers, moved in cases
    )
    return Grid(title, ("question", *methods, "tokens that changed"), rows, (note,))


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
    found: dict[str, list[str]] = {}
    for row in (row_for("greedy", table.rows), row_for("rad", table.rows)):
        for column in table.columns:
            if row is not None and (value := row.values.get(column.id)) is not None:
                if column.measure.key == "auroc":
                    text = f"{value.mean:.2f} ({column.judge})"
                    found.setdefault(f"auroc {row.method}", []).append(text)
                elif column.measure.key == "ece":
                    text = f"{row.method} {value.mean:.3f} ({column.judge})"
                    found.setdefault("ece", []).append(text)
    return {key: ", ".join(texts) for key, texts in found.items()}


def _best(table: Table) -> dict[str, str]:
    """The best value of each sweep, by the first judge."""
    found: dict[str, str] = {}
    columns = [column for column in table.columns if column.measure.key in _MAIN]
    for sweep in sweeps_of(table):
        for column in columns[:1]:
            scored = [
                (row.values[column.id].mean * column.measure.better, value)
                for value, row in zip(sweep.values, sweep.rows, strict=True)
                if column.id in row.values
            ]
            top = max((score for score, _ in scored), default=0.0)
            best = ", ".join(str(value) for score, value in scored if score == top)
            judge = f" ({column.measure.title} by {column.judge})"
            found.setdefault(f"best_{sweep.name}", best + judge)
    return found


def _judge_correlations(table: Table) -> dict[str, str]:
    """How the ranks of methods by two judges correlate; the first pair is the paper's."""
    columns = [column for column in table.columns if column.measure.key in _MAIN]
    key, found = f"rho {table.benchmark}", dict[str, str]()
    for one, other in combinations(columns, 2):
        methods = [row for row in table.rows if not row.first.head.is_instead]
        rows = [row for row in methods if {one.id, other.id} <= row.values.keys()]
        pair = f"{one.judge} and {other.judge}"
        text = "needs three methods or more"
        if len(rows) >= 3:
            means = ([row.values[column.id].mean for row in rows] for column in (one, other))
            rho, p = rank_correlation(*means)
            same = "none: a judge gave every method the same"
            text = same if isnan(rho) else f"{rho:.2f}, p {p:.3f}"
            text += f" ({pair}, {len(rows)} methods)"
        found[f"{key}, {pair}" if found else key] = text
    return found or {key: "needs two judges whose verdicts can be read"}
