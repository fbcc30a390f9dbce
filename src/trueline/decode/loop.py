"""The one loop: requests join, get a token a step, and leave.

    decoding = Decoding(lm)
    ticket = decoding.submit(make_request(lm, method, "Are bats blind?"))
    while not decoding.is_idle:
        for row in decoding.step():
            ...  # row.tokens has grown by one; row.is_ended says whether it was the last

Requests may come and go between any two steps, each with its own method and options; each gets
the tokens it gets alone. `generate` and `stream` drive this loop, and so does a server.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cache
from threading import local
from time import perf_counter
from typing import Any

import torch

from trueline.corrective.votes import END, Speaker, VerifiedAnswer, Votes
from trueline.decode.sampling import (
    best_tokens,
    draw_token,
    random_source,
    token_logprobs,
    trace_step,
)
from trueline.engines.base import Engine, KVCache, States, join_states
from trueline.errors import SettingError
from trueline.methods.base import Adjusted, Method, Prefetch, Rows, Step
from trueline.prompts import ModelInput
from trueline.types import (
    Answer,
    Finish,
    NearExample,
    Sampling,
    Source,
    TokenLogprobs,
    TraceStep,
)

_local = local()  # whether a thread is the worker's


class Alongside:
    """Prefetches that run in a thread while the model reads; `results` waits for them.

    The loop begins it, then has the engine read, handing it `done` so that a CPU keeps a core
    free as long as needed; then it asks for `results`. Where there is no second core the work
    is done when its results are asked for.
    """

    def __init__(self, work: Sequence[Prefetch | None], device: torch.device) -> None:
        self._work = work
        self._future: Future[list[Any]] | None = None
        if any(work) and _has_core(device):
            self._future = _worker().submit(copy_context().run, self._run)

    @property
    def done(self) -> Callable[[], bool] | None:
        """Tells whether its thread is done; None: there is no thread."""
        return None if self._future is None else self._future.done

    def results(self) -> list[Any]:
        """What each piece of work came to, in their order: None where there was none.

        For work that failed it is the error: the others go on without it.
        """
        return self._run() if self._future is None else self._future.result()

    def _run(self) -> list[Any]:
        return [None if one is None else _result(one) for one in self._work]


def _has_core(device: torch.device) -> bool:
    """Whether there is a second core for the work."""
    is_nested = getattr(_local, "is_worker", False)  # it would wait for its own thread
    is_free = device.type != "cpu" or torch.get_num_threads() > 1
    return is_free and not is_nested


def _result(work: Prefetch) -> Any:
    try:
        return work.run()
    except Exception as error:  # it is raised, or ends the rows it was meant for
        return error


@cache
def _worker() -> ThreadPoolExecutor:
    """The one thread, kept: a new one would make torch set up its threads at every step."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(1, "trueline", initializer=_begin_worker)
    pool.submit(int).result()  # the thread has begun
    torch.set_num_threads(threads)  # what the worker sets holds for threads yet to come, too
    return pool


def _begin_worker() -> None:
    torch.get_num_threads()  # torch reads its default at first use, and would do so later
    torch.set_num_threads(1)
    _local.is_worker = True


# A forked process has no such thread, so it makes one of its own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_worker.cache_clear)


@dataclass(frozen=True, slots=True)
class Request:
    """One answer that is asked for: what is read before it, by which method, and how."""

    method: Method
    given: ModelInput
    contexts: tuple[tuple[int, ...], ...]  # the one it is asked with, then a second one
    prompt_hashes: tuple[str, ...]  # of these
    options: Sampling
    room: int  # how many tokens the answer may have
    index: int = 0  # among the requests of one call, which its draws go by
    prepared: Any = None  # what the method worked out once for it
    near: tuple[NearExample, ...] | None = None  # the examples near to it, if it is traced

    @property
    def question(self) -> str | None:
        """The text of the question, if it is known."""
        return self.given.question

    @property
    def longest(self) -> int:
        """How many tokens its longest context has."""
        return max(map(len, self.contexts))


_CHARACTER = 4  # bytes of UTF-8 that one token may hold the beginning of, on either side


@dataclass(eq=False)
class Row:
    """A request on its way to an answer."""

    request: Request
    ticket: int
    submitted: float  # when, by the loop's clock
    context: list[int]  # the tokens so far under its first prompt
    source: torch.Generator | None  # of chance
    tokens: list[int] = field(default_factory=list)
    steps: list[TraceStep] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # when asked for
    voices: dict[VerifiedAnswer, float] = field(
        default_factory=dict
    )  # tokens picked with their votes
    text: str | None = None  # set when the answer has ended
    error: Exception | None = None  # set when it cannot go on
    finish: Finish = "length"
    first_token_at: float = 0.0
    ended_at: float = 0.0

    @property
    def is_ended(self) -> bool:
        """Whether its answer is whole, or cannot become so."""
        return self.text is not None or self.error is not None

    @property
    def contexts(self) -> list[list[int]]:
        """All it has read and written so far, under each of its prompts."""
        return [[*context, *self.tokens] for context in self.request.contexts]

    @property
    def remaining(self) -> int:
        """How many tokens it may still get."""
        return self.request.room - len(self.tokens)

    def credit(self, votes: Votes | None, token: int, ends: frozenset[int]) -> None:
        """Note whose votes a picked token had; `ends` are the tokens that end the answer."""
        if votes is None:
            return
        own = votes.shares.get(token) or {}
        if not own and token in ends:
            own = votes.shares.get(END) or {}
        total = sum(own.values())
        for voice, share in own.items():
            self.voices[voice] = self.voices.get(voice, 0.0) + share / total

    def sources(self) -> tuple[Source, ...]:
        """The examples that spoke so far, the largest share first."""
        if self.request.method.is_covered(self.request.prepared) is False:
            return ()  # what was said is no example's
        by_example: dict[Speaker, dict[VerifiedAnswer, float]] = {}
        for voice, tokens in self.voices.items():
            by_example.setdefault(voice.speaker, {})[voice] = tokens
        found = [
            Source(
                example=speaker.example.id,
                question=speaker.example.question,
                answer=max(own, key=lambda voice: own[voice]).text,
                source=speaker.example.source,
                share=sum(own.values()) / len(self.tokens),
                probability=speaker.probability,
            )
            for speaker, own in by_example.items()
        ]
        return tuple(sorted(found, key=lambda one: -one.share))

    def answer(self) -> Answer:
        """What the request got; raises the error that ended it, if one did."""
        if self.error is not None:
            raise self.error
        assert self.text is not None
        request = self.request
        return Answer(
            question=request.question or "",
            text=self.text,
            token_ids=tuple(self.tokens),
            finish=self.finish,
            method=request.method.name,
            prompt_tokens=len(request.contexts[0]),
            prompt_hashes=request.prompt_hashes,
            trace=tuple(self.steps) if request.options.trace else None,
            sources=self.sources(),
            is_covered=request.method.is_covered(request.prepared),
            scope=request.near,
            seconds=self.ended_at - self.submitted,
            first_token_seconds=self.first_token_at - self.submitted,
        )


def end_row(row: Row, lm: Engine) -> None:
    """Set the text and the finish of a row whose last token ended it."""
    options, tokens = row.request.options, row.tokens
    stops = options.stop_strings
    if stops:
        longest = max(len(string.encode()) for string in stops) + 2 * _CHARACTER
        tail = lm.decode(tokens[-longest:])
        if any(string in tail for string in stops):
            text = lm.decode(tokens)
            ends = [end for string in stops if (end := text.find(string)) >= 0]
            row.finish, row.text = "stop", text[: min(ends, default=None)]
            return
    if tokens[-1] in lm.stop_ids or tokens[-1] in options.stop_ids:
        row.finish, row.text = "stop", lm.decode(tokens)
    elif not row.remaining:
        row.text = lm.decode(tokens)


@dataclass(frozen=True)
class Group:
    """The rows of one method in one step."""

    method: Method
    members: list[Row]
    rows: Rows
    first: list[int]  # where the states under each row's first prompt stand
    second: list[int]  # and under the second; empty where the method reads none

    def apart(self) -> Iterator[Group]:
        """The same, row by row."""
        rows = self.rows
        for at, row in enumerate(self.members):
            one = slice(at, at + 1)
            yield Group(
                self.method,
                [row],
                Rows(
                    rows.lm,
                    rows.contexts[one],
                    rows.starts[one],
                    rows.questions[one],
                    rows.prepared[one],
                ),
                self.first[one],
                self.second[one],
            )


def group_rows(lm: Engine, rows: Sequence[Row]) -> Iterator[Group]:
    """Group the rows by method, and by whether their tokens are drawn."""
    members: dict[tuple[int, bool], list[Row]] = {}
    first: dict[int, int] = {}
    start = 0
    for row in rows:
        request = row.request
        members.setdefault((id(request.method), request.options.is_sampled), []).append(row)
        first[row.ticket] = start
        start += len(request.contexts)
    for own in members.values():
        where = [first[row.ticket] for row in own]
        yield Group(
            own[0].request.method,
            own,
            Rows(
                lm,
                [row.context for row in own],
                [len(row.request.contexts[0]) for row in own],
                [row.request.question for row in own],
                [row.request.prepared for row in own],
            ),
            where,
            [index + 1 for index in where] if len(own[0].request.contexts) > 1 else [],
        )


@dataclass(frozen=True)
class _FailedPrefetch:
    """Stands for a prefetch that could not even begin."""

    error: Exception

    def run(self) -> Any:
        raise self.error


def prefetch_of(group: Group) -> Prefetch | None:
    """What the method of a group looks up for a step; one that fails does so when it runs."""
    try:
        return group.method.prefetch(group.rows)
    except Exception as error:  # it ends the rows of this method, not the step
        return _FailedPrefetch(error)


class Decoding:
    """The rows of one model that are being decoded together, and the requests that wait."""

    def __init__(
        self,
        lm: Engine,
        *,
        max_rows: int = 16,
        max_cached_tokens: int | None = None,
        join_at: int = 1,
        join_within: int | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """At most `max_rows` requests run at once, with so many tokens in the cache.

        A running batch takes new requests once `join_at` rows are free: 1 answers soonest,
        more reads several prompts in one pass. With `join_within`, who waits has a first token
        so many steps after a row is free, even where fewer rows are.
        """
        if max_rows < 1:
            raise SettingError(f"max_rows must be at least 1, got {max_rows}")
        self._lm, self._clock = lm, clock
        self._max_rows, self._join_at = max_rows, join_at
        self._join_within = join_within
        self._steps_held = 0  # with a row free, and requests that wait for more to be
        self._max_cached_tokens = max_cached_tokens
        self._waiting: deque[Row] = deque()
        self._live: list[Row] = []  # in the order of the reading's rows
        self._groups: list[Group] = []  # of these rows; empty: they have changed since
        self._reading: KVCache | None = None
        self._tickets = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self._live and not self._waiting

    @property
    def running(self) -> int:
        """How many requests are being decoded."""
        return len(self._live)

    @property
    def waiting(self) -> int:
        """How many requests wait for a free row."""
        return len(self._waiting)

    def submit(self, request: Request) -> int:
        """Put a request behind those that wait; the ticket is its name in this loop."""
        cap, needed = (
            self._max_cached_tokens,
            len(request.contexts) * (request.longest + request.room),
        )
        if cap is not None and needed > cap:
            raise SettingError(
                f"the request needs {needed} tokens of cache, and there is room for {cap}; "
                "shorten it, or ask for fewer new tokens"
            )
        self._tickets += 1
        options = request.options
        source = random_source(options, request.index)
        context = list(request.contexts[0])
        row = Row(request, self._tickets, self._clock(), context, source)
        self._waiting.append(row)
        return row.ticket

    def cancel(self, ticket: int) -> None:
        """Drop a request wherever it is; one that has ended is left alone."""
        self._waiting = deque(row for row in self._waiting if row.ticket != ticket)
        self._leave([row for row in self._live if row.ticket != ticket])

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Pick one token for every row, after letting requests join; the rows that got one.

        What a method or the engine raises ends the row it cannot go on with; where that is not
        to be told, all it was raised for. They come back with their `error`, the others go on.
        """
        joining = self._admit()
        rows = [*self._live, *joining]
        if not rows:
            return []
        # Rows hold their growing contexts themselves, so their groups stay right as they grow.
        groups = [] if joining else self._groups
        groups = groups or list(group_rows(self._lm, rows))
        try:
            states, fetched = self._read(joining, groups)
            self._live, self._groups = rows, groups
        except BaseException as error:
            self._forget()  # what was read no longer fits the tokens
            if not isinstance(error, Exception):
                raise
            found = self._read_again(rows, error)
            if found is None:
                return rows
            groups, states = found
            fetched = [None] * len(groups)
        for group, one in zip(groups, fetched, strict=True):
            self._pick_apart(group, states, one)
        self._leave([row for row in self._live if not row.is_ended])
        return rows

    def _admit(self) -> list[Row]:
        """The requests that join now: in their order, while there are rows and room."""
        joining: list[Row] = []
        if not self._waiting:
            self._steps_held = 0
            return joining
        free = self._max_rows - len(self._live)
        if self._live and free < min(self._join_at, len(self._waiting)):
            self._steps_held += bool(free)
            if self._join_within is None or self._steps_held < self._join_within:
                return joining
        self._steps_held = 0
        while self._waiting and free > len(joining):
            if not self._has_room([*joining, self._waiting[0]]):
                break
            joining.append(self._waiting.popleft())
        return joining

    def _has_room(self, joining: Sequence[Row]) -> bool:
        """Whether the caches hold these rows and the running ones until all have ended."""
        if self._max_cached_tokens is None:
            return True
        rows = [*self._live, *joining]
        width = max(row.request.longest for row in joining)
        if self._reading is not None:
            width = max(width, self._reading.width)
        width += max(row.remaining for row in rows)
        return width * sum(len(row.request.contexts) for row in rows) <= self._max_cached_tokens

    def _read(
        self, joining: Sequence[Row], groups: Sequence[Group]
    ) -> tuple[States, list[Any]]:
        """Have the engine read and, meanwhile, the methods look up what the step needs."""
        lm, running = self._lm, self._live
        layers = self._layers(groups)
        work = [prefetch_of(group) for group in groups]
        alongside = Alongside(work, lm.device)
        if self._reading is None:
            self._reading = lm.start()
        parts = []
        if running:
            tokens = [row.tokens[-1] for row in running for _ in row.request.contexts]
            parts.append(self._reading.extend(tokens, layers=layers, done=alongside.done))
        if joining:
            parts = [part.map(torch.clone) for part in parts]  # it ends with the next call
            contexts = [context for row in joining for context in row.request.contexts]
            parts.append(self._reading.join(contexts, layers=layers, done=alongside.done))
        return join_states(parts), alongside.results()

    def _read_again(
        self, rows: Sequence[Row], error: Exception
    ) -> tuple[list[Group], States] | None:
        """After the engine failed: read anew, from their first token, the rows it can read.

        Each is tried alone, and one that fails there has the error. None: no row is left.
        """
        lm, sound = self._lm, []
        for row in rows if len(rows) > 1 else ():
            try:
                lm.start().join(row.contexts, layers=row.request.method.read_layers(lm))
                sound.append(row)
            except Exception as own:
                row.error = own
        groups = list(group_rows(lm, sound))
        reading, layers = lm.start(), self._layers(groups)
        try:
            if not sound:
                raise error
            contexts = [context for row in sound for context in row.contexts]
            states = reading.join(contexts, layers=layers)
        except Exception as final:
            _fail([row for row in rows if row.error is None], final)
            return None
        self._live, self._groups, self._reading = sound, groups, reading
        return groups, states

    def _layers(self, groups: Sequence[Group]) -> list[int]:
        lm = self._lm
        return sorted({layer for group in groups for layer in group.method.read_layers(lm)})

    def _pick_apart(self, group: Group, states: States, fetched: Any) -> None:
        """Pick the tokens of a group; where its method fails, row by row."""
        try:
            self._pick(group, states, fetched)
        except Exception as error:  # whatever a method raises is its own rows' matter
            if len(group.members) == 1 or isinstance(fetched, Exception):
                _fail(group.members, error)
                return
            for one in group.apart():
                self._pick_apart(one, states, None)

    def _pick(self, group: Group, states: States, fetched: Any) -> None:
        """Have a method adjust its rows, and pick their tokens."""
        if isinstance(fetched, Exception):
            raise fetched
        step = Step(
            group.rows,
            _taken(states, group.first),
            _taken(states, group.second) if group.second else None,
            is_probability=group.members[0].request.options.is_sampled,
            fetched=fetched,
        )
        adjusted = group.method.adjust(step)
        logits = adjusted.logits
        best = [] if step.is_probability else best_tokens(logits)
        for index, row in enumerate(group.members):
            try:
                options = row.request.options
                token = best[index] if best else draw_token(logits[index], options, row.source)
                self._note(row, step, adjusted, index, token)
                self._add(row, token)
            except Exception as error:  # the others have got their tokens, or will
                row.error = error

    def _note(self, row: Row, step: Step, adjusted: Adjusted, index: int, token: int) -> None:
        """Keep what is wanted of a picked token: its reason, its probability, whose it is."""
        options = row.request.options
        if options.trace:
            row.steps.append(trace_step(step, adjusted, index, token))
        if options.logprobs is not None:
            stretch = 1.0 if adjusted.stretch is None else float(adjusted.stretch[index])
            log_probs = (adjusted.logits[index].float() / stretch).log_softmax(-1)
            row.logprobs.append(token_logprobs(log_probs, token, options.logprobs))
        if adjusted.votes:
            ends = self._lm.stop_ids.union(options.stop_ids)
            row.credit(adjusted.votes[index], token, ends)

    def _add(self, row: Row, token: int) -> None:
        """Give a row its next token, and end it if that was its last."""
        now = self._clock()
        if not row.tokens:
            row.first_token_at = now
        row.tokens.append(token)
        row.context.append(token)
        end_row(row, self._lm)
        if row.is_ended:
            row.ended_at = now

    def _leave(self, staying: list[Row]) -> None:
        """Let every row go but these."""
        if len(staying) == len(self._live):
            return
        if not staying:
            self._forget()
            return
        kept: list[int] = []
        start = 0
        for row in self._live:
            count = len(row.request.contexts)
            if row in staying:
                kept += range(start, start + count)
            start += count
        assert self._reading is not None
        self._reading.keep(kept)
        self._live, self._groups = staying, []

    def _forget(self) -> None:
        """Let every row go, and what was read with it."""
        self._live, self._groups, self._reading = [], [], None


def _fail(rows: Sequence[Row], error: Exception) -> None:
    for row in rows:
        row.error = error


def _taken(states: States, rows: list[int]) -> States:
    """The states of some rows, in their order: without a copy where they are all of them."""
    tensor = states.logits if states.hidden is None else states.hidden
    assert tensor is not None
    return states if len(rows) == tensor.shape[0] else states.take(rows)
