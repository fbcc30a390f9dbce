"""A tokenizer of transformers -> tokens as text; no model is needed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from trueline.engines.transformers.fingerprint import tokenizer_hash

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
