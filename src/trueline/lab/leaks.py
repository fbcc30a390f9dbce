"""A benchmark -> the test questions and answers that its grounding examples give away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np

from trueline.lab.results import Leak, LeaksLine, replace_line
from trueline.settings import Between, check_value
from trueline.text import words_of
from trueline.types import Example

if TYPE_CHECKING:
    from trueline.embed import Embedder
    from trueline.lab.benchmarks.tables import Benchmark, Sample

_Text = tuple[str, str, tuple[str, ...]]  # the id of its sample or example, the text, its words
_PARTS = ("question", "answer")
_NEAR = ("equal", "13 words", "overlap", "cosine")  # a pair is named by the first that holds


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
    leaks = []
    for part in _PARTS:
        test, ground = _texts(benchmark.test, part), _texts(benchmark.ground, part)
        for i, j, near, score in _near_pairs(test, ground, embedder, cosine, overlap):
            (sample, text, _), (example, other, _) = test[i], ground[j]
            leaks.append(Leak(sample, example, part, near, score, (text, other)))
    leaks.sort(key=lambda x: (_NEAR.index(x.near), _PARTS.index(x.part), -x.score))
    best: dict[tuple[object, ...], Leak] = {}
    for leak in leaks:  # the surest kind first, then the highest score
        best.setdefault((leak.sample, leak.example, leak.part, leak.near == "cosine"), leak)
    return list(best.values())


def _texts(rows: Sequence[Sample] | Sequence[Example], part: str) -> list[_Text]:
    """The questions, or the truthful answers of 5 words or more: "Yes" fits any question."""
    least = 1 if part == "question" else 5
    texts = (
        (row.id, text, words_of(text))
        for row in rows
        for text in ([row.question] if part == "question" else row.answers)
    )
    return [text for text in texts if len(text[2]) >= least]


def _near_pairs(
    test: list[_Text],
    ground: list[_Text],
    embedder: Embedder | None,
    cosine: float,
    overlap: float,
) -> Iterator[tuple[int, int, str, float]]:
    """The indices of a test and a ground text, how they are near, and its score."""

    def runs(words: tuple[str, ...]) -> set[tuple[str, ...]]:
        return {words[start : start + 13] for start in range(len(words) - 12)}

    known = [(words, {*words}) for _, _, words in ground]
    for i, (_, _, words) in enumerate(test):
        own = {*words}
        for j, (other, others) in enumerate(known):
            common = len(own & others)
            share = common / (len(own) + len(others) - common or 1)
            if common and words == other:
                yield i, j, "equal", share
            elif common > 12 and runs(words) & runs(other):
                yield i, j, "13 words", share
            elif share >= overlap:
                yield i, j, "overlap", share
    if embedder is not None and test and ground:
        from trueline.embed import embed_distinct

        left, right = (
            np.asarray(embed_distinct(embedder, [x for _, x, _ in texts]).cpu(), np.float32)
            for texts in (test, ground)
        )  # (texts, dimension), unit vectors
        for i, vector in enumerate(left):
            cosines = right @ vector  # (ground,)
            for j in np.flatnonzero(cosines >= cosine).tolist():
                yield i, j, "cosine", float(cosines[j])


def leak_line(benchmark: Benchmark, embedder: Embedder | None) -> LeaksLine:
    """The report as a line of results: counts of samples, and the strongest leaks."""
    leaks, nearest = leak_report(benchmark, embedder), []
    for leak in leaks[:10]:
        one, other = (x if len(x) <= 100 else f"{x[:99]}…" for x in leak.texts)
        nearest.append(replace_line(leak, score=round(leak.score, 4), texts=(one, other)))
    kinds = Counter(kind for kind, _ in {(leak.kind, leak.sample) for leak in leaks})
    leaking = len({leak.sample for leak in leaks})
    names = [f"{part} {near}" for part in _PARTS for near in _NEAR]
    return LeaksLine(
        benchmark=benchmark.name,
        data_hash=benchmark.hash,
        embedder=None if embedder is None else embedder.id,
        ground=len(benchmark.ground),
        counts={"samples": len(benchmark.test), "leaking": leaking}
        | {name: kinds[name] for name in names if kinds[name]},
        nearest=tuple(nearest),
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
