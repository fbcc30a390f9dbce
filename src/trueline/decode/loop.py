"""The one loop: requests join, get a token at each step, and leave.

    decoding = Decoding(lm)
    ticket = decoding.submit(make_request(lm, method, "Are bats blind?"))
    while not decoding.is_idle:
        for row in decoding.step():
            ...  # row.tokens has grown by one; row.is_ended: it was the last

Requests may join and leave between any two steps, each with its own method and options; each
gets the tokens it gets alone. `generate` and `stream` drive this loop, and so does a server.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cache
from threading import local
from time import perf_counter
from typing import Any

import torch

from trueline.decode.sampling import (
    best_tokens,
    draw_token,
    random_source,
    token_logprobs,
    trace_step,
)
from trueline.engines.base import Engine, KVCache, States, join_states
from trueline.errors import SettingError
from trueline.methods.base import Adjusted, Method, Prepared, Rows, Step
from trueline.prompts import ModelInput
from trueline.types import Answer, Finish, Sampling, Source, TokenLogprobs, TraceStep

Work = Callable[[], Any]
_local = local()  # whether a thread is the worker's


class Alongside:
    """Prefetches that run in a thread while the model reads; `results` waits for them.

    `done` returns whether the thread is done; it is None without a thread. Without a second
    core the work is done when its results are needed. An error instead of work is its result.
    """

    def __init__(self, work: Sequence[Work | Exception | None], device: torch.device) -> None:
        self._work = work
        self._future: Future[list[Any]] | None = None
        is_nested = getattr(_local, "is_worker", False)  # it would wait for its own thread
        is_free = device.type != "cpu" or torch.get_num_threads() > 1
        if any(work) and is_free and not is_nested:
            self._future = _worker().submit(copy_context().run, self._run)
        self.done = self._future and self._future.done

    def results(self) -> list[Any]:
        """What each piece of work returned: None without work, its error if it failed."""
        return self._future.result() if self._future else self._run()

    def _run(self) -> list[Any]:
        found: list[Any] = []
        for work in self._work:
            try:
                found.append(work() if callable(work) else work)
            except Exception as error:  # it fails the rows that the work was for
                found.append(error)
        return found


@cache
def _worker() -> ThreadPoolExecutor:
    """The one thread, kept: a new one would make torch set up its threads at every step."""

    def begin() -> None:
        torch.get_num_threads()  # torch reads its default at first use, and would do so later
        torch.set_num_threads(1)
        _local.is_worker = True

    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(1, "trueline", initializer=begin)
    pool.submit(int).result()  # the thread has begun
    torch.set_num_threads(threads)  # the worker's own setting also holds for later threads
    return pool


if hasattr(os, "register_at_fork"):  # a forked process has no such thread and makes its own
    os.register_at_fork(after_in_child=_worker.cache_clear)


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to decode: what is read before it, by which method, and how."""

    method: Method
    given: ModelInput
    contexts: tuple[tuple[int, ...], ...]  # of the first prompt, then of a second one
    prompt_hashes: tuple[str, ...]
    options: Sampling
    room: int  # how many tokens the answer may have
    index: int = 0  # among the requests of one call; its draws depend on it
    prepared: Prepared = Prepared()

    @property
    def question(self) -> str | None:
        return self.given.question

    @property
    def longest(self) -> int:
        return max(map(len, self.contexts))


_CHARACTER = 4  # bytes of UTF-8: the part of a character at either end of a token


@dataclass(eq=False)
class Row:
    """A request that is waiting or being decoded, and its answer so far."""

    request: Request
    ticket: int
    submitted: float  # when, by the loop's clock
    prepared: Prepared
    generator: torch.Generator | None  # for its draws
    context: list[int]  # the tokens so far under its first prompt
    index: int = 0  # in the cache: of the row under its first prompt, the others follow it
    tokens: list[int] = field(default_factory=list)
    steps: list[TraceStep] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # if requested
    votes: list[Source] = field(default_factory=list)  # of each token, the share of its votes
    text: str | None = None  # set when the answer has ended
    error: Exception | None = None  # set when the row has failed
    finish: Finish = "length"
    first_token_at: float = 0.0
    ended_at: float = 0.0

    @property
    def is_ended(self) -> bool:
        return self.text is not None or self.error is not None

    @property
    def indices(self) -> range:
        return range(self.index, self.index + len(self.request.contexts))

    @property
    def remaining(self) -> int:
        return self.request.room - len(self.tokens)

    def sources(self) -> tuple[Source, ...]:
        """The examples that took part so far, the largest share of the tokens first.

        Each with the one of its answers that has most votes.
        """
        by_example: dict[str, dict[str, Source]] = {}
        for one in self.votes:
            answers = by_example.setdefault(one.example, {})
            known = answers.get(one.answer)
            answers[one.answer] = replace(one, share=one.share + (known.share if known else 0))
        found = []
        for answers in by_example.values():
            best = max(answers.values(), key=lambda one: one.share)
            total = sum(one.share for one in answers.values())
            found.append(replace(best, share=total / len(self.tokens)))
        return tuple(sorted(found, key=lambda one: -one.share))

    def answer(self) -> Answer:
        """The complete answer; raises the error of a row that failed."""
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
            is_covered=request.prepared.coverage,
            scope=request.prepared.scope,
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


class Group:
    """The rows of one method in one step; their contexts grow in place."""

    def __init__(self, lm: Engine, members: list[Row]) -> None:
        self.members, self.method = members, members[0].request.method
        self.rows = Rows(
            lm,
            [row.context for row in members],
            [len(row.request.contexts[0]) for row in members],
            [row.request.question for row in members],
            [row.prepared.state for row in members],
        )

    def prefetch(self) -> Work | Exception | None:
        """What the method does while the model reads, or its error."""
        try:
            return self.method.prefetch(self.rows)
        except Exception as error:  # it fails the rows of this method, not the step
            return error


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

        A running batch admits new requests once `join_at` rows are free: 1 answers soonest,
        more reads several prompts in one pass. With `join_within`, a waiting request has its
        first token so many steps after a row is free, even if fewer rows are.
        """
        if max_rows < 1:
            raise SettingError(f"max_rows must be at least 1, got {max_rows}")
        self._lm, self._clock = lm, clock
        self._max_rows, self._join_at = max_rows, join_at
        self._join_within = join_within
        self._steps_held = 0  # with a row free, and requests that wait for more to be
        self._max_cached_tokens = max_cached_tokens
        self._waiting: deque[Row] = deque()
        self._live: list[Row] = []  # in the order of the cache's rows
        self._groups: list[Group] = []  # of these rows; empty: they have changed since
        self._cache: KVCache | None = None
        self._tickets = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self._live and not self._waiting

    @property
    def running(self) -> int:
        return len(self._live)

    def submit(self, request: Request) -> int:
        """Add a request to those that wait; the ticket identifies it in this loop."""
        needed = len(request.contexts) * (request.longest + request.room)
        cap = self._max_cached_tokens
        if cap is not None and needed > cap:
            raise SettingError(
                f"the request needs {needed} tokens of cache, and there is room for {cap}; "
                "shorten it, or ask for fewer new tokens"
            )
        self._tickets += 1
        drawn, context = random_source(request.options, request.index), [*request.contexts[0]]
        row = Row(request, self._tickets, self._clock(), request.prepared, drawn, context)
        self._waiting.append(row)
        return row.ticket

    def cancel(self, ticket: int) -> None:
        """Drop a request that waits or runs; one that has ended is left alone."""
        self._waiting = deque(row for row in self._waiting if row.ticket != ticket)
        self._leave([row for row in self._live if row.ticket != ticket])

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Let requests join, pick one token for every row, and return the rows.

        An exception of a method or the engine fails only the row that caused it, or every row
        in the call if the culprit is unknown. Failed rows are returned with their `error`.
        """
        joining: list[Row] = []
        failed: list[Row] = []
        for row in self._admit():
            try:
                row.prepared = row.request.method.complete(self._lm, row.prepared)
                joining.append(row)
            except Exception as error:
                row.error = error
                failed.append(row)
        rows = [*self._live, *joining]
        if not rows:
            return failed
        groups = self._groups if self._groups and not joining else self._grouped(rows)
        try:
            states, fetched = self._read(joining, groups)
            self._live, self._groups = rows, groups
        except BaseException as error:
            self._forget()  # what was read no longer fits the tokens
            if not isinstance(error, Exception):
                raise
            states, fetched = self._read_again(rows, error)
        for group, one in zip(self._groups, fetched, strict=True):
            self._pick_apart(group, states, one)
        self._leave([row for row in self._live if not row.is_ended])
        return rows + failed

    def _admit(self) -> list[Row]:
        """The requests that join now: in order, while there are free rows and room."""
        joining: list[Row] = []
        free = self._max_rows - len(self._live)
        if self._waiting and self._live and free < min(self._join_at, len(self._waiting)):
            self._steps_held += bool(free)
            if self._join_within is None or self._steps_held < self._join_within:
                return joining
        self._steps_held = 0
        cap, width = self._max_cached_tokens, 0 if self._cache is None else self._cache.width
        while self._waiting and free > len(joining):
            rows = [*self._live, *joining, self._waiting[0]]
            width = max(width, self._waiting[0].request.longest)
            count = sum(len(row.request.contexts) for row in rows)
            if cap is not None and count * (width + max(row.remaining for row in rows)) > cap:
                break
            joining.append(self._waiting.popleft())
        return joining

    def _grouped(self, rows: Sequence[Row]) -> list[Group]:
        """The rows by method and whether they are drawn; the cache has them in this order."""
        index = 0
        groups: dict[tuple[int, bool], list[Row]] = {}
        for row in rows:
            row.index = index
            index += len(row.request.contexts)
            key = id(row.request.method), row.request.options.is_sampled
            groups.setdefault(key, []).append(row)
        return [Group(self._lm, members) for members in groups.values()]

    def _read(
        self, joining: Sequence[Row], groups: Sequence[Group]
    ) -> tuple[States, list[Any]]:
        """Run the passes of a step and, meanwhile, the methods' other work for it."""
        lm, methods = self._lm, [group.method for group in groups]
        self._cache = cache = lm.start() if self._cache is None else self._cache
        cache.gives_states = any(method.reads_states(lm) for method in methods)
        layers = sorted({layer for method in methods for layer in method.layers(lm)})
        alongside = Alongside([group.prefetch() for group in groups], lm.device)
        leave_core = getattr(lm, "leave_core", nullcontext)
        parts = []
        with nullcontext() if alongside.done is None else leave_core(alongside.done):
            if self._live:
                tokens = [row.tokens[-1] for row in self._live for _ in row.request.contexts]
                parts.append(cache.extend(tokens, layers=layers))
            if joining:
                parts = [part.map(torch.clone) for part in parts]  # the next call overwrites it
                contexts = [[*x, *row.tokens] for row in joining for x in row.request.contexts]
                parts.append(cache.join(contexts, layers=layers))
        return join_states(parts), alongside.results()

    def _read_again(self, rows: Sequence[Row], error: Exception) -> tuple[Any, list[Any]]:
        """After the engine failed: read again, from their first token, the rows it can read.

        Each is tried alone, and fails if that fails.
        """
        for row in rows if len(rows) > 1 else ():
            try:
                self._read([row], self._grouped([row]))
            except Exception as own:
                row.error = own
            self._forget()
        sound = [row for row in rows if row.error is None and len(rows) > 1]
        try:
            if not sound:
                raise error
            found = self._read(sound, groups := self._grouped(sound))
        except Exception as final:
            self._forget()
            for row in rows:
                row.error = row.error or final
            return None, []
        self._live, self._groups = sound, groups
        return found

    def _pick_apart(self, group: Group, states: States, fetched: Any) -> None:
        """Pick the tokens of a group; row by row if its method fails."""
        try:
            if isinstance(fetched, Exception):
                raise fetched
            self._pick(group, states, fetched)
        except Exception as error:  # whatever a method raises
            is_apart = len(group.members) > 1 and not isinstance(fetched, Exception)
            for row in group.members:
                if is_apart:
                    self._pick_apart(Group(self._lm, [row]), states, None)
                else:
                    row.error = error

    def _pick(self, group: Group, states: States, fetched: Any) -> None:
        total = sum(len(row.request.contexts) for row in self._live)
        streams = [
            [*indices] for indices in zip(*(row.indices for row in group.members), strict=True)
        ]
        step = Step(
            group.rows,
            *(states if len(own) == total else states.take(own) for own in streams),
            is_probability=group.members[0].request.options.is_sampled,
            fetched=fetched,
        )
        adjusted = group.method.adjust(step)
        logits = adjusted.logits
        best = [] if step.is_probability else best_tokens(logits)
        for index, row in enumerate(group.members):
            try:
                options, drawn = row.request.options, row.generator
                token = best[index] if best else draw_token(logits[index], options, drawn)
                self._add(row, token, step, adjusted, index)
            except Exception as error:  # the other rows go on
                row.error = error

    def _add(self, row: Row, token: int, step: Step, adjusted: Adjusted, index: int) -> None:
        options = row.request.options
        if options.trace:
            row.steps.append(trace_step(step, adjusted, index, token))
        if options.logprobs is not None:
            stretch = 1.0 if adjusted.stretch is None else float(adjusted.stretch[index])
            log_probs = (adjusted.logits[index].float() / stretch).log_softmax(-1)
            row.logprobs.append(token_logprobs(log_probs, token, options.logprobs))
        for evidence in adjusted.evidence:
            row.votes += evidence.sources(index, token)
        row.ended_at = self._clock()  # if this token ends it
        row.first_token_at = row.first_token_at if row.tokens else row.ended_at
        row.tokens.append(token)
        row.context.append(token)
        end_row(row, self._lm)

    def _leave(self, staying: list[Row]) -> None:
        if not staying:
            self._forget()
        elif len(staying) < len(self._live) and self._cache is not None:
            self._cache.keep([index for row in staying for index in row.indices])
            self._live, self._groups = staying, self._grouped(staying)

    def _forget(self) -> None:
        self._live, self._groups, self._cache = [], [], None
