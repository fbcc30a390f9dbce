"""A GGUF file in, a language model of llama.cpp out: its weights, its tokenizer, its head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch

from trueline.engines.base import HeadKind, Reading
from trueline.engines.llama_cpp.context import Pool
from trueline.engines.llama_cpp.head import TOLERANCE as HEAD_TOLERANCE
from trueline.engines.llama_cpp.head import GgufHead, distance, find_head, is_tied
from trueline.engines.llama_cpp.reading import SequenceReading
from trueline.engines.llama_cpp.tokenizer import GgufTokenizer
from trueline.engines.llama_cpp.weights import Weights
from trueline.engines.sources import resolve_gguf
from trueline.errors import ModelError, SettingError
from trueline.files import file_hash

_PROBE = 24  # tokens of the text a head is first checked on
_TRIAL = "Is the sky blue?"  # the first text a model reads


class LlamaModel:
    """A causal language model of llama.cpp and its tokenizer."""

    def __init__(self, file: Path, *, id: str = "") -> None:
        self.id = id or file.name
        self.weights = Weights(file, self.id)
        self.pool = Pool(self.weights)
        self.tokenizer = GgufTokenizer(self.weights, self.id)

    def __repr__(self) -> str:
        return f"LlamaModel({self.id!r})"

    @property
    def device(self) -> torch.device:
        """Where its logits are."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The type of its logits and states, whatever its weights are packed in."""
        return torch.float32

    @property
    def vocabulary(self) -> int:
        """How many tokens it chooses from."""
        return self.weights.vocabulary

    @property
    def limit(self) -> int:
        """How many tokens it was trained to read, prompt and answer together."""
        return self.weights.limit

    @property
    def depth(self) -> int:
        """How many layers it has."""
        return self.weights.depth

    @property
    def gives_layers(self) -> bool:
        """It does not: a callback in the middle of a pass would halve its speed."""
        return False

    @property
    def is_tied(self) -> bool:
        """Whether its head is its input embedding."""
        return is_tied(self.weights)

    @cached_property
    def head(self) -> GgufHead | None:
        """Its head in float32, or None where only its own pass gives its logits."""
        tokens = [token % self.vocabulary for token in range(1, _PROBE + 1)]
        return find_head(self.weights, *self._probe(tokens))

    def head_kind(self, tokens: Sequence[int]) -> HeadKind:
        """What its head is, checked on the states of a real text."""
        if self.head is None:
            return "opaque"
        if distance(self.head, *self._probe(tokens)) > HEAD_TOLERANCE:
            raise ModelError(
                f"the head of {self.id} gives the model's logits on one text and not on "
                "another, so it cannot be trusted; report it, please, with the model's name"
            )
        return "linear" if self.head.is_linear else "nonlinear"

    def _probe(self, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The states (tokens, d) and the logits (tokens, vocabulary) of a text."""
        found = []
        for states in (True, False):
            reading = SequenceReading(self.pool, states=states)
            reading.join([tokens[:1]])
            given = reading.read_on([tokens[1:]])
            tensor = given.hidden if states else given.logits
            assert tensor is not None
            found.append(tensor[0])
        return found[0], found[1]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the file."""
        return f"gguf-{file_hash(self.weights.file)}"

    @property
    def tokenizer_hash(self) -> str:
        """A hash of all that the file says of its tokenizer."""
        return self.weights.header.tokenizer_hash

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return self.tokenizer.end_ids

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The tokens of a text, with those that begin or end one if `special`."""
        return self.tokenizer.encode(text, add_special_tokens=special)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, special ones dropped."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The texts of many short token lists."""
        return [self.decode(row) for row in rows]

    def decode_settled(self, tokens: Sequence[int]) -> str:
        """The text of unfinished tokens, less a last run of bytes, which may yet change."""
        end = len(tokens)
        while end and self.tokenizer.is_byte(tokens[end - 1]):
            end -= 1
        return self.decode(tokens[:end])

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token by itself, special ones by their name."""
        return [self.tokenizer.decode([token]) for token in tokens]

    def start(self, *, states: bool = False) -> Reading:
        """An empty reading: it gives logits, or hidden states instead."""
        return SequenceReading(self.pool, states=states and self.head is not None)


def load(
    name: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    trust_remote_code: bool = False,
) -> LlamaModel:
    """Open a model by alias or .gguf file; no code comes with one, so none can run."""
    if dtype not in ("auto", "float32", torch.float32):  # what it computes in
        raise SettingError(
            f"dtype={dtype!r} cannot be had with engine='llama.cpp': a GGUF file is read as it "
            "is packed; leave dtype out, or take another file"
        )
    if device is not None and torch.device(device).type != "cpu":
        raise SettingError(
            f"device={str(device)!r} cannot be used with engine='llama.cpp', which trueline "
            "runs on the CPU; leave device out, or take engine='transformers'"
        )
    source = resolve_gguf(name)
    lm = LlamaModel(source.file, id=source.id)
    lm.decode(lm.encode(_TRIAL, special=True))
    return lm
