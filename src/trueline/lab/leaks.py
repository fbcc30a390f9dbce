"""A benchmark -> the test questions and answers that its grounding examples give away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
_BLOCK = 512  # test texts in one matrix product
_SHOWN = 100  # characters of a text in the report
_NEAREST = 10  # leaks in a line of results


class _Text(NamedTuple):
    owner: str  # the id of its sample or example
    text: str
    words: tuple[str, ...]


def leak_report(
    benchmark: Benchmark,
    embedder: Embedder | None = None,
    *,
    cosine: float = 0.9,
    overlap: float = 0.8,
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
        leaks += _strongest(part, test, ground, _by_text(test, ground, overlap))
        if embedder is not None and test and ground:
            hits = _by_cosine(test, ground, embedder, cosine)
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


def _by_text(test: list[_Text], ground: list[_Text], overlap: float) -> Iterator[_Hit]:
    """Texts with equal words, 13 words in a row, or enough words in common."""
    with_word: dict[str, list[int]] = {}  # ground texts by their words
    for j, text in enumerate(ground):
        for word in {*text.words}:
            with_word.setdefault(word, []).append(j)
    sizes, runs = [len({*x.words}) for x in ground], [_runs(x.words) for x in ground]
    for i, text in enumerate(test):
        own, own_runs = {*text.words}, _runs(text.words)
        common = Counter(j for word in own for j in with_word.get(word, ()))
        for j, count in common.items():
            share = count / (len(own) + sizes[j] - count)
            if text.words == ground[j].words:
                yield i, j, "equal", share
            elif not own_runs.isdisjoint(runs[j]):
                yield i, j, "13 words", share
            elif share >= overlap:
                yield i, j, "overlap", share


def _runs(words: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Every 13 words in a row."""
    return {words[start : start + _RUN] for start in range(len(words) - _RUN + 1)}


def _by_cosine(
    test: list[_Text], ground: list[_Text], embedder: Embedder, cosine: float
) -> Iterator[_Hit]:
    from trueline.embed import embed_distinct

    left, right = (
        np.asarray(embed_distinct(embedder, [text.text for text in texts]).cpu(), np.float32)
        for texts in (test, ground)
    )  # (texts, dimension), unit vectors
    for start in range(0, len(left), _BLOCK):
        cosines = left[start : start + _BLOCK] @ right.T  # (block, ground)
        for i, j in np.argwhere(cosines >= cosine).tolist():
            yield start + i, j, "cosine", float(cosines[i, j])
