"""A question in, the tokens of its prompt out; the same object builds a space and asks."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from trueline.errors import SettingError
from trueline.visible import shown

QUESTION = "Answer the following question with one or two sentences.\nQ: {question}\nA:"


class Tokenizer(Protocol):
    """What prompts need of a tokenizer; those of transformers have it."""

    chat_template: Any  # None: there is none
    eos_token_id: Any
    bos_token_id: Any

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text."""
        ...

    def decode(self, token_ids: Any, **options: Any) -> Any:
        """The text of some token ids."""
        ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """The messages of a conversation as one text."""
        ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """A template with `{question}`, put into the tokenizer's chat template if it has one."""

    template: str = QUESTION
    system: str | None = None  # a system message; in a plain prompt, a line before the template
    chat: bool | None = None  # None: where the tokenizer has a chat template; False: never

    def __post_init__(self) -> None:
        if "{question}" not in self.template:
            raise SettingError(
                f"a prompt needs {{question}} where the question goes, got {self.template!r}"
            )

    @property
    def hash(self) -> str:
        """A short name of exactly this prompt, kept with every space."""
        content = json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)
        return text_hash(content)[:16]

    def render(self, question: str, tokenizer: Tokenizer, *, before: str = "") -> str:
        """The whole text the model reads before it answers; `before` stands ahead of it."""
        text = before + self.fill(question)
        if not self._is_chat(tokenizer):
            return f"{self.system}\n{text}" if self.system else text
        messages = [{"role": "user", "content": text}]
        if self.system:
            messages.insert(0, {"role": "system", "content": self.system})
        return apply_chat_template(tokenizer, messages)

    def encode(self, question: str, tokenizer: Tokenizer, *, before: str = "") -> list[int]:
        """The token ids of the prompt."""
        text = self.render(question, tokenizer, before=before)
        return encode_text(text, tokenizer, is_chat=self._is_chat(tokenizer))

    def encode_answer(
        self,
        question: str,
        answer: str,
        tokenizer: Tokenizer,
        *,
        before: str = "",
    ) -> list[int]:
        """The token ids that follow the prompt when the model gives this answer.

        Prompt and answer are tokenised as one text. Where that would merge the last token of
        the prompt with the answer, the answer is tokenised alone: the model never sees it.
        """
        text = self.render(question, tokenizer, before=before)
        return encode_answer_behind(text, answer, tokenizer, is_chat=self._is_chat(tokenizer))

    def fill(self, question: str) -> str:
        """The template with a question in it."""
        return self.template.replace("{question}", question.strip())

    def _is_chat(self, tokenizer: Tokenizer) -> bool:
        if self.chat and not tokenizer.chat_template:
            raise SettingError(
                "the prompt asks for a chat template, this tokenizer has none; leave chat=None"
            )
        return has_chat_template(tokenizer) if self.chat is None else self.chat


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of one kind of task, for every method that needs one of its own."""

    base: Prompt
    bare: Prompt  # CAD contrasts with it: the question without the instruction
    noise: str  # instructive decoding contrasts with the base prompt behind this line
    demonstration: str  # KATE writes its examples so, ahead of the base prompt


@cache
def prompt_sets() -> dict[str, PromptSet]:
    """The paper's prompts by task: `question`, `dialogue` and `summary`."""
    text = (files("trueline") / "prompts.toml").read_text("utf-8")
    return {
        task: PromptSet(
            Prompt(given["base"]), Prompt(given["bare"]), given["noise"], given["demonstration"]
        )
        for task, given in tomllib.loads(text).items()
    }


def prompts_with(base: Prompt) -> PromptSet:
    """The set a base prompt belongs to; one's own prompt takes the rest from `question`."""
    sets = prompt_sets()
    for known in sets.values():
        if known.base.template == base.template:
            return replace(known, base=base, bare=replace(base, template=known.bare.template))
    bare = replace(base, template=sets["question"].bare.template)
    return replace(sets["question"], base=base, bare=bare)


def check_text(text: object, what: str) -> None:
    """Refuse what no tokenizer can read."""
    if not isinstance(text, str):
        raise SettingError(f"{what} must be text, got {shown(text)}")
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise SettingError(f"{what} is not valid Unicode: {text[:60]!r}")


def check_question(text: object, what: str = "the question") -> None:
    """Refuse what is no question: no text, half a character, or nothing but blanks."""
    check_text(text, what)
    if not str(text).strip():
        raise SettingError(f"{what} is empty; write one")


def has_chat_template(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer knows how a conversation is written."""
    return bool(tokenizer.chat_template)


def encode_text(text: str, tokenizer: Tokenizer, *, is_chat: bool) -> list[int]:
    """The tokens of what a model reads, from the first one on."""
    # A chat template writes its own special tokens, the first one included.
    return list(tokenizer.encode(text, add_special_tokens=not is_chat))


def encode_answer_behind(
    text: str, answer: str, tokenizer: Tokenizer, *, is_chat: bool
) -> list[int]:
    """The tokens of an answer behind a text, cut as one text with it where that is possible."""
    context = encode_text(text, tokenizer, is_chat=is_chat)
    space = "" if text[-1:].isspace() or is_chat else " "
    whole = encode_text(text + space + answer.strip(), tokenizer, is_chat=is_chat)
    if whole[: len(context)] == context:
        return whole[len(context) :]
    return list(tokenizer.encode(space + answer.strip(), add_special_tokens=False))


def text_hash(text: str) -> str:
    """The SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def apply_chat_template(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> str:
    """The messages as one text, up to where the answer begins."""
    from jinja2 import TemplateError

    try:
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )
    except (TemplateError, TypeError) as error:  # a template may add texts to what is none
        raise SettingError(
            f"the model's chat template refuses the prompt ({error}); "
            "a system line can stand at the head of the template instead"
        ) from error
