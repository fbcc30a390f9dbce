"""Questions, messages or tokens -> the tokens a model reads; and the question in such tokens.

Control tokens come from the chat template and from the author of a prompt. All that is put
into a prompt is text: a control token that is spelled in a question is tokenized as text.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from os.path import commonprefix
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Protocol
from weakref import WeakKeyDictionary

from trueline.errors import SettingError
from trueline.text import has_half_character, shown

Layout = Literal["lines", "one-line"]  # whether `A:` stands on a line of its own
LAYOUTS: tuple[Layout, ...] = ("lines", "one-line")
QUESTION = "Answer the following question with one or two sentences.\nQ: {question}\nA:"
ROLES = ("system", "user", "assistant")


class Tokenizer(Protocol):
    """What prompts need of a tokenizer; those of transformers have it."""

    chat_template: Any  # None: there is none
    eos_token_id: Any
    bos_token_id: Any

    @property
    def added_tokens_decoder(self) -> Any: ...  # by id; some of them are control tokens
    def __len__(self) -> int: ...
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, token_ids: Any, **options: Any) -> Any: ...
    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...


# Renders what a model reads; every text that is put into it goes through the argument.
Render = Callable[[Callable[[str], str]], str]
_SPLIT, _HOLE = "\ufdd0", "\ufdd1"  # stand for no character
_controls: WeakKeyDictionary[Any, tuple[int, re.Pattern[str]]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A template with `{question}`, put into the tokenizer's chat template if it has one."""

    template: str = QUESTION
    system: str | None = None  # a system message; in a plain prompt, a line before the template
    chat: bool | None = None  # None: if the tokenizer has a chat template; False: never

    def __post_init__(self) -> None:
        if "{question}" not in self.template:
            raise SettingError(
                f"a prompt needs {{question}} where the question goes, got {self.template!r}"
            )

    @property
    def hash(self) -> str:
        """The first digits of a hash of this prompt, stored with every space."""
        return _hash(json.dumps(asdict(self), sort_keys=True, ensure_ascii=False))[:16]

    def render(self, question: str, tokenizer: Tokenizer) -> str:
        """The whole text the model reads before it answers."""
        return chat_turn(self, question).render(str, tokenizer)

    def encode(self, question: str, tokenizer: Tokenizer) -> list[int]:
        """The token ids of the prompt with a question."""
        return chat_turn(self, question).encode(tokenizer)

    def encode_answer(self, question: str, answer: str, tokenizer: Tokenizer) -> list[int]:
        """The token ids that follow the prompt when the model gives this answer."""
        return chat_turn(self, question).encode_answer(answer, tokenizer)

    def fill(self, question: str) -> str:
        """The template with a question in it."""
        return self.template.replace("{question}", question.strip())

    def is_chat(self, tokenizer: Tokenizer) -> bool:
        """Whether it goes through the tokenizer's chat template."""
        if self.chat and not tokenizer.chat_template:
            raise SettingError(
                "the prompt needs a chat template, this tokenizer has none; leave chat=None"
            )
        return bool(tokenizer.chat_template) if self.chat is None else self.chat


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of one kind of task, for every method that needs one of its own."""

    base: Prompt
    bare: Prompt  # CAD contrasts with it: the question without the instruction
    noise: str  # instructive decoding contrasts with the base prompt after this line
    demonstration: str  # the form of KATE's examples, before the base prompt


@cache
def prompt_sets(layout: Layout = "lines") -> dict[str, PromptSet]:
    """The paper's prompts by task: `question`, `dialogue` and `summary`.

    In the layout `one-line` question and answer share a line in every prompt, as the paper
    prints them; in `lines` only in the bare one.
    """
    text = Path(__file__).with_name("prompts.toml").read_text("utf-8")
    return {
        task: PromptSet(
            Prompt(given["base" if layout == "lines" else "one_line"]),
            Prompt(given["bare"]),
            given["noise"],
            given["demonstration"],
        )
        for task, given in tomllib.loads(text).items()
    }


def prompts_with(base: Prompt) -> PromptSet:
    """The set a base prompt belongs to; any other prompt takes the rest from `question`."""
    sets = [one for layout in LAYOUTS for one in prompt_sets(layout).values()]
    own = (one for one in sets if one.base.template == base.template)
    given = next(own, prompt_sets()["question"])
    return replace(given, base=base, bare=replace(base, template=given.bare.template))


def check_text(text: object, what: str) -> None:
    """Refuse anything but text that a tokenizer can read."""
    if not isinstance(text, str):
        raise SettingError(f"{what} must be text, got {shown(text)}")
    if has_half_character(text):
        raise SettingError(f"{what} is not valid Unicode: {text[:60]!r}")


def check_question(text: object, what: str = "the question") -> None:
    """Refuse anything but text that is more than spaces."""
    check_text(text, what)
    if not str(text).strip():
        raise SettingError(f"{what} is empty; write one")


def encode_plain(text: str, tokenizer: Tokenizer, *, special: bool = False) -> list[int]:
    """The tokens of a text by itself; with `special` those that begin or end a text too."""
    return _encode_pieces(_pieces(lambda put: put(text), tokenizer), tokenizer, special=special)


def _pieces(render: Render, tokenizer: Tokenizer) -> list[str]:
    """A rendered text, split inside every control token that was put into it.

    No piece holds such a token whole, so that the pieces, encoded one after the other, hold it
    as ordinary text, and the control tokens of the rest as what they are.
    """
    controls = _control_tokens(tokenizer)
    spelled = []

    def look(text: str) -> str:
        spelled.extend(controls.findall(text))
        return text

    whole = render(look)
    if not spelled:
        return [whole]
    used = {*whole}
    signs = map(chr, range(ord(_SPLIT), sys.maxunicode))
    mark = next(sign for sign in signs if sign not in used)  # by sets: texts may be long
    first = re.compile(f"(?s)(?={controls.pattern}).")  # of every token, overlapping or not
    return render(lambda text: first.sub(lambda one: one[0] + mark, text)).split(mark)


def _encode_pieces(pieces: Sequence[str], tokenizer: Tokenizer, *, special: bool) -> list[int]:
    first, *others = pieces
    tokens = list(tokenizer.encode(first, add_special_tokens=special))
    if not others:
        return tokens
    plain = tokenizer.encode(first, add_special_tokens=False)
    starts = range(len(tokens) - len(plain) + 1)
    start = next((at for at in starts if tokens[at : at + len(plain)] == plain), 0)
    end = start + len(plain)  # then come the tokens that end a text
    known = {piece: encode_onward(piece, tokenizer) for piece in {*others}}
    middle = [token for piece in others for token in known[piece]]
    return tokens[:end] + middle + tokens[end:]


def encode_onward(piece: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a text after another; some tokenizers put a space before a first one."""
    line = list(tokenizer.encode("\n", add_special_tokens=False))
    tokens = list(tokenizer.encode(f"\n{piece}", add_special_tokens=False))
    if tokens[: len(line)] == line:
        return tokens[len(line) :]
    return list(tokenizer.encode(piece, add_special_tokens=False))


def _control_tokens(tokenizer: Any) -> re.Pattern[str]:
    """A pattern of the control tokens, made anew when the tokenizer has grown."""
    size = len(tokenizer)
    known = _controls.get(tokenizer)
    if known is None or known[0] != size:
        added = tokenizer.added_tokens_decoder.values()
        names = [token.content for token in added if token.special and len(token.content) > 1]
        names.sort(key=len, reverse=True)  # of two that begin alike, the longer one
        pattern = f"(?:{'|'.join(map(re.escape, names))})" if names else "(?!)"
        known = _controls[tokenizer] = (size, re.compile(pattern))
    return known[1]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _apply_chat_template(tokenizer: Tokenizer, messages: Sequence[tuple[str, str]]) -> str:
    """The messages, (role, content), as one text, up to where the answer begins."""
    named = [{"role": role, "content": content} for role, content in messages]
    options = {"tokenize": False, "add_generation_prompt": True}
    try:
        return str(tokenizer.apply_chat_template(named, **options))
    except Exception as error:  # a template is a small program, which may raise anything
        raise SettingError(
            f"the model's chat template refuses the prompt ({str(error)[:300]}); "
            "a system line can stand at the head of the template instead"
        ) from error


@dataclass(frozen=True, slots=True)
class Conversation:
    """Chat messages, rendered by the tokenizer's chat template; the last is the user's.

    A tokenizer without a template gets plain text: each user message, then its answer.
    """

    messages: tuple[tuple[str, str], ...]  # (role, content)
    prompt: Prompt | None = None  # its system message comes first, user messages fill it
    before: str = ""  # comes before the last user message
    question_text: str | None = None  # if it is not the whole last user message

    def __post_init__(self) -> None:
        if not self.messages or self.messages[-1][0] != "user":
            raise SettingError(
                "the last message must be the user's, with the question; got "
                + (f"one of {self.messages[-1][0]!r}" if self.messages else "no message")
            )

    @property
    def question(self) -> str:
        """The last user message, or what was given as the question of it."""
        return self.messages[-1][1] if self.question_text is None else self.question_text

    @property
    def hash(self) -> str:
        """A hash of everything but the last user message."""
        if self.prompt and len(self.messages) == 1:
            return self.prompt.hash + (f"-{_hash(self.before)[:8]}" if self.before else "")
        *earlier, (_, last) = self._written(str)
        head, _, tail = last.partition(self.messages[-1][1])
        is_plain = self.prompt is not None and self.prompt.chat is False
        content = json.dumps([earlier, head, tail, is_plain], ensure_ascii=False)
        return f"chat-{_hash(content)[:16]}"

    def preceded_by(self, text: str) -> Conversation:
        """The same with a text before the question."""
        return replace(self, before=text + self.before)

    def bare(self, template: str) -> Conversation:
        """The question alone, in this template if it is in one at all."""
        if len(self.messages) == 1:
            if self.prompt is None:
                raise SettingError(
                    "a single message has no context to be contrasted with; ask it as a "
                    "question, or put a system message or earlier turns before it"
                )
            return replace(self, prompt=replace(self.prompt, template=template), before="")
        prompt = self.prompt and replace(self.prompt, system=None)
        return replace(self, messages=self.messages[-1:], prompt=prompt)

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """The token ids up to where the answer begins."""
        pieces = _pieces(lambda put: self.render(put, tokenizer), tokenizer)
        return _encode_pieces(pieces, tokenizer, special=not self._is_chat(tokenizer))

    def encode_answer(self, answer: str, tokenizer: Tokenizer) -> list[int]:
        """The token ids of an answer after it, tokenized as one text with it.

        If that would merge the last token of the text with the answer, the answer is tokenized
        alone, as the model generates it.
        """
        is_chat = self._is_chat(tokenizer)
        prompt = _pieces(lambda put: self.render(put, tokenizer), tokenizer)
        space = "" if prompt[-1][-1:].isspace() or is_chat else " "
        first, *others = _pieces(lambda put: put(space + answer.strip()), tokenizer)
        both = [*prompt[:-1], prompt[-1] + first, *others]
        prompt_ids = _encode_pieces(prompt, tokenizer, special=not is_chat)
        ids = _encode_pieces(both, tokenizer, special=not is_chat)
        if ids[: len(prompt_ids)] == prompt_ids:
            return ids[len(prompt_ids) :]
        return _encode_pieces([first, *others], tokenizer, special=False)

    def _is_chat(self, tokenizer: Tokenizer) -> bool:
        return (self.prompt or Prompt()).is_chat(tokenizer)

    def _written(self, put: Callable[[str], str]) -> list[tuple[str, str]]:
        """The messages as the model reads them: user messages in the prompt."""
        prompt = self.prompt
        system = [("system", prompt.system)] if prompt and prompt.system else []
        *written, (role, last) = [
            (role, prompt.fill(put(text)) if prompt and role == "user" else put(text))
            for role, text in self.messages
        ]
        return [*system, *written, (role, put(self.before) + last)]

    def render(self, put: Callable[[str], str], tokenizer: Tokenizer) -> str:
        """The text the model reads; all that is put into it goes through `put`."""
        messages = self._written(put)
        if self._is_chat(tokenizer):
            return _apply_chat_template(tokenizer, messages)
        text = ""
        for role, content in messages:
            if role == "assistant":
                text += f" {content}\n\n"
            else:  # messages of other roles in a row need a line break between them
                text += ("\n" if text and not text.endswith("\n") else "") + content
        return text


@dataclass(frozen=True, slots=True)
class TokenContext:
    """Tokens as they are; no prompt is known, so nothing can be put before a question."""

    tokens: tuple[int, ...]
    question: str | None = None
    hash: ClassVar[str] = "tokens"

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        return list(self.tokens)

    def encode_answer(self, answer: str, tokenizer: Tokenizer) -> list[int]:
        return encode_plain(answer, tokenizer)

    def preceded_by(self, text: str) -> NoReturn:
        raise SettingError("only tokens were given; give a question or messages")

    bare = preceded_by


ModelInput = Conversation | TokenContext


def read_messages(messages: Sequence[Mapping[str, str]]) -> Conversation:
    """A conversation from messages as every chat API has them; bad ones are refused."""
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise SettingError(
            'messages must be a list such as [{"role": "user", "content": "..."}], '
            f"got {shown(messages)}"
        )
    read = []
    for number, message in enumerate(messages, 1):
        is_known = isinstance(message, Mapping) and message.get("role") in ROLES
        if not is_known or "content" not in message:
            raise SettingError(
                f"message {number} needs a content and a role, one of {', '.join(ROLES)}; "
                f"got {shown(message)}"
            )
        check_text(message["content"], f"the content of message {number}")
        read.append((message["role"], message["content"]))
    return Conversation(tuple(read))


def chat_turn(
    prompt: Prompt, question: str, earlier: Sequence[tuple[str, str]] = ()
) -> Conversation:
    """A question in a prompt, after earlier questions and their answers."""
    turns = [turn for q, answer in earlier for turn in (("user", q), ("assistant", answer))]
    return Conversation((*turns, ("user", question)), prompt)


def find_question(
    prompt: Prompt, tokenizer: Tokenizer, tokens: Sequence[int]
) -> tuple[str, int] | None:
    """The question of the last user turn, or of the plain prompt; where its answer begins."""

    def decode(count: int) -> str:
        ids = list(tokens[:count])
        return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    text = decode(len(tokens))
    if tokenizer.chat_template and prompt.chat is not False:
        user = ("user", _HOLE)
        first, _, tail = _apply_chat_template(tokenizer, [user]).partition(_HOLE)
        turns = _apply_chat_template(tokenizer, [user, ("assistant", "."), user])
        heads = first[::-1], turns.rpartition(_HOLE)[0][::-1]
        head = commonprefix(heads)[::-1]  # what is right before any turn  # noqa: RUF071
    else:
        head, _, tail = prompt.render(_HOLE, tokenizer).partition(_HOLE)
    begin = text.rfind(head) if head else 0
    end = text.find(tail, begin + len(head)) if begin >= 0 and tail else -1
    if begin < 0 or end < 0:
        return None
    turn = text[begin + len(head) : end]
    before, _, after = prompt.fill(_HOLE).partition(_HOLE)
    if turn.startswith(before) and turn.endswith(after):
        turn = turn[len(before) : len(turn) - len(after)]
    if not turn.strip():
        return None
    start = bisect_left(range(len(tokens)), end + len(tail), key=lambda n: len(decode(n)))
    return turn.strip(), start
