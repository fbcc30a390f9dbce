"""A benchmark -> the test questions and answers that its grounding examples give away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import numpy as np

from trueline.lab.metrics import words_of
from trueline.lab.results import Leak, LeaksLine, now, replace_line
from trueline.lab.samples import Benchmark, Sample
from trueline.settings import Between, check_value
from trueline.types import Example

if TYPE_CHECKING:
    from trueline.embed import Embedder

_Part = Literal["question", "answer"]
_Hit = tuple[int, int, str, float]  # test text, ground text, kind of nearness, score
_PARTS: tuple[_Part, ...] = ("question", "answer")
_NEAR = ("equal", "13 words", "overlap", "cosine")  # a pair is named by the first that holds
_RUN = 13  # words in a row that two texts hardly share by chance
_SHORTEST_ANSWER = 5  # words; "Yes" or "I have no comment" fits any question
_SHOWN = 100  # characters of a text in the report
_NEAREST = 10  # leaks in a line of results


class _Text(NamedTuple):
    owner: str  # the id of its sample or example
    text: str
    words: tuple[str, ...]

    @property
    def runs(self) -> set[tuple[str, ...]]:
        words = self.words
        return {words[start : start + _RUN] for start in range(len(words) - _RUN + 1)}


def leak_report(
    benchmark: Benchmark,
    embedder: Embedder | None = None,
    *,
    cosine: float = 0.9,
    overlap: float = 0.8,
    block: int = 512,  # texts on each side of one matrix product
) -> list[Leak]:
    """Compare test questions with grounding questions, and answers with answers.

    Two texts are near by text if their words are equal, if they share 13 words in a row, or if
    the words they share are at least `overlap` of all their words (Jaccard). With an embedder
    they are also near from a similarity of `cosine`. For a sample and an example, each of these
    two ways is listed at most once for questions and once for answers: the strongest pair.
    """
    for name, value in (("cosine", cosine), ("overlap", overlap)):
        check_value(name, value, Annotated[float, Between(0, 1, above=True)])
    leaks: list[Leak] = []
    for part in _PARTS:
        test, ground = _texts(benchmark.test, part), _texts(benchmark.ground, part)
        if not test or not ground:
            continue
        leaks += _strongest(part, test, ground, _by_text(test, ground, overlap, block))
        if embedder is not None:
            hits = _by_cosine(test, ground, embedder, cosine, block)
            leaks += _strongest(part, test, ground, hits)
    return sorted(leaks, key=_rank)


def leak_line(benchmark: Benchmark, embedder: Embedder | None) -> LeaksLine:
    """The report as a line of results: counts, and the strongest leaks."""
    leaks = leak_report(benchmark, embedder)

    def shortened(leak: Leak) -> Leak:
        one, other = (x if len(x) <= _SHOWN else f"{x[: _SHOWN - 1]}…" for x in leak.texts)
        return replace_line(leak, score=round(leak.score, 4), texts=(one, other))

    return LeaksLine(
        benchmark=benchmark.name,
        data_hash=benchmark.hash,
        embedder=None if embedder is None else embedder.id,
        ground=len(benchmark.ground),
        counts=leak_counts(benchmark, leaks),
        nearest=tuple(map(shortened, leaks[:_NEAREST])),
        time=now(),
    )


def leak_note(line: LeaksLine) -> str:
    """A line of leaks in words."""
    counts = dict(line.counts)
    total, leaking = counts.pop("samples"), counts.pop("leaking")
    by = "by text alone" if line.embedder is None else f"by text and by {line.embedder}"
    found = (
        f"{line.benchmark}: {leaking} of {total} samples are near one of the "
        f"{line.ground} grounding examples, {by}"
    )
    pairs = (f"{x.sample} and {x.example} ({x.kind}, {x.score:.2f})" for x in line.nearest[:3])
    kinds = ", ".join(f"{kind} {count}" for kind, count in counts.items())
    return f"{found} ({kinds}); the nearest: {'; '.join(pairs)}" if leaking else found


def leak_counts(benchmark: Benchmark, leaks: Iterable[Leak]) -> dict[str, int]:
    """How many samples there are, how many leak, and how many leak in each way."""
    pairs = {(leak.kind, leak.sample) for leak in leaks}
    kinds = Counter(kind for kind, _ in pairs)
    counts = {"samples": len(benchmark.test), "leaking": len({sample for _, sample in pairs})}
    names = [f"{part} {near}" for part in _PARTS for near in _NEAR]
    return counts | {name: kinds[name] for name in names if kinds[name]}


def _rank(leak: Leak) -> tuple[int, float]:
    """The order of leaks: the surest kind first, then the highest score."""
    return _NEAR.index(leak.near) * len(_PARTS) + (leak.part == "answer"), -leak.score


def _texts(rows: Sequence[Sample] | Sequence[Example], part: _Part) -> list[_Text]:
    """The questions of rows, or those truthful answers that are long enough."""
    is_question = part == "question"
    texts = (
        _Text(row.id, text, words_of(text))
        for row in rows
        for text in ([row.question] if is_question else row.answers)
    )
    return [x for x in texts if len(x.words) >= (1 if is_question else _SHORTEST_ANSWER)]


def _strongest(
    part: _Part, test: list[_Text], ground: list[_Text], hits: Iterable[_Hit]
) -> Iterable[Leak]:
    """The first leak by `_rank` of each sample and example."""
    best: dict[tuple[str, str], Leak] = {}
    for i, j, near, score in sorted(hits):
        pair = (test[i].owner, ground[j].owner)
        leak = Leak(*pair, part, near, score, (test[i].text, ground[j].text))
        best[pair] = min(best.get(pair, leak), leak, key=_rank)
    return best.values()


def _by_text(
    test: list[_Text], ground: list[_Text], overlap: float, block: int
) -> Iterator[_Hit]:
    """Texts with equal words, 13 words in a row, or enough words in common."""
    with_run: dict[tuple[str, ...], set[int]] = {}  # ground texts by 13 words in a row
    for j, text in enumerate(ground):
        for run in text.runs:
            with_run.setdefault(run, set()).add(j)
    left, right = ([{*text.words} for text in texts] for texts in (test, ground))
    for i, text in enumerate(test):
        for j in {j for run in text.runs for j in with_run.get(run, ())}:
            yield i, j, "13 words", len(left[i] & right[j]) / len(left[i] | right[j])
    for start, at in product(range(0, len(test), block), range(0, len(ground), block)):
        rows, columns = left[start : start + block], right[at : at + block]
        column_of = {word: n for n, word in enumerate(sorted(set().union(*rows)))}
        common = _table(rows, column_of) @ _table(columns, column_of).T  # (rows, columns)
        sizes = [np.array([len(words) for words in sets]) for sets in (rows, columns)]
        either = sizes[0][:, None] + sizes[1] - common
        shares = (common / np.maximum(either, 1)).astype(np.float32)
        for i, j in np.argwhere(shares >= overlap).tolist():
            is_equal = test[start + i].words == ground[at + j].words
            yield start + i, at + j, "equal" if is_equal else "overlap", float(shares[i, j])


def _table(texts: list[set[str]], column_of: dict[str, int]) -> np.ndarray:
    """Which words each text holds, as ones: (texts, words)."""
    table = np.zeros((len(texts), len(column_of)), np.float32)
    for row, words in enumerate(texts):
        table[row, [column_of[word] for word in words if word in column_of]] = 1.0
    return table


def _by_cosine(
    test: list[_Text], ground: list[_Text], embedder: Embedder, cosine: float, block: int
) -> Iterator[_Hit]:
    from trueline.embed import embed_distinct

    left, right = (
        np.asarray(embed_distinct(embedder, [text.text for text in texts]).cpu(), np.float32)
        for texts in (test, ground)
    )  # (texts, dimension), unit vectors
    for start in range(0, len(left), block):
        cosines = left[start : start + block] @ right.T  # (block, ground)
        for i, j in np.argwhere(cosines >= cosine).tolist():
            yield start + i, j, "cosine", float(cosines[i, j])
