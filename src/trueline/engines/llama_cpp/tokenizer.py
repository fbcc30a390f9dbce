"""Text in, tokens out, and back: the tokenizer that a GGUF file describes, run by llama.cpp."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trueline.engines.llama_cpp.library import Weights
from trueline.errors import ModelError, SettingError


class _Generation(Extension):
    """`generation` marks what the assistant says, for training; it stands for its content."""

    tags = {"generation"}  # noqa: RUF012  # as jinja has it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """What stands inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, str]],
    add_generation_prompt: bool,
    special: Mapping[str, str],
) -> str:
    """The messages as one text; `special` names the tokens that begin and end one."""
    return _compiled(template).render(
        messages=messages, add_generation_prompt=add_generation_prompt, **special
    )


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise SettingError(f"the model's chat template cannot be read ({error})") from error


def _json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise SettingError(message)


_KINDS = {1: "SentencePiece", 2: "BPE"}  # the tokenizers whose texts we can put together
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1 << 0, 1 << 3, 1 << 4, 1 << 5  # llama_token_attr
_NORMAL_TYPE, _BYTE_TYPE, _UNUSED_TYPE = 1, 6, 5  # token types of a GGUF file
_TYPES = "tokenizer.ggml.token_type"


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token beside those of the model of words."""

    content: str
    special: bool  # whether it is no part of a text


class GgufTokenizer:
    """What prompts need of a tokenizer, and the texts of tokens."""

    def __init__(self, weights: Weights, label: str) -> None:
        self._weights = weights
        call, vocab = weights.library.call, weights.vocab
        kind = int(call("llama_vocab_type", vocab))
        if kind not in _KINDS:
            raise ModelError(
                f"the tokenizer of {label} is of a kind that trueline does not read (number "
                f"{kind} of llama.cpp); those of kind {' and '.join(_KINDS.values())} work"
            )
        settings = weights.header.settings
        self.chat_template: str | None = _text(settings.get("tokenizer.chat_template"))
        self.bos_token_id = _known(call("llama_vocab_bos", vocab))
        self.eos_token_id = _known(call("llama_vocab_eos", vocab))
        self._is_spaced = kind == 1 and bool(
            settings.get("tokenizer.ggml.add_space_prefix", True)
        )
        self._bytes: dict[int, bytes] = {}  # of the tokens that were read so far
        self._pieces: dict[int, bytes] = {}  # the same with the names of special ones
        self._falls_back = kind == 1  # a character it does not know is read byte by byte

    def __len__(self) -> int:
        return self._weights.vocabulary

    @cached_property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """The tokens beside those of the model of words, by id."""
        call, vocab = self._weights.library.call, self._weights.vocab
        found = {}
        for token in self._unusual:
            attribute = int(call("llama_vocab_get_attr", vocab, token))
            if attribute & (_UNKNOWN | _CONTROL | _USER_DEFINED):
                content = call("llama_vocab_get_text", vocab, token).decode("utf-8", "replace")
                found[token] = AddedToken(content, not attribute & _USER_DEFINED)
        return found

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end an answer, by the file's own account and by their names."""
        call, vocab = self._weights.library.call, self._weights.vocab
        ends = (self.eos_token_id, _known(call("llama_vocab_eot", vocab)))
        named = [token for token in self._unusual if call("llama_vocab_is_eog", vocab, token)]
        return frozenset([*(token for token in ends if token is not None), *named])

    @cached_property
    def _unusual(self) -> list[int]:
        """The tokens that the file calls neither a normal one, nor a byte, nor unused."""
        header = self._weights.header
        if _TYPES not in header.arrays:
            return list(range(len(self)))
        kind, start, length = header.arrays[_TYPES]
        with self._weights.file.open("rb") as file:
            file.seek(start)
            types = memoryview(file.read(4 * length)).cast("i" if kind == 5 else "I")
        usual = (_NORMAL_TYPE, _BYTE_TYPE, _UNUSED_TYPE)
        return [token for token, own in enumerate(types[: len(self)]) if own not in usual]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text; the names of special tokens in it are these tokens."""
        data = text.encode()
        room = len(data) + 8  # a token is a byte at least, and a few may begin or end a text
        found = (ctypes.c_int32 * room)()
        count = self._weights.library.call(
            "llama_tokenize",
            self._weights.vocab,
            data,
            len(data),
            found,
            room,
            add_special_tokens,
            True,
        )
        assert count >= 0, "a text has more tokens than bytes"
        return found[:count]

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = False, **_: Any
    ) -> str:
        """The text of some token ids."""
        known = self._bytes if skip_special_tokens else self._pieces
        parts = [
            known[token] if token in known else self._read(token, not skip_special_tokens)
            for token in token_ids
        ]
        text = self._joined(token_ids, parts) if self._falls_back else _decoded(parts)
        return text[1:] if self._is_spaced and text.startswith(" ") else text

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, add_generation_prompt: bool, **_: Any
    ) -> str:
        """The messages of a conversation as one text."""
        names = {"bos_token": self.bos_token_id, "eos_token": self.eos_token_id}
        special = {
            name: "" if token is None else self.decode([token]) for name, token in names.items()
        }
        return render_chat(
            self.chat_template or "", conversation, add_generation_prompt, special
        )

    def is_byte(self, token: int) -> bool:
        """Whether a token is one byte of a character."""
        attribute = self._weights.library.call(
            "llama_vocab_get_attr", self._weights.vocab, token
        )
        return bool(attribute & _BYTE)

    def _joined(self, token_ids: Sequence[int], parts: list[bytes]) -> str:
        """The text of tokens of which some are bytes; bytes that are no character show each."""
        texts, run = [], b""
        for token, part in zip(token_ids, parts, strict=True):
            if self.is_byte(token):
                run += part
                continue
            texts += [_characters(run), part.decode("utf-8", "replace")]
            run = b""
        return "".join([*texts, _characters(run)])

    def _read(self, token: int, special: bool, room: int = 64) -> bytes:
        """The bytes of a token, kept for the next time."""
        found = (ctypes.c_char * room)()
        length = self._weights.library.call(
            "llama_token_to_piece", self._weights.vocab, token, found, room, 0, special
        )
        if length < 0:  # it takes so many bytes
            return self._read(token, special, -length)
        known = self._pieces if special else self._bytes
        known[token] = found.raw[:length]
        return known[token]


def _decoded(parts: list[bytes]) -> str:
    return b"".join(parts).decode("utf-8", "replace")


def _characters(run: bytes) -> str:
    try:
        return run.decode("utf-8")
    except UnicodeDecodeError:
        return "\ufffd" * len(run)


def _known(token: int) -> int | None:
    return None if token < 0 else int(token)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
