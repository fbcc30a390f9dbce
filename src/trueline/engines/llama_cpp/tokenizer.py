"""The tokenizer and the chat template of a GGUF file; llama.cpp splits the text."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trueline.errors import ModelError, SettingError

if TYPE_CHECKING:
    from trueline.engines.llama_cpp.model import Weights

_KINDS = {1: "SentencePiece", 2: "BPE"}  # the tokenizers whose texts we can put together
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1 << 0, 1 << 3, 1 << 4, 1 << 5  # llama_token_attr
_USUAL_TYPES = (1, 6, 5)  # token types of a GGUF file: normal, byte and unused
_TYPES = "tokenizer.ggml.token_type"


class _Generation(Extension):
    """The tag `generation`, which marks text to train on; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012  # as jinja has it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@cache
def compile_chat(template: str) -> Template:
    """A chat template with what transformers gives it."""

    def refuse(message: str) -> None:
        raise SettingError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise SettingError(f"the model's chat template cannot be read ({error})") from error


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token of the vocabulary that ordinary text does not have."""

    content: str
    special: bool  # whether it never stands for text


class GgufTokenizer:
    """What prompts need of a tokenizer."""

    def __init__(self, weights: Weights, label: str) -> None:
        self._weights, self._call = weights, weights.library.call
        kind = int(self._call("llama_vocab_type", weights.vocab))
        if kind not in _KINDS:
            raise ModelError(
                f"the tokenizer of {label} is of a kind that trueline does not read (number "
                f"{kind} of llama.cpp); those of kind {' and '.join(_KINDS.values())} work"
            )
        settings = weights.header.settings
        template = settings.get("tokenizer.chat_template")
        self.chat_template = template if isinstance(template, str) and template else None
        self.bos_token_id = self._token("bos")
        self.eos_token_id = self._token("eos")
        self._has_bytes = kind == 1  # unknown characters are read byte by byte
        self._is_spaced = kind == 1 and bool(
            settings.get("tokenizer.ggml.add_space_prefix", True)
        )
        self._known: dict[tuple[int, bool], bytes] = {}  # of the tokens read so far

    def __len__(self) -> int:
        return self._weights.vocabulary

    def _token(self, name: str) -> int | None:
        token = int(self._call(f"llama_vocab_{name}", self._weights.vocab))
        return None if token < 0 else token

    @cached_property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        added, vocab = {}, self._weights.vocab
        for token in self._unusual:
            attribute = int(self._call("llama_vocab_get_attr", vocab, token))
            if attribute & (_UNKNOWN | _CONTROL | _USER_DEFINED):
                text = self._call("llama_vocab_get_text", vocab, token)
                content = text.decode("utf-8", "replace")
                added[token] = AddedToken(content, not attribute & _USER_DEFINED)
        return added

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end an answer, by the file's settings and by their names."""
        is_end = partial(self._call, "llama_vocab_is_eog", self._weights.vocab)
        named = (self.eos_token_id, self._token("eot"))
        return frozenset(
            [*filter(is_end, self._unusual), *(id for id in named if id is not None)]
        )

    @cached_property
    def _unusual(self) -> list[int]:
        """The tokens that are not normal, a byte or unused according to the file."""
        header = self._weights.header
        if _TYPES not in header.arrays:
            return list(range(len(self)))
        _, start, length = header.arrays[_TYPES]
        types = np.fromfile(self._weights.file, np.int32, min(length, len(self)), offset=start)
        unusual: list[int] = np.flatnonzero(~np.isin(types, _USUAL_TYPES)).tolist()
        return unusual

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The names of special tokens in a text become these tokens."""
        data = text.encode()
        room = len(data) + 8  # a token is a byte at least, and a few may begin or end a text
        tokens, vocab = (ctypes.c_int32 * room)(), self._weights.vocab
        options = (add_special_tokens, True)
        count = self._call("llama_tokenize", vocab, data, len(data), tokens, room, *options)
        assert count >= 0, "a text has more tokens than bytes"
        return tokens[:count]

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = False, **_: Any
    ) -> str:
        parts = [self._read(token, not skip_special_tokens) for token in token_ids]
        if not self._has_bytes:
            return b"".join(parts).decode("utf-8", "replace")
        texts = []
        pairs = zip(token_ids, parts, strict=True)
        for are_bytes, run in groupby(pairs, lambda pair: self.is_byte(pair[0])):
            data = b"".join(part for _, part in run)
            try:
                texts.append(data.decode("utf-8"))
            except UnicodeDecodeError:  # a sign for each byte
                sign = "\ufffd" * len(data)
                texts.append(sign if are_bytes else data.decode("utf-8", "replace"))
        text = "".join(texts)
        return text[1:] if self._is_spaced and text.startswith(" ") else text

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, add_generation_prompt: bool, **_: Any
    ) -> str:
        tokens = {"bos_token": self.bos_token_id, "eos_token": self.eos_token_id}
        return compile_chat(self.chat_template or "").render(
            messages=conversation,
            add_generation_prompt=add_generation_prompt,
            **{name: "" if id is None else self.decode([id]) for name, id in tokens.items()},
        )

    def is_byte(self, token: int) -> bool:
        return bool(self._call("llama_vocab_get_attr", self._weights.vocab, token) & _BYTE)

    def _read(self, token: int, special: bool, room: int = 64) -> bytes:
        """The bytes of a token; those of a special one are its name, or none."""
        if (token, special) not in self._known:
            buffer, vocab = (ctypes.c_char * room)(), self._weights.vocab
            length = self._call("llama_token_to_piece", vocab, token, buffer, room, 0, special)
            if length < 0:  # it needs so many bytes
                return self._read(token, special, -length)
            self._known[token, special] = buffer.raw[:length]
        return self._known[token, special]
