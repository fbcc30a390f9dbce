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
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        gauge = partial(Gauge, registry=self._registry)
        seconds = partial(Histogram, registry=self._registry, buckets=_SECONDS)
        self.requests = counter(
            "trueline_requests", "Requests by route and status.", ["route", "status"]
        )
        self.prompt_tokens = counter("trueline_prompt_tokens", "Tokens of prompts.")
        self.tokens = counter("trueline_tokens", "Generated tokens.")
        self.answers = counter(
            "trueline_answers",
            "Answers by whether an example covers the question.",
            ["model", "covered"],
        )
        self.running = gauge("trueline_rows_running", "Answers that are decoded now.")
        self.waiting = gauge("trueline_rows_waiting", "Answers that wait for a row.")
        self.unreadable = gauge(
            "trueline_space_unreadable",
            "1 while the folder of a space cannot be read.",
            ["space"],
        )
        self.first_token = seconds(
            "trueline_first_token_seconds", "From the request to its first token."
        )
        self.between_tokens = seconds(
            "trueline_between_tokens_seconds", "Between two tokens of an answer."
        )
        self.scope = seconds(
            "trueline_scope_seconds", "To find the method, the scope and the tokens."
        )
        self.request = seconds("trueline_request_seconds", "From a request to its end.")
        self.batch = Histogram(
            "trueline_batch_rows",
            "Answers decoded in one step.",
            registry=self._registry,
            buckets=_ROWS,
        )

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
