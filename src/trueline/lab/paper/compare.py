"""Our numbers beside the figures of the paper, and why they are comparable or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isnan
from pathlib import Path
from typing import Any, get_args

from trueline.explain.text import moves
from trueline.lab.cells import benchmark_of, model_of
from trueline.lab.findings import agreement_notes
from trueline.lab.measures import MEASURES, Average, Column
from trueline.lab.paper.recipes import EXAMPLES, PaperBlock, PaperCase, PaperRecipe, paper
from trueline.lab.plan import PAPER, Plan
from trueline.lab.report.plots import edit_quartiles
from trueline.lab.report.tables import (
    DASH,
    Grid,
    GridText,
    MethodRow,
    Table,
    interval_lines,
    number,
    p_text,
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

        def scaled(number: float | None) -> float | None:
            return None if number is None else round(scale * number, 3)

        ours = [
            {
                "judge": judge,
                **{name: scaled(getattr(value, name)) for name in ("mean", "low", "high")},
                **{name: getattr(value, name) for name in ("n", "unscored", "to_come", "p")},
                "difference": scaled(value.difference.mean if value.difference else None),
            }
            for judge, value in self.ours.items()
        ]
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
        and (wanted or row.has_default_settings)
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
        of_paper = [
            f"{pair.paper[name]:.1f}" if name in pair.paper else DASH for name in theirs
        ]
        ours = [_entry(pair.ours.get(judge), column) for judge in judges]
        head = (GridText(pair.row), GridText(column.measure.title))
        rows.append((*head, *ours, *map(GridText, of_paper)))
    names = [f"ours{f' ({judge})' if judge else ''}" for judge in judges]
    head_names = ("method", "measure", *names, *(f"paper: {name}" for name in theirs))
    return Grid(f"{table.title} beside the paper", head_names, tuple(rows))


def _entry(value: Average | None, column: Column) -> GridText:
    if value is None:
        return GridText(DASH)
    below = interval_lines(value, column)
    below += [f"{value.unscored} unscored"] if value.unscored else []
    below += [f"{value.to_come} to come"] if value.to_come else []
    if value.difference is not None:
        change = number(value.difference.mean, column, sign=True)
        below.append(f"{change} from greedy, {p_text(value.p)}")
    return GridText(number(value.mean, column), tuple(below))


def comparable_sentence(recipe: PaperRecipe, tables: Sequence[Table]) -> str:
    parts = agreement_with_paper(recipe, tables)
    differing = [name for name, agrees in parts.items() if not agrees]
    if not differing:
        return (
            f"Every part agrees with the paper's ({', '.join(parts)}): the figures can be "
            "compared."
        )
    return (
        "The figures cannot be compared with the paper's, only which way a method moves them. "
        f"What differs: {', '.join(differing)}."
    )


def agreement_with_paper(recipe: PaperRecipe, tables: Sequence[Table]) -> dict[str, bool]:
    """Every part that has to agree, and whether it does in all cells."""
    heads = [cell.head for table in tables for row in table.rows for cell in row.cells]
    grounded = [head for head in heads if head.space is not None]
    answered = [head for head in heads if head.task == "generate"]
    return {
        "model": all(is_of_the_paper(head.model) for head in heads),
        "benchmark": all(
            {b.benchmark for b in blocks_for(recipe, table.benchmark)} == {table.benchmark}
            for table in tables
        ),
        "judge": all(_has_its_judges(recipe, table) for table in tables),
        "the judge's question": all(_asks_its_question(recipe, table) for table in tables),
        "generation prompt": all(
            x.fidelity.get("prompts") == PAPER["prompts"] for x in answered
        ),
        "token limit": all(x.max_new_tokens == PAPER["max_new_tokens"] for x in answered),
        "questions judged": all(_judges_all(recipe, table) for table in tables),
        "examples": bool(recipe.grounds)
        or all((x.ground, x.draw, x.rule) == (EXAMPLES, None, "all") for x in grounded),
    }


def is_of_the_paper(model: str) -> bool:
    """Whether the paper ran a model; folders and owners in its name do not count."""
    short = model.lower().rpartition("/")[2]
    return short in {name.lower().rpartition("/")[2] for name in paper().models.values()}


def _judges_of_the_paper(recipe: PaperRecipe, table: Table) -> list[str]:
    names = [block.judge for block in blocks_for(recipe, table.benchmark) if block.judge]
    return [paper().judges[name] for name in dict.fromkeys(names)]


def _our_judges(cells: Iterable[CellResults]) -> list[str]:
    return list(dict.fromkeys(judge for cell in cells for judge in cell.judges))


def _has_its_judges(recipe: PaperRecipe, table: Table) -> bool:
    ours, theirs = _our_judges(table.cells), _judges_of_the_paper(recipe, table)
    is_theirs = [any(name in judge for name in theirs) for judge in ours]
    return not theirs or (bool(ours) and all(is_theirs))


def _asks_its_question(recipe: PaperRecipe, table: Table) -> bool:
    """Whether judges read the paper's own questions; for truth and info these do not exist."""
    if not _judges_of_the_paper(recipe, table):
        return True
    keys = {column.measure.key for column in table.columns}
    is_theirs = all(judge.endswith("+paper") for judge in _our_judges(table.cells))
    return keys.isdisjoint(("truth", "info", "truth_info")) and is_theirs


def _judges_all(recipe: PaperRecipe, table: Table) -> bool:
    """Whether every number rests on as many questions as the paper's."""
    keys = {metric for block in blocks_for(recipe, table.benchmark) for metric in block.metrics}
    columns = [x for x in table.columns if x.measure.key in keys]
    found = [row.values.get(column.id) for row in table.rows for column in columns]
    counts = {value.n for value in found if value is not None}
    if not columns:  # figures that are not means
        counts = {sum(len(cell.answers) for cell in row.cells) for row in table.rows}
    return counts == {paper().tests.get(table.benchmark)}


RULES = {  # how examples are taken, by the plan's rule
    "answered": "Rule `answered`: questions without an answer are left out before examples are "
    "taken, so there are as many as were asked for if the benchmark holds them.",
    "all": "Rule `all`, as in the paper: examples are taken among all questions, and those "
    "without an answer cannot ground, so there may be fewer than were asked for.",
}


def caveats(recipe: PaperRecipe, tables: Sequence[Table]) -> tuple[str, ...]:
    """Why our figures are not the paper's: model, judge, questions, examples, misprints."""
    cells = [cell for table in tables for cell in table.cells]
    notes = [
        comparable_sentence(recipe, tables),
        other_models({table.model for table in tables}),
        *_judge_caveats(recipe, tables, cells),
    ]
    for table in tables:
        notes += [_benchmark_caveat(recipe, table), _question_caveat(table)]
    grounds = sorted({cell.head.ground for cell in cells if cell.head.space})
    if grounds and grounds != [EXAMPLES]:
        listed = ", ".join(map(str, grounds))
        notes.append(
            f"Grounded in {listed} examples; the paper takes {EXAMPLES} unless a row says else."
        )
    notes += _measure_caveats(recipe, tables, cells)
    notes += [
        f"A misprint of the paper: {one.model}, {one.benchmark}, {one.row}, "
        f"{one.metric}: {one.about} (printed {one.printed:g}, worked {one.worked:g})."
        for one in paper().misprints
        if one.recipe == recipe.name
    ]
    return tuple(filter(None, notes))


def other_models(models: Iterable[str]) -> str:
    others = sorted(model for model in models if not is_of_the_paper(model))
    if not others:
        return ""
    theirs = ", ".join(paper().models)
    return f"Another model: ours is {', '.join(others)}, the paper's are {theirs}."


def _judge_caveats(
    recipe: PaperRecipe, tables: Sequence[Table], cells: Sequence[CellResults]
) -> list[str]:
    each = [_judges_of_the_paper(recipe, table) for table in tables]
    theirs = dict.fromkeys(judge for judges in each for judge in judges)
    ours, notes = _our_judges(cells), []
    others = [judge for judge in ours if not any(name in judge for name in theirs)]
    if theirs and others:
        notes.append(
            f"Another judge: ours is {', '.join(others)}, the paper's {', '.join(theirs)}. "
            "Shares by different judges cannot be compared."
        )
    if theirs and not ours:
        notes.append("No judge was asked: the paper's judged figures stand alone.")
    return notes + agreement_notes(cells)


def _benchmark_caveat(recipe: PaperRecipe, table: Table) -> str:
    name, blocks = table.benchmark, blocks_for(recipe, table.benchmark)
    others = dict.fromkeys(b.benchmark for b in blocks if b.benchmark != name)
    if not others:
        return ""
    where = "" if name in paper().tests else f"{name} is not in the paper; "
    return (
        f"Another benchmark: {where}the paper's figures beside {name} are for "
        f"{', '.join(others)} and cannot be compared."
    )


def _question_caveat(table: Table) -> str:
    theirs = paper().tests.get(table.benchmark)
    counts = {row.counts["generate"].answered for row in table.rows if "generate" in row.counts}
    if theirs is None or not counts or counts == {theirs}:
        return ""
    ours = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(max(counts))
    return (
        f"Other numbers of questions on {table.benchmark}: ours {ours}, the paper's {theirs}."
    )


def _measure_caveats(
    recipe: PaperRecipe, tables: Sequence[Table], cells: Sequence[CellResults]
) -> list[str]:
    """Measures shown here that are not the paper's."""
    notes, settings = [], [cell.head.fidelity for cell in cells]
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
    return notes


@dataclass(frozen=True, slots=True)
class MethodAnswer:
    """The answer of a method to one question, and the verdict of each judge."""

    text: str
    verdicts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnsweredCase:
    """One question."""

    benchmark: str
    question: str
    answers: Mapping[str, MethodAnswer]  # by method
    moves: tuple[str, ...]  # the tokens that RAD changed
    is_of_the_paper: bool


def cases_of(plan: Plan, folder: Path, table: Table) -> list[AnsweredCase]:
    """The questions the paper shows, then the first on which RAD differs from greedy."""
    cells = {row.method: row.first for row in table.rows if not row.first.head.is_instead}
    greedy = {line.sample: line.text for line in cells["greedy"].answers}
    printed = {bare_letters(case.question) for case in paper().cases}
    both = [line for line in cells["rad"].answers if line.sample in greedy]
    named = [line for line in both if bare_letters(line.question) in printed]
    differing = [line for line in both if line.text != greedy[line.sample]]
    lines = [*named, *(line for line in differing if line not in named)][:_CASES]
    questions = [line.question for line in lines]
    moved = _moves(plan, folder, table.benchmark, questions) if lines else []
    found = []
    for line, tokens in zip(lines, moved, strict=True):
        each = {name: _answer(cell, line.sample) for name, cell in cells.items()}
        answers = {name: answer for name, answer in each.items() if answer is not None}
        is_printed = line in named
        found.append(AnsweredCase(table.benchmark, line.question, answers, tokens, is_printed))
    return found


def _moves(
    plan: Plan, folder: Path, benchmark: str, questions: list[str]
) -> list[tuple[str, ...]]:
    """Decode RAD's answers once more with a trace; its space is in the folder already."""
    from trueline.decode.generate import generate
    from trueline.lab.cells import cells_of, grounding_space

    lm, read = model_of(plan, plan.models[0]), benchmark_of(plan, benchmark)
    variant = next(x for x in plan.variants if x.method == "rad" and x.control is None)
    assert variant.build is not None
    space = grounding_space(lm, read, variant.build, folder / "spaces", None)
    cell, *_ = cells_of(plan, lm, read, variant, space)
    limit = plan.sampling.max_new_tokens
    answers = generate(lm, cell.method, questions, max_new_tokens=limit, trace=True)
    return [tuple(moves(answer.trace)) for answer in answers]


def _answer(cell: CellResults, sample: str) -> MethodAnswer | None:
    text = next((line.text for line in cell.answers if line.sample == sample), None)
    verdicts = [
        f"{about}: {_LABELS[labels[sample]]} ({judge})"
        for judge in cell.judges
        for about in get_args(About)
        if sample in (labels := cell.labels(about, judge))
    ]
    return None if text is None else MethodAnswer(text.strip(), tuple(verdicts))


def case_grid(table: Table, cases: Sequence[AnsweredCase]) -> Grid:
    """A question a row, a method a column."""
    methods = list(dict.fromkeys(row.method for row in table.rows))
    rows = []
    for case in cases:
        found = [case.answers.get(name) for name in methods]
        answers = [GridText(x.text, x.verdicts) if x else GridText(DASH) for x in found]
        more = [f"{len(case.moves) - _MOVES} more"] if len(case.moves) > _MOVES else []
        moved = "; ".join([*case.moves[:_MOVES], *more]) or "none"
        below = ("a case of the paper",) if case.is_of_the_paper else ()
        rows.append((GridText(case.question, below), *answers, GridText(moved)))
    note = (
        "Questions the paper shows come first, if they were asked, then those on which RAD's "
        f"answer is not greedy's: at most {_CASES}."
    )
    return Grid("Cases", ("question", *methods, "tokens that moved"), tuple(rows), (note,))


def paper_grid() -> Grid:
    """The paper's cases: the answer of each method in substance, and its verdicts."""
    methods = list(dict.fromkeys(name for case in paper().cases for name in case.answers))
    rows = []
    for case in paper().cases:
        answers = [GridText(case.answers[x], _verdicts(case, x)) for x in methods]
        question = GridText(case.question, (case.benchmark,))
        rows.append((question, *answers, GridText(case.moved or "not given")))
    note = "Answers are given in our words; the paper ran Qwen2.5-7B."
    head = ("question", *methods, "tokens that moved")
    return Grid("The paper's cases", head, tuple(rows), (note,))


def _verdicts(case: PaperCase, method: str) -> tuple[str, ...]:
    labels = {"truth": case.truth[method]}
    labels |= {"info": case.info[method]} if method in case.info else {}
    return tuple(f"{about}: {_LABELS[label]}" for about, label in labels.items())


def our_text_figures(show: str, tables: Sequence[Table]) -> dict[str, str]:
    """Our figures by their key in paper.toml; a second table adds its name to a key."""
    found: dict[str, str] = {}
    for table in tables if show in _TEXT_FIGURES else ():
        for key, text in _TEXT_FIGURES[show](table).items():
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
    for method in ("greedy", "rad"):
        values = row.values if (row := row_for(method, table.rows)) else {}
        for column in table.columns:
            mean = values[column.id].mean if column.id in values else None
            if mean is not None and column.measure.key == "auroc":
                found.setdefault(f"auroc {method}", []).append(f"{mean:.2f} ({column.judge})")
            elif mean is not None and column.measure.key == "ece":
                found.setdefault("ece", []).append(f"{method} {mean:.3f} ({column.judge})")
    return {key: ", ".join(texts) for key, texts in found.items()}


def _best(table: Table) -> dict[str, str]:
    """The best value of each sweep, by the first judge."""
    found: dict[str, str] = {}
    for sweep in sweeps_of(table):
        for column in [c for c in table.columns if c.measure.key in _MAIN]:
            scored = [
                (row.values[column.id].mean * column.measure.better, value)
                for value, row in zip(sweep.values, sweep.rows, strict=True)
                if column.id in row.values
            ]
            top = max((mean for mean, _ in scored), default=0.0)
            best = ", ".join(str(value) for mean, value in scored if mean == top)
            judge = f" ({column.measure.title} by {column.judge})"
            found.setdefault(f"best_{sweep.name}", best + judge)
    return found


def _judge_correlations(table: Table) -> dict[str, str]:
    columns = [column for column in table.columns if column.measure.key in _MAIN]
    key = f"rho {table.benchmark}"
    if len(columns) < 2:
        return {key: "needs two judges whose verdicts can be read"}
    first, *others = combinations(columns, 2)
    more = {f"{key}, {a.judge} and {b.judge}": _correlation(table, a, b) for a, b in others}
    return {key: _correlation(table, *first), **more}


def _correlation(table: Table, one: Column, other: Column) -> str:
    methods = [row for row in table.rows if not row.first.head.is_instead]
    rows = [row for row in methods if {one.id, other.id} <= row.values.keys()]
    means = [[row.values[column.id].mean for row in rows] for column in (one, other)]
    if len(rows) < 3:
        return "needs three methods or more"
    rho, p = rank_correlation(means[0], means[1])
    pair = f"{one.judge} and {other.judge}, {len(rows)} methods"
    if isnan(rho):
        return f"none: a judge gave every method the same ({pair})"
    return f"{rho:.2f}, p {p:.3f} ({pair})"


_TEXT_FIGURES: dict[str, Callable[[Table], dict[str, str]]] = {
    "interventions": _interventions,
    "reliability": _reliability,
    "best": _best,
    "judges": _judge_correlations,
}
