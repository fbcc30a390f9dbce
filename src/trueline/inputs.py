"""A question, messages or tokens in; what the model reads before it answers out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from trueline.errors import SettingError
from trueline.prompts import (
    Prompt,
    Render,
    Tokenizer,
    apply_chat_template,
    check_text,
    encode_answer_behind,
    encode_plain,
    encode_rendered,
    has_chat_template,
    text_hash,
)
from trueline.visible import shown

ROLES = ("system", "user", "assistant")
_NO_PROMPT = "only tokens were given; give a question or messages"


class ModelInput(Protocol):
    """What a model is asked with: a filled prompt, a conversation, or tokens as they are."""

    @property
    def question(self) -> str | None:
        """The text of the question, if there is one."""
        ...

    @property
    def hash(self) -> str:
        """A short name of everything but the question."""
        ...

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """The token ids the model reads before it answers."""
        ...

    def encode_answer(self, answer: str, tokenizer: Tokenizer) -> list[int]:
        """The token ids of an answer behind it."""
        ...

    def preceded_by(self, text: str) -> ModelInput:
        """The same with a text ahead of the question's own."""
        ...

    def bare(self, template: str) -> ModelInput:
        """The question alone: a prompt in this template, a chat its last message."""
        ...


@dataclass(frozen=True, slots=True)
class FilledPrompt:
    """A prompt with a question in it, and what stands ahead of it."""

    prompt: Prompt
    question: str
    before: str = ""

    @property
    def hash(self) -> str:
        """A short name of the prompt and what stands ahead of it, whatever the question."""
        return (
            f"{self.prompt.hash}-{text_hash(self.before)[:8]}"
            if self.before
            else self.prompt.hash
        )

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """The token ids of the prompt."""
        return self.prompt.encode(self.question, tokenizer, before=self.before)

    def encode_answer(self, answer: str, tokenizer: Tokenizer) -> list[int]:
        """The token ids of an answer behind it."""
        return self.prompt.encode_answer(self.question, answer, tokenizer, before=self.before)

    def preceded_by(self, text: str) -> FilledPrompt:
        """The same prompt behind a text."""
        return replace(self, before=text + self.before)

    def bare(self, template: str) -> FilledPrompt:
        """The question in another template."""
        return FilledPrompt(replace(self.prompt, template=template), self.question)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Chat messages, rendered by the tokenizer's chat template; the last is the user's.

    A tokenizer without a template gets plain text: what the user says, then the answer to it.
    """

    messages: tuple[tuple[str, str], ...]  # (role, content)
    prompt: Prompt | None = None  # its system comes first, and what the user says stands in it
    before: str = ""  # stands ahead of what the user said last
    asked: str | None = None  # the question, where it is not all that the user said last

    def __post_init__(self) -> None:
        if not self.messages or self.messages[-1][0] != "user":
            raise SettingError(
                "the last message must be the user's, with the question; got "
                + (f"one of {self.messages[-1][0]!r}" if self.messages else "no message")
            )

    @property
    def question(self) -> str:
        """What the user said last, unless another text is named as the question."""
        return self.messages[-1][1] if self.asked is None else self.asked

    @property
    def hash(self) -> str:
        """A short name of all that is read but what the user said last."""
        *earlier, (_, last) = self._written(str)
        ahead, _, behind = last.partition(self.messages[-1][1])
        content = [earlier, ahead, behind, self._is_plain]
        return f"chat-{text_hash(json.dumps(content, ensure_ascii=False))[:16]}"

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """The token ids of the conversation, up to where the answer begins."""
        is_chat = self._is_chat(tokenizer)
        return encode_rendered(self._rendering(tokenizer), tokenizer, is_chat=is_chat)

    def encode_answer(self, answer: str, tokenizer: Tokenizer) -> list[int]:
        """The token ids of an answer behind it."""
        is_chat = self._is_chat(tokenizer)
        render = self._rendering(tokenizer)
        return encode_answer_behind(render, answer, tokenizer, is_chat=is_chat)

    def preceded_by(self, text: str) -> Conversation:
        """The same conversation with a text ahead of what the user said last."""
        return replace(self, before=text + self.before)

    def bare(self, template: str) -> Conversation:
        """What the user said last, and nothing before it."""
        if len(self.messages) == 1:
            raise SettingError(
                "a single message has no context to be contrasted with; ask it as a question, "
                "or put a system message or earlier turns before it"
            )
        prompt = self.prompt and replace(self.prompt, system=None)
        return replace(self, messages=self.messages[-1:], prompt=prompt)

    @property
    def _is_plain(self) -> bool:
        """Whether it is plain text also where the tokenizer has a template."""
        return self.prompt is not None and self.prompt.chat is False

    def _is_chat(self, tokenizer: Tokenizer) -> bool:
        return has_chat_template(tokenizer) and not self._is_plain

    def _written(self, put: Callable[[str], str]) -> list[tuple[str, str]]:
        """The messages as they are read: a prompt as it is, all else as `put` gives it."""
        prompt = self.prompt
        system = [] if prompt is None or not prompt.system else [("system", prompt.system)]
        written = [
            (role, put(text) if prompt is None or role != "user" else prompt.fill(put(text)))
            for role, text in self.messages
        ]
        role, last = written.pop()
        return [*system, *written, (role, put(self.before) + last)]

    def _rendering(self, tokenizer: Tokenizer) -> Render:
        return lambda put: self._render(self._written(put), tokenizer)

    def _render(self, messages: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> str:
        if self._is_chat(tokenizer):
            named = [{"role": role, "content": content} for role, content in messages]
            return apply_chat_template(tokenizer, named)
        text = ""
        for role, content in messages:
            if role == "assistant":
                text += f" {content}\n\n"
            else:  # what follows no answer begins on a line of its own
                text += ("\n" if text and not text.endswith("\n") else "") + content
        return text


@dataclass(frozen=True, slots=True)
class TokenContext:
    """Tokens as they are; no prompt is known, so nothing can be put ahead of a question."""

    tokens: tuple[int, ...]
    question: str | None = None
    hash: ClassVar[str] = "tokens"

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """The tokens."""
        return list(self.tokens)

    def encode_answer(self, answer: str, tokenizer: Tokenizer) -> list[int]:
        """The token ids of an answer by itself."""
        return encode_plain(answer, tokenizer)

    def preceded_by(self, text: str) -> ModelInput:
        """Refused: where the question begins is not known."""
        raise SettingError(_NO_PROMPT)

    def bare(self, template: str) -> ModelInput:
        """Refused: which part is the question is not known."""
        raise SettingError(_NO_PROMPT)


def read_messages(messages: Sequence[Mapping[str, str]]) -> Conversation:
    """A conversation from messages as every chat API has them, checked."""
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise SettingError(
            'messages must be a list such as [{"role": "user", "content": "..."}], '
            f"got {shown(messages)}"
        )
    read = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise SettingError(f"message {number} needs a role and a content, got {message!r}")
        if message["role"] not in ROLES:
            raise SettingError(
                f"message {number} has the role {message['role']!r}; "
                f"there are {', '.join(ROLES)}"
            )
        check_text(message["content"], f"the content of message {number}")
        read.append((message["role"], message["content"]))
    return Conversation(tuple(read))


def chat_turn(
    prompt: Prompt, question: str, earlier: Sequence[tuple[str, str]]
) -> FilledPrompt | Conversation:
    """A question behind earlier ones and their answers; alone, it is just the filled prompt.

    Every question stands in the template, as the first one does.
    """
    if not earlier:
        return FilledPrompt(prompt, question)
    turns: list[tuple[str, str]] = []
    for asked, answer in earlier:
        turns += [("user", asked), ("assistant", answer)]
    return Conversation((*turns, ("user", question)), prompt)
