"""A question, messages or tokens, with a method and options -> a request the loop decodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trueline.decoders.base import Decoder
from trueline.engines.base import Engine
from trueline.errors import SettingError
from trueline.inputs import FilledPrompt, ModelInput, TokenContext
from trueline.prompts import check_question
from trueline.records import GenerateOptions, NearExample
from trueline.visible import shown


@dataclass(frozen=True, slots=True)
class Request:
    """One answer that is asked for: what is read before it, by which method, and how."""

    method: Decoder
    given: ModelInput
    contexts: tuple[tuple[int, ...], ...]  # the one it is asked with, then a second one
    prompt_hashes: tuple[str, ...]  # of these
    options: GenerateOptions
    room: int  # how many tokens the answer may have
    index: int = 0  # among the requests of one call, which its draws go by
    prepared: Any = None  # what the method worked out once for it
    near: tuple[NearExample, ...] | None = None  # the examples near to it, if it is traced

    @property
    def question(self) -> str | None:
        """The text of the question, if it is known."""
        return self.given.question

    @property
    def longest(self) -> int:
        """How many tokens its longest context has."""
        return max(map(len, self.contexts))


def make_request(
    lm: Engine,
    method: Decoder,
    given: str | ModelInput,
    options: GenerateOptions | None = None,
    *,
    index: int = 0,
) -> Request:
    """Check what is asked against a method and a model, and cut it into tokens.

    The method itself is checked against the model by `method.check`, once for all requests.
    """
    options = options or GenerateOptions()
    given = as_input(method, given, f"question {index + 1}")
    inputs = model_inputs(method, given)
    contexts = tuple(tuple(one.encode(lm.tokenizer)) for one in inputs)
    check_contexts(lm, contexts, f"question {index + 1}")
    longest, room = max(map(len, contexts)), options.max_new_tokens
    if lm.limit is not None:
        room = min(room, lm.limit - longest)
    if room < 1:
        raise SettingError(
            f"question {index + 1} makes {method.name} read a prompt of {longest} tokens, "
            f"{lm.id} reads {lm.limit} at most; shorten it, or what the method puts ahead "
            f"of it: {(given.question or '')[:60]!r}"
        )
    hashes = tuple(one.hash for one in inputs)
    prepared = method.prepare(lm, given, options)
    is_explained = options.trace and given.question is not None
    near = method.near_examples(lm, given.question or "") if is_explained else None
    return Request(method, given, contexts, hashes, options, room, index, prepared, near)


def check_method(method: object, lm: Engine) -> None:
    """Refuse what is no method, and a method that cannot work with the model."""
    if not isinstance(method, Decoder):
        raise SettingError(
            "the method must be an object such as tl.Greedy() or tl.RAD(space), got "
            f"{shown(method)}"
        )
    method.check(lm)


def check_contexts(lm: Engine, contexts: Sequence[Sequence[int]], what: str) -> None:
    """Refuse a context without tokens, or with one the model does not have."""
    for context in contexts:
        if not context:
            raise SettingError(f"{what} makes an empty prompt")
        if min(context) < 0 or max(context) >= lm.vocabulary:
            raise SettingError(
                f"{what} holds tokens from {min(context)} to {max(context)}; {lm.id} has those "
                f"from 0 to {lm.vocabulary - 1}"
            )


def as_input(method: Decoder, given: object, what: str) -> ModelInput:
    """What is asked as a model reads it: a question goes into the method's own prompt."""
    if hasattr(given, "encode_answer") and hasattr(given, "question"):
        if given.question is not None:
            check_question(given.question, what)
        return given  # type: ignore[return-value]
    check_question(given, what)
    return FilledPrompt(method.question_prompt, str(given))


def model_inputs(method: Decoder, given: ModelInput) -> tuple[ModelInput, ...]:
    """What a method has the model read; one that rewrites prompts is refused bare tokens."""
    needs = method.needs
    if isinstance(given, TokenContext) and (needs.own_prompt or needs.second_prompt):
        raise SettingError(
            f"{method.name} writes a prompt of its own around the question, and only tokens "
            "were given; give a question or messages, or choose another method"
        )
    if needs.question and given.question is None:
        raise SettingError(
            f"{method.name} goes by the question, and none is known; "
            "give a question or messages"
        )
    return method.inputs(given)
