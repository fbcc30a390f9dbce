"""The metrics of a server for Prometheus, and its log: one line of JSON for each request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from trueline.text import visible_json

if TYPE_CHECKING:
    from trueline.decode.loop import Row

Log = Callable[[dict[str, Any]], None]
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter = partial(Counter, namespace="trueline", registry=registry)
        gauge = partial(Gauge, namespace="trueline", registry=registry)
        histogram = partial(Histogram, namespace="trueline", registry=registry)
        seconds = partial(histogram, buckets=_SECONDS, unit="seconds")
        route = ["route", "status"]
        self.requests = counter("requests", "Requests by route and status.", route)
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.tokens = counter("tokens", "Generated tokens.")
        about = "Answers by whether an example covers the question."
        self.answers = counter("answers", about, ["model", "covered"])
        self.running = gauge("rows_running", "Answers that are decoded now.")
        self.waiting = gauge("rows_waiting", "Answers that wait for a row.")
        about = "1 while the folder of a space cannot be read."
        self.unreadable = gauge("space_unreadable", about, ["space"])
        self.first_token = seconds("first_token", "From the request to its first token.")
        self.between_tokens = seconds("between_tokens", "Between two tokens of an answer.")
        self.scope = seconds("scope", "To find the method, the scope and the tokens.")
        self.request = seconds("request", "From a request to its end.")
        about = "Answers decoded in one step."
        self.batch = histogram("batch_rows", about, buckets=_ROWS)

    def count_step(self, rows: Sequence[Row], seconds: float) -> None:
        """Count one step of the engine."""
        self.batch.observe(len(rows))
        self.tokens.inc(len(rows))
        for row in rows:
            if len(row.tokens) > 1:
                self.between_tokens.observe(seconds)


def log_line(facts: dict[str, Any]) -> str:
    """One line of JSON; characters that steer a terminal are escaped."""
    return visible_json(msgspec.json.encode(facts).decode())
