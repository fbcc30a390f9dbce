"""The questions that come with the shipped facts: how people ask for them, and nearly do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from trueline.examples.asked import Regime

Side = Literal[
    "ground", "test"
]  # the facts they are about: what is fitted, what is reported on


@dataclass(frozen=True, slots=True)
class ShippedQuestion:
    """A question about the shipped facts."""

    id: str
    regime: Regime
    question: str
    means: tuple[str, ...]  # the facts that answer it; none for a near miss
    about: tuple[str, ...]  # the facts it is about
    instruction: str  # the form that is asked for, in words
    check: Mapping[str, Any]  # what a program can check of that form
    polarity: Literal["", "yes", "no"]  # the true answer to a question of yes or no


def read_questions(side: Side) -> list[ShippedQuestion]:
    """The questions about the grounding facts, or about the test facts."""
    text = (files("trueline") / "facts" / f"{side}_questions.jsonl").read_text("utf-8")
    found = [json.loads(line) for line in text.splitlines()]
    return [
        ShippedQuestion(**{**row, "means": tuple(row["means"]), "about": tuple(row["about"])})
        for row in found
    ]
