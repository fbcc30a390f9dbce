"""Reports: results written by hand, tables worked by hand, every format read back."""

import csv
import io
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from trueline.cli import cli
from trueline.errors import SettingError
from trueline.lab.measures import columns_of, summarize_cell
from trueline.lab.paper.compare import our_text_figures
from trueline.lab.report.pages import (
    answers_grid,
    as_csv,
    as_html,
    as_latex,
    as_markdown,
    escape_latex,
    named_plots,
    report_of,
    write_report,
)
from trueline.lab.report.plots import as_png, as_svg, edit_quartiles, inline_svg, plots_of
from trueline.lab.report.tables import (
    Document,
    Figure,
    Grid,
    GridText,
    Section,
    grids_of,
    sweeps_of,
    tables_of,
)
from trueline.lab.results import (
    AnswerLine,
    CellLine,
    ChoiceLine,
    DoneLine,
    FailedLine,
    SpaceFacts,
    StopRule,
    VerdictLine,
    encode_lines,
    read_results,
    replace_line,
)

JUDGE = "offline:tiny"
SAMPLES = ["q1", "q2", "q3", "q4"]
SETTINGS = {"alpha": 0.5, "tau": 0.7}
BUILD = {"context": 8, "window": "all", "embedder": "tiny-bert", "values": "auto"}


@pytest.fixture(autouse=True)
def few_samples_make_a_curve(monkeypatch):
    """The runs of these tests are small."""
    for name in ("plots", "pages"):
        monkeypatch.setattr(f"trueline.lab.report.{name}.FEWEST", 1)


def cell(id, method="greedy", *, settings=None, build=None, **given):
    """The head of a cell, as a run writes it."""
    is_grounded = method in ("rad", "knn-lm")
    made = {**BUILD, **(build or {})}
    space = SpaceFacts(hash="abc", entries=9, build=made, default_build=BUILD, built=made)
    fields = {
        "task": "generate",
        "samples": 4,
        "batch_size": 2,
        "max_new_tokens": 8,
        "temperature": 0.0,
        "stop": StopRule((), (2,)),
        "seed": None,
        "method": method,
        "is_plain": method == "greedy",
        "has_own_prompt": False,
        "settings": {**(SETTINGS if method == "rad" else {}), **(settings or {})},
        "defaults": SETTINGS if method == "rad" else {},
        "prompt_hashes": ("p",),
        "space": space if is_grounded else None,
        "model": "tiny_100%",
        "fingerprint": "f",
        "tokenizer_hash": "t",
        "dtype": "float32",
        "device": "cpu",
        "benchmark": "facts",
        "data_hash": "d",
        "counts": {"kept": 4},
        "ground_from": None,
        "ground": 3,
        "test": 4,
        "draw": None,
        "rule": "answered",
        "bertscore": None,
        "versions": {"trueline": "0"},
        "machine": {"cpus": 2},
        "time": "2026-01-01T00:00:00+00:00",
    }
    return CellLine(cell=id, **{**fields, **given})


def answers(
    id, *, rouge, text="same", flipped=(0, 0), hits=(0, 0), sure=0.5, finish="stop", **given
):
    return [
        AnswerLine(
            cell=id,
            sample=sample,
            index=index,
            question="Q?",
            text=text,
            tokens=2,
            finish=finish,
            prompt_tokens=5,
            seconds=0.5,
            decoding_seconds=0.25,
            scores={"rouge_l": rouge[index], "bleu_accuracy": None},
            confidence=sure if isinstance(sure, float) else sure[index],
            hits=hits,
            flipped=flipped,
            entropy=(0.1, 2.0),
            **{"prompt_hashes": ("p",), **given},
        )
        for index, sample in enumerate(SAMPLES)
    ]


def verdicts(id, about, labels, judge=JUDGE):
    more = {"prompt_tokens": 1, "answer_tokens": 1, "cost": 0.25}
    more |= {"basis": about} if judge == JUDGE else {}
    return [
        VerdictLine(cell=id, sample=sample, judge=judge, about=about, label=label, **more)
        for sample, label in zip(SAMPLES, labels)
    ]


def failed(id, sample, index):
    return FailedLine(cell=id, sample=sample, index=index, reason="too long")


def done(id):
    return DoneLine(cell=id, seconds=2.0)


def choices(id, marks):
    return [
        ChoiceLine(cell=id, sample=sample, index=index, single=(-1.0,), multiple=(), mc1=mark,
                   mc2=None, mc3=None, seconds=0.1)
        for index, (sample, mark) in enumerate(zip(SAMPLES, marks))
    ]  # fmt: skip


GREEDY = [
    cell("g"),
    *answers("g", rouge=[0.1, 0.2, 0.3, 0.4], sure=[0.9, 0.2, 0.3, 0.8]),
    *verdicts("g", "truth", [True, False, False, True]),
    *verdicts("g", "info", [True, True, False, True]),
    done("g"),
]
RAD = [
    cell("r", "rad"),
    *answers("r", rouge=[0.2, 0.2, 0.3, 0.5], text="other", flipped=(0, 1), hits=(0, 3)),
    *verdicts("r", "truth", [True, True, False, True]),
    *verdicts("r", "info", [True, True, True, None]),
    done("r"),
]


def write(folder, *lines):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").write_bytes(encode_lines(lines))
    return folder


def table(folder, *lines):
    (found,) = tables_of(read_results(write(folder, *lines)))
    return found


def values(table, label):
    (row,) = [row for row in table.rows if row.label == label]
    return row.values


def test_means_are_those_worked_by_hand(tmp_path):
    made = table(tmp_path, *RAD, *GREEDY)
    assert [row.label for row in made.rows] == ["greedy", "rad"]  # greedy first
    greedy, rad = values(made, "greedy"), values(made, "rad")
    shown = {key: round(value.mean, 4) for key, value in greedy.items()}
    assert shown == {
        f"truth@{JUDGE}": 0.5,
        f"info@{JUDGE}": 0.75,
        f"truth_info@{JUDGE}": 0.375,
        "rouge_l": 0.25,
        # bins of one answer each: |1 - 0.9|, |0 - 0.2|, |0 - 0.3|, |1 - 0.8|, their mean
        f"ece@{JUDGE}": 0.2,
        f"auroc@{JUDGE}": 1.0,
        "grounded": 0.0,
        "edits": 0.0,
        "speed": 4.0,  # 4 tokens behind the first ones, in 1 second
    }
    # T*I is over the three answers with both verdicts: 2/3 truthful, all informative
    assert rad[f"truth_info@{JUDGE}"].mean == pytest.approx(2 / 3)
    assert rad[f"truth_info@{JUDGE}"].n == 3
    assert (rad["grounded"].mean, rad["edits"].mean) == (0.5, 0.5)


def test_a_verdict_that_could_not_be_read_is_unscored_and_counted(tmp_path):
    info = values(table(tmp_path, *GREEDY, *RAD), "rad")[f"info@{JUDGE}"]
    assert (info.mean, info.n, info.unscored) == (1.0, 3, 1)
    grid = grids_of(table(tmp_path, *GREEDY, *RAD))[0]
    assert grid.rows[1][-1].below == ("1 unscored, 0 failed, 0 skipped",)


def test_differences_are_paired_with_greedy(tmp_path):
    made = table(tmp_path, *GREEDY, *RAD)
    rad = values(made, "rad")
    assert all(value.difference is None for value in values(made, "greedy").values())
    assert rad["rouge_l"].difference.mean == pytest.approx(0.05)
    assert rad["rouge_l"].p == rad["rouge_l"].difference.p
    # one pair went from wrong to right, none back: McNemar's exact p is 2 * 1/2
    assert (rad[f"truth@{JUDGE}"].difference.mean, rad[f"truth@{JUDGE}"].p) == (0.25, 1.0)
    # on q1 to q3 greedy has truth 1/3, info 2/3: 2/3 - 2/9
    assert rad[f"truth_info@{JUDGE}"].difference.mean == pytest.approx(2 / 3 - 2 / 9)


def test_of_equals_none_is_the_best(tmp_path):
    made = table(tmp_path, *GREEDY, *cell_lines_like_greedy())
    for row in made.rows:
        assert not any(value.is_best for value in row.values.values())


def cell_lines_like_greedy():
    """Another method with the answers and verdicts of the plain model."""
    head = cell("r", "rad")
    lines = [replace_line(line, cell="r") for line in GREEDY if not isinstance(line, CellLine)]
    return [head, *lines]


def test_a_report_shows_answers_and_marks_the_wrong_ones(tmp_path):
    made = table(tmp_path, *GREEDY, *RAD)
    grid = answers_grid(made)
    assert grid.head == ("question", "method", "answer", "")
    assert len(grid.rows) == 2 * len(SAMPLES)
    marks = {}
    for row in grid.rows:
        marks.setdefault(row[1].text, []).append(row[3].text)
        assert row[3].is_bold == (row[3].text == "wrong")
    labels = {
        row.label: [row.first.labels("truth", JUDGE).get(sample) for sample in SAMPLES]
        for row in made.rows
    }
    for label, given in labels.items():
        told = [{True: "right", False: "wrong"}.get(one) for one in given]
        pairs = zip(told, marks[label], strict=True)
        assert all(mark == one for one, mark in pairs if one)
    assert "drawn with the seed 0" in grid.notes[0]


def test_few_samples_make_no_curve_and_the_report_says_so(tmp_path, monkeypatch):
    for name in ("plots", "pages"):
        monkeypatch.setattr(f"trueline.lab.report.{name}.FEWEST", 30)
    results = read_results(write(tmp_path, *GREEDY, *RAD))
    tables = tables_of(results)
    assert not [name for some in named_plots(tables) for name, *_ in some if "reliab" in name]
    (section,) = report_of(results, tables).sections
    wanted = "No reliability curve is drawn: it takes 30 judged samples or more."
    assert wanted in section.notes


def test_only_the_best_of_a_column_is_marked(tmp_path):
    made = table(tmp_path, *GREEDY, *RAD)
    greedy, rad = values(made, "greedy"), values(made, "rad")
    assert [greedy[f"truth@{JUDGE}"].is_best, rad[f"truth@{JUDGE}"].is_best] == [False, True]
    assert not any(row.values["edits"].is_best for row in made.rows)  # neither way is better
    alone = table(tmp_path / "alone", *GREEDY)
    assert not any(value.is_best for value in values(alone, "greedy").values())


def test_a_row_that_is_not_finished_is_not_the_best(tmp_path):
    three = [
        line
        for id, method, rouge in (("g", "greedy", 0.2), ("r", "rad", 0.3), ("c", "cad", 0.9))
        for line in (cell(id, method), *answers(id, rouge=[rouge] * 4))
    ]
    made = table(tmp_path, *three[:-2])  # two answers of the last are to come
    best = {row.label: row.values["rouge_l"].is_best for row in made.rows}
    assert best == {"greedy": False, "rad": True, "cad": False}


def hallucinations(id, method, labels):
    head = cell(id, method, benchmark="halueval-dialogue")
    said = verdicts(id, "hallucination", labels)
    return [head, *answers(id, rouge=[0.1] * 4), *said, done(id)]


def test_hallucination_is_a_rate_that_should_be_low(tmp_path):
    made = table(
        tmp_path,
        *hallucinations("g", "greedy", [True, True, False, False]),
        *hallucinations("r", "rad", [True, False, False, False]),
    )
    key = f"hallucination@{JUDGE}"
    assert [values(made, x)[key].mean for x in ("greedy", "rad")] == [0.5, 0.25]
    assert [values(made, x)[key].is_best for x in ("greedy", "rad")] == [False, True]


def test_choices_join_the_row_of_their_method(tmp_path):
    scored = [cell("c", task="choose", max_new_tokens=None, stop=None, samples=4),
              *choices("c", [1.0, 0.0, 0.0, 0.0]), done("c")]  # fmt: skip
    made = table(tmp_path, *GREEDY, *scored)
    (row,) = made.rows
    assert (row.values["mc1"].mean, row.values["rouge_l"].mean) == (0.25, 0.25)
    assert "mc2" not in row.values  # nobody has one


def test_each_task_has_counts_of_its_own(tmp_path):
    head = cell("c", task="choose", max_new_tokens=None, stop=None, samples=3)
    scored = [head, choices("c", [1.0])[0], failed("c", "q2", 1)]
    made = table(tmp_path, *GREEDY, *scored)
    grids = {grid.title: grid.rows[0][-1] for grid in grids_of(made)}
    assert grids["Overlap"] == GridText("n 4", ("0 unscored, 0 failed, 0 skipped",))
    assert grids["Choices"] == GridText("n 1", ("0 unscored, 1 failed, 1 skipped", "1 to come"))
    rows = {row["measure"]: row for row in csv.DictReader(io.StringIO(as_csv([made])))}
    assert (rows["rouge_l"]["answered"], rows["mc1"]["answered"]) == ("4", "1")
    assert (rows["rouge_l"]["failed"], rows["mc1"]["failed"]) == ("0", "1")


def test_verdicts_not_asked_yet_are_to_come_and_warned_of(tmp_path):
    begun = [line for line in RAD if not isinstance(line, VerdictLine)]
    begun += verdicts("r", "truth", [None, True])  # q3 and q4, and all of info, are not judged
    results = read_results(write(tmp_path, *GREEDY, *begun))
    (made,) = tables_of(results)
    truth = values(made, "rad")[f"truth@{JUDGE}"]
    assert (truth.mean, truth.n, truth.unscored, truth.to_come) == (1.0, 1, 1, 2)
    assert f"info@{JUDGE}" not in values(made, "rad")
    (section,) = report_of(results, [made]).sections
    assert section.warnings[0] == (
        f"not judged to the end by {JUDGE}: rad (6 to come); their numbers will change"
    )
    assert section.grids[0].rows[1][-1].below == (
        "1 unscored, 0 failed, 0 skipped",
        "2 to be judged",
    )


def test_seeds_are_averaged_and_their_spread_is_told(tmp_path):
    def seed(number, rouge):
        id = f"s{number}"
        return [cell(id, seed=number, temperature=0.7), *answers(id, rouge=rouge), done(id)]

    made = table(tmp_path, *seed(0, [0.1, 0.3, 0.1, 0.3]), *seed(1, [0.3, 0.5, 0.3, 0.5]))
    (row,) = made.rows
    found = row.values["rouge_l"]
    assert found.mean == pytest.approx(0.3)  # of 0.2 and 0.4
    assert found.spread == pytest.approx(0.1 * 2**0.5)  # standard deviation of the two
    assert found.n == 4  # samples, not answers
    assert row.counts["generate"].answered == 8
    (entry,) = [e for e in grids_of(made)[0].rows[0] if e.text == "30.0"]
    assert "seeds ±14.1" in entry.below


def test_what_was_varied_beside_the_label_is_told(tmp_path):
    few = [cell("f", "rad", ground=2), *answers("f", rouge=[0.3] * 4), done("f")]
    made = table(tmp_path, *GREEDY, *RAD, *few)
    assert [row.label for row in made.rows] == [
        "greedy ground=3",
        "rad ground=3",
        "rad ground=2",
    ]


def spaces_by(name, made):
    """A row of RAD by what its space was built with."""
    for index, value in enumerate(made):
        id = f"x{index}"
        yield cell(id, "rad", build={name: value})
        yield from answers(id, rouge=[0.1 * index] * 4, text=id)
        yield done(id)


@pytest.mark.parametrize(
    ("name", "made"), [("context", [4, 8, 16, "full"]), ("embedder", ["a", "b", "c"])]
)
def test_what_a_space_was_built_with_makes_rows_and_a_sweep(name, made, tmp_path):
    knn = [
        cell("k", "knn-lm", build={"context": "full"}),
        *answers("k", rouge=[0.1] * 4, text="k"),
    ]
    found = table(tmp_path, *GREEDY, *knn, done("k"), *spaces_by(name, made))
    assert [row.label for row in found.rows] == [
        "greedy",
        "knn-lm",  # it has one alone
        *(f"rad {name}={value}" for value in made),
    ]
    assert [row.values["rouge_l"].mean for row in found.rows[2:]] == pytest.approx(
        [0.1 * place for place in range(len(made))]
    )
    (sweep,) = sweeps_of(found)
    assert (sweep.name, sweep.values) == (name, tuple(made))


def test_a_build_option_other_than_the_default_is_in_the_label_and_a_sweep_too(tmp_path):
    lines = [
        line
        for id in ("auto", "hidden", "logits")
        for line in (
            cell(id, "rad", build={"values": id}),
            *answers(id, rouge=[0.1] * 4, text=id),
            done(id),
        )
    ]
    made = table(tmp_path, *lines)
    assert [row.label for row in made.rows] == ["rad", "rad values=hidden", "rad values=logits"]
    (sweep,) = sweeps_of(made)
    assert (sweep.name, sweep.values) == ("values", ("auto", "hidden", "logits"))


def test_failed_and_missing_samples_are_counted_and_warned_of(tmp_path):
    one = answers("g", rouge=[0.5] * 4)[:1]
    lines = [cell("g", samples=3, test=4), *one, failed("g", "q4", 3)]
    results = read_results(write(tmp_path, *lines))
    (made,) = tables_of(results)
    counts = made.rows[0].counts["generate"]
    assert (counts.answered, counts.failed, counts.skipped, counts.left) == (1, 1, 1, 1)
    (section,) = report_of(results, [made]).sections
    assert any("not finished: greedy" in text for text in section.warnings)
    assert any("too long" in text for text in section.warnings)


def test_rates_have_wilsons_interval_and_p_is_corrected_beside_the_raw_one(tmp_path):
    right = [True] * 4
    other = [cell("o", "cad"), *answers("o", rouge=[0.2] * 4), done("o")]
    told = [*verdicts("o", "truth", right), *verdicts("o", "info", right)]
    (table,) = tables_of(read_results(write(tmp_path, *GREEDY, *RAD, *other, *told)))
    (cad,) = [row for row in table.rows if row.method == "cad"]
    value = cad.values[f"truth@{JUDGE}"]
    square = 1.959964**2 / 4  # Wilson, 4 of 4: n / (n + z^2) up to 1
    assert (value.low, value.high) == (pytest.approx(1 / (1 + square)), pytest.approx(1))
    assert value.p_holm >= value.p
    assert "(Holm " in as_markdown(report_of(read_results(tmp_path), [table]))


def test_answers_that_were_cut_off_are_counted_and_warned_of(tmp_path):
    cut = [
        cell("o", "cad"),
        *answers("o", rouge=[0.2] * 4, text="x", finish="length"),
        done("o"),
    ]
    results = read_results(write(tmp_path, *GREEDY, *cut))
    (table,) = tables_of(results)
    assert table.rows[1].counts["generate"].cut_off == 4
    (section,) = report_of(results, [table]).sections
    (warning,) = [text for text in section.warnings if "cut off" in text]
    assert "4 of 4 answers are cut off after 8 tokens" in warning
    assert "4 cut off" in as_markdown(report_of(results, [table]))


def test_ece_and_auroc_have_a_difference_from_greedy(tmp_path):
    (table,) = tables_of(read_results(write(tmp_path, *GREEDY, *RAD)))
    (rad,) = [row for row in table.rows if row.method == "rad"]
    for name in ("ece", "auroc"):
        value, plain = (row.values[f"{name}@{JUDGE}"] for row in (rad, table.rows[0]))
        assert value.difference.mean == pytest.approx(value.mean - plain.mean)
        assert value.difference.low <= value.difference.mean <= value.difference.high
        assert 0 < value.p <= 1
        assert plain.difference is None


def test_a_method_that_did_nothing_and_another_prompt_are_warned_of(tmp_path):
    idle = [cell("i", "rad"), *answers("i", rouge=[0.1] * 4), done("i")]
    strange = answers("o", rouge=[0.1] * 4, text="x", prompt_hashes=("another",))
    other = [cell("o", "cad"), *strange, done("o")]
    results = read_results(write(tmp_path, *GREEDY, *idle, *other))
    (section,) = report_of(results, tables_of(results)).sections
    assert sum("did nothing" in text for text in section.warnings) == 1
    assert sum("another prompt" in text for text in section.warnings) == 1
    fair = read_results(write(tmp_path / "fair", *GREEDY, *RAD))
    (warning,) = report_of(fair, tables_of(fair)).sections[0].warnings
    assert warning.startswith("rad: no controls were run")


def test_settings_hashes_and_the_worth_of_the_offline_judge_stand_below(tmp_path):
    results = read_results(write(tmp_path, *GREEDY, *RAD))
    (section,) = report_of(results, tables_of(results)).sections
    facts = dict(section.facts)
    assert facts["fingerprint"] == "f"
    assert facts["versions"] == "trueline 0"
    assert "alpha 0.5" in facts["rad (generate, cell r)"]
    assert "space abc of 9 entries, context 8" in facts["rad (generate, cell r)"]
    assert section.notes[0] == (
        f"Judge {JUDGE}: 16 verdicts, 1 unscored, 32 tokens, 4.0000 US dollars."
    )
    assert section.notes[1:] == (
        f"{JUDGE}: how far it agrees with people on truth is not known",
        f"{JUDGE}: how far it agrees with people on info is not known",
    )


def test_the_agreement_told_is_that_on_what_the_judge_was_asked(tmp_path, monkeypatch):
    figures = {"accuracy": [0.71, 0.6, 0.8], "balanced_accuracy": [0.7], "always": 0.58}
    measured = {"judge": JUDGE, "truth": figures}
    monkeypatch.setattr("trueline.lab.judges.offline.agreement", lambda: measured)
    asked = {"truth": GREEDY, "hallucination": hallucinations("g", "greedy", [True] * 4)}
    told = {}
    for about, lines in asked.items():
        results = read_results(write(tmp_path / about, *lines))
        (section,) = report_of(results, tables_of(results)).sections
        told[about] = section.notes[1]
    known = (
        f"{JUDGE} agrees with people on 71% of truth labels "
        "(saying the more frequent label every time agrees on 58%)"
    )
    assert told["truth"] == known
    unknown = f"{JUDGE}: how far it agrees with people on hallucination is not known"
    assert told["hallucination"] == unknown


@pytest.mark.parametrize(("reached", "mark"), [(0.74, ", indicative"), (0.75, "")])
def test_columns_of_a_judge_below_75_percent_are_marked(tmp_path, monkeypatch, reached, mark):
    good = {"accuracy": [0.9], "balanced_accuracy": [0.9], "always": 0.5}
    measured = {"judge": JUDGE, "truth": {**good, "balanced_accuracy": [reached]}, "info": good}
    monkeypatch.setattr("trueline.lab.judges.offline.agreement", lambda: measured)
    results = read_results(write(tmp_path, *GREEDY, *RAD))
    (table,) = tables_of(results)
    head = grids_of(table)[0].head
    assert head == ("method", f"%Truth{mark}", "%Info", f"T*I{mark}", "counts")
    (cell, _) = results.cells
    hints = {f"{key}@{JUDGE}" for key in ("truth", "truth_info")} if mark else set()
    assert set(summarize_cell(cell).indicative) == hints
    marked = [row["measure"] for row in csv_rows([table]) if row["is_indicative"] == "1"]
    assert {"truth", "truth_info"} <= set(marked) if mark else not marked


def csv_rows(tables):
    return list(csv.DictReader(io.StringIO(as_csv(tables))))


class Read(HTMLParser):
    """The tables of a page, and whether every tag is closed."""

    VOID = ("meta", "br", "use", "path", "line")

    def __init__(self):
        super().__init__()
        self.open, self.rows, self.kinds = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.kinds.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.kinds.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


HOSTILE = "50%_of $x^2$ & {a}\\b #1 ~ <script>alert(1)</script> | `c` [d]"


@pytest.fixture
def hostile():
    rows = ((GridText(HOSTILE), GridText("1.0", ("[0.5, 1.5] n 4",), True)),)
    grid = Grid(HOSTILE, ("method", HOSTILE), rows, (HOSTILE,))
    section = Section(HOSTILE, (HOSTILE,), (grid,), notes=(HOSTILE,))
    return Document(HOSTILE, (HOSTILE,), (section,))


def test_html_is_one_page_whose_tables_read_back(tmp_path):
    results = read_results(write(tmp_path, *GREEDY, *RAD))
    drawn = [[Figure("dot", "A dot", '<?xml?><svg><path d="M0 0"/></svg>')]]
    text = as_html(report_of(results, tables_of(results), drawn))
    page = Read()
    page.feed(text)
    assert page.open == []
    assert page.rows[0] == [
        "method",
        "%Truth, indicative",
        "%Info, indicative",
        "T*I, indicative",
        "counts",
    ]
    assert page.rows[1][0] == "greedy"
    assert page.rows[1][1].startswith("50.0[")
    assert "svg" in page.kinds
    assert not {"script", "link", "img"} & page.kinds
    assert not re.search(r"(src|href)=\"http", text)
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text


def test_html_shows_hostile_text_as_it_is(hostile):
    page = Read()
    page.feed(as_html(hostile))
    assert "script" not in page.kinds
    assert page.rows[1] == [HOSTILE, "1.0[0.5, 1.5] n 4"]


def test_latex_is_escaped_and_its_braces_balance(hostile, tmp_path):
    results = read_results(write(tmp_path, *GREEDY, *RAD))
    for document in (hostile, report_of(results, tables_of(results))):
        text = "\n".join(x for x in as_latex(document).splitlines() if not x.startswith("%"))
        bare = re.sub(r"\\[\\{}%$&#_]", "", text)
        depth = 0
        for sign in bare:
            depth += {"{": 1, "}": -1}.get(sign, 0)
            assert depth >= 0
        assert depth == 0
        assert not re.search(r"[#%~^<>|_]", bare)
        rows = re.findall(r"\\midrule\n(.*?)\\bottomrule", text, re.S)
        columns = [len(found) for found in re.findall(r"tabular\}\{(l\w*)\}", text)]
        for block, count in zip(rows, columns, strict=True):
            for line in block.strip().splitlines():
                assert line.replace(r"\&", "").count("&") == count - 1
        notes = [note for section in document.sections for note in section.notes]
        assert notes
        assert all(escape_latex(note) + r"\par" in text.splitlines() for note in notes)
    assert escape_latex("a_b 5% \N{MINUS SIGN}2") == r"a\_b 5\% $-$2"


def test_markdown_tables_have_as_many_cells_as_their_head(hostile, tmp_path):
    results = read_results(write(tmp_path, *GREEDY, *RAD))
    for document in (hostile, report_of(results, tables_of(results))):
        lines = [x for x in as_markdown(document).splitlines() if x.startswith("| ")]
        assert len(lines) > 2
        bars = [len(re.findall(r"(?<!\\)\|", line)) for line in lines]
        heads = [number - 1 for number, line in enumerate(lines) if line.startswith("| ---")]
        for start, end in zip(heads, [*heads[1:], len(lines)]):
            assert len(set(bars[start:end])) == 1
    text = as_markdown(report_of(results, tables_of(results)))
    assert "| **75.0**<br>" in text
    assert "tiny\\_100%" in text


def test_csv_reads_back_with_the_same_numbers(tmp_path):
    made = table(tmp_path, *GREEDY, *RAD)
    rows = list(csv.DictReader(io.StringIO(as_csv([made]))))
    assert len(rows) == sum(len(row.values) for row in made.rows)
    (rad,) = [r for r in rows if (r["label"], r["measure"]) == ("rad", "truth")]
    shown = {name: rad[name] for name in ("model", "judge", "unit", "mean", "n", "p")}
    assert shown == {
        "model": "tiny_100%", "judge": JUDGE, "unit": "percent",
        "mean": "75", "n": "4", "p": "1",
    }  # fmt: skip
    assert (rad["difference"], rad["is_best"], rad["seeds"]) == ("25", "1", "1")


def sweep_lines():
    for index, alpha in enumerate([0.0, 0.3, 1.0]):
        id = f"a{index}"
        yield cell(id, "rad", settings={"alpha": alpha})
        yield from answers(id, rouge=[0.1 * index, 0.2, 0.3, 0.4], text=id)
        yield done(id)


def test_a_setting_with_three_values_is_a_sweep_in_order(tmp_path):
    lines = list(sweep_lines())
    made = table(tmp_path, *GREEDY, *reversed_cells(lines))
    (sweep,) = sweeps_of(made)
    assert (sweep.method, sweep.name, sweep.values) == ("rad", "alpha", (0.0, 0.3, 1.0))
    assert [row.label for row in sweep.rows] == ["rad alpha=0", "rad alpha=0.3", "rad alpha=1"]
    assert sweeps_of(table(tmp_path / "two", *GREEDY, *lines[:12])) == []


def reversed_cells(lines):
    return [line for place in (2, 1, 0) for line in lines[6 * place : 6 * place + 6]]


def test_edits_fall_into_the_quartiles_of_entropy(tmp_path):
    made = table(tmp_path, *GREEDY, *RAD)
    rows = {row.label: row for row in made.rows}
    assert edit_quartiles(rows["greedy"]) == []
    shares = [(q.share, q.n) for q in edit_quartiles(rows["rad"])]
    # half the steps have entropy 0.1 and no edit, half 2.0 and one; ties stay together
    assert [pair for pair in shares if pair[1]] == [(0.0, 4), (1.0, 4)]


def test_every_plot_is_drawn_as_svg_and_png(tmp_path):
    made = table(tmp_path, *GREEDY, *RAD, *sweep_lines())
    plots = plots_of(made, sweeps_of(made))
    assert [name for name, _, _ in plots] == [
        "methods",
        "interventions",
        f"reliability-{JUDGE}",
        "sweep-rad-alpha",
    ]
    assert plots[-1][1] == "rad: alpha, facts, tiny_100%"
    for name, _, draw in plots:
        svg = as_svg(draw, name)
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert inline_svg(svg).startswith("<svg")
        assert "currentColor" in inline_svg(svg)
    assert svg == as_svg(draw, name)  # the same text again
    png = as_png(draw, name)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(png) > 5000


def test_a_sweep_without_a_value_worth_a_plot_is_not_drawn(tmp_path):
    lines = [
        replace_line(line, scores={}) if isinstance(line, AnswerLine) else line
        for line in sweep_lines()
    ]
    made = table(tmp_path, *GREEDY, *lines)
    assert len(sweeps_of(made)) == 1
    assert not [name for name, _, _ in plots_of(made, sweeps_of(made)) if "sweep" in name]


def test_a_method_that_changed_no_token_has_quartiles_of_zero_and_no_plot(tmp_path):
    idle = [cell("i", "rad"), *answers("i", rouge=[0.1] * 4, text="x"), done("i")]
    made = table(tmp_path, *GREEDY, *idle)
    (row,) = [row for row in made.rows if row.label == "rad"]
    assert {q.share for q in edit_quartiles(row)} == {0.0, None}  # None: no step is in it
    assert [name for name, _, _ in plots_of(made, [])] == ["methods", f"reliability-{JUDGE}"]
    told = our_text_figures("interventions", [made])
    assert told["edit_q1"] == "0.0 % of 4 tokens (entropy 0.10 to 0.10)"


def test_one_model_in_two_dtypes_has_files_and_titles_of_its_own(tmp_path):
    half = [
        replace_line(
            line,
            cell=f"h{line.cell}",
            **({"dtype": "bfloat16"} if isinstance(line, CellLine) else {}),
        )
        for line in [*GREEDY, *RAD]
    ]
    results = read_results(write(tmp_path, *GREEDY, *RAD, *half))
    tables = tables_of(results)
    assert [section.title for section in report_of(results, tables).sections] == [
        "facts, tiny_100%, float32",
        "facts, tiny_100%, bfloat16",
    ]
    names = [name for some in named_plots(tables) for name, _, _ in some]
    assert len(names) == len(set(names)) == 6
    assert names[0] == "facts-tiny_100-float32-methods"
    same = [name for some in named_plots([tables[0], tables[0]]) for name, _, _ in some]
    assert len(set(same)) == 6  # even where nothing tells two tables apart


def test_the_name_of_a_plot_fits_a_file_system_in_bytes_and_tells_the_plot(tmp_path):
    results = read_results(write(tmp_path, *GREEDY, *RAD))
    table = replace(tables_of(results)[0], benchmark="事実" * 100)
    names = [name for some in named_plots([table] * 3) for name, _, _ in some]
    assert len(set(names)) == len(names) == 9
    assert max(len(name.encode()) for name in names) <= 80
    assert names[0].endswith("-methods")
    assert names[3].endswith("-methods-2")


def test_a_report_is_written_in_every_format(tmp_path):
    folder = write(tmp_path / "run", *GREEDY, *RAD)
    run = CliRunner().invoke(
        cli,
        ["report", str(folder), "--out", str(tmp_path / "out"), "--format", "md,html,csv,latex",
         "--plots", "svg,png"],
        catch_exceptions=False,
    )  # fmt: skip
    assert run.exit_code == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"report.md", "report.html", "report.csv", "report.tex"}
    assert "facts-tiny_100-methods.svg" in names
    assert sum(name.endswith(".png") for name in names) == 3
    shown = re.findall(r"!\[.*?\]\((.*?)\)", (tmp_path / "out/report.md").read_text("utf-8"))
    assert shown
    assert set(shown) <= names
    assert {line.split("/")[-1] for line in run.output.splitlines()} == names


def test_a_report_opens_no_model_no_space_no_method_and_not_the_paper(tmp_path):
    write(tmp_path, *GREEDY, *RAD)
    formats = ["md", "html", "csv", "latex"]
    program = f"""import sys
from trueline.lab.report.pages import write_report
write_report({str(tmp_path)!r}, formats={formats}, plots=["svg"])
print(*sys.modules)"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    assert {"report.md", "report.tex"} < {path.name for path in tmp_path.iterdir()}
    banned = (
        "torch",
        "transformers",
        "trueline.lab.paper",
        "trueline.space",
        "trueline.methods.",
    )
    assert [name for name in loaded if name.startswith(banned)] == []


def test_a_format_or_plot_that_is_none_is_refused_before_anything_is_written(tmp_path):
    folder = write(tmp_path, *GREEDY)
    with pytest.raises(SettingError, match="no format 'pdf'; there are md, html, csv, latex"):
        write_report(folder, formats=["pdf"])
    with pytest.raises(SettingError, match="no plot 'gif'"):
        write_report(folder, plots=["gif"])
    assert [path.name for path in folder.iterdir()] == ["results.jsonl"]


def test_two_judges_have_columns_of_their_own(tmp_path):
    second = verdicts("g", "truth", [False] * 4, judge="local:x")
    made = table(tmp_path, *GREEDY[:-1], *second, GREEDY[-1])
    found = values(made, "greedy")
    assert (found[f"truth@{JUDGE}"].mean, found["truth@local:x"].mean) == (0.5, 0.0)
    assert "auroc@local:x" not in found  # all are wrong: there is nothing to rank
    (grid, *_) = grids_of(made)
    assert "%Truth (local:x)" in grid.head
    assert [c.id for c in columns_of(made.cells)] == [
        f"truth@{JUDGE}",
        "truth@local:x",
        f"info@{JUDGE}",
        f"truth_info@{JUDGE}",
        "rouge_l",
        f"ece@{JUDGE}",
        "ece@local:x",
        f"auroc@{JUDGE}",
        "grounded",
        "edits",
        "speed",
    ]


def test_every_judge_and_every_pair_of_judges_is_told(tmp_path):
    def lines(id, method, truths):
        yield cell(id, method)
        yield from answers(id, rouge=[0.1] * 4, text=id, sure=[0.9, 0.2, 0.3, 0.8])
        for judge, truth in zip(("a", "b", "c"), truths):
            yield from verdicts(id, "truth", [n < truth for n in range(4)], judge)
            yield from verdicts(id, "info", [True] * 4, judge)
        yield done(id)

    made = table(
        tmp_path,
        *lines("g", "greedy", (1, 1, 3)),
        *lines("d", "dola", (2, 2, 2)),
        *lines("r", "rad", (3, 3, 1)),
    )
    # greedy is surest of q1, which a and b alone call true: every other pair is ranked right
    assert (
        our_text_figures("reliability", [made])["auroc greedy"]
        == "1.00 (a), 1.00 (b), 0.33 (c)"
    )
    told = our_text_figures("judges", [made])
    assert [*told] == ["rho facts", "rho facts, a and c", "rho facts, b and c"]
    assert [text[:5].rstrip(",") for text in told.values()] == ["1.00", "-1.00", "-1.00"]
