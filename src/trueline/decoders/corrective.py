"""Corrective decoding: the verified answers speak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch

from trueline.decoders.base import Adjusted, Decoder, Needs, Rows, Step
from trueline.decoders.evidence import VoteEvidence
from trueline.engines import as_logits_processor, wrap_transformers
from trueline.engines.base import Engine
from trueline.errors import SettingError
from trueline.fusion import lift
from trueline.inputs import ModelInput
from trueline.likelihood import weigh_likelihood
from trueline.prompts import Prompt, encode_onward
from trueline.questions import find_question
from trueline.records import Example, GenerateOptions, NearExample
from trueline.scope import Scoped, explained, find_scope, in_scope, threshold_for
from trueline.settings import Between
from trueline.space.space import GroundingSpace
from trueline.turns import Wish, read_wish
from trueline.votes import END, Plan, Speaker, Votes

UNKNOWN = "I do not know: my verified answers do not cover this."


@dataclass(frozen=True)
class CorrectivePlan:
    """What may be told in one request, and the tokens that end it."""

    plan: Plan
    ends: frozenset[int]
    is_covered: bool  # whether an example was in scope


@dataclass(frozen=True)
class Corrective(Decoder):
    """Lift what the verified answers to this question say next; leave all other questions.

    The examples whose probability of answering the question exceeds `threshold` vote for the
    next token (`votes`), and the candidates C, the tokens with at least half the best vote, are
    raised together until they hold probability sigmoid(margin):

    final(x) = base(x) + strength * max(0, margin + log sum_{v not in C} e^base(v)
                                          - log sum_{x in C} e^base(x))     for x in C

    With no example in scope, every step is the model's own.
    """

    space: GroundingSpace
    # 0 is plain decoding; None: what the space was tuned to, or 1.
    strength: Annotated[float, Between(0, 1)] | None = None
    margin: Annotated[float, Between(-20, 20)] = 5.0  # the candidates' log-odds, once lifted
    # An example speaks above this probability; None: the tuned one, or the fitted.
    threshold: Annotated[float, Between(0, 1)] | None = None
    only_covered: bool = False  # whether it answers only what an example covers
    # Whether the model's own likelihood of the answers also decides: a pass for each question.
    careful: bool = False
    name = "corrective"
    needs = Needs(space=True)

    @property
    def question_prompt(self) -> Prompt:
        """The prompt of the space."""
        return self.space.prompt

    def check(self, lm: Engine) -> None:
        """Open the embedder; any model will do."""
        self.space.open_embedder("cpu")

    def scope(self, lm: Engine, question: str) -> list[tuple[Example, float]]:
        """The examples near to a question with their probability, the highest first.

        Those above the threshold speak.
        """
        return [(one.example, one.probability) for one in self.near(lm, question)]

    def near(self, lm: Engine, question: str) -> list[Scoped]:
        """The same with all that is known of them."""
        found = find_scope(self.space, question)
        return weigh_likelihood(lm, self.space, question, found) if self.careful else found

    def near_examples(self, lm: Engine, question: str) -> tuple[NearExample, ...]:
        """The same as explanations show it."""
        return tuple(
            explained(self.space, one, self.least(one, question), self.is_heard(one, question))
            for one in self.near(lm, question)
        )

    def is_heard(self, scoped: Scoped, question: str) -> bool:
        """Whether an example speaks."""
        return scoped.probability > self.least(scoped, question)

    def least(self, scoped: Scoped, question: str) -> float:
        """The probability above which an example speaks."""
        if self.threshold is not None:
            return self.threshold
        return threshold_for(self.space, scoped.example, question)

    def prepare(
        self, lm: Engine, given: ModelInput, options: GenerateOptions
    ) -> CorrectivePlan | None:
        """The answers that may be told; None: none are, and the model is left alone."""
        question = question_of(self.space, lm, given)
        return None if question is None else self.plan_for(lm, question, options.stop_ids)

    def plan_for(
        self, lm: Engine, question: str, stop_ids: Sequence[int] = ()
    ) -> CorrectivePlan | None:
        """The same for the text of a question."""
        near = self.near(lm, question)
        heard = in_scope(near, [self.least(one, question) for one in near])
        if heard:
            speakers = tuple(
                Speaker(one.example, one.probability, one.odds, one.part) for one in heard
            )
            return make_plan(self.space, lm, speakers, stop_ids, wish=read_wish(question))
        if not self.only_covered:
            return None
        refusal = Speaker(Example(question, [UNKNOWN]), 1.0, 0.0)
        return make_plan(self.space, lm, (refusal,), stop_ids, is_fixed=True, is_covered=False)

    def is_covered(self, prepared: CorrectivePlan | None) -> bool:
        """Whether an example was in scope."""
        return prepared is not None and prepared.is_covered

    def adjust(self, step: Step) -> Adjusted:  # noqa: D102
        if not any(step.rows.prepared):
            return Adjusted(step.logits)
        return self.adjust_logits(step.rows, step.logits)

    def adjust_logits(self, rows: Rows, base: torch.Tensor) -> Adjusted:
        """Lift the candidates of every row that has some."""
        strength = self.strength
        if strength is None:
            strength = float(self.space.tuned.get("strength", 1.0))
        return lift_votes(rows, base, margin=self.margin, strength=strength)

    def adjust_scores(self, rows: Rows, scores: torch.Tensor) -> torch.Tensor:
        """The same in a loop that is not ours and gives logits only."""
        return self.adjust_logits(rows, scores).logits if any(rows.prepared) else scores

    def processor(
        self,
        model: Any,
        tokenizer: Any,
        *,
        question: str | None = None,
        prompt_length: int | None = None,
    ) -> Any:
        """The method in transformers' own loop: model.generate(..., logits_processor=[...]).

        Without a question, it is the last user turn of each row, or what the prompt of the
        space leaves of its text; without either, the row is the plain model's. `prompt_length`
        is the number of tokens generate is given, pads included; without it the answer begins
        where the prompt ends.
        """
        lm = wrap_transformers(model, tokenizer)
        self.check(lm)
        plans: dict[str, CorrectivePlan | None] = {}

        def plan_of(asked: str) -> CorrectivePlan | None:
            if asked not in plans:
                plans[asked] = self.plan_for(lm, asked)
            return plans[asked]

        def adjust(contexts: list[list[int]], scores: torch.Tensor) -> torch.Tensor:
            starts, questions = [], []
            for context in contexts:
                found = None
                if question is None or prompt_length is None:
                    prompt = context[:prompt_length]
                    found = find_question(self.space.prompt, tokenizer, prompt)
                if found is None and question is not None and prompt_length is None:
                    raise SettingError(
                        "where the answer begins cannot be told from this prompt; give "
                        "prompt_length=input_ids.shape[1]"
                    )
                start = found.start if prompt_length is None and found else prompt_length or 0
                starts.append(start)
                questions.append(question or (None if found is None else found.question))
            prepared = [plan_of(asked) if asked else None for asked in questions]
            return self.adjust_scores(Rows(lm, contexts, starts, questions, prepared), scores)

        return as_logits_processor(adjust)


def question_of(space: GroundingSpace, lm: Engine, given: ModelInput) -> str | None:
    """The question that was given, or the one that bare tokens end with in a known form."""
    if given.question is not None:
        return given.question
    tokens = given.encode(lm.tokenizer)
    found = find_question(space.prompt, lm.tokenizer, tokens)
    return found.question if found is not None and found.start >= len(tokens) else None


def make_plan(
    space: GroundingSpace,
    lm: Engine,
    speakers: tuple[Speaker, ...],
    stop_ids: Sequence[int] = (),
    *,
    wish: Wish = Wish(),  # noqa: B008  # a frozen value
    is_fixed: bool = False,
    is_covered: bool = True,
) -> CorrectivePlan:
    """A plan with the tokens of a model; how answers are cut is kept with the space."""
    forms = space.texts_read.setdefault(lm.tokenizer_hash, {})
    cut = partial(encode_onward, tokenizer=lm.tokenizer)
    plan = Plan(speakers, cut, lm.decode, wish, is_fixed, forms)
    return CorrectivePlan(plan, lm.stop_ids | frozenset(stop_ids), is_covered)


def lift_votes(rows: Rows, base: torch.Tensor, *, margin: float, strength: float) -> Adjusted:
    """Lift the candidates of every row of logits (rows, vocabulary) that has some.

    In a row whose plan is fixed nothing else is left.
    """
    votes: list[Votes | None] = []
    candidates: list[list[int]] = []
    for row, own in enumerate(rows.prepared):
        found = None if own is None else own.plan.votes(rows.contexts[row][rows.starts[row] :])
        chosen = [] if found is None else _finite(_candidates(found, own.ends), base[row])
        is_word = (
            bool(chosen) and own.is_covered
        )  # what declines to answer is no example's word
        votes.append(found if is_word else None)
        candidates.append(chosen)
    if not any(candidates):
        return Adjusted(base, votes=votes)
    mask = torch.zeros_like(base, dtype=torch.bool)
    for row, chosen in enumerate(candidates):
        mask[row, chosen] = True
    final = lift(base, mask, margin=margin, strength=strength)
    for row, own in enumerate(rows.prepared):
        if candidates[row] and own.plan.is_fixed:
            final[row] = base[row].masked_fill(~mask[row], -torch.inf)
    return Adjusted(final, (VoteEvidence(votes, base, final),), votes=votes)


def _candidates(votes: Votes, ends: frozenset[int]) -> list[int]:
    """The candidates as tokens; END stands for every token that ends the answer."""
    return [
        token for wanted in votes.candidates for token in (ends if wanted == END else (wanted,))
    ]


def _finite(tokens: Sequence[int], base: torch.Tensor) -> list[int]:
    """Those of the tokens that are not banned, in order."""
    known = sorted(token for token in set(tokens) if token < len(base))
    values = base[known].tolist()
    return [token for token, value in zip(known, values, strict=True) if value > -torch.inf]
