"""A finished text in, its tokens and a method to read them with out: no prompt around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trueline.errors import SettingError
from trueline.prompts import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from trueline.decoders.base import Decoder
    from trueline.engines.transformers.language import LanguageModel
    from trueline.space.space import GroundingSpace

Pair = tuple[list[int], list[int]]  # the tokens of a context, and of what continues it

_NEEDS_SPACE = {"greedy": False, "dola": False, "rad": True, "knn-lm": True}
_REFUSED = {
    "cad": "reads the bare question beside the prompt, and the harness gives finished text",
    "id": "reads a noisy prompt beside the prompt, and the harness gives finished text",
    "kate": "chooses what stands in the prompt, which the harness does itself (--num_fewshot)",
}


@dataclass(frozen=True, slots=True)
class Verbatim(Prompt):
    """No prompt at all: the text as the harness wrote it, in the harness's own tokens."""

    template: str = "{question}"
    chat: bool | None = False
    keep: int | None = None  # how many tokens are read, the last ones; None: all of them

    def render(  # noqa: D102
        self, question: str, tokenizer: PreTrainedTokenizerBase, *, before: str = ""
    ) -> str:
        return before + question

    def encode(  # noqa: D102
        self, question: str, tokenizer: PreTrainedTokenizerBase, *, before: str = ""
    ) -> list[int]:
        tokens = encode_text(before + question, tokenizer) or [first_token(tokenizer)]
        return tokens if self.keep is None else tokens[-self.keep :]


def first_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """What an empty context is read as: the token that begins a text, or else ends one."""
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    if begin is None and end is None:
        raise SettingError("the tokenizer names no token that begins or ends a text")
    return int(end if begin is None else begin)


def encode_text(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens the harness's own `hf` model would read; a text that begins itself is left."""
    begun = text.startswith(str(tokenizer.decode([first_token(tokenizer)])))
    options = {"add_special_tokens": False} if begun else {}
    return list(tokenizer.encode(text, **options))


def method_on_text(
    name: str, space: GroundingSpace | None, settings: Mapping[str, object], prompt: Prompt
) -> Decoder:
    """A method that is asked with this prompt, whatever prompt its space was built with."""
    from trueline.decoders import check_settings, make_method

    check_settings(name, settings)
    if name not in _NEEDS_SPACE:
        reason = _REFUSED.get(name, "is not known to work on finished text")
        raise SettingError(
            f"{name} {reason}; through lm-eval there are {', '.join(_NEEDS_SPACE)}, "
            "and `trueline eval` runs every method"
        )
    if space is not None:
        asked = replace(space, recipe=replace(space.recipe, prompt=prompt))
        return make_method(name, space=asked, settings=settings)
    if _NEEDS_SPACE[name]:
        raise SettingError(f"{name} needs a space; add space=FOLDER to --model_args")
    return make_method(name, prompt=prompt, settings=settings)


def fitted(context: list[int], after: list[int], lm: LanguageModel) -> Pair:
    """A context cut on the left so that it can be read with its continuation."""
    if not after:
        raise SettingError("a continuation is empty, or one token with the end of its context")
    room = (
        len(context) if lm.limit is None else lm.limit + 1 - len(after)
    )  # the last is not read
    if room < 1:
        raise SettingError(
            f"a continuation has {len(after)} tokens, {lm.id} reads {lm.limit} in all"
        )
    return context[-room:], after
