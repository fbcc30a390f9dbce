"""A question in, the tokens of its prompt out; the same object builds a space and asks.

Control tokens are those of the chat template, and what the author of a prompt writes into it.
What is put into a prompt is text: a control token that stands in a question is spelled out.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import takewhile
from typing import Any, ClassVar, Literal, Protocol
from weakref import WeakKeyDictionary

from trueline.errors import SettingError
from trueline.text import has_half_character, shown

Layout = Literal["lines", "one-line"]  # whether `A:` stands on a line of its own
LAYOUTS: tuple[Layout, ...] = ("lines", "one-line")
QUESTION = "Answer the following question with one or two sentences.\nQ: {question}\nA:"


class Tokenizer(Protocol):
    """What prompts need of a tokenizer; those of transformers have it."""

    chat_template: Any  # None: there is none
    eos_token_id: Any
    bos_token_id: Any

    @property
    def added_tokens_decoder(self) -> Any:
        """The tokens beside those of the model of words, by id; some of them are special."""
        ...

    def __len__(self) -> int:
        """How many tokens there are."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text."""
        ...

    def decode(self, token_ids: Any, **options: Any) -> Any:
        """The text of some token ids."""
        ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """The messages of a conversation as one text."""
        ...


# Writes a text that a model reads: every text which is no prompt goes through the argument.
Render = Callable[[Callable[[str], str]], str]
_SHOWN = 300  # characters of a template's own words that an error repeats
_MARK = "\ufdd0"  # stands for no character
_controls: WeakKeyDictionary[Any, tuple[int, re.Pattern[str]]] = WeakKeyDictionary()


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
        """The token ids of the prompt; control tokens in the question are text."""
        return encode_rendered(
            self._rendering(question, before, tokenizer),
            tokenizer,
            is_chat=self._is_chat(tokenizer),
        )

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
        return encode_answer_behind(
            self._rendering(question, before, tokenizer),
            answer,
            tokenizer,
            is_chat=self._is_chat(tokenizer),
        )

    def _rendering(self, question: str, before: str, tokenizer: Tokenizer) -> Render:
        return lambda put: self.render(put(question), tokenizer, before=put(before))

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
def prompt_sets(layout: Layout = "lines") -> dict[str, PromptSet]:
    """The paper's prompts by task: `question`, `dialogue` and `summary`.

    In the layout `one-line` question and answer share a line in every prompt, as the paper
    prints them; in `lines` only in the bare one.
    """
    text = (files("trueline") / "prompts.toml").read_text("utf-8")
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
    """The set a base prompt belongs to; one's own prompt takes the rest from `question`."""
    sets = prompt_sets()
    for known in [one for layout in LAYOUTS for one in prompt_sets(layout).values()]:
        if known.base.template == base.template:
            return replace(known, base=base, bare=replace(base, template=known.bare.template))
    bare = replace(base, template=sets["question"].bare.template)
    return replace(sets["question"], base=base, bare=bare)


def check_text(text: object, what: str) -> None:
    """Refuse what no tokenizer can read."""
    if not isinstance(text, str):
        raise SettingError(f"{what} must be text, got {shown(text)}")
    if has_half_character(text):
        raise SettingError(f"{what} is not valid Unicode: {text[:60]!r}")


def check_question(text: object, what: str = "the question") -> None:
    """Refuse what is no question: no text, half a character, or nothing but blanks."""
    check_text(text, what)
    if not str(text).strip():
        raise SettingError(f"{what} is empty; write one")


def has_chat_template(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer knows how a conversation is written."""
    return bool(tokenizer.chat_template)


def encode_rendered(render: Render, tokenizer: Tokenizer, *, is_chat: bool) -> list[int]:
    """The tokens of what a model reads, from the first one on."""
    # A chat template writes its own special tokens, the first one included.
    return _encode_pieces(_pieces(render, tokenizer), tokenizer, special=not is_chat)


def encode_plain(text: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a text by itself, without those that begin or end one."""
    return _encode_pieces(_pieces(lambda put: put(text), tokenizer), tokenizer, special=False)


def encode_answer_behind(
    render: Render, answer: str, tokenizer: Tokenizer, *, is_chat: bool
) -> list[int]:
    """The tokens of an answer behind a text, cut as one text with it where that is possible."""
    ahead = _pieces(render, tokenizer)
    space = "" if ahead[-1][-1:].isspace() or is_chat else " "
    first, *others = _pieces(lambda put: put(space + answer.strip()), tokenizer)
    behind = [*ahead[:-1], ahead[-1] + first, *others]
    context = _encode_pieces(ahead, tokenizer, special=not is_chat)
    whole = _encode_pieces(behind, tokenizer, special=not is_chat)
    if whole[: len(context)] == context:
        return whole[len(context) :]
    return _encode_pieces([first, *others], tokenizer, special=False)


def _pieces(render: Render, tokenizer: Tokenizer) -> list[str]:
    """A rendered text, cut inside every control token that was put into it.

    No piece holds such a token whole, so the pieces, encoded one behind the other, hold it as
    ordinary text, and the control tokens of the rest as what they are.
    """
    controls = _control_tokens(tokenizer)
    found = []

    def look(text: str) -> str:
        found.extend(controls.findall(text))
        return text

    whole = render(look)
    if not found:
        return [whole]
    mark = _MARK * (whole.count(_MARK) + 1)  # longer than any that stands in the texts
    return render(lambda text: _cut(text, controls, mark)).split(mark)


def _cut(text: str, controls: re.Pattern[str], mark: str) -> str:
    """A text with a mark behind the first sign of every control token, overlapping or not."""
    return re.sub(f"(?s)(?={controls.pattern}).", lambda found: found[0] + mark, text)


def _encode_pieces(pieces: Sequence[str], tokenizer: Tokenizer, *, special: bool) -> list[int]:
    first, *others = pieces
    tokens = list(tokenizer.encode(first, add_special_tokens=special))
    if not others:
        return tokens
    plain = tokenizer.encode(first, add_special_tokens=False)
    starts = range(len(tokens) - len(plain) + 1)
    start = next((at for at in starts if tokens[at : at + len(plain)] == plain), 0)
    end = start + len(plain)  # behind it stand the tokens that end a text
    middle = [token for piece in others for token in encode_onward(piece, tokenizer)]
    return tokens[:end] + middle + tokens[end:]


def encode_onward(piece: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a text behind another; some tokenizers put a space ahead of a first one."""
    line = list(tokenizer.encode("\n", add_special_tokens=False))
    tokens = list(tokenizer.encode(f"\n{piece}", add_special_tokens=False))
    if tokens[: len(line)] == line:
        return tokens[len(line) :]
    return list(tokenizer.encode(piece, add_special_tokens=False))


def _control_tokens(tokenizer: Any) -> re.Pattern[str]:
    """A pattern of the tokens a tokenizer calls special, made once as long as it keeps them."""
    size = len(tokenizer)
    known = _controls.get(tokenizer)
    if known is None or known[0] != size:
        added = tokenizer.added_tokens_decoder.values()
        names = [token.content for token in added if token.special and len(token.content) > 1]
        names.sort(key=len, reverse=True)  # the longest of several that begin alike
        known = (
            size,
            re.compile(f"(?:{'|'.join(map(re.escape, names))})" if names else "(?!)"),
        )  # or nothing
        _controls[tokenizer] = known
    return known[1]


def text_hash(text: str) -> str:
    """The SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def apply_chat_template(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> str:
    """The messages as one text, up to where the answer begins."""
    try:
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )
    except Exception as error:  # a template is a small program, which may raise anything
        raise SettingError(
            f"the model's chat template refuses the prompt ({str(error)[:_SHOWN]}); "
            "a system line can stand at the head of the template instead"
        ) from error


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


_MARK_questions = "\ufdd1"  # stands for no character


@dataclass(frozen=True, slots=True)
class FoundQuestion:
    """A question in the tokens of a row."""

    question: str
    start: int  # tokens before the answer


def find_question(
    prompt: Prompt, tokenizer: Tokenizer, tokens: Sequence[int]
) -> FoundQuestion | None:
    """The last user turn, or what a prompt's template leaves of the text; None: there is none.

    A user turn that is written in the prompt's template counts for the question in it.
    """
    text = _read(tokenizer, tokens)
    if has_chat_template(tokenizer) and prompt.chat is not False:
        head, tail = _around_turn(tokenizer)
    else:
        head, tail = _around(prompt.render(_MARK_questions, tokenizer))
    begin = text.rfind(head) if head else 0
    end = text.find(tail, begin + len(head)) if begin >= 0 and tail else -1
    if begin < 0 or end < 0:
        return None
    asked = text[begin + len(head) : end]
    before, behind = _around(prompt.fill(_MARK_questions))
    if asked.startswith(before) and asked.endswith(behind):
        asked = asked[len(before) : len(asked) - len(behind)]
    if not asked.strip():
        return None
    return FoundQuestion(asked.strip(), _tokens_before(tokenizer, tokens, end + len(tail)))


def _around_turn(tokenizer: Tokenizer) -> tuple[str, str]:
    """What a chat template writes right before a user turn, the first or not, and behind it."""
    asked = {"role": "user", "content": _MARK_questions}
    answered = {"role": "assistant", "content": "."}
    first, tail = _around(apply_chat_template(tokenizer, [asked]))
    later = apply_chat_template(tokenizer, [asked, answered, asked]).rpartition(
        _MARK_questions
    )[0]
    shared = takewhile(
        lambda signs: signs[0] == signs[1], zip(first[::-1], later[::-1], strict=False)
    )
    return "".join(sign for sign, _ in shared)[::-1], tail


def _around(text: str) -> tuple[str, str]:
    head, _, tail = text.partition(_MARK_questions)
    return head, tail


def _read(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))


def _tokens_before(tokenizer: Tokenizer, tokens: Sequence[int], characters: int) -> int:
    """How many tokens the first characters of a text are."""
    low, high = 0, len(tokens)
    while low < high:
        middle = (low + high) // 2
        if len(_read(tokenizer, tokens[:middle])) < characters:
            low = middle + 1
        else:
            high = middle
    return low
