"""A model of transformers as an engine: its head, its tokenizer, its passes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trueline.engines import open_device
from trueline.engines.base import HeadKind, IsDone, KVCache, ScaledHead, States
from trueline.engines.models import opening, resolve
from trueline.engines.transformers.cache import BatchCache, leave_a_core, share_heads
from trueline.engines.transformers.open import (
    fingerprint,
    open_model,
    open_tokenizer,
    tokenizer_hash,
    weights_state,
)
from trueline.errors import ModelError, SettingError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_PROBE = 24  # tokens of the text that a head is first checked on
_TRIAL = "Is the sky blue?"  # the first text a model reads
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # how tokenizers with byte fallback name a byte
_CACHED = {"full_attention", "sliding_attention", "chunked_attention"}  # layers with a KV cache
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def find_head(model: PreTrainedModel, text: Sequence[int] = ()) -> ScaledHead | None:
    """The head of a model, checked on the hidden states of a text.

    None where the known forms (linear, constant scale, soft cap) do not give the model's own
    logits to the bit: then only its forward pass gives them.
    """
    output, config = model.get_output_embeddings(), model.config.get_text_config()
    if output is None or model.base_model is model:
        return None
    head = ScaledHead(
        output,
        multiplier=getattr(config, "logit_scale", None) or 1.0,
        divisor=getattr(config, "logits_scaling", None) or 1.0,
        cap=getattr(config, "final_logit_softcapping", None),
    )
    tokens = text or [token % config.vocab_size for token in range(1, _PROBE + 1)]
    ids = torch.tensor([tokens], device=model.device)
    with torch.no_grad():
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        logits = model(input_ids=ids, use_cache=False).logits
        check_numbers(logits)
        if not torch.equal(head(hidden), logits):
            return None
        # Each state with one from the other end of the text: are the logits of their mean the
        # mean of their logits, up to rounding?
        difference = head((hidden + hidden.flip(1)) / 2) - (logits + logits.flip(1)) / 2
        tolerance = max(1e-4, 4 * torch.finfo(logits.dtype).eps) * logits.abs().max()
        is_affine = bool(difference.abs().max() <= tolerance)
    return replace(head, is_linear=head.cap is None and is_affine)


def check_numbers(logits: torch.Tensor) -> None:
    """Refuse a model whose logits are not numbers."""
    if logits.isnan().any():
        raise ModelError(
            "the model's logits are not numbers: its weights are damaged, or too large for "
            f"{str(logits.dtype).removeprefix('torch.')}; fetch it again, or try float32"
        )


class TokenizerReader:
    """A tokenizer of transformers as a `TokenReader`."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, stop_ids: Iterable[int | None] | None = None
    ) -> None:
        self.tokenizer = tokenizer
        ends = [tokenizer.eos_token_id] if stop_ids is None else stop_ids
        self.stop_ids = frozenset(int(token) for token in ends if token is not None)

    @cached_property
    def tokenizer_hash(self) -> str:
        return tokenizer_hash(self.tokenizer)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(
            self.tokenizer.decode(
                list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )


class LanguageModel(TokenizerReader):
    """A causal language model of transformers and its tokenizer."""

    gives_layers = True

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, id: str = ""
    ) -> None:
        if model.training:
            raise ModelError("the model is in training mode; call model.eval() first")
        config = model.config.get_text_config()
        layers = getattr(config, "layer_types", None) or ()
        if getattr(model, "_is_stateful", False) or not set(layers) <= _CACHED:
            raise ModelError(
                f"{type(model).__name__} keeps a running state where trueline needs a cache of "
                "keys and values; models with attention in every layer work"
            )
        ends = getattr(model.generation_config, "eos_token_id", None)
        ends = ends if isinstance(ends, list) else [ends]
        super().__init__(tokenizer, [*ends, tokenizer.eos_token_id])
        self.model = model
        forward = inspect.signature(model.forward).parameters
        self._of_last = {"logits_to_keep": 1} if "logits_to_keep" in forward else {}
        self.vocabulary, self.depth = int(config.vocab_size), int(config.num_hidden_layers)
        self.limit: int | None = getattr(config, "max_position_embeddings", None)
        self.is_tied = bool(config.tie_word_embeddings)
        self._fingerprint: tuple[object, str] = None, ""  # the state of the weights, its hash
        self.id = id or Path(str(model.config._name_or_path)).name or model.config.model_type

    def __repr__(self) -> str:
        return f"LanguageModel({self.id!r}, {self.dtype}, {self.device})"

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    @cached_property
    def head(self) -> ScaledHead | None:
        return find_head(self.model)

    def head_kind(self, tokens: Sequence[int]) -> HeadKind:
        if self.head is None:
            return "opaque"
        head = find_head(self.model, tokens)
        if head is None:
            raise ModelError(
                f"the head of {self.id} gives the model's logits on one text and not on "
                "another, so it cannot be trusted; report it, please, with the model's name"
            )
        return "linear" if head.is_linear and self.head.is_linear else "nonlinear"

    @property
    def fingerprint(self) -> str:
        """Computed again when torch reports a change of a weight."""
        state = weights_state(self.model)
        if self._fingerprint[0] != state:
            self._fingerprint = state, fingerprint(self.model)
        return self._fingerprint[1]

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=special))

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return [self.decode(row) for row in rows]
        return list(backend.decode_batch([list(row) for row in rows], skip_special_tokens=True))

    def decode_settled(self, tokens: Sequence[int]) -> str:
        """The text without bytes at its end, which may become another character."""
        names = self.tokenizer.convert_ids_to_tokens(list(tokens))
        end = len(tokens)
        while end and _BYTE.fullmatch(names[end - 1] or ""):
            end -= 1
        return self.decode(tokens[:end])

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return [
            str(self.tokenizer.decode([token], clean_up_tokenization_spaces=False))
            for token in tokens
        ]

    def start(self, *, states: bool = False) -> KVCache:
        return BatchCache(self, states=states and self.head is not None)

    def leave_core(self, done: IsDone) -> AbstractContextManager[None]:
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
        """One pass: hidden states or logits (of the last token or of `every` one), and layers.

        Layer 0 is the embedding; layer n the output of the n-th block, before the last norm.
        """
        options: dict[str, Any] = {"output_hidden_states": True} if layers else {}
        if not states and not every:
            options |= self._of_last
        out = (self.model.base_model if states else self.model)(**inputs, **options)
        early = {layer: out.hidden_states[layer] for layer in layers}
        if states:
            return States(out.last_hidden_state, None, early)
        return States(None, out.logits, early)

    @cached_property
    def _blocks(self) -> list[torch.nn.Module]:
        for module in self.model.base_model.modules():
            if isinstance(module, torch.nn.ModuleList) and len(module) == self.depth:
                return list(module)
        return []


def load(
    name: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    trust_remote_code: bool = False,
) -> LanguageModel:
    """Open a model of transformers; see `trueline.engines.load`."""
    target = open_device(device)
    if isinstance(dtype, str) and dtype == "auto":
        dtype = torch.float32 if target.type == "cpu" else "auto"
    elif isinstance(dtype, str) and dtype in _DTYPES:
        dtype = _DTYPES[dtype]
    elif not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise SettingError(f"dtype must be auto, {', '.join(_DTYPES)}; got {dtype!r}")
    source = resolve(str(name), "language")
    with opening(source.id, f"a causal language model on {target}"):
        tokenizer = open_tokenizer(source.folder, trust_remote_code=trust_remote_code)
        model = open_model(
            source.folder, "AutoModelForCausalLM", dtype, trust_remote_code=trust_remote_code
        )
        share_heads(model)
        lm = LanguageModel(model.to(target).eval(), tokenizer, id=source.id)
        sizes = (lm.vocabulary, lm.depth, 1 if lm.limit is None else lm.limit)
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise ModelError(f"its settings give it sizes of {sizes}; fetch it again")
        tokens = lm.encode(_TRIAL, special=True) or [0]  # damage shows when a text is read
        lm.decode(tokens)
        logits = lm.start().join([tokens]).logits
        assert logits is not None
        check_numbers(logits)
    return lm
