"""Tokens and logits in, lifted logits out: corrective decoding for a loop that is not ours.

    corrector = Corrective(space).corrector(tokenizer)
    request = corrector.begin(prompt_ids)           # once a request; None: leave it alone
    logits = request.lift(output_ids, logits)       # at every token of it

That is all an engine needs to know. A `Correction` keeps nothing between two calls: it answers
from the tokens it is given, so rows may move, wait and come back. docs/engine-authors.md has
an engine that uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from trueline.engines.base import TokenReader
from trueline.fusion import lift
from trueline.prompts import Prompt
from trueline.questions import FoundQuestion, find_question
from trueline.votes import END, Plan, Votes


@dataclass(frozen=True)
class CorrectivePlan:
    """What may be told in one request, and the tokens that end it."""

    plan: Plan
    ends: frozenset[int]
    is_covered: bool  # whether an example was in scope


# A question and the tokens that end its answer -> what may be told; None: nothing.
PlanFor = Callable[[str, Sequence[int]], CorrectivePlan | None]


@dataclass(frozen=True)
class Decision:
    """What is lifted in one row at one step."""

    votes: Votes | None  # None: no example has a say here
    candidates: Sequence[int]  # the tokens that are lifted


@dataclass(frozen=True)
class Lifted:
    """What became of the logits of a step."""

    logits: torch.Tensor  # (rows, vocabulary); the very ones given where nothing is lifted
    decisions: Sequence[Decision]  # of each row


NOTHING = Decision(None, ())


@dataclass(frozen=True)
class Correction:
    """A request that verified answers have something to say in."""

    told: CorrectivePlan
    margin: float
    strength: float

    def decide(self, output_ids: Sequence[int], logits: torch.Tensor) -> Decision:
        """Who speaks behind the tokens of the answer so far, given its row (vocabulary,).

        END stands for every token that ends the answer; a banned token (-inf) is no candidate.
        """
        votes = self.told.plan.votes(output_ids)
        if votes is None:
            return NOTHING
        wanted = {
            token
            for voted in votes.candidates
            for token in (self.told.ends if voted == END else (voted,))
        }
        known = sorted(token for token in wanted if token < len(logits))
        values = logits[known].tolist()
        free = [token for token, value in zip(known, values, strict=True) if value > -torch.inf]
        # What declines to answer is no example's word.
        return Decision(votes if free and self.told.is_covered else None, free)

    def lift(self, output_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """The logits (vocabulary,) to pick the next token from, before temperature."""
        return lift_rows([self], [output_ids], logits[None]).logits[0]


def lift_rows(
    corrections: Sequence[Correction | None],
    outputs: Sequence[Sequence[int]],
    logits: torch.Tensor,
) -> Lifted:
    """The same for a batch (rows, vocabulary) of any requests; None leaves a row alone."""
    decisions = [
        NOTHING if own is None else own.decide(output, logits[row])
        for row, (own, output) in enumerate(zip(corrections, outputs, strict=True))
    ]
    rows = [row for row, found in enumerate(decisions) if found.candidates]
    if not rows:
        return Lifted(logits, decisions)
    speaking = [own for row in rows if (own := corrections[row]) is not None]
    is_all = len(rows) == len(logits)
    base = logits if is_all else logits[rows]
    numbers = torch.tensor([[own.margin, own.strength] for own in speaking]).to(base.device)
    candidates = [decisions[row].candidates for row in rows]
    lifted = lift(base, candidates, margin=numbers[:, 0], strength=numbers[:, 1])
    for at, own in enumerate(speaking):
        if own.told.plan.is_fixed:  # nothing else may be said
            only = torch.full_like(base[at], -torch.inf)
            only[candidates[at]] = base[at, candidates[at]]
            lifted[at] = only
    if is_all:
        return Lifted(lifted, decisions)
    final = logits.clone()
    final[rows] = lifted
    return Lifted(final, decisions)


@dataclass(frozen=True)
class Corrector:
    """Corrective decoding on one space with one tokenizer: makes corrections."""

    prompt: Prompt  # what a question stands in where the tokenizer has no chat template
    reader: TokenReader
    plan_for: PlanFor
    margin: float
    strength: float

    def find(self, tokens: Sequence[int]) -> FoundQuestion | None:
        """The question among the tokens of a prompt, and where its answer begins."""
        return find_question(self.prompt, self.reader.tokenizer, tokens)

    def begin(
        self,
        prompt_ids: Sequence[int] | None = None,
        *,
        question: str | None = None,
        stop_ids: Sequence[int] = (),
    ) -> Correction | None:
        """What is lifted in one request; None: nothing, the model is to be left alone.

        The question is the one given, or else the last user turn of the prompt. `stop_ids` end
        this request beside the tokens that end any.
        """
        if question is None and prompt_ids is not None:
            found = self.find(prompt_ids)
            is_whole = found is not None and found.start >= len(prompt_ids)
            question = found.question if found is not None and is_whole else None
        told = self.plan_for(question, stop_ids) if question else None
        return None if told is None else Correction(told, self.margin, self.strength)
