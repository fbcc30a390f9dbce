"""An encoder of torch in, the same encoder on ONNX Runtime out: exported once, then kept."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trueline.models.quiet import quiet
from trueline.models.sources import home

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Rows = list[list[int]]  # the tokens of some texts
States = Callable[[Rows], torch.Tensor]  # of all their tokens: (tokens, width)

_CLOSE = 1e-5  # how far a value of a state may be off, in multiples of the largest one
_PACKED = 256  # tokens read as one row: more, and attention between texts costs more than pads
_SAMPLE = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17]]


class Runtime:
    """The last hidden states of an encoder, without pads and without a Python call each."""

    def __init__(self, path: Path, first: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the core the language model leaves it
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._first = first  # the position of a text's first token

    def __call__(self, rows: Rows) -> torch.Tensor:
        """The states of all tokens: (tokens, width)."""
        return torch.cat([self._pack(some) for some in _packs(rows)])

    def _pack(self, rows: Rows) -> torch.Tensor:
        packed = [tensor.numpy() for tensor in _packed(rows, self._first)]
        states: Any = self._session.run(None, dict(zip(_INPUTS, packed, strict=True)))[0]
        return torch.from_numpy(np.asarray(states))[0]


_INPUTS = ("ids", "positions", "owners")


def open_runtime(model: PreTrainedModel, name: str, states: States) -> Runtime | None:
    """The runtime of an encoder, kept in the cache under a name; None where there is none.

    There is none without the packages, on another device than a CPU, or if the exported model
    does not give the states of the one it was made from.
    """
    if model.device.type != "cpu":
        return None
    wanted = states(_SAMPLE)
    path = home() / "runtimes" / f"{name[:32]}-packed.onnx"
    try:
        first = _first_position(model, wanted)
        runtime = _opened(path, first) or _opened(_export(model, path, first), first)
    except Exception:  # whatever an exporter raises: torch itself still works
        return None
    return runtime if runtime is not None and _is_same(runtime(_SAMPLE), wanted) else None


def _opened(path: Path, first: int) -> Runtime | None:
    """None where there is no file, or a damaged one."""
    try:
        return Runtime(path, first) if path.exists() else None
    except Exception:  # its errors have no common class of their own
        return None


@torch.no_grad()
def _first_position(model: PreTrainedModel, wanted: torch.Tensor) -> int:
    """Where an encoder begins to count; some begin behind the number of their pad."""
    for first in (0, int(model.config.pad_token_id or 0) + 1):
        if _is_same(_Packed(model)(*_packed(_SAMPLE, first))[0], wanted):
            return first
    raise ValueError("the encoder does not read texts one behind the other")


def _export(model: PreTrainedModel, path: Path, first: int) -> Path:
    """Write the graph and its weights beside their place, then move them there at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    tokens = torch.export.Dim("tokens", max=8192)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _Packed(model),
            _packed(_SAMPLE, first),
            input_names=_INPUTS,
            dynamic_shapes=({1: tokens}, {1: tokens}, {0: tokens}),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        program.save(str(scratch), external_data=False)
    os.replace(scratch, path)
    return path


class _Packed(torch.nn.Module):
    """An encoder that reads texts one behind the other, each seeing itself alone."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, owners: torch.Tensor
    ) -> torch.Tensor:
        """(1, tokens) twice and (tokens,) -> (1, tokens, width)."""
        far = torch.finfo(torch.float32).min
        mask = torch.where(owners[:, None] == owners, 0.0, far)[None, None]
        states: torch.Tensor = self.model(
            input_ids=ids, position_ids=positions, attention_mask=mask
        ).last_hidden_state
        return states


def _packed(rows: Rows, first: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All tokens in one row, the position of each in its text, and which text it is of."""
    ids = torch.tensor([[token for row in rows for token in row]])
    positions = torch.tensor([[first + place for row in rows for place in range(len(row))]])
    owners = torch.tensor([number for number, row in enumerate(rows) for _ in row])
    return ids, positions, owners


def _packs(rows: Rows) -> Iterator[Rows]:
    """As many rows at a time as make a pack, in their order."""
    pack: Rows = []
    for row in rows:
        if pack and sum(map(len, pack)) + len(row) > _PACKED:
            yield pack
            pack = []
        pack.append(row)
    yield pack


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs().max() <= _CLOSE * other.abs().max())
