"""A question in, the tokens of its prompt out; the same object builds a space and asks."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from trueline.errors import SettingError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUESTION = "Answer the following question with one or two sentences.\nQ: {question}\nA:"


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
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def render(
        self, question: str, tokenizer: PreTrainedTokenizerBase, *, before: str = ""
    ) -> str:
        """The whole text the model reads before it answers; `before` stands ahead of it."""
        text = before + self.template.replace("{question}", question.strip())
        if not self._is_chat(tokenizer):
            return f"{self.system}\n{text}" if self.system else text
        messages = [{"role": "user", "content": text}]
        if self.system:
            messages.insert(0, {"role": "system", "content": self.system})
        return _apply_chat_template(tokenizer, messages)

    def encode(
        self, question: str, tokenizer: PreTrainedTokenizerBase, *, before: str = ""
    ) -> list[int]:
        """The token ids of the prompt."""
        return self._tokens(self.render(question, tokenizer, before=before), tokenizer)

    def encode_answer(
        self,
        question: str,
        answer: str,
        tokenizer: PreTrainedTokenizerBase,
        *,
        before: str = "",
    ) -> list[int]:
        """The token ids that follow the prompt when the model gives this answer.

        Prompt and answer are tokenised as one text. Where that would merge the last token of
        the prompt with the answer, the answer is tokenised alone: the model never sees it.
        """
        text = self.render(question, tokenizer, before=before)
        prompt = self._tokens(text, tokenizer)
        space = "" if text[-1:].isspace() or self._is_chat(tokenizer) else " "
        whole = self._tokens(text + space + answer.strip(), tokenizer)
        if whole[: len(prompt)] == prompt:
            return whole[len(prompt) :]
        return list(tokenizer.encode(space + answer.strip(), add_special_tokens=False))

    def _is_chat(self, tokenizer: PreTrainedTokenizerBase) -> bool:
        if self.chat and not tokenizer.chat_template:
            raise SettingError(
                "the prompt asks for a chat template, this tokenizer has none; leave chat=None"
            )
        return bool(tokenizer.chat_template) if self.chat is None else self.chat

    def _tokens(self, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        # A chat template writes its own special tokens, the first one included.
        special = not self._is_chat(tokenizer)
        return list(tokenizer.encode(text, add_special_tokens=special))


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt with a question in it, and what stands ahead of it."""

    prompt: Prompt
    question: str
    before: str = ""

    @property
    def hash(self) -> str:
        """A short name of the prompt and what stands ahead of it, whatever the question."""
        ahead = hashlib.sha256(self.before.encode()).hexdigest()[:8]
        return f"{self.prompt.hash}-{ahead}" if self.before else self.prompt.hash

    def encode(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """The token ids of the prompt."""
        return self.prompt.encode(self.question, tokenizer, before=self.before)

    def encode_answer(self, answer: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """The token ids of an answer behind it."""
        return self.prompt.encode_answer(self.question, answer, tokenizer, before=self.before)


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
        raise SettingError(f"{what} must be text, got {text!r}")
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise SettingError(f"{what} is not valid Unicode: {text[:60]!r}")


def _apply_chat_template(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]
) -> str:
    from jinja2 import TemplateError

    try:
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )
    except TemplateError as error:
        raise SettingError(
            f"the model's chat template refuses the prompt ({error}); "
            "a system line can stand at the head of the template instead"
        ) from error
