"""Questions, messages or tokens -> answers: whole, piece by piece, scored or compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from time import perf_counter
from typing import Any, Unpack, overload

import torch

from trueline.decode.loop import Decoding, Request, Row
from trueline.engines.base import Engine, read_continuations
from trueline.errors import SettingError
from trueline.methods.base import Method, Rows, Step
from trueline.prompts import (
    ModelInput,
    chat_turn,
    check_question,
    read_messages,
)
from trueline.settings import whole_number
from trueline.text import shown
from trueline.types import PLAIN, Answer, OnProgress, Piece, Sampling, SamplingOptions, to_tuple

Messages = Sequence[Mapping[str, str]]
Given = str | ModelInput  # a question for the method's own prompt, or what the model reads
Many = Sequence[str] | Sequence[ModelInput]


def make_request(
    lm: Engine, method: Method, given: Given, options: Sampling | None = None, *, index: int = 0
) -> Request:
    """Check a question against a method and a model, and tokenize its prompts.

    The method itself is checked against the model by `method.check`, once for all requests.
    """
    options, what = options or Sampling(), f"question {index + 1}"
    read, inputs, contexts = _encode(lm, method, given, what)
    longest, room = max(map(len, contexts)), options.max_new_tokens
    if lm.limit is not None:
        room = min(room, lm.limit - longest)
    if room < 1:
        raise SettingError(
            f"{what} makes {method.name} read a prompt of {longest} tokens, {lm.id} reads "
            f"{lm.limit} at most; shorten it, or what the method puts before it: "
            f"{(read.question or '')[:60]!r}"
        )
    hashes = tuple(one.hash for one in inputs)
    prepared = method.prepare(lm, read, options)
    return Request(method, read, contexts, hashes, options, room, index, prepared)


def _check_method(method: object, lm: Engine) -> None:
    if not isinstance(method, Method):
        raise SettingError(
            "the method must be an object such as tl.Greedy() or tl.RAD(space), got "
            f"{shown(method)}"
        )
    method.check(lm)


def _encode(
    lm: Engine, method: Method, given: object, what: str
) -> tuple[ModelInput, tuple[ModelInput, ...], tuple[tuple[int, ...], ...]]:
    """What was given, what the method makes the model read instead, and the tokens of that.

    A question is put into the method's own prompt.
    """
    if hasattr(given, "encode_answer") and hasattr(given, "question"):
        read: ModelInput = given  # type: ignore[assignment]
    else:
        check_question(given, what)
        read = chat_turn(method.question_prompt, str(given))
    if read.question is not None:
        check_question(read.question, what)
    needs = method.needs
    if read.question is None and (needs.question or needs.own_prompt or needs.second_prompt):
        raise SettingError(
            f"{method.name} needs the text of the question, and only tokens were given; give a "
            "question or messages, or choose another method"
        )
    inputs = method.inputs(read)
    contexts = tuple(tuple(one.encode(lm.tokenizer)) for one in inputs)
    for context in contexts:
        if not context:
            raise SettingError(f"{what} makes an empty prompt")
        if min(context) < 0 or max(context) >= lm.vocabulary:
            raise SettingError(
                f"{what} holds tokens from {min(context)} to {max(context)}; {lm.id} has those "
                f"from 0 to {lm.vocabulary - 1}"
            )
    return read, inputs, contexts


class _Options(SamplingOptions, total=False):
    batch_size: int
    progress: OnProgress | None


@overload
def generate(  # type: ignore[overload-overlap]  # a str is a sequence of str too
    lm: Engine, method: Method, questions: Given, **options: Unpack[_Options]
) -> Answer: ...
@overload
def generate(
    lm: Engine, method: Method, questions: Many, **options: Unpack[_Options]
) -> list[Answer]: ...
@overload
def generate(
    lm: Engine, method: Method, *, messages: Messages, **options: Unpack[_Options]
) -> Answer: ...
def generate(
    lm: Engine,
    method: Method,
    questions: Given | Many | None = None,
    *,
    messages: Messages | None = None,
    batch_size: int = 16,
    progress: OnProgress | None = None,
    **options: Unpack[SamplingOptions],
) -> Answer | list[Answer]:
    """Answer one question or many, or a conversation; a list comes back in its order.

    Greedy unless temperature is above 0. A question's draws depend on the seed and its index in
    the list, not on the batch it falls into.
    """
    sampling = Sampling(**options)  # type: ignore[arg-type]  # which converts sequences
    given = _given(questions, messages)
    many = given if isinstance(given, tuple) else (given,)
    answers = answer_all(lm, method, many, sampling, batch_size=batch_size, progress=progress)
    return answers if isinstance(given, tuple) else answers[0]


def answer_all(
    lm: Engine,
    method: Method,
    given: Sequence[Given],
    options: Sampling,
    *,
    batch_size: int = 16,
    progress: OnProgress | None = None,
) -> list[Answer]:
    """`generate` with its options as one value."""
    batch_size = whole_number(batch_size, "batch_size")
    _check_method(method, lm)
    requests = [make_request(lm, method, one, options, index=i) for i, one in enumerate(given)]
    # Similar lengths together keep padding small; a quarter of the rows joins at once.
    decoding = Decoding(lm, max_rows=batch_size, join_at=max(1, batch_size // 4))
    tickets = {
        decoding.submit(request): request.index
        for request in sorted(requests, key=lambda request: len(request.contexts[0]))
    }
    answers: dict[int, Answer] = {}
    while not decoding.is_idle:
        for row in decoding.step():
            if row.is_ended:
                answers[tickets[row.ticket]] = row.answer()
        if progress:
            progress(len(answers), len(requests))
    return [answers[index] for index in range(len(requests))]


def stream(
    lm: Engine,
    method: Method,
    question: Given | None = None,
    *,
    messages: Messages | None = None,
    **options: Unpack[SamplingOptions],
) -> Iterator[Piece]:
    """Yield the answer piece by piece; the pieces together are the text `generate` gives.

    Text is held back while it may be half a character or the beginning of a stop string.
    """
    sampling = Sampling(**options)  # type: ignore[arg-type]  # which converts sequences
    given = _given(question, messages)
    if isinstance(given, tuple):
        raise SettingError(f"stream takes one question, got {len(given)}; generate takes many")
    _check_method(method, lm)
    return _pieces(lm, make_request(lm, method, given, sampling))


def _pieces(lm: Engine, request: Request) -> Iterator[Piece]:
    decoding = Decoding(lm, max_rows=1)
    decoding.submit(request)
    text_sent = tokens_sent = 0
    while not decoding.is_idle:
        (row,) = decoding.step()
        text, ready = settled_text(lm, row)
        if ready > text_sent or row.is_ended:
            answer = row.answer() if row.is_ended else None
            yield Piece(
                text=text[text_sent:ready],
                token_ids=tuple(row.tokens[tokens_sent:]),
                finish=answer.finish if answer else None,
                steps=tuple(row.steps[tokens_sent:]),
                sources=answer.sources if answer else (),
                is_covered=answer.is_covered if answer else None,
                answer=answer,
            )
            text_sent, tokens_sent = ready, len(row.tokens)


def settled_text(lm: Engine, row: Row) -> tuple[str, int]:
    """The text of a row so far, and how many of its characters can no longer change."""
    if row.text is not None:
        return row.text, len(row.text)
    text = lm.decode_settled(row.tokens)
    settled = text.rstrip("\ufffd")  # half a character decodes to a replacement sign
    begun = [
        length
        for string in row.request.options.stop_strings
        for length in range(1, min(len(string), len(settled) + 1))
        if settled.endswith(string[:length])
    ]
    return text, len(settled) - max(begun, default=0)


def _given(questions: Given | Many | None, messages: Messages | None) -> Any:
    """One question or conversation, or a tuple of several questions."""
    if (questions is None) == (messages is None):
        raise SettingError("give either questions or messages, one of the two")
    return to_tuple(questions) if messages is None else read_messages(messages)


_POSITIONS = 64  # logits kept in memory at once while scoring: as many positions


@dataclass(frozen=True, slots=True)
class Continuation:
    """An input as tokens, and the tokens that follow it and are scored."""

    given: ModelInput
    contexts: tuple[tuple[int, ...], ...]  # the tokens of each input that the method reads
    tokens: tuple[int, ...]


def score(
    lm: Engine,
    method: Method,
    question: Given | None = None,
    candidates: Sequence[str] = (),
    *,
    messages: Messages | None = None,
) -> list[float]:
    """The log-probability of each candidate answer under the method, summed over its tokens."""
    _check_method(method, lm)
    texts = to_tuple(candidates)
    if not isinstance(texts, tuple):
        raise SettingError(f"candidates must be a list of answers, got {shown(candidates)}")
    for number, candidate in enumerate(texts, 1):
        check_question(candidate, f"candidate {number}")
    given = _given(question, messages)
    if not texts:
        return []
    read, inputs, contexts = _encode(lm, method, given, "the question")
    answers = [tuple(inputs[0].encode_answer(text, lm.tokenizer)) for text in texts]
    longest = max(map(len, contexts)) + max(map(len, answers))
    if lm.limit is not None and longest > lm.limit:
        raise SettingError(
            f"the longest prompt and candidate are {longest} tokens, {lm.id} reads {lm.limit}"
        )
    rows = [Continuation(read, contexts, answer) for answer in answers]
    return [total for total, _ in score_continuations(lm, method, rows)]


@torch.inference_mode()
def score_continuations(
    lm: Engine, method: Method, rows: Sequence[Continuation]
) -> list[tuple[float, bool]]:
    """The log-probability of each continuation, and whether the method itself would write it.

    Rows with the same contexts share one reading of them.
    """
    prompts = range(len(rows[0].contexts))
    distinct = enumerate(dict.fromkeys(row.contexts for row in rows))
    index = {contexts: number for number, contexts in distinct}
    states = read_continuations(  # before each token: (prompts * rows, longest, ...)
        lm,
        [contexts[prompt] for prompt in prompts for contexts in index],
        [prompt * len(index) + index[row.contexts] for prompt in prompts for row in rows],
        [row.tokens for row in rows] * len(prompts),
        layers=method.layers(lm),
        states=method.reads_states(lm),
    )
    prepared = {
        row: method.complete(lm, method.prepare(lm, row[1], Sampling())).state
        for row in dict.fromkeys((row.contexts, row.given) for row in rows)
    }
    totals, is_own = [0.0] * len(rows), [True] * len(rows)
    positions = [(row, at) for row, one in enumerate(rows) for at in range(len(one.tokens))]
    for start in range(0, len(positions), _POSITIONS):
        batch = positions[start : start + _POSITIONS]
        some = [rows[row] for row, _ in batch]
        known = Rows(
            lm,
            [[*rows[row].contexts[0], *rows[row].tokens[:at]] for row, at in batch],
            [len(row.contexts[0]) for row in some],
            [row.given.question for row in some],
            [prepared[row.contexts, row.given] for row in some],
        )
        steps = [at for _, at in batch]
        which = [[prompt * len(rows) + row for row, _ in batch] for prompt in prompts]
        streams = [states.map(lambda x: x[own, steps]) for own in which]  # noqa: B023
        adjusted = method.adjust(Step(known, *streams, is_probability=True))
        log_probs = adjusted.logits.float().log_softmax(-1)  # (positions, vocabulary)
        best = log_probs.argmax(-1).tolist()
        for number, (row, at) in enumerate(batch):
            token = rows[row].tokens[at]
            totals[row] += float(log_probs[number, token])
            is_own[row] &= best[number] == token
    return list(zip(totals, is_own, strict=True))


@dataclass(frozen=True, slots=True)
class Compared:
    """One method over all questions."""

    name: str
    answers: list[Answer]
    seconds: float
    changed: float | None  # share of tokens that differ from the plain model's, in all answers
    diverges: list[int | None]  # the first token of each answer that differs; None: none does

    @property
    def tokens_per_second(self) -> float:
        """How many tokens a second it generated, prompts included."""
        return sum(len(answer.token_ids) for answer in self.answers) / self.seconds

    @property
    def did_nothing(self) -> bool:
        """Whether every answer is the plain model's own."""
        return self.changed == 0.0


def compare(
    lm: Engine,
    methods: Mapping[str, Method] | Sequence[Method],
    questions: Sequence[str],
    *,
    batch_size: int = 16,
    progress: Callable[[str, int, int], None] | None = None,
    **options: Unpack[SamplingOptions],
) -> dict[str, Compared]:
    """Answer every question with every method, timed; changes are counted against greedy.

    Methods come as a list, or as {name: method}.
    """
    given = to_tuple(questions)
    if not isinstance(given, tuple) or not given:
        raise SettingError(f"questions must be a list of one or more, got {shown(questions)}")
    sampling = Sampling(**options)  # type: ignore[arg-type]  # which converts sequences
    listed = to_tuple(methods.values() if isinstance(methods, Mapping) else methods)
    listed = listed if isinstance(listed, tuple) else (listed,)
    for method in listed:
        _check_method(method, lm)  # all of them before the first answers
    names = [*methods] if isinstance(methods, Mapping) else [one.name for one in listed]
    named = dict(zip(names, listed, strict=True))
    if len(named) < len(listed):
        raise SettingError("two methods have one name; give them as {name: method}")
    runs = {}
    for name, method in named.items():
        answer_all(lm, method, given[:1], replace(sampling, max_new_tokens=1))  # warms up
        report, start = progress and partial(progress, name), perf_counter()
        how: Any = {"batch_size": batch_size, "progress": report}
        answers = answer_all(lm, method, given, sampling, **how)
        runs[name] = (answers, perf_counter() - start)
    found = {}
    for name, (answers, seconds) in runs.items():
        plain = runs[PLAIN][0] if PLAIN in runs else answers
        pairs = zip(answers, plain, strict=True)
        differs = [[a != b for a, b in zip_longest(x.token_ids, y.token_ids)] for x, y in pairs]
        diverges = [own.index(True) if any(own) else None for own in differs]
        changed = sum(map(sum, differs)) / sum(map(len, differs)) if PLAIN in runs else None
        found[name] = Compared(name, answers, seconds, changed, diverges)
    return found
