"""Corrective decoding: scope once for each request, then votes at every token."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar

import torch

from trueline.corrective.scope import explained, find_scope, in_scope, threshold_for
from trueline.corrective.turns import leaves_open, read_form, read_turn, wants_yes_or_no
from trueline.corrective.votes import Correction, lift_rows
from trueline.decode.generate import Continuation, score_continuations
from trueline.engines import as_logits_processor, wrap_tokenizer, wrap_transformers
from trueline.engines.base import Engine, TokenReader
from trueline.errors import SettingError
from trueline.methods.base import Adjusted, Needs, Prepared, SpaceMethod, Step
from trueline.methods.prompting import Greedy
from trueline.prompts import ModelInput, Prompt, chat_turn, encode_onward, find_question
from trueline.settings import Between
from trueline.space import GroundingSpace
from trueline.types import Example, Sampling, ScopedExample

UNKNOWN = "I do not know: my verified answers do not cover this."
_BEGUN = 256  # questions whose corrections a processor keeps
Scope = Sequence[ScopedExample]


class ScopeMethod(SpaceMethod):
    """Decides by the question which examples are in scope; with none it is plain decoding."""

    needs = Needs(space=True)
    threshold: float | None

    def scope(self, lm: Engine, question: str) -> list[tuple[Example, float]]:
        """The examples near to a question with their probability, the highest first.

        Those above the threshold are in scope.
        """
        return [(one.example, one.probability) for one in find_scope(self.space, question)]

    def threshold_of(self, scoped: ScopedExample, question: str) -> float:
        """The probability above which an example is in scope."""
        if self.threshold is not None:
            return self.threshold
        return threshold_for(self.space, scoped.example, question)

    def correction(
        self, reader: TokenReader, question: str, near: Scope, stop_ids: Sequence[int] = ()
    ) -> Correction | None:
        """The answers for a question that is near to these examples; None: there are none."""
        raise NotImplementedError

    def prepare(self, lm: Engine, given: ModelInput, options: Sampling) -> Prepared:
        question = given.question
        if question is None:
            question = Corrector(self, lm).question_before(given.encode(lm.tokenizer))
        if question is None:
            return Prepared(coverage=False)
        near = find_scope(self.space, question)
        state = self.correction(lm, question, near, options.stop_ids)
        is_covered = state is not None and state.is_covered
        if not options.trace or given.question is None:
            return Prepared(state, is_covered)
        scope = [explained(self.space, one, self.threshold_of(one, question)) for one in near]
        return Prepared(state, is_covered, tuple(scope))

    def complete(self, lm: Engine, prepared: Prepared) -> Prepared:
        return replace(prepared, state=with_true_word(lm, self.space.prompt, prepared.state))

    def adjust(self, step: Step) -> Adjusted:
        if not any(step.rows.prepared):
            return Adjusted(step.logits)
        rows = zip(step.rows.contexts, step.rows.starts, strict=True)
        outputs = [context[start:] for context, start in rows]
        lifted = lift_rows(step.rows.prepared, outputs, step.logits)
        return Adjusted(lifted.logits, () if lifted.logits is step.logits else (lifted,))

    def corrector(self, tokenizer: Any, *, stop_ids: Iterable[int] | None = None) -> Corrector:
        """The method for an engine that gives logits and takes them back.

        `stop_ids` are the tokens that end every answer; without them, the tokenizer's own. The
        tokenizer is one of transformers, or any `TokenReader`, such as a model.
        """
        self.space.open_embedder("cpu")
        return Corrector(self, wrap_tokenizer(tokenizer, stop_ids))

    def _made(
        self, reader: TokenReader, scope: Scope, stop_ids: Sequence[int], **options: Any
    ) -> Correction:
        """A correction with a model's tokens; tokenized answers are kept with the space."""
        return Correction(
            tuple(scope),
            partial(encode_onward, tokenizer=reader.tokenizer),
            reader.decode,
            ends=reader.stop_ids | frozenset(stop_ids),
            tokenized=self.space.texts_read.setdefault(reader.tokenizer_hash, {}),
            **options,
        )


@dataclass(frozen=True)
class Corrective(ScopeMethod):
    """Lift what the verified answers to this question continue with; leave all other questions.

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
    # An example is in scope above this probability; None: the tuned one, or the fitted.
    threshold: Annotated[float, Between(0, 1)] | None = None
    only_covered: bool = False  # whether it answers only what an example covers
    # Whether the model continues if one of several questions is not covered.
    answer_rest: bool = False
    name = "corrective"

    def correction(
        self, reader: TokenReader, question: str, near: Scope, stop_ids: Sequence[int] = ()
    ) -> Correction | None:
        scope = in_scope(near, [self.threshold_of(one, question) for one in near])
        tuned = float(self.space.tuned.get("strength", 1.0))
        strength = tuned if self.strength is None else self.strength
        options: dict[str, Any] = {"margin": self.margin, "strength": strength}
        if scope:
            form = read_form(question)
            if self.answer_rest and not self.only_covered:
                answered = [(one.text, one.part) for one in scope]
                form = replace(form, is_open=leaves_open(read_turn(question), answered))
            # The word is true of one example's answer; before another's it could be false.
            is_wanted = len(scope) == 1 and not form.opening and wants_yes_or_no(question)
            options |= {"form": form, "asks_yes_or_no": is_wanted}
        elif self.only_covered:
            scope = [ScopedExample(Example(question, [UNKNOWN]), 1.0)]
            options |= {"is_fixed": True, "is_covered": False}
        return self._made(reader, scope, stop_ids, **options) if scope else None

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
        is the number of tokens that generate gets, pads included; without it the answer begins
        where the prompt ends.
        """
        corrector = self.corrector(wrap_transformers(model, tokenizer))
        find = lru_cache(_BEGUN)(corrector.find)
        begin = lru_cache(_BEGUN)(lambda text: corrector.begin(question=text))

        def adjust(contexts: list[list[int]], scores: torch.Tensor) -> torch.Tensor:
            corrections, outputs = [], []
            for context in contexts:
                is_known = question is not None and prompt_length is not None
                found = None if is_known else find(tuple(context[:prompt_length]))
                if found is None and question is not None and prompt_length is None:
                    raise SettingError(
                        "this prompt does not show where the answer begins; give "
                        "prompt_length=input_ids.shape[1]"
                    )
                text, start = found or (None, 0)
                outputs.append(context[start if prompt_length is None else prompt_length :])
                corrections.append(begin(question or text) if question or text else None)
            return lift_rows(corrections, outputs, scores).logits

        return as_logits_processor(adjust)


@dataclass(frozen=True)
class Lookup(ScopeMethod):
    """Print the first verified answer of the most probable example in scope, word for word.

    What corrective decoding has to beat: the same scope, no decoding. With no example in scope
    it is plain decoding.
    """

    space: GroundingSpace
    threshold: Annotated[float, Between(0, 1)] | None = None  # as that of corrective decoding
    name = "lookup"
    baseline_settings: ClassVar[Any] = ({},)  # evaluations report it as a baseline

    def correction(
        self, reader: TokenReader, question: str, near: Scope, stop_ids: Sequence[int] = ()
    ) -> Correction | None:
        if not near or near[0].probability <= self.threshold_of(near[0], question):
            return None
        best = near[0].example
        printed = replace(near[0], example=replace(best, answers=best.answers[:1]), part=0)
        return self._made(reader, [printed], stop_ids, margin=0.0, is_fixed=True)


@dataclass(frozen=True)
class Corrector:
    """A scope method with one tokenizer, for engines of any kind: makes corrections."""

    method: ScopeMethod
    reader: TokenReader

    def find(self, tokens: Sequence[int]) -> tuple[str, int] | None:
        """The question in the tokens of a prompt, and where its answer begins."""
        return find_question(self.method.space.prompt, self.reader.tokenizer, tokens)

    def question_before(self, tokens: Sequence[int]) -> str | None:
        """The question of a prompt whose answer begins right after these tokens."""
        found = self.find(tokens)
        return found[0] if found is not None and found[1] >= len(tokens) else None

    def begin(
        self,
        prompt_ids: Sequence[int] | None = None,
        *,
        question: str | None = None,
        stop_ids: Sequence[int] = (),
    ) -> Correction | None:
        """What is lifted in one request; None: nothing, the model is left alone.

        The question is the one given, or else the last user turn of the prompt. `stop_ids` end
        this request, in addition to the tokens that end any.
        """
        if question is None and prompt_ids is not None:
            question = self.question_before(prompt_ids)
        if not question:
            return None
        space = self.method.space
        near = find_scope(space, question)
        correction = self.method.correction(self.reader, question, near, stop_ids)
        if not hasattr(self.reader, "start"):  # it is no model, which decides on yes or no
            return correction
        return with_true_word(self.reader, space.prompt, correction)  # type: ignore[arg-type]


LEAST_EFFECT = 0.5  # nats; chosen on the grounding facts
_QUESTION = (
    "Fact: {fact}\nQuestion: {question}\n"
    "Going by the fact, is the answer to the question yes or no?"
)
_WORD = 8  # tokens that a yes or no may take, and more
_BEGINS = re.compile(r"\W*(?:yes|no)\b", re.I)


def with_true_word(
    lm: Engine, prompt: Prompt, correction: Correction | None
) -> Correction | None:
    """The correction with `Yes.` or `No.` before its answer, if that was requested.

    Without either if the model does not decide, or an answer already begins with one. It takes
    two short passes of the model.
    """
    if correction is None or not correction.asks_yes_or_no:
        return correction
    (scoped,) = correction.scope
    example = scoped.example
    if not example.wrong_answers or any(_BEGINS.match(answer) for answer in example.answers):
        return correction
    effect = effect_of_truth(lm, prompt, scoped.text, example)
    if effect is None or not abs(effect) > LEAST_EFFECT:  # also if it is NaN
        return correction
    opening = "Yes." if effect > 0 else "No."
    return replace(correction, form=replace(correction.form, opening=opening))


def effect_of_truth(
    lm: Engine, prompt: Prompt, question: str, example: Example
) -> float | None:
    """How much more probable the truthful answer makes a yes than the wrong one does.

    In nats, of the mean log-probability of a word's tokens; None: the model cannot read it.
    """
    rows = []
    for fact in (example.answers[0], example.wrong_answers[0]):
        given = chat_turn(prompt, _QUESTION.format(fact=fact, question=question))
        context = tuple(given.encode(lm.tokenizer))
        if lm.limit is not None and len(context) + _WORD > lm.limit:
            return None
        answers = [tuple(given.encode_answer(word, lm.tokenizer)) for word in ("Yes", "No")]
        rows += [Continuation(given, (context,), tokens) for tokens in answers]
    totals = zip(score_continuations(lm, Greedy(prompt), rows), rows, strict=True)
    yes, no, wrong_yes, wrong_no = (total / len(row.tokens) for (total, _), row in totals)
    return (yes - no) - (wrong_yes - wrong_no)
