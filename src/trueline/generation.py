"""Questions, messages or tokens in, answers out: whole, or piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import overload

from trueline.decoders.base import Decoder
from trueline.decoding import Decoding
from trueline.engines.base import Engine
from trueline.errors import SettingError
from trueline.inputs import ModelInput, read_messages
from trueline.records import Answer, GenerateOptions, OnProgress, Piece, several
from trueline.requests import Request, check_method, make_request
from trueline.row import Row
from trueline.settings import whole_number

Messages = Sequence[Mapping[str, str]]
Given = str | ModelInput  # a question for the method's own prompt, or what the model reads


@overload
def generate(  # type: ignore[overload-overlap]  # a str is a sequence of str too
    lm: Engine,
    method: Decoder,
    questions: str | ModelInput,
    *,
    max_new_tokens: int = ...,
    temperature: float = ...,
    top_k: int | None = ...,
    top_p: float | None = ...,
    seed: int | None = ...,
    stop: str | Sequence[str] = ...,
    stop_ids: Sequence[int] = ...,
    trace: bool = ...,
    batch_size: int = ...,
    progress: OnProgress | None = ...,
) -> Answer: ...
@overload
def generate(
    lm: Engine,
    method: Decoder,
    questions: Sequence[str] | Sequence[ModelInput],
    *,
    max_new_tokens: int = ...,
    temperature: float = ...,
    top_k: int | None = ...,
    top_p: float | None = ...,
    seed: int | None = ...,
    stop: str | Sequence[str] = ...,
    stop_ids: Sequence[int] = ...,
    trace: bool = ...,
    batch_size: int = ...,
    progress: OnProgress | None = ...,
) -> list[Answer]: ...
@overload
def generate(
    lm: Engine,
    method: Decoder,
    questions: None = ...,
    *,
    messages: Messages,
    max_new_tokens: int = ...,
    temperature: float = ...,
    top_k: int | None = ...,
    top_p: float | None = ...,
    seed: int | None = ...,
    stop: str | Sequence[str] = ...,
    stop_ids: Sequence[int] = ...,
    trace: bool = ...,
) -> Answer: ...
def generate(
    lm: Engine,
    method: Decoder,
    questions: Given | Sequence[str] | Sequence[ModelInput] | None = None,
    *,
    messages: Messages | None = None,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    stop_ids: Sequence[int] = (),
    trace: bool = False,
    batch_size: int = 16,
    progress: OnProgress | None = None,
) -> Answer | list[Answer]:
    """Answer one question or many, or a conversation; a list comes back in its order.

    Greedy unless temperature is above 0. A question's draws depend on the seed and its index in
    the list, not on the batch it falls into.
    """
    options = GenerateOptions(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=several(stop),
        stop_ids=several(stop_ids),
        trace=trace,
    )
    given = _given(questions, messages)
    answers = answer_all(
        lm,
        method,
        given if isinstance(given, list) else [given],
        options,
        batch_size=batch_size,
        progress=progress,
    )
    return answers if isinstance(given, list) else answers[0]


def answer_all(
    lm: Engine,
    method: Decoder,
    given: Sequence[Given],
    options: GenerateOptions,
    *,
    batch_size: int = 16,
    progress: OnProgress | None = None,
) -> list[Answer]:
    """`generate` with its options as one value."""
    batch_size = whole_number(batch_size, "batch_size")
    check_method(method, lm)
    requests = [make_request(lm, method, one, options, index=i) for i, one in enumerate(given)]
    # Contexts of like length together keep padding small; a quarter of the rows joins at once.
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
    method: Decoder,
    question: Given | None = None,
    *,
    messages: Messages | None = None,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    stop_ids: Sequence[int] = (),
    trace: bool = False,
) -> Iterator[Piece]:
    """Yield the answer piece by piece; the pieces together are the text `generate` gives.

    Text is held back while it may be half a character or the beginning of a stop string.
    """
    options = GenerateOptions(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=several(stop),
        stop_ids=several(stop_ids),
        trace=trace,
    )
    given = _given(question, messages)
    if isinstance(given, list):
        raise SettingError(f"stream takes one question, got {len(given)}; generate takes many")
    check_method(method, lm)
    return _pieces(lm, make_request(lm, method, given, options))


def _pieces(lm: Engine, request: Request) -> Iterator[Piece]:
    """The growing text of one request, as far as it can no longer change."""
    decoding = Decoding(lm, max_rows=1)
    decoding.submit(request)
    text_sent = tokens_sent = 0
    while not decoding.is_idle:
        (row,) = decoding.step()
        text, ready = settled_text(lm, row)
        if ready > text_sent or row.is_ended:
            yield Piece(
                text=text[text_sent:ready],
                token_ids=tuple(row.tokens[tokens_sent:]),
                finish=row.finish if row.is_ended else None,
                steps=tuple(row.steps[tokens_sent:]),
                sources=row.sources() if row.is_ended else (),
                is_covered=(
                    request.method.is_covered(request.prepared) if row.is_ended else None
                ),
                answer=row.answer() if row.is_ended else None,
            )
            text_sent, tokens_sent = ready, len(row.tokens)


def settled_text(lm: Engine, row: Row) -> tuple[str, int]:
    """The text of a row so far, and how much of it is sure to stay."""
    if row.text is not None:
        return row.text, len(row.text)
    text = lm.decode_settled(row.tokens)
    settled = text.rstrip("\ufffd")  # half a character decodes to a replacement sign
    ready = len(settled)
    for string in row.request.options.stop_strings:
        for length in range(min(len(string) - 1, len(settled)), 0, -1):
            if settled.endswith(string[:length]):
                ready = min(ready, len(settled) - length)
                break
    return text, ready


def _given(
    questions: Given | Sequence[str] | Sequence[ModelInput] | None, messages: Messages | None
) -> Given | list[Given]:
    """What is asked: one thing, or several in a list."""
    if (questions is None) == (messages is None):
        raise SettingError("give either questions or messages, one of the two")
    if messages is not None:
        return read_messages(messages)
    is_many = isinstance(questions, Iterable) and not isinstance(
        questions, str | bytes | Mapping
    )
    return list(questions) if is_many else questions  # type: ignore[arg-type,return-value]
