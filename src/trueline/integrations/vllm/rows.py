"""vLLM's batch -> which row belongs to which request; the rows in scope are lifted.

Two interfaces, and nothing of vLLM imported: they are held to its files by their shapes alone
(tests/test_contract.py) and by a real server (tests/in_vllm).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from trueline.corrector import Correction, lift_rows
from trueline.errors import SettingError
from trueline.integrations.vllm.requests import Requests, SamplingParams

Begun = Future[Correction | None]  # what is lifted in a request, once that is known


@dataclass(frozen=True)
class _Row:
    begun: Begun
    output_ids: list[int]  # vLLM's own list, which grows


class V1Rows:
    """The V1 interface: rows are places in the batch, and vLLM tells how they move."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._rows: dict[
            int, _Row
        ] = {}  # by place; those out of scope leave at their first step

    def update_state(self, batch_update: Any | None) -> None:
        """Follow a BatchUpdate: first what was removed, then added, then moved."""
        if batch_update is None:
            return
        for place in batch_update.removed:
            self._rows.pop(place, None)
        for place, params, prompt_ids, output_ids in batch_update.added:
            begun = self._requests.begin_alongside(params, prompt_ids)
            self._rows[place] = _Row(begun, output_ids)
        for source, target, direction in batch_update.moved:
            moved, replaced = self._rows.pop(source, None), self._rows.pop(target, None)
            if moved is not None:
                self._rows[target] = moved
            if replaced is not None and direction.name == "SWAP":
                self._rows[source] = replaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits (rows, vocabulary), the very same where nothing is in scope."""
        self._rows = {at: row for at, row in self._rows.items() if row.begun.result()}
        if not self._rows:
            return logits
        rows = [self._rows.get(place) for place in range(len(logits))]
        outputs = [_known(row.output_ids) if row else () for row in rows]
        corrections = [row.begun.result() if row else None for row in rows]
        return lift_rows(corrections, outputs, logits).logits


class V2Rows:
    """The V2 interface: rows are looked up by the slot of their request at every step."""

    def __init__(self, requests: Requests, req_states: Any) -> None:
        self._requests = requests
        self._states = req_states
        self._new: dict[int, SamplingParams] = {}  # whose prompts are not on the device yet
        self._slots: dict[int, Begun] = {}  # those out of scope leave at their first step

    def add_request(self, slot: int, params: SamplingParams) -> bool:
        """Take over a slot; its prompt can be read once vLLM has written it."""
        self._slots.pop(slot, None)
        self._new[slot] = params
        return True

    def apply_staged_writes(self) -> None:
        """Read the prompts of new requests, and who speaks in them."""
        for slot, params in self._new.items():
            prompt = self._tokens(slot, 0, int(self._states.prompt_len.np[slot]))
            self._slots[slot] = self._requests.begin_alongside(params, prompt)
        self._new.clear()

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The logits (rows, vocabulary), the very same where nothing is in scope.

        A request has a row for each token that is drafted for it, behind those drafted before.
        """
        self._slots = {slot: begun for slot, begun in self._slots.items() if begun.result()}
        if not any(slot in self._slots for slot in ctx.idx_mapping_np.tolist()):
            return logits
        slots = ctx.expanded_idx_mapping.tolist()
        drafted = ctx.expanded_local_pos.tolist()
        found = [self._slots.get(slot) for slot in slots]
        corrections = [None if begun is None else begun.result() for begun in found]
        outputs = [
            () if own is None else self._output(slot, row, count, ctx)
            for row, (own, slot, count) in enumerate(
                zip(corrections, slots, drafted, strict=True)
            )
        ]
        return lift_rows(corrections, outputs, logits).logits

    def _output(self, slot: int, row: int, drafted: int, ctx: Any) -> list[int]:
        """The answer so far of a row: what is settled, then the drafts up to this row."""
        start, end = (
            int(self._states.prompt_len.np[slot]),
            int(self._states.total_len.gpu[slot]),
        )
        drafts: list[int] = ctx.input_ids[row - drafted + 1 : row + 1].tolist()
        return [*self._tokens(slot, start, end), *drafts]

    def _tokens(self, slot: int, start: int, end: int) -> list[int]:
        tokens: list[int] = self._states.all_token_ids.gpu[slot, start:end].tolist()
        return tokens


def _known(output_ids: Sequence[int]) -> Sequence[int]:
    """The answer so far, refused where vLLM has not filled in its last token."""
    if output_ids and output_ids[-1] < 0:
        raise SettingError(
            "vLLM hides the last token from this processor, as it does under asynchronous "
            "scheduling from a processor that it found by itself; name it with "
            "--logits-processors trueline.integrations.vllm:Corrective, or add "
            "--no-async-scheduling"
        )
    return output_ids
