"""A recipe and our tables -> the paper's figures and ours in pairs, and a grid of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from trueline.explain.text import moves
from trueline.lab.cells import benchmark_of, model_of
from trueline.lab.findings import agreement_notes
from trueline.lab.measures import MEASURES, Average, Column
from trueline.lab.paper.recipes import EXAMPLES, PaperBlock, PaperCase, PaperRecipe, paper
from trueline.lab.paper.spaces import SpaceCosts
from trueline.lab.plan import PAPER, Plan
from trueline.lab.report.plots import edit_quartiles
from trueline.lab.report.tables import (
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

if TYPE_CHECKING:
    from trueline.types import Answer


_NONE = GridText("\N{EN DASH}")


@dataclass(frozen=True, slots=True)
class FigurePair:
    """One figure: ours by judge, and the paper's by model and judge."""

    benchmark: str
    row: str
    metric: str
    ours: dict[str, Average]  # by judge; "" where none is needed
    paper: dict[str, float]

    def plain(self) -> dict[str, Any]:
        """As JSON: shares in percent, as the paper gives them."""
        scale = 100 if MEASURES[self.metric].is_percent else 1

        def shown(number: float | None) -> float | None:
            return None if number is None else round(scale * number, 3)

        ours = [
            {
                "judge": judge,
                **{name: shown(getattr(value, name)) for name in ("mean", "low", "high")},
                **{name: getattr(value, name) for name in ("n", "unscored", "to_come", "p")},
                "difference": shown(value.difference.mean if value.difference else None),
            }
            for judge, value in self.ours.items()
        ]
        where = {"benchmark": self.benchmark, "row": self.row, "metric": self.metric}
        return {**where, "ours": ours, "paper": self.paper}


def blocks_for(recipe: PaperRecipe, benchmark: str) -> list[PaperBlock]:
    """The paper's figures for a recipe on a benchmark, or on its first one if it has none."""
    blocks = [block for block in paper().blocks if block.recipe == recipe.name]
    if recipe.show == "judges":  # the other judge's figures stand in the main tables
        models = {block.model for block in blocks}
        others = [b for b in paper().blocks if b.recipe in ("main", "halueval")]
        blocks = [*(b for b in others if b.model in models), *blocks]
    found = [block for block in blocks if block.benchmark == benchmark]
    first = recipe.plan["benchmarks"][0]
    return found or [block for block in blocks if block.benchmark == first]


def figure_pairs(recipe: PaperRecipe, table: Table) -> list[FigurePair]:
    """Every figure of a table that is the paper's, ours, or both."""
    blocks = blocks_for(recipe, table.benchmark)
    matched: dict[str, MethodRow | None] = {
        key: row_for(key, table.rows) for block in blocks for key in block.rows
    }
    taken = {id(row) for row in matched.values()}
    keys = {**matched, **{row.label: row for row in table.rows if id(row) not in taken}}
    metrics = dict.fromkeys(metric for block in blocks for metric in block.metrics)
    found = []
    for key, row in keys.items():
        for metric in metrics or _judged(table):
            of_paper = {
                _paper_column(block, table): block.rows[key][block.metrics.index(metric)]
                for block in blocks
                if metric in block.metrics and key in block.rows
            }
            found.append(
                FigurePair(table.benchmark, key, metric, _ours(row, metric, table), of_paper)
            )
    return [one for one in found if one.ours or one.paper]


def row_for(key: str, rows: Sequence[MethodRow]) -> MethodRow | None:
    """Our row for a row of the paper, as in `rad tau=0.1`; the plainest if several fit."""
    method, *settings = key.split()
    wanted = dict(text.split("=", 1) for text in settings)
    fitting = [
        row
        for row in rows
        if row.method == method
        and all(_same(swept_settings(row.first).get(k), v) for k, v in wanted.items())
    ]
    if not wanted:
        fitting = [row for row in fitting if row.has_default_settings]
    return min(fitting, key=lambda row: len(row.label), default=None)


def pair_grid(table: Table, figures: Sequence[FigurePair]) -> Grid:
    """Ours and the paper's in columns; below ours its interval and its change from greedy."""
    judges = list(dict.fromkeys(judge for one in figures for judge in one.ours)) or [""]
    columns = list(dict.fromkeys(name for one in figures for name in one.paper))
    rows = []
    for one in figures:
        column = Column(MEASURES[one.metric])
        ours = [_entry(one.ours.get(judge), column) for judge in judges]
        of_paper = [
            GridText(f"{one.paper[name]:.1f}") if name in one.paper else _NONE
            for name in columns
        ]
        rows.append((GridText(one.row), GridText(column.measure.title), *ours, *of_paper))
    head = [f"ours{f' ({judge})' if judge else ''}" for judge in judges]
    return Grid(
        f"{table.title} beside the paper",
        ("method", "measure", *head, *(f"paper: {name}" for name in columns)),
        tuple(rows),
    )


def _judged(table: Table) -> dict[str, None]:
    keys = ("truth", "info", "truth_info", "hallucination")
    return dict.fromkeys(c.measure.key for c in table.columns if c.measure.key in keys)


def _ours(row: MethodRow | None, metric: str, table: Table) -> dict[str, Average]:
    if row is None:
        return {}
    columns = [column for column in table.columns if column.measure.key == metric]
    return {c.judge: row.values[c.id] for c in columns if c.id in row.values}


def _paper_column(block: PaperBlock, table: Table) -> str:
    """The model and judge of the paper, and its benchmark where that is another than ours."""
    on = "" if block.benchmark == table.benchmark else f"on {block.benchmark}"
    return ", ".join(filter(None, (block.model, block.judge, on)))


def _entry(value: Average | None, column: Column) -> GridText:
    if value is None:
        return _NONE
    below = interval_lines(value, column)
    below += [f"{value.unscored} unscored"] if value.unscored else []
    below += [f"{value.to_come} to come"] if value.to_come else []
    if value.difference is not None:
        change = number(value.difference.mean, column, sign=True)
        below.append(f"{change} from greedy, {p_text(value.p)}")
    return GridText(number(value.mean, column), tuple(below))


def _same(ours: object, of_paper: str) -> bool:
    """Whether a setting of ours is the paper's; an embedder may stand with its owner's name."""
    try:
        return float(str(ours)) == float(of_paper)
    except ValueError:
        return str(ours).lower().rpartition("/")[2] == of_paper.lower()


_IN_OUR_WORDS = ("truth", "info", "truth_info")  # what is asked as the paper does, but not so


def comparable_sentence(recipe: PaperRecipe, tables: Sequence[Table]) -> str:
    """Whether figures can be compared with the paper's: only if every part agrees."""
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
    asked = [head for head in heads if head.task == "generate"]
    return {
        "model": all(is_of_the_paper(head.model) for head in heads),
        "benchmark": all(_has_blocks(recipe, table) for table in tables),
        "judge": all(_has_its_judges(recipe, table) for table in tables),
        "the judge's question": all(_asks_its_question(recipe, table) for table in tables),
        "generation prompt": all(
            head.fidelity.get("prompts") == PAPER["prompts"] for head in asked
        ),
        "token limit": all(head.max_new_tokens == PAPER["max_new_tokens"] for head in asked),
        "questions judged": all(_judges_all(recipe, table) for table in tables),
        "examples": bool(recipe.grounds)
        or all((x.ground, x.draw, x.rule) == (EXAMPLES, None, "all") for x in grounded),
    }


def is_of_the_paper(model: str) -> bool:
    """Whether the paper ran a model; folders and owners in its name do not count."""
    short = model.lower().rpartition("/")[2]
    return short in {name.lower().rpartition("/")[2] for name in paper().models.values()}


def _has_blocks(recipe: PaperRecipe, table: Table) -> bool:
    blocks = blocks_for(recipe, table.benchmark)
    return bool(blocks) and all(block.benchmark == table.benchmark for block in blocks)


def _judges(recipe: PaperRecipe, table: Table) -> list[str]:
    """The judges of the paper's figures of a table; none where none was asked."""
    names = [block.judge for block in blocks_for(recipe, table.benchmark) if block.judge]
    return [paper().judges[name] for name in dict.fromkeys(names)]


def _has_its_judges(recipe: PaperRecipe, table: Table) -> bool:
    ours = {judge for cell in table.cells for judge in cell.judges}
    wanted = _judges(recipe, table)
    if not wanted:
        return True
    return bool(ours) and all(any(name in judge for name in wanted) for judge in ours)


def _asks_its_question(recipe: PaperRecipe, table: Table) -> bool:
    """Whether judges were asked in the paper's words, which for truth they never are."""
    if not _judges(recipe, table):
        return True
    ours = {judge for cell in table.cells for judge in cell.judges}
    shown = {column.measure.key for column in table.columns}
    return not shown & set(_IN_OUR_WORDS) and all(judge.endswith("+paper") for judge in ours)


def _judges_all(recipe: PaperRecipe, table: Table) -> bool:
    """Whether every row rests on as many questions as the paper's: judged, not asked."""
    wanted = paper().tests.get(table.benchmark)
    keys = {metric for block in blocks_for(recipe, table.benchmark) for metric in block.metrics}
    columns = [x for x in table.columns if x.measure.key in keys]
    counts = {
        value.n
        for row in table.rows
        for column in columns
        if (value := row.values.get(column.id)) is not None
    }
    if not columns:  # figures that are no means: what was answered counts
        counts = {sum(len(cell.answers) for cell in row.cells) for row in table.rows}
    return counts == {wanted}


_RULES = {  # by which examples are taken, as the plan has it
    "answered": "Rule `answered`: questions without an answer are left out before examples are "
    "taken, so there are as many as were asked for if the benchmark holds them.",
    "all": "Rule `all`, as in the paper: examples are taken among all questions, and those "
    "without an answer cannot ground, so there may be fewer than were asked for.",
}
_BERTSCORE = (
    "BERTScore: ours is F1 as the encoder gives it, not rescaled by a baseline; the authors' "
    "code rescales that of deberta-xlarge-mnli (bertscore_baseline)."
)
_CONFIDENCE = (
    "Confidence: the paper takes the mean of the tokens' probabilities, ours is their "
    "geometric mean, so the levels of ECE and AUROC cannot be compared (confidence)."
)


def caveats(recipe: PaperRecipe, tables: Sequence[Table]) -> tuple[str, ...]:
    """Why our figures are not the paper's: model, judge, questions, examples, misprints."""
    cells = [cell for table in tables for cell in table.cells]
    notes = [
        comparable_sentence(recipe, tables),
        _models({table.model for table in tables}),
        *_judges_caveats(recipe, tables, cells),
    ]
    for table in tables:
        notes += [_benchmark(recipe, table), _questions(table)]
    notes += [_ground(cells), *_measures(recipe, tables), *_misprints(recipe)]
    return tuple(note for note in notes if note)


def space_caveats(measured: Sequence[SpaceCosts]) -> tuple[str, ...]:
    """What to know before sizes and times are compared."""
    notes = [
        _models({one.model for one in measured}),
        *dict.fromkeys(_RULES[one.rule] for one in measured),
        "The paper keeps logits and ran on an H100; ours keeps hidden states, from which those "
        "logits follow, so only the numbers of entries can be compared.",
        "The paper's sizes do not follow from its entries: 3,755 entries of Qwen2.5-7B are "
        "2.3 GB as 32-bit logits of 152,064 tokens, and it gives 12.",
    ]
    return tuple(note for note in notes if note)


def _models(models: set[str]) -> str:
    others = sorted(model for model in models if not is_of_the_paper(model))
    if not others:
        return ""
    return (
        f"Another model: ours is {', '.join(others)}, the paper's are "
        f"{', '.join(paper().models)}."
    )


def _judges_caveats(
    recipe: PaperRecipe, tables: Sequence[Table], cells: Sequence[CellResults]
) -> list[str]:
    blocks = [block for table in tables for block in blocks_for(recipe, table.benchmark)]
    of_paper = dict.fromkeys(paper().judges[block.judge] for block in blocks if block.judge)
    ours = list(dict.fromkeys(judge for cell in cells for judge in cell.judges))
    notes = []
    others = [judge for judge in ours if not any(name in judge for name in of_paper)]
    if of_paper and others:
        notes.append(
            f"Another judge: ours is {', '.join(others)}, the paper's {', '.join(of_paper)}. "
            "Shares by different judges cannot be compared."
        )
    if of_paper and not ours:
        notes.append("No judge was asked: the paper's judged figures stand alone.")
    return notes + agreement_notes(cells)


def _benchmark(recipe: PaperRecipe, table: Table) -> str:
    blocks = blocks_for(recipe, table.benchmark)
    others = dict.fromkeys(b.benchmark for b in blocks if b.benchmark != table.benchmark)
    if not others:
        return ""
    where = (
        "" if table.benchmark in paper().tests else f"{table.benchmark} is not in the paper; "
    )
    return (
        f"Another benchmark: {where}the paper's figures beside {table.benchmark} are for "
        f"{', '.join(others)} and cannot be compared."
    )


def _measures(recipe: PaperRecipe, tables: Sequence[Table]) -> list[str]:
    """What is measured in another way than the paper's, and is shown here."""
    shown = {column.measure.key for table in tables for column in table.columns}
    heads = [cell.head for table in tables for cell in table.cells]
    is_raw = any("bertscore_baseline" not in head.fidelity for head in heads)
    is_geometric = any("confidence" not in head.fidelity for head in heads)
    notes = [_BERTSCORE] if "bertscore" in shown and is_raw else []
    return [*notes, _CONFIDENCE] if recipe.show == "reliability" and is_geometric else notes


def _questions(table: Table) -> str:
    of_paper = paper().tests.get(table.benchmark)
    counts = {row.counts["generate"].answered for row in table.rows if "generate" in row.counts}
    if of_paper is None or not counts or counts == {of_paper}:
        return ""
    ours = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(max(counts))
    return (
        f"Other numbers of questions on {table.benchmark}: ours {ours}, the paper's {of_paper}."
    )


def _ground(cells: Iterable[CellResults]) -> str:
    counts = sorted({cell.head.ground for cell in cells if cell.head.space})
    if not counts or counts == [EXAMPLES]:
        return ""
    listed = ", ".join(map(str, counts))
    return f"Grounded in {listed} examples; the paper takes {EXAMPLES} unless a row says else."


def _misprints(recipe: PaperRecipe) -> list[str]:
    return [
        f"A misprint of the paper: {one.model}, {one.benchmark}, {one.row}, "
        f"{one.metric}: {one.about} (printed {one.printed:g}, worked {one.worked:g})."
        for one in paper().misprints
        if one.recipe == recipe.name
    ]


_SHOWN = 6  # questions a table
_MOVES = 4  # tokens a question
_NONE_cases = GridText("\N{EN DASH}")
_WORDS = {True: "yes", False: "no", None: "unscored"}


@dataclass(frozen=True, slots=True)
class MethodAnswer:
    """What a method answered to one question, and what each judge said of it."""

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
    shown_by_paper = {bare_letters(case.question) for case in paper().cases}
    both = [line for line in cells["rad"].answers if line.sample in greedy]
    named = [line for line in both if bare_letters(line.question) in shown_by_paper]
    moved = [line for line in both if line.text != greedy[line.sample]]
    shown = [*named, *(line for line in moved if line not in named)][:_SHOWN]
    again = _traced(plan, folder, table.benchmark, [line.question for line in shown])
    return [
        AnsweredCase(
            table.benchmark,
            line.question,
            {
                name: answer
                for name, cell in cells.items()
                if (answer := _answer(cell, line.sample))
            },
            tuple(moves(traced.trace)),
            line in named,
        )
        for line, traced in zip(shown, again, strict=True)
    ]


def case_grid(table: Table, cases: Sequence[AnsweredCase]) -> Grid:
    """A question a row, a method a column."""
    methods = list(dict.fromkeys(row.method for row in table.rows))
    rows = []
    for case in cases:
        answers = [
            GridText(one.text, one.verdicts) if (one := case.answers.get(name)) else _NONE_cases
            for name in methods
        ]
        more = [f"{len(case.moves) - _MOVES} more"] if len(case.moves) > _MOVES else []
        moved = "; ".join([*case.moves[:_MOVES], *more]) or "none"
        below = ("a case of the paper",) if case.is_of_the_paper else ()
        rows.append((GridText(case.question, below), *answers, GridText(moved)))
    note = (
        "Questions the paper shows come first, if they were asked, then those on which RAD's "
        f"answer is not greedy's: at most {_SHOWN}."
    )
    return Grid("Cases", ("question", *methods, "tokens that moved"), tuple(rows), (note,))


def paper_grid() -> Grid:
    """The paper's cases: what each method answered in substance, and how it was judged."""
    methods = list(dict.fromkeys(name for case in paper().cases for name in case.answers))
    rows = tuple(
        (
            GridText(case.question, (case.benchmark,)),
            *(_paper_entry(case, name) for name in methods),
            GridText(case.moved or "not given"),
        )
        for case in paper().cases
    )
    note = "Answers are given in our words; the paper ran Qwen2.5-7B."
    head = ("question", *methods, "tokens that moved")
    return Grid("The paper's cases", head, rows, (note,))


def _paper_entry(case: PaperCase, method: str) -> GridText:
    verdicts = [f"truth: {_WORDS[case.truth[method]]}"]
    verdicts += [f"info: {_WORDS[case.info[method]]}"] if method in case.info else []
    return GridText(case.answers[method], tuple(verdicts))


def _traced(plan: Plan, folder: Path, benchmark: str, questions: list[str]) -> list[Answer]:
    """RAD's answers once more, with the reason for each token; its space is there already."""
    from trueline.decode.generate import generate
    from trueline.lab.cells import cells_of, grounding_space

    if not questions:
        return []
    lm, read = model_of(plan, plan.models[0]), benchmark_of(plan, benchmark)
    own = (one for one in plan.variants if one.control is None)
    (variant,) = (variant for variant in own if variant.method == "rad")
    assert variant.build is not None
    space = grounding_space(lm, read, variant.build, folder / "spaces", None)
    cell, *_ = cells_of(plan, lm, read, variant, space)
    return generate(
        lm,
        cell.method,
        questions,
        max_new_tokens=plan.sampling.max_new_tokens,
        trace=True,
    )


def _answer(cell: CellResults, sample: str) -> MethodAnswer | None:
    """What a cell has for a sample, if it answered it."""
    text = next((line.text for line in cell.answers if line.sample == sample), None)
    verdicts = []
    for judge in cell.judges:
        for about in get_args(About):
            labels = cell.labels(about, judge)
            if sample in labels:
                verdicts.append(f"{about}: {_WORDS[labels[sample]]} ({judge})")
    return None if text is None else MethodAnswer(text.strip(), tuple(verdicts))


_MAIN = ("truth_info", "hallucination")  # the measure a ranking of methods goes by


def our_text_figures(show: str, tables: Sequence[Table]) -> dict[str, str]:
    """The figures by the key they have in paper.toml; a table after the first adds its name."""
    found: dict[str, str] = {}
    for table in tables if show in _SHOWN_text_figures else ():
        for key, text in _SHOWN_text_figures[show](table).items():
            name = f"{key} ({table.title})" if key in found else key
            found[name] = text
    return found


def _interventions(table: Table) -> dict[str, str]:
    quartiles = edit_quartiles(row) if (row := _row(table, "rad")) else []
    return {
        f"edit_q{number}": f"{100 * (q.share or 0.0):.1f} % of {q.n} tokens "
        f"(entropy {q.low:.2f} to {q.high:.2f})"
        for number, q in enumerate(quartiles, 1)
    }


def _reliability(table: Table) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for method in ("greedy", "rad"):
        row = _row(table, method)
        for column in table.columns:
            value = row.values.get(column.id) if row else None
            if value is not None and column.measure.key == "auroc":
                text = f"{value.mean:.2f} ({column.judge})"
                found.setdefault(f"auroc {method}", []).append(text)
            elif value is not None and column.measure.key == "ece":
                text = f"{method} {value.mean:.3f} ({column.judge})"
                found.setdefault("ece", []).append(text)
    return {key: ", ".join(texts) for key, texts in found.items()}


def _best(table: Table) -> dict[str, str]:
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


def _judges_text_figures(table: Table) -> dict[str, str]:
    columns = [column for column in table.columns if column.measure.key in _MAIN]
    key = f"rho {table.benchmark}"
    if len(columns) < 2:
        return {key: "needs two judges whose verdicts can be read"}
    pairs = list(combinations(columns, 2))
    keys = [key, *(f"{key}, {one.judge} and {other.judge}" for one, other in pairs[1:])]
    return {key: _correlation(table, *pair) for key, pair in zip(keys, pairs, strict=True)}


def _correlation(table: Table, one: Column, other: Column) -> str:
    methods = [row for row in table.rows if not row.first.head.is_instead]
    rows = [row for row in methods if {one.id, other.id} <= row.values.keys()]
    means = [[row.values[column.id].mean for row in rows] for column in (one, other)]
    if len(rows) < 3:
        return "needs three methods or more"
    rho, p = rank_correlation(means[0], means[1])
    pair = f"{one.judge} and {other.judge}, {len(rows)} methods"
    if rho != rho:
        return f"none: a judge gave every method the same ({pair})"
    return f"{rho:.2f}, p {p:.3f} ({pair})"


def _row(table: Table, method: str) -> MethodRow | None:
    return next(
        (row for row in table.rows if (row.method, row.has_default_settings) == (method, True)),
        None,
    )


_SHOWN_text_figures: dict[str, Callable[[Table], dict[str, str]]] = {
    "interventions": _interventions,
    "reliability": _reliability,
    "best": _best,
    "judges": _judges_text_figures,
}
