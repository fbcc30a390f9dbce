"""Reports: results written by hand, tables worked by hand, every format read back."""

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner

from trueline.cli import cli
from trueline.errors import SettingError
from trueline.lab.measures import summarize_cell
from trueline.lab.paper.compare import our_text_figures
from trueline.lab.report.pages import (
    answers_grid,
    as_csv,
    as_html,
    as_latex,
    as_markdown,
    escape_latex,
    report_of,
    write_report,
)
from trueline.lab.report.plots import edit_quartiles, plots_of
from trueline.lab.report.tables import (
    Document,
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
    VerdictLine,
    encode_lines,
    read_results,
    replace_line,
)

JUDGE = "offline:tiny"
SAMPLES = ["q1", "q2", "q3", "q4"]
SETTINGS = {"alpha": 0.5, "tau": 0.7}
BUILD = {"context": 8, "window": "template", "embedder": "tiny-bert", "values": "auto"}
CELL, ANSWER = (
    json.loads(text)
    for text in (
        """{"task": "generate", "samples": 4, "batch_size": 2, "max_new_tokens": 8,
        "temperature": 0.0, "stop": {"strings": [], "ids": [2]}, "seed": null,
        "has_own_prompt": false, "prompt_hashes": ["p"], "model": "tiny_100%",
        "fingerprint": "f", "tokenizer_hash": "t", "dtype": "float32", "device": "cpu",
        "benchmark": "facts", "data_hash": "d", "counts": {"kept": 4}, "ground_from": null,
        "ground": 3, "test": 4, "draw": null, "rule": "answered", "bertscore": null,
        "versions": {"trueline": "0"}, "machine": {"cpus": 2},
        "time": "2026-01-01T00:00:00+00:00"}""",
        """{"question": "Q?", "text": "same", "tokens": 2, "finish": "stop",
        "prompt_tokens": 5, "prompt_hashes": ["p"], "seconds": 0.5, "decoding_seconds": 0.25,
        "hits": [0, 0], "flipped": [0, 0], "entropy": [0.1, 2.0]}""",
    )
)


def cell(id, method="greedy", *, settings=None, build=None, **given):
    """The head of a cell, as a run writes it."""
    made, known = {**BUILD, **(build or {})}, SETTINGS if method == "rad" else {}
    space = {"hash": "abc", "entries": 9, "build": made, "default_build": BUILD, "built": made}
    fields = {
        **{"cell": id, "method": method, "is_plain": method == "greedy", "defaults": known},
        "settings": {**known, **(settings or {})},
        "space": space if method in ("rad", "knn-lm") else None,
    }
    return msgspec.convert({"kind": "cell", **CELL, **fields, **given}, CellLine)


def answers(id, *, rouge, sure=0.5, **given):
    confidences = [sure] * 4 if isinstance(sure, float) else sure
    more = {"kind": "answer", **ANSWER, **given, "cell": id}
    return [
        msgspec.convert(
            {
                **more,
                **{"sample": sample, "index": index, "confidence": confidences[index]},
                "scores": {"rouge_l": rouge[index], "bleu_accuracy": None},
            },
            AnswerLine,
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


def report(folder, *lines, **options):
    """A run with one table: its results, this table, and its section of the report."""
    results = read_results(write(folder, *lines))
    (table,) = tables_of(results)
    document = report_of(results, [table], **options)
    return SimpleNamespace(
        results=results, table=table, document=document, section=document.sections[0]
    )


def table(folder, *lines):
    return report(folder, *lines).table


def values(table, label):
    (row,) = [row for row in table.rows if row.label == label]
    return row.values


def of_cell(id, method="greedy", rouge=(0.1, 0.1, 0.1, 0.1), *, text="same", **given):
    """The lines of a finished cell without verdicts."""
    return [cell(id, method, **given), *answers(id, rouge=rouge, text=text), done(id)]


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """Greedy and RAD, one answer of which has no verdict that can be read."""
    folder = tmp_path_factory.mktemp("usual")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trueline.lab.report.plots.FEWEST", 1)
        return report(folder, *RAD, *GREEDY, has_plots=True)


def test_means_are_those_worked_by_hand(usual):
    assert [row.label for row in usual.table.rows] == ["greedy", "rad"]  # greedy first
    greedy, rad = values(usual.table, "greedy"), values(usual.table, "rad")
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
        "speed": 4.0,  # 4 tokens after the first ones, in 1 second
    }
    # T*I is over the three answers with both verdicts: 2/3 truthful, all informative
    both = rad[f"truth_info@{JUDGE}"]
    assert (both.mean, both.n) == (pytest.approx(2 / 3), 3)
    assert (rad["grounded"].mean, rad["edits"].mean) == (0.5, 0.5)
    info = rad[f"info@{JUDGE}"]
    assert (info.mean, info.n, info.unscored) == (1.0, 3, 1)
    counts = usual.section.grids[0].rows[1][-1]
    assert counts.below == ("1 unscored, 0 failed, 0 skipped",)


def test_differences_are_paired_with_greedy(usual):
    greedy, rad = values(usual.table, "greedy"), values(usual.table, "rad")
    assert all(value.difference is None for value in greedy.values())
    assert rad["rouge_l"].difference.mean == pytest.approx(0.05)
    assert rad["rouge_l"].p == rad["rouge_l"].difference.p
    # one pair went from wrong to right, none back: McNemar's exact p is 2 * 1/2
    assert (rad[f"truth@{JUDGE}"].difference.mean, rad[f"truth@{JUDGE}"].p) == (0.25, 1.0)
    # on q1 to q3 greedy has truth 1/3, info 2/3: 2/3 - 2/9
    assert rad[f"truth_info@{JUDGE}"].difference.mean == pytest.approx(2 / 3 - 2 / 9)
    for name in (f"ece@{JUDGE}", f"auroc@{JUDGE}"):
        change = rad[name].difference
        assert change.mean == pytest.approx(rad[name].mean - greedy[name].mean)
        assert change.low <= change.mean <= change.high
        assert 0 < rad[name].p <= 1


def test_rates_have_wilsons_interval_and_p_is_also_corrected(tmp_path):
    judged = verdicts("o", "truth", [True] * 4)
    made = report(tmp_path, *GREEDY, *RAD, *of_cell("o", "cad"), *judged)
    value = values(made.table, "cad")[f"truth@{JUDGE}"]
    square = 1.959964**2 / 4  # Wilson, 4 of 4: n / (n + z^2) up to 1
    assert (value.low, value.high) == (pytest.approx(1 / (1 + square)), pytest.approx(1))
    assert value.p_holm >= value.p
    assert "(Holm " in as_markdown(made.document)


def test_only_the_best_of_a_column_is_marked(usual, tmp_path):
    greedy, rad = values(usual.table, "greedy"), values(usual.table, "rad")
    truth = f"truth@{JUDGE}"
    assert [greedy[truth].is_best, rad[truth].is_best] == [False, True]
    assert not rad["edits"].is_best  # neither way is better
    assert greedy[f"ece@{JUDGE}"].is_best  # 0.2 and 0.25: less is better
    same = [replace_line(line, cell="r") for line in GREEDY if not isinstance(line, CellLine)]
    made = table(tmp_path, *GREEDY, cell("r", "rad"), *same)  # two equals
    assert not any(x.is_best for row in made.rows for x in row.values.values())


def test_a_row_that_is_not_finished_is_not_the_best(tmp_path):
    three = [
        line
        for id, method, rouge in (("g", "greedy", 0.2), ("r", "rad", 0.3), ("c", "cad", 0.9))
        for line in (cell(id, method), *answers(id, rouge=[rouge] * 4))
    ]
    made = table(tmp_path, *three[:-2])  # two answers of the last are to come
    best = [row.label for row in made.rows if row.values["rouge_l"].is_best]
    assert best == ["rad"]


def test_a_report_shows_answers_and_marks_the_wrong_ones(usual):
    grid = answers_grid(usual.table)
    assert grid.head == ("question", "method", "answer", "")
    rows = [[entry.text for entry in row] for row in grid.rows]
    marks = {label: [row[3] for row in rows if row[1] == label] for label in ("greedy", "rad")}
    assert marks == {
        "greedy": ["right", "wrong", "wrong", "right"],
        "rad": ["right", "right", "wrong", "right"],
    }
    assert all(row[3].is_bold == (row[3].text == "wrong") for row in grid.rows)
    assert "drawn with the seed 0" in grid.notes[0]


def test_choices_join_the_row_of_their_method_with_counts_of_their_own(tmp_path):
    head = cell("c", task="choose", max_new_tokens=None, stop=None, samples=3)
    scores = {"single": (-1.0,), "multiple": (), "mc2": None, "mc3": None, "seconds": 0.1}
    choice = ChoiceLine(cell="c", sample="q1", index=0, mc1=1.0, **scores)
    made = table(tmp_path, *GREEDY, head, choice, failed("c", "q2", 1))
    (row,) = made.rows
    assert (row.values["mc1"].mean, row.values["rouge_l"].mean) == (1.0, 0.25)
    assert "mc2" not in row.values  # nobody has one
    grids = {grid.title: grid.rows[0][-1] for grid in grids_of(made)}
    assert grids["Overlap"] == GridText("n 4", ("0 unscored, 0 failed, 0 skipped",))
    assert grids["Choices"] == GridText("n 1", ("0 unscored, 1 failed, 1 skipped", "1 to come"))
    rows = {row["measure"]: (row["answered"], row["failed"]) for row in csv_rows([made])}
    assert (rows["rouge_l"], rows["mc1"]) == (("4", "0"), ("1", "1"))


def test_missing_verdicts_are_to_come_and_warned_of(tmp_path):
    begun = [line for line in RAD if not isinstance(line, VerdictLine)]
    begun += verdicts("r", "truth", [None, True])  # q3 and q4, and all of info, are not judged
    made = report(tmp_path, *GREEDY, *begun)
    truth = values(made.table, "rad")[f"truth@{JUDGE}"]
    assert (truth.mean, truth.n, truth.unscored, truth.to_come) == (1.0, 1, 1, 2)
    assert f"info@{JUDGE}" not in values(made.table, "rad")
    assert made.section.warnings[0] == (
        f"not fully judged by {JUDGE}: rad (6 to come); their numbers will change"
    )
    assert made.section.grids[0].rows[1][-1].below == (
        "1 unscored, 0 failed, 0 skipped",
        "2 to be judged",
    )


def test_seeds_are_averaged_and_their_spread_is_shown(tmp_path):
    rouges = [(0.1, 0.3, 0.1, 0.3), (0.3, 0.5, 0.3, 0.5)]
    lines = [of_cell(f"s{n}", rouge=x, seed=n, temperature=0.7) for n, x in enumerate(rouges)]
    made = table(tmp_path, *lines[0], *lines[1])
    (row,) = made.rows
    found = row.values["rouge_l"]
    assert found.mean == pytest.approx(0.3)  # of 0.2 and 0.4
    assert found.spread == pytest.approx(0.1 * 2**0.5)  # standard deviation of the two
    assert found.n == 4  # samples, not answers
    assert row.counts["generate"].answered == 8
    (entry,) = [e for e in grids_of(made)[0].rows[0] if e.text == "30.0"]
    assert "seeds ±14.1" in entry.below


@pytest.mark.parametrize(
    ("kind", "name", "made", "label"),
    [
        ("build", "context", (4, 8, "full"), "rad context=full"),
        ("build", "values", ("auto", "hidden", "logits"), "rad values=logits"),
        ("settings", "alpha", (0.0, 0.3, 1.0), "rad alpha=1"),
    ],
)
def test_three_values_make_rows_and_a_sweep_in_order(kind, name, made, label, tmp_path):
    varied = [
        of_cell(f"x{n}", "rad", [0.1 * n] * 4, text=f"x{n}", **{kind: {name: value}})
        for n, value in enumerate(made)
    ]
    knn = of_cell("k", "knn-lm", text="k", build={"context": "full"})
    found = table(tmp_path / "3", *GREEDY, *knn, *varied[0], *varied[2], *varied[1])
    (sweep,) = sweeps_of(found)
    assert (sweep.method, sweep.name, sweep.values) == ("rad", name, made)
    means = [row.values["rouge_l"].mean for row in sweep.rows]
    assert means == pytest.approx([0.0, 0.1, 0.2])
    assert sweep.rows[-1].label == label
    assert sweeps_of(table(tmp_path / "2", *GREEDY, *varied[0], *varied[1])) == []


def test_what_makes_rows_hard_to_compare_is_warned_of(usual, tmp_path):
    one = answers("g", rouge=[0.5] * 4, finish="length")[:1]
    made = report(tmp_path / "a", cell("g", samples=3, test=4), *one, failed("g", "q4", 3))
    counts = made.table.rows[0].counts["generate"]
    assert (counts.answered, counts.failed, counts.skipped, counts.left) == (1, 1, 1, 1)
    text = "\n".join(made.section.warnings)
    assert "not finished: greedy" in text
    assert "1 of 3 samples failed (q4); the first one: too long" in text
    assert "1 of 1 answers are cut off after 8 tokens" in text
    assert "1 cut off" in as_markdown(made.document)
    strange = answers("o", rouge=[0.1] * 4, text="x", prompt_hashes=("another",))
    other = [cell("o", "cad"), *strange, done("o")]
    found = report(tmp_path / "b", *GREEDY, *of_cell("i", "rad"), *other).section.warnings
    assert sum("did nothing" in text for text in found) == 1
    assert sum("another prompt" in text for text in found) == 1
    (warning,) = usual.section.warnings
    assert warning.startswith("rad: no controls were run")


def test_settings_hashes_and_the_worth_of_the_judge_come_last(usual):
    facts = dict(usual.section.facts)
    assert facts["fingerprint"] == "f"
    assert facts["versions"] == "trueline 0"
    assert "alpha 0.5" in facts["rad (generate, cell r)"]
    assert "space abc of 9 entries, context 8" in facts["rad (generate, cell r)"]
    assert {*usual.section.notes} == {
        f"Judge {JUDGE}: 16 verdicts, 1 unscored, 32 tokens, 4.0000 US dollars.",
        f"{JUDGE}: how far it agrees with people on truth is not known",
        f"{JUDGE}: how far it agrees with people on info is not known",
    }


@pytest.mark.parametrize(("reached", "mark"), [(0.74, ", indicative"), (0.75, "")])
def test_the_agreement_of_a_judge_is_shown_and_marks_columns(
    tmp_path, monkeypatch, reached, mark
):
    good = {"accuracy": [0.71], "balanced_accuracy": [0.9], "always": 0.58}
    measured = {"judge": JUDGE, "truth": {**good, "balanced_accuracy": [reached]}, "info": good}
    monkeypatch.setattr("trueline.lab.judges.offline.agreement", lambda: measured)
    made = report(tmp_path, *GREEDY, *RAD)
    assert made.section.notes[1] == (
        f"{JUDGE} agrees with people on 71% of truth labels "
        "(always giving the more frequent label agrees on 58%)"
    )
    head = made.section.grids[0].head
    assert head == ("method", f"%Truth{mark}", "%Info", f"T*I{mark}", "counts")
    hints = {f"{key}@{JUDGE}" for key in ("truth", "truth_info")} if mark else set()
    assert set(summarize_cell(made.results.cells[0]).indicative) == hints
    marked = [row["measure"] for row in csv_rows([made.table]) if row["is_indicative"] == "1"]
    assert {"truth", "truth_info"} <= set(marked) if mark else not marked


def csv_rows(tables):
    return list(csv.DictReader(io.StringIO(as_csv(tables))))


def parsed(text):
    """A page as XML, so that every tag is closed: its rows of text, and its tags."""
    text = text.replace("<!doctype html>", "").replace("<details open>", "<details>")
    page = ElementTree.fromstring(re.sub(r"<(meta [^>]*)>", r"<\1/>", text))
    rows = [["".join(entry.itertext()) for entry in row] for row in page.iter("tr")]
    return rows, {element.tag.rpartition("}")[2] for element in page.iter()}


HOSTILE = "50%_of $x^2$ & {a}\\b #1 ~ <script>alert(1)</script> | `c` [d]"


@pytest.fixture
def hostile():
    rows = ((GridText(HOSTILE), GridText("1.0", ("[0.5, 1.5] n 4",), True)),)
    grid = Grid(HOSTILE, ("method", HOSTILE), rows, (HOSTILE,))
    section = Section(HOSTILE, (HOSTILE,), (grid,), notes=(HOSTILE,))
    return Document(HOSTILE, (HOSTILE,), (section,))


def test_html_is_one_page_whose_tables_read_back(usual, hostile):
    text = as_html(usual.document)
    rows, tags = parsed(text)
    indicative = [f"{name}, indicative" for name in ("%Truth", "%Info", "T*I")]
    assert rows[0] == ["method", *indicative, "counts"]
    assert rows[1][0] == "greedy"
    assert rows[1][1].startswith("50.0[")
    assert "svg" in tags
    assert not {"script", "link", "img"} & tags
    assert not re.search(r"(src|href)=\"http", text.replace("http://www.w3.org", ""))
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text
    rows, tags = parsed(as_html(hostile))
    assert "script" not in tags
    assert rows[1] == [HOSTILE, "1.0[0.5, 1.5] n 4"]


def test_latex_is_escaped_and_its_braces_balance(usual, hostile):
    for document in (hostile, usual.document):
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


def test_markdown_tables_have_as_many_cells_as_their_head(usual, hostile):
    for document in (hostile, usual.document):
        lines = [x for x in as_markdown(document).splitlines() if x.startswith("| ")]
        assert len(lines) > 2
        bars = [len(re.findall(r"(?<!\\)\|", line)) for line in lines]
        heads = [number - 1 for number, line in enumerate(lines) if line.startswith("| ---")]
        for start, end in zip(heads, [*heads[1:], len(lines)]):
            assert len(set(bars[start:end])) == 1
    text = as_markdown(usual.document)
    assert "| **75.0**<br>" in text
    assert "tiny\\_100%" in text


def test_csv_reads_back_with_the_same_numbers(usual):
    rows = csv_rows([usual.table])
    assert len(rows) == sum(len(row.values) for row in usual.table.rows)
    (rad,) = [r for r in rows if (r["label"], r["measure"]) == ("rad", "truth")]
    names = "model judge unit mean n p difference is_best seeds".split()
    wanted = ["tiny_100%", JUDGE, "percent", "75", "4", "1", "25", "1", "1"]
    assert [rad[name] for name in names] == wanted


def sweep_lines(alphas=(0.0, 0.3, 1.0)):
    return [
        line
        for n, alpha in enumerate(alphas)
        for line in of_cell(
            f"a{alpha}", "rad", [0.1 * n, 0.2, 0.3, 0.4], text=f"{n}", settings={"alpha": alpha}
        )
    ]


def test_edits_fall_into_the_quartiles_of_entropy(usual, tmp_path):
    greedy, rad = usual.table.rows
    assert edit_quartiles(greedy) == []
    shares = [(q.share, q.n) for q in edit_quartiles(rad)]
    # half the steps have entropy 0.1 and no edit, half 2.0 and one; ties stay together
    assert [pair for pair in shares if pair[1]] == [(0.0, 4), (1.0, 4)]
    made = table(tmp_path, *GREEDY, *of_cell("i", "rad", text="x"))  # it changed no token
    assert {q.share for q in edit_quartiles(made.rows[1])} == {0.0, None}  # None: no step in it
    assert not any("interventions" in plot.name for plot in plots_of([made])[0])
    figures = our_text_figures("interventions", [made])
    assert figures["edit_q1"] == "0.0 % of 4 tokens (entropy 0.10 to 0.10)"


def test_every_plot_is_drawn_as_svg_and_png(tmp_path, monkeypatch):
    made = table(tmp_path, *GREEDY, *RAD, *sweep_lines())
    few = plots_of([made])[0]  # a reliability curve takes 30 samples
    assert not any("reliability" in plot.name for plot in few)
    monkeypatch.setattr("trueline.lab.report.plots.FEWEST", 1)
    (plots,) = plots_of([made])
    names = ["methods", "interventions", "reliability-offline-tiny", "sweep-rad-alpha"]
    assert [plot.name.removeprefix("facts-tiny_100-") for plot in plots] == names
    assert plots[-1].title == "rad: alpha, facts, tiny_100%"
    for plot in plots:
        assert ElementTree.fromstring(plot.svg).tag.endswith("svg")
        assert plot.inline_svg.startswith("<svg")
        assert "currentColor" in plot.inline_svg
    assert replace(plots[-1]).svg == plots[-1].svg  # drawn again, the same text
    assert plots[-1].png[:8] == b"\x89PNG\r\n\x1a\n"


def test_one_model_in_two_dtypes_has_files_and_titles_of_its_own(tmp_path):
    lines = [
        line
        for n, dtype in enumerate(("float32", "bfloat16"))
        for line in (*of_cell(f"g{n}", dtype=dtype), *of_cell(f"c{n}", "cad", dtype=dtype))
    ]
    tables = tables_of(read_results(write(tmp_path, *lines)))
    names = [plot.name for plots in plots_of(tables) for plot in plots]
    for dtype, title, name in zip(("float32", "bfloat16"), tables, names, strict=True):
        assert title.title == f"facts, tiny_100%, {dtype}"
        assert name == f"facts-tiny_100-{dtype}-methods"


def test_the_name_of_a_plot_fits_a_file_system_in_bytes(usual):
    table = replace(usual.table, benchmark="事実" * 100)
    names = [plot.name for some in plots_of([table] * 3) for plot in some]
    assert len(set(names)) == len(names) == 6  # although only the number differs
    assert max(len(name.encode()) for name in names) <= 80
    assert names[2].endswith("-methods-2")


def test_a_report_is_written_in_every_format(tmp_path):
    folder, out = write(tmp_path / "run", *GREEDY, *RAD), tmp_path / "out"
    flags = ["--out", str(out), "--format", "md,html,csv,latex", "--plots", "svg,png"]
    run = CliRunner().invoke(cli, ["report", str(folder), *flags], catch_exceptions=False)
    assert run.exit_code == 0
    names = {path.name for path in out.iterdir()}
    assert names >= {"report.md", "report.html", "report.csv", "report.tex"}
    shown = set(re.findall(r"!\[.*?\]\((.*?)\)", (out / "report.md").read_text("utf-8")))
    assert shown == {name for name in names if name.endswith(".svg")}
    assert shown == {f"facts-tiny_100-{name}.svg" for name in ("methods", "interventions")}
    assert sum(name.endswith(".png") for name in names) == 2
    assert {line.split("/")[-1] for line in run.output.splitlines()} == names


def test_a_report_opens_no_model_no_space_no_method_and_not_the_paper(tmp_path):
    write(tmp_path, *GREEDY, *RAD)
    formats = ["md", "html", "csv", "latex"]
    program = f"""import sys
from trueline.lab.report.pages import write_report
write_report({str(tmp_path)!r}, formats={formats}, plots=["svg"])
print(*sys.modules)"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert {"report.md", "report.tex"} < {path.name for path in tmp_path.iterdir()}
    heavy = ("torch", "transformers")
    banned = (*heavy, "trueline.lab.paper", "trueline.space", "trueline.methods.")
    assert [name for name in run.stdout.split() if name.startswith(banned)] == []


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path):
    folder = write(tmp_path, *GREEDY)
    with pytest.raises(SettingError, match="no format 'pdf'; there are md, html, csv, latex"):
        write_report(folder, formats=["pdf"])
    assert [path.name for path in folder.iterdir()] == ["results.jsonl"]


def test_every_judge_and_every_pair_of_judges_has_a_figure(tmp_path):
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
    assert "%Truth (b)" in grids_of(made)[0].head
    assert [column.id for column in made.columns][2:4] == ["truth@c", "info@a"]
    # greedy is surest of q1, which a and b alone call true: every other pair is ranked right
    assert (
        our_text_figures("reliability", [made])["auroc greedy"]
        == "1.00 (a), 1.00 (b), 0.33 (c)"
    )
    found = our_text_figures("judges", [made])
    assert [*found] == ["rho facts", "rho facts, a and c", "rho facts, b and c"]
    assert [text[:5].rstrip(",") for text in found.values()] == ["1.00", "-1.00", "-1.00"]
