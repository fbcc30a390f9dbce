"""A name in, a language model out: its weights, its tokenizer, its head."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers import LogitsProcessor

from trueline.engines import open_device
from trueline.engines.base import HeadKind, IsDone, KVCache, States
from trueline.engines.models import resolve
from trueline.engines.transformers.cache import BatchCache, leave_a_core
from trueline.engines.transformers.open import (
    fingerprint,
    open_model,
    open_tokenizer,
    tokenizer_hash,
    weights_state,
)
from trueline.engines.weights import opening
from trueline.errors import ModelError, SettingError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_PROBE = 24  # tokens of the text a head is first checked on


@dataclass(frozen=True)
class TransformersHead:
    """logits = cap * tanh(scale * (W h + b) / cap), less the parts the model does not have."""

    output: torch.nn.Module  # W and b
    multiplier: float = 1.0
    divisor: float = 1.0
    cap: float | None = None
    is_linear: bool = False  # whether a sum of hidden states gives the sum of their logits
    is_exact: ClassVar[bool] = True  # by `find_head`

    @torch.inference_mode()
    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of hidden states (..., d), by the operations of the model's own head."""
        return self._scaled(self.output(hidden))

    @torch.inference_mode()
    def at(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of a few tokens only: (n, d) -> (n, tokens)."""
        if type(self.output) is not torch.nn.Linear:  # weights of another kind have no rows
            return self(hidden)[:, tokens]
        bias = None if self.output.bias is None else self.output.bias[tokens]
        return self._scaled(
            torch.nn.functional.linear(hidden, self.output.weight[tokens], bias)
        )

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        if self.multiplier != 1.0:
            logits = logits * self.multiplier
        if self.divisor != 1.0:
            logits = logits / self.divisor
        if self.cap is not None:
            logits = torch.tanh(logits / self.cap) * self.cap
        return logits

    @property
    def bias(self) -> torch.Tensor | None:
        """What the head adds whatever the hidden state, on the scale of the logits."""
        bias = getattr(self.output, "bias", None)
        return None if bias is None else bias.detach() * self.multiplier / self.divisor


def find_head(model: PreTrainedModel, text: Sequence[int] = ()) -> TransformersHead | None:
    """The head of a model, checked on the hidden states of a text: what it gives, and how.

    None where the known forms (linear, constant scale, soft cap) do not give the model's own
    logits to the bit: its forward pass is then the only way to them.
    """
    head = _described_head(model)
    if head is None:
        return None
    vocabulary = model.config.get_text_config().vocab_size
    tokens = text or [token % vocabulary for token in range(1, _PROBE + 1)]
    ids = torch.tensor([tokens], device=model.device)
    with torch.no_grad():
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        own = model(input_ids=ids, use_cache=False).logits
        check_numbers(own)
        if not torch.equal(head(hidden), own):
            return None
        return replace(head, is_linear=head.cap is None and _is_affine(head, hidden, own))


def check_numbers(logits: torch.Tensor) -> None:
    """Refuse a model whose logits are not numbers."""
    if logits.isnan().any():
        raise ModelError(
            "the model's logits are not numbers: its weights are damaged, or too large for "
            f"{str(logits.dtype).removeprefix('torch.')}; fetch it again, or try float32"
        )


def _described_head(model: PreTrainedModel) -> TransformersHead | None:
    """The head that a model's settings describe, before anybody has checked it."""
    output, config = model.get_output_embeddings(), model.config.get_text_config()
    if output is None or model.base_model is model:
        return None
    return TransformersHead(
        output,
        multiplier=getattr(config, "logit_scale", None) or 1.0,
        divisor=getattr(config, "logits_scaling", None) or 1.0,
        cap=getattr(config, "final_logit_softcapping", None),
    )


def _is_affine(head: TransformersHead, hidden: torch.Tensor, logits: torch.Tensor) -> bool:
    """Whether the head of a mean is the mean of the heads, up to rounding."""
    half = (hidden + hidden.flip(1)) / 2  # each state with one from the other end of the text
    difference = (head(half) - (logits + logits.flip(1)) / 2).abs().max()
    tolerance = max(1e-4, 4 * torch.finfo(logits.dtype).eps)
    return bool(difference <= tolerance * logits.abs().max())


class TokenizerReader:
    """A tokenizer behind the protocol `TokenReader` of `engines.base`."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, stop_ids: frozenset[int] | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self._given_stop_ids = stop_ids

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end an answer: those given, or the tokenizer's own."""
        if self._given_stop_ids is not None:
            return self._given_stop_ids
        own = self.tokenizer.eos_token_id
        return frozenset() if own is None else frozenset({int(own)})

    @cached_property
    def tokenizer_hash(self) -> str:
        """A hash of the tokenizer and its chat template."""
        return tokenizer_hash(self.tokenizer)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, special ones dropped."""
        return str(
            self.tokenizer.decode(
                list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )


_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # how tokenizers with byte fallback name a byte
_CACHED = {"full_attention", "sliding_attention", "chunked_attention"}  # layers with a KV cache
_TRIAL = "Is the sky blue?"  # the first text a model reads
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LanguageModel(TokenizerReader):
    """A causal language model of transformers and its tokenizer: the first engine."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, id: str = ""
    ) -> None:
        if model.training:
            raise ModelError("the model is in training mode; call model.eval() first")
        layers = getattr(model.config.get_text_config(), "layer_types", None) or ()
        if getattr(model, "_is_stateful", False) or not set(layers) <= _CACHED:
            raise ModelError(
                f"{type(model).__name__} keeps a running state where trueline needs a cache of "
                "keys and values; models with attention in every layer work"
            )
        super().__init__(tokenizer)
        self.model = model
        self._fingerprint: tuple[object, str] | None = None  # the state it is of, and itself
        self.id = id or Path(str(model.config._name_or_path)).name or model.config.model_type

    def __repr__(self) -> str:
        return f"LanguageModel({self.id!r}, {self.dtype}, {self.device})"

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return torch.device(self.model.device)

    @property
    def dtype(self) -> torch.dtype:
        """The type of its hidden states and logits."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def vocabulary(self) -> int:
        """How many tokens it chooses from."""
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def limit(self) -> int | None:
        """How many tokens it can read, prompt and answer together; None if it does not say."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    @property
    def depth(self) -> int:
        """How many layers it has."""
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def gives_layers(self) -> bool:
        """It does."""
        return True

    @property
    def is_tied(self) -> bool:
        """Whether its head is its input embedding."""
        return bool(self.model.config.get_text_config().tie_word_embeddings)

    @cached_property
    def head(self) -> TransformersHead | None:
        """The model's head, or None where only its own forward pass gives its logits."""
        return find_head(self.model)

    @property
    def fingerprint(self) -> str:
        """A hash of all its weights, made anew when torch says that one was changed."""
        state = weights_state(self.model)
        if self._fingerprint is None or self._fingerprint[0] != state:
            self._fingerprint = state, fingerprint(self.model)
        return self._fingerprint[1]

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end an answer, by the model's and the tokenizer's own account."""
        generation = getattr(self.model.generation_config, "eos_token_id", None)
        found = generation if isinstance(generation, list) else [generation]
        return frozenset(
            int(token) for token in [*found, self.tokenizer.eos_token_id] if token is not None
        )

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The tokens of a text, with those that begin or end one if `special`."""
        return list(self.tokenizer.encode(text, add_special_tokens=special))

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The texts of many short token lists, as `decode` gives them one by one."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return [self.decode(row) for row in rows]
        return list(backend.decode_batch([list(row) for row in rows], skip_special_tokens=True))

    def decode_settled(self, tokens: Sequence[int]) -> str:
        """The text of unfinished tokens, less a last run of bytes, which may yet change."""
        known = self.tokenizer.convert_ids_to_tokens(list(tokens))
        end = len(tokens)
        while end and _BYTE.fullmatch(known[end - 1] or ""):
            end -= 1
        return self.decode(tokens[:end])

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token by itself, special ones by their name."""
        return [
            str(self.tokenizer.decode([token], clean_up_tokenization_spaces=False))
            for token in tokens
        ]

    def start(self, *, states: bool = False) -> KVCache:
        """An empty cache, which gives logits, or hidden states if the head is known."""
        return BatchCache(self, states=states and self.head is not None)

    def leave_core(self, done: IsDone) -> AbstractContextManager[None]:
        """A context in which passes leave a core to other work until that is done."""
        return leave_a_core(self._blocks, done, self.device)

    @torch.inference_mode()
    def forward(
        self,
        inputs: dict[str, Any],
        *,
        states: bool,
        layers: Sequence[int] = (),
        every: bool = False,
    ) -> States:
        """One pass: hidden states or logits (of the last tokens or of `every` one), and layers.

        Layer 0 is the embedding; layer n the output of the n-th block, before the last norm.
        """
        options: dict[str, Any] = {"output_hidden_states": True} if layers else {}
        if not states and not every and self._has_logits_to_keep:
            options["logits_to_keep"] = 1
        out = (self.model.base_model if states else self.model)(**inputs, **options)
        early = {layer: out.hidden_states[layer] for layer in layers}
        if states:
            return States(out.last_hidden_state, None, early)
        return States(None, out.logits, early)

    @cached_property
    def _has_logits_to_keep(self) -> bool:
        return "logits_to_keep" in inspect.signature(self.model.forward).parameters

    def head_kind(self, tokens: Sequence[int]) -> HeadKind:
        """What its head is, checked on the states of a real text."""
        if self.head is None:
            return "opaque"
        head = find_head(self.model, tokens)
        if head is None:
            raise ModelError(
                f"the head of {self.id} gives the model's logits on one text and not on "
                "another, so it cannot be trusted; report it, please, with the model's name"
            )
        return "linear" if head.is_linear and self.head.is_linear else "nonlinear"

    @cached_property
    def _blocks(self) -> list[torch.nn.Module]:
        """Its layers, as modules that are called one after the other."""
        lists = [
            module
            for module in self.model.base_model.modules()
            if isinstance(module, torch.nn.ModuleList) and len(module) == self.depth
        ]
        return list(lists[0]) if lists else []


def load(
    name: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    trust_remote_code: bool = False,
) -> LanguageModel:
    """Open a model by alias, hub id, local folder or .gguf file.

    `auto` is float32 on a CPU and the checkpoint's own type elsewhere. Code that comes with a
    model runs only with trust_remote_code=True.
    """
    place = open_device(device)
    number = _dtype(dtype, place)
    source = resolve(str(name), "language")
    from trueline.engines.transformers.cache import share_heads

    with opening(source.id, f"a causal language model on {place}"):
        options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        tokenizer = open_tokenizer(source.folder, **options)
        model = open_model(source.folder, "causal", number, **options)
        share_heads(model)
        lm = LanguageModel(model.to(place).eval(), tokenizer, id=source.id)
        _check_trial(lm)
    return lm


def _check_trial(lm: LanguageModel) -> None:
    """Let a model say what it is and read a first text: what is damaged shows here."""
    for name in ("vocabulary", "depth", "limit", "stop_ids"):
        value = getattr(lm, name)
        if isinstance(value, int) and value < 1:
            raise ModelError(f"its settings give it a {name} of {value}; fetch it again")
    if not isinstance(lm.limit, int | None):
        raise ModelError(f"its settings give it a limit of {lm.limit!r}; fetch it again")
    tokens = lm.encode(_TRIAL, special=True) or [0]
    lm.decode(tokens)
    logits = lm.start().join([tokens]).logits
    assert logits is not None
    check_numbers(logits)


def _dtype(dtype: str | torch.dtype, device: torch.device) -> str | torch.dtype:
    if isinstance(dtype, str) and dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return dtype
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise SettingError(f"dtype must be auto, {', '.join(_DTYPES)}; got {dtype!r}")
    return _DTYPES[dtype]


# The tokens of each row so far and their scores (rows, vocabulary) -> the scores to pick from.
AdjustScores = Callable[[list[list[int]], torch.Tensor], torch.Tensor]


class ScoreProcessor(LogitsProcessor):
    """Answers every call from its arguments alone: batches, beams, streamers in any order."""

    def __init__(self, adjust: AdjustScores) -> None:
        self._adjust = adjust

    @torch.no_grad()
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The adjusted scores (rows, vocabulary)."""
        return self._adjust(input_ids.tolist(), scores)
