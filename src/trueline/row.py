"""A request on its way to an answer: its tokens so far, and whether it has ended."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from trueline.engines.base import Engine
from trueline.records import Answer, Finish, Source, TokenLogprobs, TraceStep
from trueline.requests import Request
from trueline.votes import END, Speaker, Voice, Votes

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
    voices: dict[Voice, float] = field(default_factory=dict)  # tokens picked with their votes
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
        by_example: dict[Speaker, dict[Voice, float]] = {}
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
