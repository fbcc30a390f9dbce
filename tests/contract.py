"""One contract for all engines and integrations.

On the same recorded logits every loop picks the same tokens and makes the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch

import trueline as tl
from trueline.corrective import votes as corrector


@dataclass(frozen=True)
class RecordedRequest:
    """A request; the logits of its model are seeded noise, whatever the tokens are."""

    question: str
    space: str = "facts"  # by name
    settings: Mapping[str, float | bool] = field(default_factory=dict)  # of the method
    banned: frozenset[int] = frozenset()  # tokens that the engine itself rules out


class Outcome(NamedTuple):
    """What became of a request: its tokens, and what was decided by step, if in scope."""

    tokens: list[int]
    decisions: dict[int, dict]  # votes, candidates, lift


class Recording:
    """Requests with their prompts, the logits of their steps, and what was decided on them.

    Every step of every request has a row of its own, so a row tells whose it is.
    """

    def __init__(self, requests: Sequence[RecordedRequest], tokenizer, ends, length: int = 48):
        self.requests, self.tokenizer = requests, tokenizer
        self.ends, self.length = ends, length
        self.prompts = [tl.Prompt().encode(one.question, tokenizer) for one in requests]
        self._owners: dict[bytes, tuple[int, int]] = {}
        self._decided: dict[tuple[int, int], dict] = {}

    def logits(self, request: int, step: int) -> torch.Tensor:
        """The model's own logits (vocabulary,) at a step of a request."""
        source = torch.Generator().manual_seed(1000 * request + step)
        row = 3 * torch.randn(len(self.tokenizer), generator=source)
        row[list(self.requests[request].banned)] = -torch.inf
        self._owners[row.numpy().tobytes()] = request, step
        return row

    def logits_after(self, context: Sequence[int]) -> torch.Tensor:
        """The same after the tokens that a model has read, pads included."""
        for number, prompt in enumerate(self.prompts):
            for start in range(len(context) - len(prompt) + 1):
                if list(context[start : start + len(prompt)]) == prompt:
                    return self.logits(number, len(context) - start - len(prompt))
        raise AssertionError("these tokens belong to no request")

    @contextmanager
    def watched(self):
        """Write down every decision that is made meanwhile."""
        candidates, lift = corrector.Correction.candidates, corrector.lift

        def watched_candidates(correction, votes, logits):
            found = candidates(correction, votes, logits)
            if found:
                owner = self._owners[logits.numpy().tobytes()]
                self._decided[owner] = {"votes": votes.tokens, "candidates": found}
            return found

        def watched_lift(base, candidates, *, margin, strength):
            final = lift(base, candidates, margin=margin, strength=strength)
            for before, after, own in zip(base, final, candidates):
                if own:
                    owner = self._owners[before.numpy().tobytes()]
                    self._decided[owner]["lift"] = float(after[own[0]] - before[own[0]])
            return final

        self._decided.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(corrector.Correction, "candidates", watched_candidates)
            patch.setattr(corrector, "lift", watched_lift)
            yield

    def outcomes(self, answers: Sequence[Sequence[int]]) -> list[Outcome]:
        """The answers with what was decided at their steps, up to the token that ends each."""
        found = []
        for number, answer in enumerate(answers):
            tokens = self.ended(list(answer))
            decided = {step: self._decided.get((number, step)) for step in range(len(tokens))}
            found.append(Outcome(tokens, {step: own for step, own in decided.items() if own}))
        return found

    def ended(self, tokens: list[int]) -> list[int]:
        ends = [at for at, token in enumerate(tokens) if token in self.ends]
        return tokens[: ends[0] + 1] if ends else tokens
