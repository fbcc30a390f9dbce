"""The metrics of a server for Prometheus, and its log: one line of JSON for each request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from trueline.text import visible_json

if TYPE_CHECKING:
    from trueline.decode.loop import Row

Log = Callable[[dict[str, Any]], None]
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        seconds = partial(histogram, buckets=_SECONDS)
        about = "Requests by route and status."
        self.requests = counter("trueline_requests", about, ["route", "status"])
        self.prompt_tokens = counter("trueline_prompt_tokens", "Tokens of prompts.")
        self.tokens = counter("trueline_tokens", "Generated tokens.")
        about = "Answers by whether an example covers the question."
        self.answers = counter("trueline_answers", about, ["model", "covered"])
        self.running = gauge("trueline_rows_running", "Answers that are decoded now.")
        self.waiting = gauge("trueline_rows_waiting", "Answers that wait for a row.")
        about = "1 while the folder of a space cannot be read."
        self.unreadable = gauge("trueline_space_unreadable", about, ["space"])
        about = "From the request to its first token."
        self.first_token = seconds("trueline_first_token_seconds", about)
        about = "Between two tokens of an answer."
        self.between_tokens = seconds("trueline_between_tokens_seconds", about)
        about = "To find the method, the scope and the tokens."
        self.scope = seconds("trueline_scope_seconds", about)
        self.request = seconds("trueline_request_seconds", "From a request to its end.")
        about = "Answers decoded in one step."
        self.batch = histogram("trueline_batch_rows", about, buckets=_ROWS)

    def count_step(self, rows: Sequence[Row], seconds: float) -> None:
        """Count one step of the engine."""
        self.batch.observe(len(rows))
        self.tokens.inc(len(rows))
        for row in rows:
            if len(row.tokens) > 1:
                self.between_tokens.observe(seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


def log_line(facts: dict[str, Any]) -> str:
    """One line of JSON; characters that steer a terminal are escaped."""
    return visible_json(msgspec.json.encode(facts).decode())
