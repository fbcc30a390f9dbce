"""Public sets of edited facts: ZsRE, CounterFact with hard near misses, SituatedQA.

An edited fact is one that a model cannot know: its answer is the new one, often untrue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trueline.evaluation.benchmarks.data_files import DataTable, Line, is_text, read_table
from trueline.evaluation.benchmarks.pools import Pools
from trueline.evaluation.benchmarks.probes import ProbeQuestion, probe_pools, read_unrelated
from trueline.evaluation.metrics import words_of
from trueline.records import Example


def _table(file: str, rows: int, columns: str, home: str) -> DataTable:
    return DataTable(((file, rows),), None, {n: (n, n) for n in columns.split()}, home)


_ZSRE = _table(
    "knowedit_zsre/zsre_test_all",
    1_068,
    "subject prompt target_new ground_truth rephrase_prompt locality",
    "https://github.com/zjunlp/EasyEdit (MIT; KnowEdit, ZsRE)",
)
_COUNTERFACT = tuple(
    _table(
        f"counterfact_hard/cfh.part{part}",
        rows,
        "id edit_scope edit_scope_true_ans unrelated",
        "https://github.com/thunlp/EREN (no licence stated; CounterFact is MIT)",
    )
    for part, rows in ((1, 675), (2, 349))
)
_SITUATED = tuple(
    _table(
        f"situatedqa/{name}_dev",
        rows,
        "id edited_question answer",
        "https://github.com/mikejqzhang/SituatedQA (no licence stated)",
    )
    for name, rows in (("geo", 1_398), ("temp", 856))
)


def read_zsre(data: Path | None) -> Pools:
    """Edited facts of Wikidata, one rewording each, and other facts of the same subject."""
    lines = read_table(_ZSRE, data)
    examples, questions, known = [], list[ProbeQuestion](), 0
    for number, line in enumerate(lines, start=1):
        new, old = line.text("target_new"), line.texts("ground_truth")
        others = _other_facts(line)
        if words_of(new) in map(words_of, old):
            known += 1  # nothing is edited
            continue
        id = f"zsre-{number}"
        question = line.text("prompt")
        examples.append(Example(question, [new], old, id, line.text("subject")))
        questions.append(ProbeQuestion("paraphrase", line.text("rephrase_prompt"), (id,)))
        questions += [ProbeQuestion("near miss", text, (), (id,)) for text in others]
    counts = {"rows": len(lines), "new answer is the old one": known}
    unrelated = read_unrelated(data)
    return probe_pools(examples, [*questions, *unrelated], match="target", counts=counts)


def _other_facts(line: Line) -> list[str]:
    """The prompts about other facts of the subject; some rows have none."""
    cell = line.cells["locality"]
    expected = 'a table whose "Relation_Specificity" is a list of tables with a "prompt"'
    if not isinstance(cell, dict) or not isinstance(cell.get("Relation_Specificity", []), list):
        raise line.problem("locality", expected)
    prompts = [
        one.get("prompt") if isinstance(one, dict) else None
        for one in cell.get("Relation_Specificity", [])
    ]
    if not all(is_text(text) and str(text).strip() for text in prompts):
        raise line.problem("locality", expected)
    return [str(text).strip() for text in prompts]


def read_counterfact(data: Path | None) -> Pools:
    """Counterfactual edits, their rewordings, and about twenty near misses each."""
    lines = [line for table in _COUNTERFACT for line in read_table(table, data)]
    examples, questions, empty = [], list[ProbeQuestion](), 0
    for line in lines:
        pairs = _pairs(line)
        if not pairs:
            empty += 1
            continue
        (question, answer), *others = pairs
        id = f"counterfact-{line.cells['id']}"
        examples.append(Example(question, [answer], line.texts("edit_scope_true_ans"), id))
        questions += [ProbeQuestion("paraphrase", text, (id,)) for text, _ in others]
        questions += [
            ProbeQuestion("near miss", text, (), (id,), category=kind)
            for kind, text in _neighbors(line)
        ]
    counts = {"rows": len(lines), "rows without a question": empty}
    unrelated = read_unrelated(data)
    return probe_pools(examples, [*questions, *unrelated], match="target", counts=counts)


def _pairs(line: Line) -> list[tuple[str, str]]:
    """The wordings of an edit with their answer."""
    cell = line.cells["edit_scope"]
    is_sound = isinstance(cell, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(is_text, pair)) for pair in cell
    )
    if not is_sound or not all(text.strip() for pair in cell for text in pair):
        raise line.problem("edit_scope", "a list of pairs of a question and its answer")
    return [(question.strip(), answer.strip()) for question, answer in cell]


def _neighbors(line: Line) -> Iterator[tuple[str, str]]:
    """Questions about the same relation of other subjects, and others of the same subject."""
    cell = line.cells["unrelated"]
    for kind in ("neighbor_subj", "same_subj"):
        texts = cell.get(kind) if isinstance(cell, dict) else None
        if not isinstance(texts, list) or not all(is_text(x) and x.strip() for x in texts):
            raise line.problem("unrelated", f"a table with a list of questions {kind!r}")
        for text in texts:
            yield kind, text.strip()


def read_situatedqa(data: Path | None) -> Pools:
    """One question for several places or dates: the first grounds, the others are near misses.

    A place or date whose answer is the same is left out: to answer it alike is no mistake.
    """
    lines = [line for table in _SITUATED for line in read_table(table, data)]
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(str(line.cells["id"]), []).append(line)
    examples, questions, same = [], list[ProbeQuestion](), 0
    for group, (first, *others) in groups.items():
        id, answers = f"situatedqa-{group}", first.texts("answer")
        examples.append(Example(first.text("edited_question"), answers, id=id))
        for line in others:
            if {*map(words_of, answers)} & {*map(words_of, line.texts("answer"))}:
                same += 1
            else:
                near = ProbeQuestion("near miss", line.text("edited_question"), (), (id,))
                questions.append(near)
    counts: Mapping[str, Any] = {"rows": len(lines), "another place or date, same answer": same}
    unrelated = read_unrelated(data)
    return probe_pools(examples, [*questions, *unrelated], match="target", counts=counts)
