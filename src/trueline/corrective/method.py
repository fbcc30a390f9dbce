"""What the methods share that tell verified answers where an example is in scope."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast

import torch

from trueline.corrective.scope import Scoped, explained, find_scope, in_scope, threshold_for
from trueline.corrective.turns import (
    FormRequest,
    leaves_open,
    read_turn,
    read_wish,
    wants_yes_or_no,
)
from trueline.corrective.votes import (
    Correction,
    CorrectivePlan,
    Corrector,
    Plan,
    Speaker,
    VerifiedAnswer,
    Votes,
    lift_rows,
)
from trueline.decode.sampling import move_of
from trueline.engines import as_logits_processor, wrap_tokenizer, wrap_transformers
from trueline.engines.base import Engine, TokenReader, read_continuations
from trueline.errors import SettingError
from trueline.methods.base import Adjusted, Needs, Rows, SpaceMethod, Step
from trueline.prompts import ModelInput, encode_onward, find_question
from trueline.settings import Between
from trueline.space.space import GroundingSpace
from trueline.types import Example, NearExample, Neighbor, Sampling

if TYPE_CHECKING:
    from trueline.engines.base import Engine, TokenReader
    from trueline.prompts import Prompt
    from trueline.types import Example


class ScopeMethod(SpaceMethod):
    """Decides once by the question what may be told; nothing in scope is plain decoding."""

    def plan_for(
        self, lm: TokenReader, question: str, stop_ids: Sequence[int] = ()
    ) -> CorrectivePlan | None:
        """The answers that may be told to a question; None: none are."""
        raise NotImplementedError

    def adjust_logits(self, rows: Rows, base: torch.Tensor) -> Adjusted:
        """Lift what is told in every row that has something to tell."""
        raise NotImplementedError

    def prepare(
        self, lm: Engine, given: ModelInput, options: Sampling
    ) -> CorrectivePlan | None:
        """The answers that may be told; None: none are, and the model is left alone."""
        question = self._question_of(lm, given)
        return None if question is None else self.plan_for(lm, question, options.stop_ids)

    def _question_of(self, lm: Engine, given: ModelInput) -> str | None:
        """The question that was given, or the one that bare tokens end with in a known form."""
        if given.question is not None:
            return given.question
        tokens = given.encode(lm.tokenizer)
        found = find_question(self.space.prompt, lm.tokenizer, tokens)
        return found.question if found is not None and found.start >= len(tokens) else None

    def is_covered(self, prepared: CorrectivePlan | None) -> bool:
        """Whether an example was in scope."""
        return prepared is not None and prepared.is_covered

    def adjust(self, step: Step) -> Adjusted:
        if not any(step.rows.prepared):
            return Adjusted(step.logits)
        return self.adjust_logits(step.rows, step.logits)


LEAST_EFFECT = 0.5  # nats; chosen on the grounding facts
_ASKED = (
    "Fact: {fact}\nQuestion: {question}\n"
    "Going by the fact, is the answer to the question yes or no?"
)
_WORD = 8  # tokens that a yes or no may take, and more
_BEGINS = re.compile(r"\W*(?:yes|no)\b", re.I)


def true_word(lm: TokenReader, prompt: Prompt, question: str, example: Example) -> str:
    """Yes or No; empty where it cannot be told, or an answer says it by itself.

    It takes two short passes of the model: engines that give logits of their own answer alone
    cannot tell, nor can a model that does not read so long a question with the answer.
    """
    if not hasattr(lm, "start") or not example.wrong_answers:
        return ""
    if any(_BEGINS.match(answer) for answer in example.answers):
        return ""
    engine = cast("Engine", lm)
    if not _fits(engine, prompt, asked_behind(question, example)):
        return ""
    effect = effect_of_truth(engine, prompt, question, example)
    if effect > LEAST_EFFECT:
        return "Yes"
    return "No" if effect < -LEAST_EFFECT else ""  # neither where it is no number


def asked_behind(question: str, example: Example) -> list[str]:
    """What the model is asked: behind the truthful answer, and behind the wrong one."""
    facts = (example.answers[0], example.wrong_answers[0])
    return [_ASKED.format(fact=fact, question=question) for fact in facts]


def _fits(lm: Engine, prompt: Prompt, texts: Sequence[str]) -> bool:
    if lm.limit is None:
        return True
    longest = max(len(prompt.encode(text, lm.tokenizer)) for text in texts)
    return longest + _WORD <= lm.limit


def effect_of_truth(lm: Engine, prompt: Prompt, question: str, example: Example) -> float:
    """How much more the model says yes behind the truthful answer than behind the wrong one."""
    asked = asked_behind(question, example)
    pairs = [(text, word) for text in asked for word in ("Yes", "No")]
    yes, no, wrong_yes, wrong_no = mean_log_probs(lm, prompt, pairs)
    return (yes - no) - (wrong_yes - wrong_no)


@torch.inference_mode()
def mean_log_probs(lm: Engine, prompt: Prompt, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """The log-probability of each answer behind its question, a token on average."""
    if not pairs:
        return []
    questions = list(dict.fromkeys(question for question, _ in pairs))
    rows = [questions.index(question) for question, _ in pairs]
    contexts = [prompt.encode(question, lm.tokenizer) for question in questions]
    answers = [
        prompt.encode_answer(question, answer, lm.tokenizer) for question, answer in pairs
    ]
    states = read_continuations(lm, contexts, rows, answers)
    means = []
    for row, tokens in enumerate(answers):
        own = states.map(lambda tensor: tensor[row, : len(tokens)])  # noqa: B023
        logits = own.logits if own.hidden is None or lm.head is None else lm.head(own.hidden)
        assert logits is not None
        log_probs = logits.float().log_softmax(-1)  # (tokens, vocabulary)
        chosen = log_probs.gather(1, torch.tensor(tokens, device=log_probs.device)[:, None])
        means.append(float(chosen.mean()))
    return means


@dataclass(frozen=True)
class VoteEvidence:
    """What verified answers voted for in one step, and how far that moved the logits."""

    votes: Sequence[Votes | None]  # of each row
    base: torch.Tensor  # (rows, vocabulary)
    final: torch.Tensor  # (rows, vocabulary)

    def count(self, row: int) -> int:
        """How many answers voted in one row."""
        votes = self.votes[row]
        return 0 if votes is None else len({v for own in votes.shares.values() for v in own})

    def neighbors(self, row: int, picked: int, rival: int, *, most: int) -> list[Neighbor]:
        """The answers that voted, each with its part of how far picked moved from rival."""
        votes = self.votes[row]
        if votes is None:
            return []
        moved = move_of(self.base[row], self.final[row], picked, rival)
        weights: dict[VerifiedAnswer, float] = {}
        for own in votes.shares.values():
            for voice, share in own.items():
                weights[voice] = weights.get(voice, 0.0) + share
        best = sorted(weights, key=lambda voice: -weights[voice])[:most]
        return [
            Neighbor(
                example=voice.speaker.example.id,
                question=voice.speaker.example.question,
                answer=voice.text,
                source=voice.speaker.example.source,
                step=0,
                similarity=voice.speaker.probability,
                weight=weights[voice],
                push=weights[voice] * moved,
                nearness="probability",
            )
            for voice in best
        ]


UNKNOWN = "I do not know: my verified answers do not cover this."


@dataclass(frozen=True)
class Corrective(ScopeMethod):
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

    def _wish(self, lm: TokenReader, question: str, heard: Sequence[Scoped]) -> FormRequest:
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
    wish: FormRequest = FormRequest(),  # noqa: B008  # a frozen value
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


@dataclass(frozen=True)
class Lookup(ScopeMethod):
    """Print the first verified answer of the nearest example in scope, word for word.

    What corrective decoding has to beat: the same scope, no decoding. Nothing in scope is plain
    decoding.
    """

    space: GroundingSpace
    threshold: Annotated[float, Between(0, 1)] | None = None  # as that of corrective decoding
    name = "lookup"
    needs = Needs(space=True)
    baseline_settings = ({},)

    def plan_for(
        self, lm: TokenReader, question: str, stop_ids: Sequence[int] = ()
    ) -> CorrectivePlan | None:
        scope = self._scope
        for best in scope.near(lm, question)[:1]:
            if scope.is_heard(best, question):
                printed = Example(
                    best.example.question,
                    best.example.answers[:1],
                    id=best.example.id,
                    source=best.example.source,
                )
                speaker = Speaker(printed, best.probability, best.odds)
                return make_plan(self.space, lm, (speaker,), stop_ids, is_fixed=True)
        return None

    @property
    def _scope(self) -> Corrective:
        return Corrective(self.space, threshold=self.threshold)

    def near_examples(self, lm: Engine, question: str) -> tuple[NearExample, ...]:
        """The examples near to a question; the first one is printed if it may speak."""
        return self._scope.near_examples(lm, question)

    def adjust_logits(self, rows: Rows, base: torch.Tensor) -> Adjusted:
        return lift_votes(rows, base, margin=0.0, strength=1.0)
