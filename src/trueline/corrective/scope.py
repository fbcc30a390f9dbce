"""A question and a space -> the examples that answer it, each with a probability.

The question decides, once per request, and no pass of the language model is needed. For every
example that is near, a few signals are read off the embedder's vectors and words, and one
logistic regression makes them a probability:

    p = sigmoid(bias + sum_k weight_k * signal_k)

A question in an example's own words is that example's, whatever the signals: p = 1. The weights
were fitted on questions about the grounding facts (benchmarks/fit_scope.py); `trueline tune`
fits the threshold to a user's own questions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from math import exp, log
from typing import TYPE_CHECKING

import torch

from trueline.corrective.turns import PARTICULAR, Asked, asked_for, read_turn, wants_text
from trueline.embed import Embedder, SentenceEmbedder, StaticEmbedder
from trueline.types import Example, NearExample, Signal

if TYPE_CHECKING:
    from trueline.space import GroundingSpace


_WORD = re.compile(r"\w+")
_COMMON = 1_000  # ids of a vocabulary: common words stand first in it, and weigh less
_WIDTH = 64  # of the vectors of words that have none of their own


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a text."""

    vectors: torch.Tensor  # (words, width), unit length
    weights: torch.Tensor  # (words,) how much a word tells: rare ones more
    texts: tuple[str, ...]  # the words themselves

    def coverage(self, other: torch.Tensor) -> torch.Tensor:
        """The cosine of each word with the nearest of other words (others, width)."""
        if not len(other):
            return torch.zeros(len(self.vectors))
        return (self.vectors @ other.T).amax(1)

    def share(self, coverage: torch.Tensor) -> float:
        """The mean of a coverage, rare words counting more; 0 where there is no word."""
        return float((self.weights * coverage).sum() / self.weights.sum().clamp(min=1e-6))

    def missing(self, coverage: torch.Tensor) -> float:
        """The weight of the words that a coverage leaves out."""
        return float((self.weights * (1 - coverage)).sum())


def words_of(embedder: Embedder, text: str) -> Words:
    """The words of a text as an embedder knows them; equal words alone where it knows none."""
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
    places: dict[int, tuple[int, int]] = {}  # where a word begins and ends
    for token, word, (start, end) in zip(
        encoding.ids, encoding.word_ids, encoding.offsets, strict=True
    ):
        if word is not None and _WORD.search(text[start:end]):
            pieces.setdefault(word, []).append(token)
            places[word] = places.get(word, (start, end))[0], end
    if not pieces:
        return Words(torch.zeros(0, table.shape[1]), torch.zeros(0), ())
    vectors = torch.stack([table[ids].float().mean(0) for ids in pieces.values()]).cpu()
    rarest = len(table)
    ranks = [ids[0] if len(ids) == 1 else rarest for ids in pieces.values()]
    return Words(
        torch.nn.functional.normalize(vectors, dim=1),
        torch.tensor([log(1 + rank / _COMMON) for rank in ranks]),
        tuple(text[start:end] for start, end in places.values()),
    )


def _hashed(word: str) -> torch.Tensor:
    """A vector of a word that is near to no other word's."""
    seed = int.from_bytes(hashlib.sha256(word.encode("utf-8", "replace")).digest()[:7])
    source = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(_WIDTH, generator=source), dim=0)


_CLOSENESS = {  # what is compared with the question: its signals, the plainest one first
    "its question": ("question", "own_question"),
    "its answer": ("answers", "own_answers"),
    "its wrong answers": ("wrong",),
}
_LEAST = 0.25  # of an effect on the log-odds that is worth a word
_CLOSER = 0.1  # how far a cosine lies above that of a near example on average if it is close
_MOST_WORDS = 0.6  # share of the asked words that an example has, from which on it has most
_SAME = 0.6  # cosine of two words from which on one stands for the other
_TELLING = 1.2  # weight of a word that says what a question is about
_FEW = 3  # words that are named
_ASKING = frozenset(  # words that ask, and do not say about what
    "what which who whom whose when where why how do does did is are was were can could will "
    "would should has have had may might must am".split()
)
_WANTED = {
    "yes or no": "a yes or no",
    "quantity": "a number",
    "time": "a time",
    "person": "a person",
    "place": "a place",
    "reason": "a reason",
    "manner": "how something is done",
    "thing": "what something is",
}


def plain_reasons(
    asked: str,
    question: str,
    signals: Sequence[Signal],
    mean: Mapping[str, float],
    missing: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What speaks for the example with this question, and what against it, in words.

    `mean` is what each signal is for a near example on average; `missing` are the words of
    what was asked that the example lacks.
    """
    by_name = {signal.name: signal for signal in signals}
    near, far = _closeness(by_name, mean)
    reasons_for = [f"{_listed(near)} {_are(near)} close to what you ask"] if near else []
    against = [f"{_listed(far)} {_are(far)} not close to what you ask"] if far else []
    if missing:
        quoted = _listed([f"'{word}'" for word in missing])
        against.append(f"you say {quoted}, it does not")
    elif "words" in by_name and by_name["words"].value >= _MOST_WORDS:
        reasons_for.append("it has most of your words")
    ours, theirs = asked_for(asked), asked_for(question)
    if ours == theirs and ours in _WANTED:
        reasons_for.append(f"both ask for {_WANTED[ours]}")
    elif ours in PARTICULAR:
        against.append(f"you ask for {_WANTED[ours]}, it does not")
    return tuple(reasons_for), tuple(against)


def missing_words(asked: Words, example: torch.Tensor) -> tuple[str, ...]:
    """The words that tell most of what was asked, and that no word of an example stands for.

    Neighbors among them are one: `red light`. `example` holds its words' vectors.
    """
    coverage = asked.coverage(example).tolist()
    weights = asked.weights.tolist()
    lacking = [
        index
        for index, (covered, weight) in enumerate(zip(coverage, weights, strict=True))
        if covered < _SAME and weight >= _TELLING and asked.texts[index].lower() not in _ASKING
    ]
    most = sorted(lacking, key=lambda index: weights[index] * (coverage[index] - 1))[:_FEW]
    phrases: list[list[int]] = []
    for index in sorted(most):
        if phrases and phrases[-1][-1] == index - 1:
            phrases[-1].append(index)
        else:
            phrases.append([index])
    named = [" ".join(asked.texts[index] for index in phrase) for phrase in phrases]
    return tuple(dict.fromkeys(named))


def _closeness(
    signals: Mapping[str, Signal], mean: Mapping[str, float]
) -> tuple[list[str], list[str]]:
    """Which texts of an example are closer to what was asked than usual, and which less."""
    near, far = [], []
    for part, names in _CLOSENESS.items():
        found = [signals[name] for name in names if name in signals]
        if not found:
            continue
        effect = sum(one.effect for one in found)
        above = found[0].value - mean.get(found[0].name, 0.0)
        if effect >= _LEAST and above >= _CLOSER:
            near.append(part)
        elif effect <= -_LEAST and above < 0:
            far.append(part)
    return near, far


def _are(parts: Sequence[str]) -> str:
    return "is" if len(parts) == 1 and not parts[0].endswith("answers") else "are"


def _listed(parts: Sequence[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


SIGNALS = {
    "question": "cosine with the example's question",
    "answers": "cosine with its truthful answers",
    "wrong": "cosine with its wrong answers",
    "words": "share of the asked words that the example has",
    "same_words": "share of the asked words that its question has",
    "back": "share of its question's words that are asked",
    "new_words": "weight of the asked words that the example lacks, times the first cosine",
    "contains": "whether one of the two questions has all words of the other, as e^-missing",
    "same": "whether both questions have the same words, as e^-(missing in either / 3)",
    "same_kind": "whether both ask for the same kind of thing",
    "other_kind": "whether a number, time, person or place is asked for, and not by it",
    "yes_no": "whether a yes or no is asked for",
    "its_yes_no": "whether its question asks for a yes or no",
    "own_question": "cosine with its question, what the space's texts share taken off",
    "own_answers": "cosine with its truthful answers, what the space's texts share taken off",
}
_WORD_scope = re.compile(r"\w+")
_NEAREST = 6  # examples whose signals are read, for each text that may be a question
_DEFAULT = "all-minilm-l6-v2"  # whose weights another embedder is given


@dataclass(frozen=True, slots=True)
class MeasuredScope:
    """How often scope is right on the shipped questions, above one threshold."""

    threshold: float
    false_scope: float  # share of near misses that come into scope
    recall: float  # share of paraphrases that their own example comes first for


@dataclass(frozen=True, slots=True)
class ScopeModel:
    """The fitted weights for one embedder."""

    bias: float
    weights: Mapping[str, float]
    threshold: float  # above it, an example speaks
    text_threshold: float  # the same where a text is wanted: a fact on its topic does no harm
    # The mean of each signal over the near examples it was fitted to.
    mean: Mapping[str, float] = field(default_factory=dict)
    # What was found on facts it was not fitted to, at rising thresholds.
    measured: tuple[MeasuredScope, ...] = ()

    def probability(self, signals: Mapping[str, float]) -> float:
        """The probability that an example with these signals answers the question."""
        total = self.bias + sum(self.weights[name] * signals[name] for name in self.weights)
        return 1 / (1 + exp(-max(-60.0, min(60.0, total))))

    def effects(self, signals: Mapping[str, float]) -> list[Signal]:
        """How far each signal moves the log-odds from those of a near example on average."""
        found = [
            Signal(
                name,
                SIGNALS[name],
                signals[name],
                weight * (signals[name] - self.mean.get(name, 0.0)),
            )
            for name, weight in self.weights.items()
        ]
        return sorted(found, key=lambda one: -abs(one.effect))


@dataclass(frozen=True, slots=True)
class Scoped:
    """An example that is near to a question."""

    example: Example
    probability: float  # that it answers the question
    part: int  # which part of the turn it answers best
    part_probability: float  # that it answers this part alone
    text: str  # the text it is nearest to: the turn, a sentence or a part of it
    signals: Mapping[str, float]  # of that text

    @property
    def odds(self) -> float:
        """The logarithm of its odds: how much its word counts against another example's."""
        return log(self.probability) - log(max(1e-12, 1 - self.probability))


@cache
def scope_models() -> Mapping[str, Mapping[str, ScopeModel]]:
    """The fitted weights by embedder: `full`, and `bare` for examples without wrong answers."""
    text = (files("trueline") / "scope.json").read_text("utf-8")
    return {
        embedder: {
            kind: ScopeModel(
                given["bias"],
                given["weights"],
                given["threshold"],
                given["text_threshold"],
                given.get("mean", {}),
                tuple(MeasuredScope(*row) for row in given.get("measured", [])),
            )
            for kind, given in fitted.items()
        }
        for embedder, fitted in json.loads(text).items()
    }


def models_for(embedder: str) -> Mapping[str, ScopeModel]:
    """The weights for an embedder; one that none were fitted for gets the default's."""
    known = scope_models()
    return known.get(embedder, known[_DEFAULT])


def threshold_for(space: GroundingSpace, example: Example, question: str = "") -> float:
    """The probability above which an example speaks: tuned to the space, or the fitted one.

    It is lower where the question wants a text to be written.
    """
    model = model_for(space, example)
    threshold = float(space.tuned.get("threshold", model.threshold))
    return min(threshold, model.text_threshold) if wants_text(question) else threshold


def model_for(space: GroundingSpace, example: Example) -> ScopeModel:
    """The weights that an example of a space is judged by."""
    return models_for(space.embedder_id)[_kind(example)]


def _kind(example: Example) -> str:
    return "full" if example.wrong_answers else "bare"


def find_scope(space: GroundingSpace, question: str) -> list[Scoped]:
    """The examples near to a question, the most probable first."""
    turn = read_turn(question)
    asked = _read_texts(space, turn.texts)
    near = space.nearest_examples(asked.vectors, _NEAREST)
    parts = [turn.texts.index(part) for part in turn.parts]
    models = models_for(space.embedder_id)
    found = [_scoped(space, number, asked, parts, models) for number in near]
    return sorted(found, key=lambda one: -one.probability)


def example_signals(
    space: GroundingSpace, question: str
) -> list[tuple[Example, list[dict[str, float]]]]:
    """The signals of the nearest examples for each text of a turn, the whole turn first."""
    asked = _read_texts(space, read_turn(question).texts)
    near = space.nearest_examples(asked.vectors, _NEAREST)
    return [(space.examples[number], _signals(space, number, asked)) for number in near]


@dataclass(frozen=True, slots=True)
class _Texts:
    """Texts that may be a question, and what is compared of them."""

    texts: Sequence[str]
    vectors: torch.Tensor  # (texts, dimension)
    words: Sequence[Words]
    kinds: Sequence[Asked]


def _read_texts(space: GroundingSpace, texts: Sequence[str]) -> _Texts:
    embedder = space.open_embedder("cpu")
    return _Texts(
        texts,
        embedder.embed(list(texts)).cpu(),
        [words_of(embedder, text) for text in texts],
        [asked_for(text) for text in texts],
    )


@dataclass(frozen=True, slots=True)
class _ExampleWords:
    """What is compared word by word of an example, read once."""

    question: Words
    all: torch.Tensor  # (words, width) of its question and all its answers
    kind: Asked  # what its question asks for


def _example_words(space: GroundingSpace, example: Example) -> _ExampleWords:
    """The words of an example as the space's embedder knows them, kept with the space."""
    if example not in space.texts_read:
        embedder = space.open_embedder("cpu")
        texts = (example.question, *example.answers, *example.wrong_answers)
        words = [words_of(embedder, text) for text in texts]
        every = torch.cat([one.vectors for one in words])
        kind = asked_for(example.question)
        space.texts_read[example] = _ExampleWords(words[0], every, kind)
    found: _ExampleWords = space.texts_read[example]
    return found


def _scoped(
    space: GroundingSpace,
    number: int,
    asked: _Texts,
    parts: Sequence[int],
    models: Mapping[str, ScopeModel],
) -> Scoped:
    """One example with its signals for the text it answers best."""
    example = space.examples[number]
    model = models[_kind(example)]
    signals = _signals(space, number, asked)
    probabilities = [
        1.0 if has_same_words(text, example.question) else model.probability(one)
        for text, one in zip(asked.texts, signals, strict=True)
    ]
    best = max(range(len(signals)), key=lambda at: probabilities[at])
    part = max(range(len(parts)), key=lambda at: probabilities[parts[at]])
    return Scoped(
        example,
        probabilities[best],
        part,
        probabilities[parts[part]],
        asked.texts[best],
        signals[best],
    )


def has_same_words(text: str, other: str) -> bool:
    """Whether two texts are the same but for case, punctuation and blanks."""
    words = _WORD_scope.findall(text.casefold())
    return bool(words) and words == _WORD_scope.findall(other.casefold())


def _signals(space: GroundingSpace, number: int, asked: _Texts) -> list[dict[str, float]]:
    """The signals of one example for each of some texts."""
    theirs = _example_words(space, space.examples[number])
    own = space.example_vectors(number)
    cosines = (asked.vectors @ own.T).tolist()  # (texts, 3)
    shared = space.shared_vector()
    apart = _cosines(asked.vectors - shared, own[:2] - shared)  # (texts, 2)
    found = []
    for near, particular, ours, kind in zip(
        cosines, apart, asked.words, asked.kinds, strict=True
    ):
        covered = ours.coverage(theirs.all)
        asked_there = ours.coverage(theirs.question.vectors)
        back = theirs.question.coverage(ours.vectors)
        missing = ours.missing(asked_there), theirs.question.missing(back)
        values = (
            *near,
            ours.share(covered),
            ours.share(asked_there),
            theirs.question.share(back),
            near[0] * ours.missing(covered),
            exp(-min(missing)),
            exp(-sum(missing) / 3),
            kind == theirs.kind,
            kind in PARTICULAR and kind != theirs.kind,
            kind == "yes or no",
            theirs.kind == "yes or no",
            *particular,
        )
        found.append(dict(zip(SIGNALS, map(float, values), strict=True)))
    return found


def _cosines(vectors: torch.Tensor, others: torch.Tensor) -> list[list[float]]:
    """The cosine of each vector (n, dimension) with each of some others."""
    found: list[list[float]] = (
        torch.nn.functional.normalize(vectors, dim=1)
        @ torch.nn.functional.normalize(others, dim=1).T
    ).tolist()
    return found


def explained(
    space: GroundingSpace, scoped: Scoped, threshold: float, is_in_scope: bool
) -> NearExample:
    """An example near to a question as explanations show it."""
    example, model = scoped.example, model_for(space, scoped.example)
    signals = model.effects(scoped.signals)
    words = words_of(space.open_embedder("cpu"), scoped.text)
    missing = missing_words(words, _example_words(space, example).all)
    reasons = plain_reasons(scoped.text, example.question, signals, model.mean, missing)
    return NearExample(
        example=example.id,
        question=example.question,
        answer=example.answers[0],
        source=example.source,
        probability=scoped.probability,
        threshold=threshold,
        is_in_scope=is_in_scope,
        text=scoped.text,
        signals=tuple(signals),
        reasons_for=reasons[0],
        reasons_against=reasons[1],
    )


def in_scope(found: Sequence[Scoped], thresholds: Sequence[float]) -> list[Scoped]:
    """Those whose probability exceeds their threshold, in order.

    An example that no part of the turn brings in by itself answers the part of the first one.
    """
    pairs = zip(found, thresholds, strict=True)
    speaking = [(one, least) for one, least in pairs if one.probability > least]
    return [
        one if one.part_probability > least else replace(one, part=speaking[0][0].part)
        for one, least in speaking
    ]
