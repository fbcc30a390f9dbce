"""Questions in, answers out: the one decoding loop, for batches and streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import overload

from trueline.answers import Answer
from trueline.decoders.base import Decoder, Step
from trueline.engines.transformers.language import LanguageModel
from trueline.engines.transformers.reading import Reading
from trueline.errors import SettingError
from trueline.pick import Pick
from trueline.prompts import check_text
from trueline.records import TraceStep
from trueline.trace import trace_step


@dataclass
class _Row:
    """One question on its way to an answer."""

    question: str
    place: int  # among the questions of the call
    prompts: list[list[int]]  # the one it is asked with, then any read beside it
    hashes: tuple[str, ...]  # of these prompts
    room: int  # how many tokens it may still get
    tokens: list[int] = field(default_factory=list)
    steps: list[TraceStep] = field(default_factory=list)
    text: str | None = None  # set when the answer has ended
    finish: str = "length"


@dataclass(frozen=True)
class _Stop:
    """When an answer ends."""

    ids: frozenset[int]
    strings: tuple[str, ...]
    longest: int  # tokens a stop string can span

    def check(self, row: _Row, lm: LanguageModel) -> None:
        """Close the row if its last token ended it."""
        if row.tokens[-1] in self.ids:
            row.finish, row.text = "stop", lm.decode(row.tokens)
        elif self.strings and any(
            string in lm.decode(row.tokens[-self.longest :]) for string in self.strings
        ):
            text = lm.decode(row.tokens)
            places = [place for string in self.strings if (place := text.find(string)) >= 0]
            row.finish, row.text = "stop", text[: min(places, default=None)]
        elif len(row.tokens) == row.room:
            row.text = lm.decode(row.tokens)


@overload
def generate(  # type: ignore[overload-overlap]
    lm: LanguageModel, method: Decoder, questions: str, **options: object
) -> Answer: ...
@overload
def generate(
    lm: LanguageModel, method: Decoder, questions: Sequence[str], **options: object
) -> list[Answer]: ...
def generate(  # type: ignore[misc]
    lm: LanguageModel,
    method: Decoder,
    questions: str | Sequence[str],
    *,
    max_new_tokens: int = 64,
    batch_size: int = 16,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    p_less: bool = False,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    stop_ids: Sequence[int] = (),
    trace: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Answer | list[Answer]:
    """Answer one question or many; a list comes back in the order it came in.

    Greedy unless temperature is above 0. A question's draws depend on the seed and its place in
    the list, not on the batch it falls into.
    """
    if isinstance(questions, str):
        asked = [questions]
    else:
        asked = list(questions)
    if batch_size < 1:
        raise SettingError(f"batch_size must be at least 1, got {batch_size}")
    pick = Pick(temperature, top_k, top_p, p_less, seed)
    ending = _ending(lm, stop, stop_ids)
    rows = _rows(lm, method, asked, max_new_tokens)
    done = 0
    for batch in _batches(rows, batch_size):
        for ended in _decode(lm, method, batch, pick, ending, trace):
            done += len([row for row in ended if row.text is not None])
            if progress:
                progress(done, len(rows))
    answers = [_answer(row, method, trace) for row in rows]
    return answers[0] if isinstance(questions, str) else answers


def stream(
    lm: LanguageModel,
    method: Decoder,
    question: str,
    *,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    p_less: bool = False,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    stop_ids: Sequence[int] = (),
) -> Iterator[str]:
    """Yield the answer piece by piece; the pieces together are the text `generate` gives.

    A piece is held back while it may be half a character or the beginning of a stop string.
    """
    pick = Pick(temperature, top_k, top_p, p_less, seed)
    ending = _ending(lm, stop, stop_ids)
    (row,) = rows = _rows(lm, method, [question], max_new_tokens)
    return _pieces(lm, row, _decode(lm, method, rows, pick, ending, False), ending.strings)


def _decode(
    lm: LanguageModel,
    method: Decoder,
    rows: list[_Row],
    pick: Pick,
    ending: _Stop,
    trace: bool,
) -> Iterator[list[_Row]]:
    """Pick one token a live row and step until all have ended; yields the rows that got one."""
    draws = [pick.generator(row.place) for row in rows]
    reading = Reading(
        lm,
        [row.prompts for row in rows],
        layers=method.layers(lm),
        aside=partial(method.begin, lm) if method.looks_up else None,
    )
    while rows:
        step = Step(
            lm,
            reading.contexts,
            reading.starts,
            reading.states,
            is_probability=pick.is_sampled,
            lookup=reading.found,
        )
        adjusted = method.adjust(step)
        tokens = pick(adjusted.logits, draws)
        for place, (row, token) in enumerate(zip(rows, tokens, strict=True)):
            row.tokens.append(token)
            if trace:
                row.steps.append(trace_step(step, adjusted, place, token))
            ending.check(row, lm)
        yield rows
        live = [place for place, row in enumerate(rows) if row.text is None]
        rows, draws = [rows[place] for place in live], [draws[place] for place in live]
        if rows:
            reading.select(live)
            reading.extend([tokens[place] for place in live])


def _pieces(
    lm: LanguageModel, row: _Row, steps: Iterator[list[_Row]], stop: tuple[str, ...]
) -> Iterator[str]:
    """The growing text of one row, as far as it can no longer change."""
    sent = 0
    for _ in steps:
        text = lm.decode_settled(row.tokens) if row.text is None else row.text
        ready = len(text) if row.text is not None else _settled(text, stop)
        if ready > sent:
            yield text[sent:ready]
            sent = ready


def _settled(text: str, stop: tuple[str, ...]) -> int:
    """How much of an unfinished text is sure to stay."""
    text = text.rstrip("\ufffd")  # half a character decodes to a replacement sign
    ready = len(text)
    for string in stop:
        for length in range(min(len(string) - 1, len(text)), 0, -1):
            if text.endswith(string[:length]):
                ready = min(ready, len(text) - length)
                break
    return ready


def _rows(
    lm: LanguageModel, method: Decoder, questions: list[str], max_new_tokens: int
) -> list[_Row]:
    """Check the method against the model, then every question against its limits."""
    if type(max_new_tokens) is not int or max_new_tokens < 1:
        raise SettingError(
            f"max_new_tokens must be a whole number from 1, got {max_new_tokens}"
        )
    method.check(lm)
    rows = []
    for place, question in enumerate(questions):
        check_text(question, f"question {place + 1}")
        asked = method.prompts(question)
        prompts = [prompt.encode(lm.tokenizer) for prompt in asked]
        longest = max(map(len, prompts))
        room = max_new_tokens if lm.limit is None else min(max_new_tokens, lm.limit - longest)
        if room < 1:
            raise SettingError(
                f"question {place + 1} makes {method.name} read a prompt of {longest} tokens, "
                f"{lm.id} reads {lm.limit} at most; shorten it, or what the method puts ahead "
                f"of it: {question[:60]!r}"
            )
        if not all(prompts):
            raise SettingError(f"question {place + 1} makes an empty prompt: {question!r}")
        rows.append(_Row(question, place, prompts, tuple(a.hash for a in asked), room))
    return rows


def _batches(rows: list[_Row], size: int) -> list[list[_Row]]:
    """Prompts of like length together, which keeps padding small."""
    order = sorted(rows, key=lambda row: len(row.prompts[0]))
    return [order[start : start + size] for start in range(0, len(order), size)]


def _ending(lm: LanguageModel, stop: str | Sequence[str], stop_ids: Sequence[int]) -> _Stop:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in strings:
        raise SettingError(
            "a stop string is empty; leave it out to stop at the model's own end"
        )
    longest = max((len(string.encode()) for string in strings), default=0) + 8
    return _Stop(lm.stop_ids | frozenset(stop_ids), strings, longest)


def _answer(row: _Row, method: Decoder, trace: bool) -> Answer:
    assert row.text is not None
    return Answer(
        question=row.question,
        text=row.text,
        token_ids=tuple(row.tokens),
        finish="stop" if row.finish == "stop" else "length",
        method=method.name,
        prompt_tokens=len(row.prompts[0]),
        prompt_hashes=row.hashes,
        trace=tuple(row.steps) if trace else None,
    )
