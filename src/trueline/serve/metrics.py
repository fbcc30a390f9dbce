"""What a server does in, figures for Prometheus and a line of JSON for each request out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any

import msgspec
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from trueline.decode.loop import Row
from trueline.text import visible_json

Log = Callable[[dict[str, Any]], None]
METRICS_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(slots=True)
class Record:
    """What is known of one request, for the log; its text only where that is wanted."""

    id: str
    route: str = ""
    begun: float = field(default_factory=time)
    facts: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None  # what is wrong in the server, if something is


class Watch:
    """The figures of one server, in a registry of its own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "trueline_requests",
            "Requests by route and status.",
            ["route", "status"],
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "trueline_prompt_tokens", "Tokens read before answers.", registry=registry
        )
        self.tokens = Counter("trueline_tokens", "Tokens written.", registry=registry)
        self.coverage = Counter(
            "trueline_answers",
            "Answers by whether examples covered them.",
            ["model", "covered"],
            registry=registry,
        )
        self.running = Gauge("trueline_rows_running", "Answers in decoding.", registry=registry)
        self.waiting = Gauge(
            "trueline_rows_waiting", "Answers that wait for a row.", registry=registry
        )
        self.stale = Gauge(
            "trueline_space_unreadable",
            "1 while the folder of a space cannot be read.",
            ["space"],
            registry=registry,
        )
        self.first_token = _seconds("first_token", "From a request to its first token.", self)
        self.between = _seconds("between_tokens", "Between two tokens of an answer.", self)
        self.scope = _seconds("scope", "To find the method, the scope and the tokens.", self)
        self.whole = _seconds("request", "From a request to its end.", self)
        self.batch = Histogram(
            "trueline_batch_rows",
            "Answers decoded in a step.",
            buckets=_ROWS,
            registry=registry,
        )

    def on_step(self, rows: Sequence[Row], seconds: float) -> None:
        """Count a step of the engine."""
        self.batch.observe(len(rows))
        self.tokens.inc(len(rows))
        for row in rows:
            if len(row.tokens) > 1:
                self.between.observe(seconds)

    def text(self) -> bytes:
        """Everything as Prometheus reads it."""
        return generate_latest(self.registry)


def _seconds(name: str, about: str, watch: Watch) -> Histogram:
    return Histogram(
        f"trueline_{name}_seconds", about, buckets=_SECONDS, registry=watch.registry
    )


def log_line(facts: dict[str, Any]) -> str:
    """One line of JSON; signs that steer a terminal are spelled out by JSON itself."""
    return visible_json(msgspec.json.encode(facts).decode())
