"""A GGUF file in, a language model of llama.cpp out: its weights, its tokenizer, its head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from trueline.engines.base import HeadKind, IsDone, KVCache
from trueline.engines.llama_cpp.cache import Pool, SequenceCache
from trueline.engines.llama_cpp.library import Weights
from trueline.engines.llama_cpp.tokenizer import GgufTokenizer
from trueline.engines.models import resolve_gguf
from trueline.engines.weights import GgufTensor
from trueline.errors import ModelError, SettingError, import_extra
from trueline.files import file_hash

# llama.cpp rounds the hidden state to 8 bits before it multiplies, and we do not: the logits
# differ by so much of their deviation at most. Another form of the head differs by far more.
TOLERANCE = 0.1


@dataclass(frozen=True)
class GgufHead:
    """logits = cap * tanh(scale * (W h + b) / cap), less the parts the model does not have."""

    weight: torch.Tensor  # (vocabulary, d)
    own_bias: torch.Tensor | None = None  # (vocabulary,)
    scale: float = 1.0
    cap: float | None = None
    is_exact: ClassVar[bool] = False  # see TOLERANCE

    @property
    def is_linear(self) -> bool:
        """Whether a sum of hidden states gives the sum of their logits."""
        return self.cap is None

    @property
    def bias(self) -> torch.Tensor | None:
        """What the head adds whatever the hidden state, on the scale of the logits."""
        return None if self.own_bias is None else self.own_bias * self.scale

    @torch.inference_mode()
    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of hidden states (..., d)."""
        return self._scaled(torch.nn.functional.linear(hidden, self.weight, self.own_bias))

    @torch.inference_mode()
    def at(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of a few tokens only: (n, d) -> (n, tokens)."""
        bias = None if self.own_bias is None else self.own_bias[tokens]
        return self._scaled(torch.nn.functional.linear(hidden, self.weight[tokens], bias))

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.cap is not None:
            logits = torch.tanh(logits / self.cap) * self.cap
        return logits


def is_tied(weights: Weights) -> bool:
    """Whether the head is the input embedding."""
    return "output.weight" not in weights.header.tensors


def find_head(weights: Weights, hidden: torch.Tensor, logits: torch.Tensor) -> GgufHead | None:
    """The head that gives these logits (tokens, vocabulary) of these states (tokens, d).

    None where no known form (linear, constant scale, soft cap) comes near enough.
    """
    tensors = weights.header.tensors
    name = "token_embd.weight" if is_tied(weights) else "output.weight"
    shape = (weights.vocabulary, weights.width)
    if name not in tensors or tensors[name].shape != shape:
        return None
    bias = tensors.get("output.bias")
    head = GgufHead(
        read_tensor(weights, tensors[name]),
        None if bias is None else read_tensor(weights, bias),
    )
    best = min(_forms(weights, head), key=lambda form: distance(form, hidden, logits))
    return best if distance(best, hidden, logits) <= TOLERANCE else None


def distance(head: GgufHead, hidden: torch.Tensor, logits: torch.Tensor) -> float:
    """How far the head is from the logits, against how far they deviate from their mean."""
    error = (head(hidden) - logits).square().mean().sqrt()
    return float(error / logits.std())


def _forms(weights: Weights, head: GgufHead) -> Iterator[GgufHead]:
    """The head with what a file may say of it; some models multiply and some divide by it."""
    yield head
    settings = weights.header.settings
    kind = settings.get("general.architecture")
    scale = float(settings.get(f"{kind}.logit_scale", 0.0))
    if scale:
        yield replace(head, scale=scale)
        yield replace(head, scale=1 / scale)
    cap = float(settings.get(f"{kind}.final_logit_softcapping", 0.0))
    if cap:
        yield replace(head, cap=cap)


def read_tensor(weights: Weights, tensor: GgufTensor) -> torch.Tensor:
    """A tensor of the file as the float32 it stands for."""
    gguf = import_extra("gguf", "reading the head of a GGUF file", "llama")
    kind = gguf.GGMLQuantizationType(tensor.kind)
    values, size = gguf.GGML_QUANT_SIZES[kind]  # in a block
    *rows, width = tensor.shape
    packed = np.memmap(
        weights.file, np.uint8, "r", tensor.start, (*rows, width // values * size)
    )
    found = np.asarray(gguf.dequantize(packed, kind), np.float32).reshape(tensor.shape)
    return torch.from_numpy(np.array(found))


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
        if distance(self.head, *self._probe(tokens)) > TOLERANCE:
            raise ModelError(
                f"the head of {self.id} gives the model's logits on one text and not on "
                "another, so it cannot be trusted; report it, please, with the model's name"
            )
        return "linear" if self.head.is_linear else "nonlinear"

    def _probe(self, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The states (tokens, d) and the logits (tokens, vocabulary) of a text."""
        found = []
        for states in (True, False):
            reading = SequenceCache(self.pool, states=states)
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

    def start(self, *, states: bool = False) -> KVCache:
        """An empty reading: it gives logits, or hidden states instead."""
        return SequenceCache(self.pool, states=states and self.head is not None)

    @contextmanager
    def leave_core(self, done: IsDone) -> Iterator[None]:
        """A context in which passes leave a core to other work until that is done."""
        self.pool.done = done
        try:
            yield
        finally:
            self.pool.done = None


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
