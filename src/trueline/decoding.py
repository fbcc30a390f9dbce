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

from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from trueline.decoders.base import Adjusted, Step
from trueline.engines.base import Engine, Reading, States, join_states
from trueline.errors import SettingError
from trueline.groups import Group, group_rows, prefetch_of
from trueline.pick import best_tokens, draw_token, random_source, token_logprobs
from trueline.prefetch import Alongside
from trueline.requests import Request
from trueline.row import Row, end_row
from trueline.trace import trace_step


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
        self._reading: Reading | None = None
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
