"""A GGUF file as an engine of llama.cpp: its weights, its head, the model."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from math import inf
from pathlib import Path

import numpy as np
import torch

from trueline.engines.base import HeadKind, IsDone, KVCache, ScaledHead
from trueline.engines.gguf import GgufTensor, read_gguf_header
from trueline.engines.llama_cpp.cache import Pool, SequenceCache
from trueline.engines.llama_cpp.library import open_library
from trueline.engines.llama_cpp.tokenizer import GgufTokenizer
from trueline.engines.models import resolve_gguf
from trueline.errors import ModelError, SettingError, import_extra
from trueline.files import file_hash

_REFUSED = {  # what llama.cpp reports of a model: why it cannot be used
    "has_encoder": "has an encoder",
    "is_recurrent": "keeps a running state instead of keys and values",
    "is_hybrid": "keeps a running state in some layers instead of keys and values",
    "is_diffusion": "writes all of its answer at once",
}
_MOST_LAYERS = 512  # what llama.cpp is built for
# From eight tokens in a call on, llama.cpp multiplies weights of these formats (Q2_K to Q8_K)
# in another way, which rounds differently.
_K_FORMATS = set(range(10, 16))
_ALIKE = 7
# llama.cpp rounds the hidden state to 8 bits before it multiplies, and we do not: the logits
# differ by at most this share of their deviation. Another form of the head differs far more.
TOLERANCE = 0.1
_PROBE = 24  # tokens of the text that a head is first checked on
_TRIAL = "Is the sky blue?"  # the first text a model reads


class Weights:
    """A model of llama.cpp and its vocabulary."""

    def __init__(self, file: Path, label: str) -> None:
        self.file = file
        self.header = read_gguf_header(file, label)
        self._check_header(label)
        self.library = open_library()
        self.library.last_messages()
        # In its own layout, llama.cpp multiplies Q4_K weights for one row in one way and for
        # several in another, which rounds differently: an answer would depend on other rows.
        params = self.library.params("model", n_gpu_layers=0, use_extra_bufts=False)
        call = self.library.call
        pointer = call("llama_model_load_from_file", str(file).encode(), params)
        why = self.library.last_messages()
        if not pointer:
            raise ModelError(
                f"llama.cpp cannot open {label} ({why or 'it gives no reason'}); fetch the "
                "model again, or take one with an architecture that this llama.cpp runs"
            )
        self.pointer = ctypes.c_void_p(pointer)
        # Not at exit: threads may still read then, and the system frees it anyway.
        weakref.finalize(self, call, "llama_model_free", self.pointer).atexit = False
        self.vocab = ctypes.c_void_p(call("llama_model_get_vocab", self.pointer))
        self.vocabulary = int(call("llama_vocab_n_tokens", self.vocab))
        self.limit = int(call("llama_model_n_ctx_train", self.pointer))
        self.width = int(call("llama_model_n_embd", self.pointer))
        self.depth = int(call("llama_model_n_layer", self.pointer))
        # In a call with at most so many rows, each has the logits that it has alone; None: any.
        is_k = any(tensor.kind in _K_FORMATS for tensor in self.header.tensors.values())
        self.rows_alike = _ALIKE if is_k else None
        reasons = [
            why for name, why in _REFUSED.items() if call(f"llama_model_{name}", self.pointer)
        ]
        if not call("llama_model_has_decoder", self.pointer):
            reasons.append("has no decoder: it embeds texts and writes none")
        if reasons:
            raise ModelError(
                f"{label} {reasons[0]}; models that only decode, with attention in every "
                "layer, work"
            )
        sizes = (self.vocabulary, self.limit, self.width, self.depth)
        if min(sizes) < 1:
            raise ModelError(f"{label} is damaged: it has sizes of {sizes}; fetch it again")

    def _check_header(self, label: str) -> None:
        """Refuse settings at which llama.cpp ends the process instead of reporting an error."""
        settings = self.header.settings
        kind = settings.get("general.architecture")
        layers = settings.get(f"{kind}.block_count", 1)
        names = ("layer_norm_rms_epsilon", "layer_norm_epsilon")
        numbers = [settings.get(f"{kind}.attention.{name}", 0.0) for name in names]
        are_small = all(isinstance(one, float | int) and 0 <= one < inf for one in numbers)
        if not (are_small and isinstance(layers, int) and 0 < layers <= _MOST_LAYERS):
            raise ModelError(
                f"{label} is damaged: its header gives it {layers} layers, of at most "
                f"{_MOST_LAYERS}, and layer norms of {numbers}; fetch the model again"
            )


def find_head(
    weights: Weights, hidden: torch.Tensor, logits: torch.Tensor
) -> ScaledHead | None:
    """The head that gives these logits (tokens, vocabulary) for these states (tokens, d).

    None where no known form (linear, constant scale, soft cap) is within TOLERANCE.
    """
    tensors, settings = weights.header.tensors, weights.header.settings
    table = tensors.get("output.weight", tensors.get("token_embd.weight"))  # the second if tied
    if table is None or table.shape != (weights.vocabulary, weights.width):
        return None
    bias = tensors.get("output.bias")
    output = torch.nn.Linear(
        weights.width, weights.vocabulary, bias=bias is not None, device="meta"
    )
    output.weight = torch.nn.Parameter(read_tensor(weights, table), requires_grad=False)
    if bias is not None:
        output.bias = torch.nn.Parameter(read_tensor(weights, bias), requires_grad=False)
    plain = ScaledHead(output, is_exact=False, is_linear=True)
    forms, kind = [plain], settings.get("general.architecture")
    if scale := float(settings.get(f"{kind}.logit_scale", 0.0)):  # some models divide by it
        forms += [replace(plain, multiplier=scale), replace(plain, divisor=scale)]
    if cap := float(settings.get(f"{kind}.final_logit_softcapping", 0.0)):
        forms.append(replace(plain, cap=cap, is_linear=False))
    best = min(forms, key=lambda form: distance(form, hidden, logits))
    return best if distance(best, hidden, logits) <= TOLERANCE else None


def distance(head: ScaledHead, hidden: torch.Tensor, logits: torch.Tensor) -> float:
    """The error of the head, relative to the deviation of the logits from their mean."""
    error = (head(hidden) - logits).square().mean().sqrt()
    return float(error / logits.std())


def read_tensor(weights: Weights, tensor: GgufTensor) -> torch.Tensor:
    gguf = import_extra("gguf", "reading the head of a GGUF file", "llama")
    kind = gguf.GGMLQuantizationType(tensor.kind)
    count, size = gguf.GGML_QUANT_SIZES[kind]  # in a block
    *rows, width = tensor.shape
    packed = np.memmap(
        weights.file, np.uint8, "r", tensor.start, (*rows, width // count * size)
    )
    values = np.asarray(gguf.dequantize(packed, kind), np.float32).reshape(tensor.shape)
    return torch.from_numpy(np.array(values))


class LlamaModel:
    """A causal language model of llama.cpp and its tokenizer."""

    device, dtype = torch.device("cpu"), torch.float32
    gives_layers = False  # a callback in the middle of a pass would halve its speed

    def __init__(self, file: Path, *, id: str = "") -> None:
        self.id = id or file.name
        self.weights = weights = Weights(file, self.id)
        self.pool = Pool(weights)
        self.tokenizer = GgufTokenizer(weights, self.id)
        self.vocabulary, self.depth = weights.vocabulary, weights.depth
        self.limit: int | None = weights.limit
        self.is_tied = "output.weight" not in weights.header.tensors
        self.tokenizer_hash = weights.header.tokenizer_hash
        self.stop_ids = self.tokenizer.end_ids

    def __repr__(self) -> str:
        return f"LlamaModel({self.id!r})"

    @cached_property
    def head(self) -> ScaledHead | None:
        tokens = [token % self.vocabulary for token in range(1, _PROBE + 1)]
        return find_head(self.weights, *self._probe(tokens))

    def head_kind(self, tokens: Sequence[int]) -> HeadKind:
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
        tensors = []
        for states in (True, False):
            cache = SequenceCache(self.pool, states=states)
            cache.join([tokens[:1]])
            read = cache.extend_many([tokens[1:]])
            tensor = read.hidden if states else read.logits
            assert tensor is not None
            tensors.append(tensor[0])
        return tensors[0], tensors[1]

    @cached_property
    def fingerprint(self) -> str:
        return f"gguf-{file_hash(self.weights.file)}"

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=special)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self.decode(row) for row in rows]

    def decode_settled(self, tokens: Sequence[int]) -> str:
        """The text without bytes at its end, which may become another character."""
        end = len(tokens)
        while end and self.tokenizer.is_byte(tokens[end - 1]):
            end -= 1
        return self.decode(tokens[:end])

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return [self.tokenizer.decode([token]) for token in tokens]

    def start(self, *, states: bool = False) -> KVCache:
        return SequenceCache(self.pool, states=states and self.head is not None)

    @contextmanager
    def leave_core(self, done: IsDone) -> Iterator[None]:
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
    id, file = resolve_gguf(name)
    lm = LlamaModel(file, id=id)
    lm.decode(lm.encode(_TRIAL, special=True))
    return lm
