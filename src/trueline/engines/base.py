"""The engine protocol: what the decoding loop asks of whatever runs a model.

An engine turns text into tokens and back, and reads a batch of rows step by step. It gives
hidden states where logits are a known function of them (`head`), and logits where they are not
or where it computes them anyway. It never calls a decoding method: the loop asks both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch

from trueline.prompts import Tokenizer

HeadKind = Literal["linear", "nonlinear", "opaque"]
IsDone = Callable[[], bool]  # whether the work that runs alongside a pass is done
_WORTH_SHARING = 8  # tokens in common from which reading them once pays


class Head(Protocol):
    """A last hidden state in, logits out."""

    @property
    def is_linear(self) -> bool:
        """Whether a sum of hidden states gives the sum of their logits."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether it gives the model's own logits to the bit."""
        ...

    @property
    def bias(self) -> torch.Tensor | None:
        """What the head adds whatever the hidden state, on the scale of the logits."""
        ...

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of hidden states (..., d)."""
        ...

    def at(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of a few tokens only: (n, d) -> (n, tokens)."""
        ...


@dataclass(frozen=True)
class States:
    """What the model computed for a number of rows, at their last token or at several."""

    hidden: torch.Tensor | None  # (rows, ..., d); None where logits are given
    logits: torch.Tensor | None  # (rows, ..., vocabulary); None where hidden states are
    layers: Mapping[int, torch.Tensor] = field(default_factory=dict)  # (rows, ..., d) by layer

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> States:
        """The same change to each of the tensors."""
        return States(
            None if self.hidden is None else function(self.hidden),
            None if self.logits is None else function(self.logits),
            {layer: function(states) for layer, states in self.layers.items()},
        )

    def take(self, rows: Sequence[int]) -> States:
        """Some of the rows, in this order; a row may be named more than once."""
        return self.map(lambda tensor: tensor[torch.tensor(rows, device=tensor.device)])


def join_states(parts: Sequence[States], dim: int = 0) -> States:
    """Several states as one: more rows (dim 0), or more tokens of the same rows (dim 1)."""
    if len(parts) == 1:
        return parts[0]
    hidden = [part.hidden for part in parts if part.hidden is not None]
    logits = [part.logits for part in parts if part.logits is not None]
    return States(
        torch.cat(hidden, dim) if hidden else None,
        torch.cat(logits, dim) if logits else None,
        {
            layer: torch.cat([part.layers[layer] for part in parts], dim)
            for layer in parts[0].layers
        },
    )


def states_behind(last: States, after: States) -> States:
    """The states at a last token (rows, ...), then those at the tokens that follow it."""
    return join_states([last.map(lambda tensor: tensor[:, None]), after], dim=1)


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

    Continuation n stands behind the context that rows[n] names; each context is read once.
    """
    reading = lm.start(states=states)
    first = reading.join(contexts, layers=layers).take(rows)
    reading.keep(rows)
    after = [tokens[:-1] for tokens in continuations]
    if any(after):
        return states_behind(first, reading.read_on(after, layers=layers))
    return first.map(lambda tensor: tensor[:, None])


def shared_length(contexts: Sequence[Sequence[int]]) -> int:
    """How many tokens all contexts begin with, if it pays to read them once.

    The last token of a context never counts: its states are needed for each row.
    """
    if len(contexts) == 1:
        return 0
    first, last = min(map(list, contexts)), max(map(list, contexts))  # what they share, all do
    limit = min(map(len, contexts)) - 1
    same = 0
    while same < limit and first[same] == last[same]:
        same += 1
    return same if same >= _WORTH_SHARING else 0


class KVCache(Protocol):
    """What a batch of rows has read so far, with the engine's caches; rows join and leave.

    It belongs to one decoding loop and ends with it. A row's states do not depend on the rows
    beside it.
    """

    # Whether passes give hidden states, or logits; it may change between two passes.
    gives_states: bool

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        ...

    @property
    def width(self) -> int:
        """How many tokens are cached for each row, pads included."""
        ...

    def join(
        self,
        contexts: Sequence[Sequence[int]],
        *,
        layers: Sequence[int] = (),
    ) -> States:
        """Read whole contexts as new rows behind the others: the states at their ends."""
        ...

    def extend(self, tokens: Sequence[int], *, layers: Sequence[int] = ()) -> States:
        """Read one more token in every row: the states at these tokens.

        They hold until the reading's next call, which may write over them.
        """
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may be named more than once."""
        ...

    def read_on(
        self, continuations: Sequence[Sequence[int]], *, layers: Sequence[int] = ()
    ) -> States:
        """Read a whole continuation in every row, in one pass, which ends the reading.

        The states are (rows, longest, ...), behind each token; those past a row's own end mean
        nothing.
        """
        ...


class TokenReader(Protocol):
    """What turns text into tokens and back: every engine, and a tokenizer without a model."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        ...

    @property
    def tokenizer_hash(self) -> str:
        """A hash of the tokenizer and its chat template."""
        ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, special ones dropped."""
        ...


class Engine(TokenReader, Protocol):
    """A language model that runs, and its tokenizer; it keeps nothing between two readings.

    Optional: `leave_core(done)`, a context in which passes leave a core to other work until
    `done()` is true.
    """

    id: str

    @property
    def device(self) -> torch.device:
        """Where its states are."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of its hidden states and logits."""
        ...

    @property
    def vocabulary(self) -> int:
        """How many tokens it chooses from."""
        ...

    @property
    def limit(self) -> int | None:
        """How many tokens it can read, context and answer together; None: it does not say."""
        ...

    @property
    def depth(self) -> int:
        """How many layers it has."""
        ...

    @property
    def gives_layers(self) -> bool:
        """Whether it hands out the states of earlier layers."""
        ...

    @property
    def is_tied(self) -> bool:
        """Whether its head is its input embedding, so that layer 0 gives back the input."""
        ...

    @property
    def head(self) -> Head | None:
        """Its head, or None where only its own pass gives its logits."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of all its weights."""
        ...

    def head_kind(self, tokens: Sequence[int]) -> HeadKind:
        """What its head is on the states of a real text."""
        ...

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The tokens of a text, with those that begin or end one if `special`."""
        ...

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The texts of many short token lists, as `decode` gives them one by one."""
        ...

    def decode_settled(self, tokens: Sequence[int]) -> str:
        """The text of unfinished tokens, as far as further tokens cannot change it."""
        ...

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token by itself, special ones by their name."""
        ...

    def start(self, *, states: bool = False) -> KVCache:
        """An empty cache, which gives logits, or hidden states if the head is known."""
        ...
