"""What one server takes on: rows, queue, sizes and times, checked once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from trueline.settings import Between, check_values

_YEAR = 3e7  # seconds; what a clock can keep


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a server takes on before it says no."""

    rows: Annotated[int, Between(1, 4096)] = 16  # answers that are decoded together
    cached_tokens: Annotated[int, Between(1)] | None = None  # of all rows; None: no cap
    queue: Annotated[int, Between(0)] = 64  # answers that wait for a row; then 429
    deadline: Annotated[float, Between(0, _YEAR, above=True)] = 300.0  # seconds; then 504
    prompt_tokens: Annotated[int, Between(1)] | None = None  # None: what the model reads
    new_tokens: Annotated[int, Between(1)] = 1024  # the most an answer may be asked to have
    usual_tokens: Annotated[int, Between(1)] = 256  # of a chat that does not say how many
    choices: Annotated[int, Between(1)] = 16  # answers of one request: n times its prompts
    connections: Annotated[int, Between(1)] = 1024  # then 503
    body_bytes: Annotated[int, Between(1)] = 1 << 20
    body_seconds: Annotated[float, Between(0, _YEAR, above=True)] = 10.0  # to send a body
    write_seconds: Annotated[float, Between(0, _YEAR, above=True)] = 20.0  # to take a piece
    stuck_seconds: Annotated[float, Between(0, _YEAR, above=True)] = 120.0  # for one step
    drain_seconds: Annotated[int, Between(1, _YEAR)] = 30  # for answers to end at shutdown

    def __post_init__(self) -> None:
        check_values(type(self), {one.name: getattr(self, one.name) for one in fields(self)})
