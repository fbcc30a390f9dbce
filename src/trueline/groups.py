"""The rows of a step -> groups, one for each method, and what each group looks up ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trueline.decoders.base import Decoder, Prefetch, Rows
from trueline.engines.base import Engine
from trueline.row import Row


@dataclass(frozen=True)
class Group:
    """The rows of one method in one step."""

    method: Decoder
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
