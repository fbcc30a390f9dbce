"""The engine protocol: what the decoding loop needs from whatever runs a model.

An engine turns text into tokens and back, and reads a batch of rows step by step. It gives
hidden states where its head is known, and logits otherwise. It never calls a decoding method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal, Protocol

import torch

from trueline.prompts import Tokenizer

HeadKind = Literal["linear", "nonlinear", "opaque"]
IsDone = Callable[[], bool]  # whether the work that runs in parallel to a pass has ended
_WORTH_SHARING = 8  # common tokens from which it pays to read them once


@dataclass(frozen=True)
class ScaledHead:
    """The last layer of a model: hidden states in, logits out.

    logits = cap * tanh(scale * (W h + b) / cap), without the parts the model lacks.
    """

    output: torch.nn.Module  # W and b
    multiplier: float = 1.0
    divisor: float = 1.0
    cap: float | None = None
    is_linear: bool = False  # whether the logits of a sum of states are the sum of logits
    is_exact: bool = True  # whether it gives the model's own logits to the bit

    @torch.inference_mode()
    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of hidden states (..., d)."""
        return self._scaled(self.output(hidden))

    @torch.inference_mode()
    def at(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of a few tokens only: (n, d) -> (n, tokens)."""
        if type(self.output) is not torch.nn.Linear:  # such as quantized weights
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
        """The part of the logits that does not depend on the state: (vocabulary,)."""
        bias = getattr(self.output, "bias", None)
        return None if bias is None else bias.detach() * self.multiplier / self.divisor


@dataclass(frozen=True)
class States:
    """What a pass computed for each row, at its last token or at several."""

    hidden: torch.Tensor | None  # (rows, ..., d); None where logits are given
    logits: torch.Tensor | None  # (rows, ..., vocabulary); None where hidden states are given
    layers: Mapping[int, torch.Tensor] = field(default_factory=dict)  # (rows, ..., d) by layer

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> States:
        return States(
            None if self.hidden is None else function(self.hidden),
            None if self.logits is None else function(self.logits),
            {layer: function(states) for layer, states in self.layers.items()},
        )

    def take(self, rows: Sequence[int]) -> States:
        """These rows, in this order; repeats are allowed."""
        return self.map(lambda tensor: tensor[torch.tensor(rows, device=tensor.device)])


def join_states(parts: Sequence[States], dim: int = 0) -> States:
    """Concatenate states: more rows (dim 0), or more tokens of the same rows (dim 1)."""
    if len(parts) == 1:
        return parts[0]
    hidden = [part.hidden for part in parts if part.hidden is not None]
    logits = [part.logits for part in parts if part.logits is not None]
    layers = parts[0].layers
    return States(
        torch.cat(hidden, dim) if hidden else None,
        torch.cat(logits, dim) if logits else None,
        {layer: torch.cat([part.layers[layer] for part in parts], dim) for layer in layers},
    )


def read_continuations(
    lm: Engine,
    contexts: Sequence[Sequence[int]],
    rows: Sequence[int],
    continuations: Sequence[Sequence[int]],
    *,
    layers: Sequence[int] = (),
    states: bool = False,
) -> States:
    """The states before each token of some continuations: (rows, longest, ...).

    Continuation n follows the context with the index rows[n]; each context is read once.
    """
    cache = lm.start(states=states)
    first = cache.join(contexts, layers=layers).take(rows).map(lambda tensor: tensor[:, None])
    cache.keep(rows)
    after = [tokens[:-1] for tokens in continuations]
    if not any(after):
        return first
    return join_states([first, cache.extend_many(after, layers=layers)], dim=1)


def shared_length(contexts: Sequence[Sequence[int]]) -> int:
    """The length of the common prefix of all contexts, or 0 if it does not pay to share it.

    The last token of a context never counts: its states are needed for each row.
    """
    alike = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*contexts, strict=False))
    shared = min(sum(1 for _ in alike), min(map(len, contexts)) - 1)
    return shared if shared >= _WORTH_SHARING and len(contexts) > 1 else 0


class KVCache(Protocol):
    """The keys and values of a batch of rows; rows join and leave.

    It belongs to one decoding loop. The states of a row do not depend on the other rows.
    """

    gives_states: bool  # or else logits; it may change between two passes

    @property
    def rows(self) -> int: ...
    @property
    def width(self) -> int: ...  # cached tokens of a row, pads included

    def join(self, contexts: Sequence[Sequence[int]], *, layers: Sequence[int] = ()) -> States:
        """Read whole contexts as new rows after the others; the states at their last tokens."""

    def extend(self, tokens: Sequence[int], *, layers: Sequence[int] = ()) -> States:
        """Read one more token in every row; the states are valid until the next call."""

    def extend_many(
        self, continuations: Sequence[Sequence[int]], *, layers: Sequence[int] = ()
    ) -> States:
        """Read a continuation in every row, in one pass. The cache cannot be used afterwards.

        The states are (rows, longest, ...); those after the end of a row mean nothing.
        """

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; repeats are allowed."""


class TokenReader(Protocol):
    """What turns text into tokens and back: an engine, or a tokenizer without a model."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def tokenizer_hash(self) -> str: ...  # of the tokenizer and its chat template
    @property
    def stop_ids(self) -> frozenset[int]: ...  # the tokens that end an answer

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, without special tokens."""


class Engine(TokenReader, Protocol):
    """A language model and its tokenizer. It holds no state between two calls of `start`.

    Optional: `leave_core(done)`, a context in which passes leave a core to other work until
    `done()` is true.
    """

    id: str
    vocabulary: int  # the number of tokens it can generate
    limit: int | None  # the most tokens it can read; None if unknown
    depth: int  # the number of layers
    gives_layers: bool  # the states of earlier layers
    is_tied: bool  # the head is the input embedding

    @property
    def device(self) -> torch.device: ...  # of its states
    @property
    def dtype(self) -> torch.dtype: ...  # of its states and logits
    @property
    def head(self) -> ScaledHead | None: ...  # None where only its own pass gives its logits
    @property
    def fingerprint(self) -> str: ...  # a hash of all its weights

    def head_kind(self, tokens: Sequence[int]) -> HeadKind:
        """The kind of its head, checked on the states of a real text."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The tokens of a text, with those that begin or end a text if `special`."""

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """`decode` of many short token lists."""

    def decode_settled(self, tokens: Sequence[int]) -> str:
        """The part of the text that further tokens cannot change."""

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token alone; special tokens by their names."""

    def start(self, *, states: bool = False) -> KVCache:
        """An empty cache, which gives logits, or hidden states if the head is known."""
