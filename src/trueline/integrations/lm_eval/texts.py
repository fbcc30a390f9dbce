"""Finished text of the harness in, its tokens out, cut to what the model can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trueline.decoders import built_in_names, method_class
from trueline.errors import SettingError

if TYPE_CHECKING:
    from trueline.engines.base import Engine
    from trueline.prompts import Tokenizer


def first_token(tokenizer: Tokenizer) -> int:
    """What an empty context is read as: the token that begins a text, or else ends one."""
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    if begin is None and end is None:
        raise SettingError("the tokenizer names no token that begins or ends a text")
    return int(end if begin is None else begin)


def encode_finished(text: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens the harness's own `hf` model would read; a text that begins itself is left."""
    begun = text.startswith(str(tokenizer.decode([first_token(tokenizer)])))
    return list(tokenizer.encode(text, add_special_tokens=not begun))


def reason_against(name: str) -> str:
    """Why a method cannot work on finished text; empty if it can."""
    needs = method_class(name).needs
    if needs.own_prompt:
        return (
            "chooses what stands in the prompt, which the harness does itself (--num_fewshot)"
        )
    if needs.second_prompt:
        return (
            "reads a second prompt beside the question's, and the harness gives finished text"
        )
    if needs.question:
        return "goes by the question, and the harness gives finished text"
    return ""


def check_method(name: str, *, has_space: bool) -> None:
    """Refuse a method that cannot read the harness's text as it is."""
    if reason := reason_against(name):
        able = ", ".join(other for other in built_in_names() if not reason_against(other))
        raise SettingError(
            f"{name} {reason}; through lm-eval there are {able}, "
            "and `trueline eval` runs every method"
        )
    if method_class(name).needs.space and not has_space:
        raise SettingError(f"{name} needs a space; add space=FOLDER to --model_args")


def fit_context(context: list[int], after: list[int], lm: Engine) -> list[int]:
    """A context cut on the left so that it can be read with its continuation."""
    if not after:
        raise SettingError("a continuation is empty, or one token with the end of its context")
    if lm.limit is None:
        return context
    room = lm.limit + 1 - len(after)  # the last token of a continuation is not read
    if room < 1:
        raise SettingError(
            f"a continuation has {len(after)} tokens, {lm.id} reads {lm.limit} in all"
        )
    return context[-room:]
