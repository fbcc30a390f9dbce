"""Corrective decoding: the verified answers speak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch

from trueline.corrector import Correction, CorrectivePlan, Corrector, lift_rows
from trueline.decoders.base import Adjusted, Needs, Rows
from trueline.decoders.evidence import VoteEvidence
from trueline.decoders.scoped import ScopeDecoder
from trueline.engines import as_logits_processor, wrap_tokenizer, wrap_transformers
from trueline.engines.base import Engine, TokenReader
from trueline.errors import SettingError
from trueline.polarity import true_word
from trueline.prompts import encode_onward
from trueline.records import Example, NearExample
from trueline.scope import Scoped, explained, find_scope, in_scope, threshold_for
from trueline.settings import Between
from trueline.space.space import GroundingSpace
from trueline.turns import Wish, leaves_open, read_turn, read_wish, wants_yes_or_no
from trueline.votes import Plan, Speaker

UNKNOWN = "I do not know: my verified answers do not cover this."


@dataclass(frozen=True)
class Corrective(ScopeDecoder):
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
    # Whether the model goes on where one of several questions is not covered.
    answer_rest: bool = False
    name = "corrective"
    needs = Needs(space=True)

    def scope(self, lm: Engine, question: str) -> list[tuple[Example, float]]:
        """The examples near to a question with their probability, the highest first.

        Those above the threshold speak.
        """
        return [(one.example, one.probability) for one in self.near(lm, question)]

    def near(self, lm: TokenReader, question: str) -> list[Scoped]:
        """The same with all that is known of them."""
        return find_scope(self.space, question)

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

    def asks_model(self, question: str) -> bool:
        return wants_yes_or_no(question)

    def plan_for(
        self, lm: TokenReader, question: str, stop_ids: Sequence[int] = ()
    ) -> CorrectivePlan | None:
        near = self.near(lm, question)
        heard = in_scope(near, [self.least(one, question) for one in near])
        if heard:
            speakers = tuple(
                Speaker(one.example, one.probability, one.odds, one.part) for one in heard
            )
            return make_plan(
                self.space, lm, speakers, stop_ids, wish=self._wish(lm, question, heard)
            )
        if not self.only_covered:
            return None
        refusal = Speaker(Example(question, [UNKNOWN]), 1.0, 0.0)
        return make_plan(self.space, lm, (refusal,), stop_ids, is_fixed=True, is_covered=False)

    def _wish(self, lm: TokenReader, question: str, heard: Sequence[Scoped]) -> Wish:
        """The form that is asked for, as far as it is known.

        A yes or no is one example's: ahead of another's answer it could be wrong.
        """
        wish = read_wish(question)
        if wants_yes_or_no(question) and not wish.opening and len(heard) == 1:
            word = true_word(lm, self.space.prompt, heard[0].text, heard[0].example)
            wish = replace(wish, opening=f"{word}." if word else "")
        if self.only_covered or not self.answer_rest:
            return wish
        answered = [(one.text, one.part) for one in heard]
        return replace(wish, is_open=leaves_open(read_turn(question), answered))

    def adjust_logits(self, rows: Rows, base: torch.Tensor) -> Adjusted:
        return lift_votes(rows, base, margin=self.margin, strength=self._used_strength)

    @property
    def _used_strength(self) -> float:
        if self.strength is not None:
            return self.strength
        return float(self.space.tuned.get("strength", 1.0))

    def corrector(self, tokenizer: Any, *, stop_ids: Iterable[int] | None = None) -> Corrector:
        """The method for an engine that gives logits and takes them back (`corrector`).

        `stop_ids` are the tokens that end every answer; without them, the tokenizer's own. In
        place of a tokenizer of transformers it takes whatever reads tokens, such as a model.
        """
        reader = wrap_tokenizer(tokenizer, stop_ids)
        self.space.open_embedder("cpu")
        plan_for = partial(self.plan_for, reader)
        return Corrector(self.space.prompt, reader, plan_for, self.margin, self._used_strength)

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
        corrector = self.corrector(wrap_transformers(model, tokenizer))
        begun: dict[str, Correction | None] = {}

        def begin(asked: str | None) -> Correction | None:
            if asked and asked not in begun:
                begun[asked] = corrector.begin(question=asked)
            return begun[asked] if asked else None

        def adjust(contexts: list[list[int]], scores: torch.Tensor) -> torch.Tensor:
            outputs, questions = [], []
            for context in contexts:
                found = None
                if question is None or prompt_length is None:
                    found = corrector.find(context[:prompt_length])
                if found is None and question is not None and prompt_length is None:
                    raise SettingError(
                        "where the answer begins cannot be told from this prompt; give "
                        "prompt_length=input_ids.shape[1]"
                    )
                start = found.start if prompt_length is None and found else prompt_length or 0
                outputs.append(context[start:])
                questions.append(question or (None if found is None else found.question))
            return lift_rows(list(map(begin, questions)), outputs, scores).logits

        return as_logits_processor(adjust)


def make_plan(
    space: GroundingSpace,
    lm: TokenReader,
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
    corrections = [
        None if own is None else Correction(own, margin, strength) for own in rows.prepared
    ]
    starts = zip(rows.contexts, rows.starts, strict=True)
    lifted = lift_rows(corrections, [context[start:] for context, start in starts], base)
    votes = [found.votes for found in lifted.decisions]
    if lifted.logits is base:
        return Adjusted(base, votes=votes)
    return Adjusted(lifted.logits, (VoteEvidence(votes, base, lifted.logits),), votes=votes)
