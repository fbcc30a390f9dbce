"""A question and a space -> the examples near to it, each with a probability and reasons.

The question decides, once for each request, without a pass of the language model. For every
example that is near, a few signals are computed from the embedder's vectors and words, and one
logistic regression makes them a probability:

    p = sigmoid(bias + sum_k weight_k * signal_k)

If the question has an example's own words, p = 1 for it, whatever the signals. The weights were
fitted on questions about the grounding facts (benchmarks/fit_scope.py); `trueline tune` fits
the threshold to a user's own questions.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from math import exp, log
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import torch
from torch.nn.functional import normalize

from trueline.corrective.turns import (
    PARTICULAR,
    QuestionKind,
    question_kind,
    read_turn,
    wants_text,
)
from trueline.embed import Embedder, SentenceEmbedder, StaticEmbedder
from trueline.types import Example, NearExample, ScopedExample, Signal

if TYPE_CHECKING:
    from trueline.space import GroundingSpace

SIGNALS = {
    "question": "cosine with the example's question",
    "answers": "cosine with its truthful answers",
    "wrong": "cosine with its wrong answers",
    "words": "share of the words in your question that the example has",
    "same_words": "share of the words in your question that its question has",
    "back": "share of its question's words that your question has",
    "new_words": "weight of your words that the example lacks, times the first cosine",
    "contains": "whether one of the two questions has all words of the other, as e^-missing",
    "same": "whether both questions have the same words, as e^-(missing in either / 3)",
    "same_kind": "whether both ask for the same kind of thing",
    "other_kind": "whether you ask for a number, time, person or place, and it does not",
    "yes_no": "whether you ask for a yes or no",
    "its_yes_no": "whether its question asks for a yes or no",
    "own_question": "cosine with its question, less what the space's texts share",
    "own_answers": "cosine with its truthful answers, less what the space's texts share",
}
_WORD = re.compile(r"\w+")
_COMMON = 1_000  # ids of a vocabulary: common words stand first in it, and weigh less
_WIDTH = 64  # of the vectors of words that have none of their own
_NEAREST = 6  # examples whose signals are computed, for each text that may be a question
_DEFAULT = "all-minilm-l6-v2"  # another embedder gets the weights of this one


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a text."""

    vectors: torch.Tensor  # (words, width), unit length
    weights: torch.Tensor  # (words,) rare words weigh more
    texts: tuple[str, ...]

    def coverage(self, other: torch.Tensor) -> torch.Tensor:
        """The cosine of each word with the nearest of other words (others, width)."""
        if not len(other):
            return torch.zeros(len(self.vectors))
        return (self.vectors @ other.T).amax(1)

    def share(self, coverage: torch.Tensor) -> float:
        """The weighted mean of a coverage; 0 without words."""
        return float((self.weights * coverage).sum() / self.weights.sum().clamp(min=1e-6))

    def missing(self, coverage: torch.Tensor) -> float:
        """The weight of the words that a coverage leaves out."""
        return float((self.weights * (1 - coverage)).sum())


def words_of(embedder: Embedder, text: str) -> Words:
    """The words of a text with the embedder's vectors; without any, only equal words match."""
    if isinstance(embedder, SentenceEmbedder):
        return _known(embedder.tokenizer, embedder.word_vectors, text)
    if isinstance(embedder, StaticEmbedder):
        return _known(embedder.tokenizer, embedder.vectors, text)
    found = [word.lower() for word in _WORD.findall(text)]
    vectors = [_hashed(word) for word in found]
    return Words(
        torch.stack(vectors) if found else torch.zeros(0, _WIDTH),
        torch.ones(len(found)),
        tuple(found),
    )


def _known(tokenizer: object, table: torch.Tensor, text: str) -> Words:
    """Words from the table of a model: the mean of a word's pieces."""
    encoding = tokenizer.encode(text, add_special_tokens=False)  # type: ignore[attr-defined]
    pieces: dict[int, list[int]] = {}
    spans: dict[int, tuple[int, int]] = {}
    for token, word, (start, end) in zip(
        encoding.ids, encoding.word_ids, encoding.offsets, strict=True
    ):
        if word is not None and _WORD.search(text[start:end]):
            pieces.setdefault(word, []).append(token)
            spans[word] = spans.get(word, (start, end))[0], end
    if not pieces:
        return Words(torch.zeros(0, table.shape[1]), torch.zeros(0), ())
    vectors = torch.stack([table[ids].float().mean(0) for ids in pieces.values()]).cpu()
    ranks = [ids[0] if len(ids) == 1 else len(table) for ids in pieces.values()]
    return Words(
        normalize(vectors, dim=1),
        torch.tensor([log(1 + rank / _COMMON) for rank in ranks]),
        tuple(text[start:end] for start, end in spans.values()),
    )


def _hashed(word: str) -> torch.Tensor:
    """A vector of a word that is near to no other word's."""
    seed = int.from_bytes(hashlib.sha256(word.encode("utf-8", "replace")).digest()[:7])
    source = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(_WIDTH, generator=source), dim=0)


def has_same_words(text: str, other: str) -> bool:
    """Whether two texts differ only in case, punctuation and whitespace."""
    words = _WORD.findall(text.casefold())
    return bool(words) and words == _WORD.findall(other.casefold())


class MeasuredScope(NamedTuple):
    """How often scope is right on the shipped questions, above one threshold."""

    threshold: float
    false_scope: float  # share of near misses that come into scope
    recall: float  # share of paraphrases that their own example comes first for


@dataclass(frozen=True, slots=True)
class ScopeModel:
    """The fitted weights for one embedder."""

    bias: float
    weights: Mapping[str, float]
    threshold: float  # an example is in scope above it
    text_threshold: float  # the same for a longer text: a fact on its topic does no harm
    # The mean of each signal over the near examples it was fitted to.
    mean: Mapping[str, float] = field(default_factory=dict)
    # The results on facts it was not fitted to, at rising thresholds.
    measured: tuple[MeasuredScope, ...] = ()

    def probability(self, signals: Mapping[str, float]) -> float:
        total = self.bias + sum(self.weights[name] * signals[name] for name in self.weights)
        return 1 / (1 + exp(-max(-60.0, min(60.0, total))))

    def effects(self, signals: Mapping[str, float]) -> list[Signal]:
        """How far each signal moves the log-odds from those of a near example on average."""
        by = {x: w * (signals[x] - self.mean.get(x, 0.0)) for x, w in self.weights.items()}
        found = [Signal(name, SIGNALS[name], signals[name], by[name]) for name in by]
        return sorted(found, key=lambda one: -abs(one.effect))


@cache
def scope_models() -> Mapping[str, Mapping[str, ScopeModel]]:
    """The fitted weights by embedder: `full`, and `bare` for examples without wrong answers."""
    text = (files("trueline") / "scope.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, dict[str, ScopeModel]])


def model_for(space: GroundingSpace, example: Example) -> ScopeModel:
    known = scope_models()
    fitted = known.get(space.embedder_id, known[_DEFAULT])
    return fitted["full" if example.wrong_answers else "bare"]


def threshold_for(space: GroundingSpace, example: Example, question: str = "") -> float:
    """The probability above which an example is in scope: tuned to the space, or fitted.

    It is lower if the question asks for a longer text.
    """
    model = model_for(space, example)
    threshold = float(space.tuned.get("threshold", model.threshold))
    return min(threshold, model.text_threshold) if wants_text(question) else threshold


def find_scope(space: GroundingSpace, question: str) -> list[ScopedExample]:
    """The examples near to a question, the most probable first."""
    turn = read_turn(question)
    parts = [turn.texts.index(part) for part in turn.parts]
    found = []
    for example, signals in example_signals(space, question):
        model = model_for(space, example)
        probabilities = [
            1.0 if has_same_words(text, example.question) else model.probability(one)
            for text, one in zip(turn.texts, signals, strict=True)
        ]
        best = max(range(len(signals)), key=lambda at: probabilities[at])
        part = max(range(len(parts)), key=lambda at: probabilities[parts[at]])
        of_best = turn.texts[best], signals[best]
        of_part = part, probabilities[parts[part]]
        found.append(ScopedExample(example, probabilities[best], *of_part, *of_best))
    return sorted(found, key=lambda one: -one.probability)


def example_signals(
    space: GroundingSpace, question: str
) -> list[tuple[Example, list[dict[str, float]]]]:
    """The signals of the nearest examples for each text of a turn, the whole turn first."""
    texts, embedder = read_turn(question).texts, space.open_embedder("cpu")
    vectors = embedder.embed(list(texts)).cpu()  # (texts, dimension)
    words = [words_of(embedder, text) for text in texts]
    kinds = [question_kind(text) for text in texts]
    own = normalize(vectors - space.shared_vector, dim=1)  # what the space's texts do not share
    found = []
    for number in space.nearest_examples(vectors, _NEAREST):
        example, theirs = space.examples[number], space.example_vectors(number)
        apart = own @ normalize(theirs[:2] - space.shared_vector, dim=1).T  # (texts, 2)
        cosines = (vectors @ theirs.T).tolist(), apart.tolist()
        texts_of_example = _example_words(space, example)
        rows = zip(*cosines, words, kinds, strict=True)
        found.append((example, [_signals(*row, *texts_of_example) for row in rows]))
    return found


def in_scope(
    found: Sequence[ScopedExample], thresholds: Sequence[float]
) -> list[ScopedExample]:
    """Those whose probability exceeds their threshold, in order.

    An example that no part of the turn brings in by itself answers the part of the first one.
    """
    pairs = zip(found, thresholds, strict=True)
    scope = [(one, least) for one, least in pairs if one.probability > least]
    return [
        one if one.part_probability > least else replace(one, part=scope[0][0].part)
        for one, least in scope
    ]


def _example_words(
    space: GroundingSpace, example: Example
) -> tuple[Words, torch.Tensor, QuestionKind]:
    """Of its question the words and the kind, of all its texts the words' vectors; kept."""
    if example not in space.texts_read:
        embedder = space.open_embedder("cpu")
        texts = (example.question, *example.answers, *example.wrong_answers)
        words = [words_of(embedder, text) for text in texts]
        every = torch.cat([one.vectors for one in words])
        space.texts_read[example] = words[0], every, question_kind(example.question)
    found: tuple[Words, torch.Tensor, QuestionKind] = space.texts_read[example]
    return found


def _signals(
    cosines: Sequence[float],
    own_cosines: Sequence[float],
    words: Words,
    kind: QuestionKind,
    its_question: Words,
    its_words: torch.Tensor,
    its_kind: QuestionKind,
) -> dict[str, float]:
    covered, in_question = words.coverage(its_words), words.coverage(its_question.vectors)
    back = its_question.coverage(words.vectors)
    missing = words.missing(in_question), its_question.missing(back)
    values = (
        *cosines,
        words.share(covered),
        words.share(in_question),
        its_question.share(back),
        cosines[0] * words.missing(covered),
        exp(-min(missing)),
        exp(-sum(missing) / 3),
        kind == its_kind,
        kind in PARTICULAR and kind != its_kind,
        kind == "yes or no",
        its_kind == "yes or no",
        *own_cosines,
    )
    return dict(zip(SIGNALS, map(float, values), strict=True))


# Reasons, for explanations.

_CLOSENESS = {  # what is compared with the question: its signals, the plainest one first
    "its question": ("question", "own_question"),
    "its answer": ("answers", "own_answers"),
    "its wrong answers": ("wrong",),
}
_LEAST = 0.25  # of an effect on the log-odds that is mentioned
_CLOSER = 0.1  # above the cosine of a near example on average: it is close
_MOST_WORDS = 0.6  # share of the user's words that an example has: it has most
_SAME = 0.6  # cosine of two words that count as the same
_SPECIFIC = 1.2  # weight of a word that names what a question is about
_FEW = 3  # words that are named
_QUESTION_WORDS = frozenset(  # question words, which do not name what it is about
    "what which who whom whose when where why how do does did is are was were can could will "
    "would should has have had may might must am".split()
)
_KIND_WORDS = {
    "yes or no": "a yes or no",
    "quantity": "a number",
    "time": "a time",
    "person": "a person",
    "place": "a place",
    "reason": "a reason",
    "manner": "how something is done",
    "thing": "what something is",
}


def explained(space: GroundingSpace, scoped: ScopedExample, threshold: float) -> NearExample:
    """An example near to a question as explanations show it."""
    example, model = scoped.example, model_for(space, scoped.example)
    signals = model.effects(scoped.signals)
    words = words_of(space.open_embedder("cpu"), scoped.text)
    missing = missing_words(words, _example_words(space, example)[1])
    reasons = plain_reasons(scoped.text, example.question, signals, model.mean, missing)
    return NearExample(
        example=example.id,
        question=example.question,
        answer=example.answers[0],
        source=example.source,
        probability=scoped.probability,
        threshold=threshold,
        is_in_scope=scoped.probability > threshold,
        text=scoped.text,
        signals=tuple(signals),
        reasons_for=reasons[0],
        reasons_against=reasons[1],
    )


def plain_reasons(
    text: str,
    question: str,
    signals: Sequence[Signal],
    mean: Mapping[str, float],
    missing: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The reasons for an example with this question, and those against it, in words.

    `mean` is what each signal is for a near example on average; `missing` are the words of
    the user's text that the example lacks.
    """
    by_name = {signal.name: signal for signal in signals}
    near, far = [], []
    for part, names in _CLOSENESS.items():
        found = [by_name[name] for name in names if name in by_name]
        effect = sum(one.effect for one in found)
        above = found[0].value - mean.get(found[0].name, 0.0) if found else 0.0
        if effect >= _LEAST and above >= _CLOSER:
            near.append(part)
        elif effect <= -_LEAST and above < 0:
            far.append(part)
    reasons_for = [f"{_listed(near)} {_are(near)} close to what you ask"] if near else []
    against = [f"{_listed(far)} {_are(far)} not close to what you ask"] if far else []
    if missing:
        quoted = _listed([f"'{word}'" for word in missing])
        against.append(f"you say {quoted}, it does not")
    elif "words" in by_name and by_name["words"].value >= _MOST_WORDS:
        reasons_for.append("it has most of your words")
    ours, theirs = question_kind(text), question_kind(question)
    if ours == theirs and ours in _KIND_WORDS:
        reasons_for.append(f"both ask for {_KIND_WORDS[ours]}")
    elif ours in PARTICULAR:
        against.append(f"you ask for {_KIND_WORDS[ours]}, it does not")
    return tuple(reasons_for), tuple(against)


def missing_words(words: Words, example: torch.Tensor) -> tuple[str, ...]:
    """The most specific words of a question, and that the example (words, width) lacks.

    Words that follow each other are one phrase: `red light`.
    """
    coverage, weights = words.coverage(example).tolist(), words.weights.tolist()
    lacking = [
        index
        for index, text in enumerate(words.texts)
        if coverage[index] < _SAME
        and weights[index] >= _SPECIFIC
        and text.lower() not in _QUESTION_WORDS
    ]
    most = sorted(lacking, key=lambda index: weights[index] * (coverage[index] - 1))[:_FEW]
    phrases: list[list[int]] = []
    for index in sorted(most):
        if phrases and phrases[-1][-1] == index - 1:
            phrases[-1].append(index)
        else:
            phrases.append([index])
    named = [" ".join(words.texts[index] for index in phrase) for phrase in phrases]
    return tuple(dict.fromkeys(named))


def _are(parts: Sequence[str]) -> str:
    return "is" if len(parts) == 1 and not parts[0].endswith("answers") else "are"


def _listed(parts: Sequence[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
