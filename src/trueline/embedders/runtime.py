"""An embedder of torch in, the same one on ONNX Runtime out: exported once, then kept."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trueline.engines.sources import home
from trueline.engines.transformers.quiet import quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Rows = list[list[int]]  # the tokens of some texts
Vectors = Callable[[Rows], torch.Tensor]  # of the texts: (texts, width)

_CLOSE = 1e-5  # how far a value of a vector may be off, in multiples of the largest one
_PACKED = 256  # tokens read as one row: more, and attention between texts costs more than pads
_SAMPLE = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17]]


class Runtime:
    """The unit vectors of texts, without pads and with one call a pack."""

    def __init__(self, path: Path, packer: _Packer) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the core the language model leaves it
        # Its extended fusions are 5 % slower on 16 windows: the norms of layers.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._packer = packer

    def begin(self, rows: Rows) -> Callable[[], torch.Tensor]:
        """Pack some texts; what is returned gives their vectors (texts, width)."""
        feeds = [dict(zip(_INPUTS, self._packer(some), strict=True)) for some in _packs(rows)]

        def end() -> torch.Tensor:
            found: list[Any] = [self._session.run(None, feed)[0] for feed in feeds]
            return torch.from_numpy(found[0] if len(found) == 1 else np.concatenate(found))

        return end


_INPUTS = ("ids", "positions", "owners", "counted")


@dataclass(frozen=True)
class _Packer:
    """Puts texts one behind the other."""

    first: int  # the position of a text's first token
    pooling: str  # which of its tokens make a text's vector: `first`, or all of them (`mean`)

    def __call__(self, rows: Rows) -> tuple[np.ndarray, ...]:
        """All tokens in one row, the place of each in its text, its text, and if it counts."""
        ids = np.array([[token for row in rows for token in row]], np.int64)
        places = np.array([[place for row in rows for place in range(len(row))]], np.int64)
        owners = np.array([number for number, row in enumerate(rows) for _ in row], np.int64)
        counted = owners == np.arange(len(rows))[:, None]  # (texts, tokens)
        if self.pooling == "first":
            counted &= places == 0
        return ids, places + self.first, owners, counted.astype(np.float32)


def open_runtime(
    model: PreTrainedModel, name: str, pooling: str, vectors: Vectors
) -> Runtime | None:
    """The runtime of an embedder, kept in the cache under a name; None where there is none.

    There is none without the packages, on another device than a CPU, or if the exported model
    does not give the vectors of the one it was made from.
    """
    if model.device.type != "cpu":
        return None
    path = home() / "runtimes" / f"{name[:32]}-vectors.onnx"
    wanted = vectors(_SAMPLE)
    try:
        packer = _find_packer(model, pooling, wanted)
        runtime = _opened(path, packer) or _opened(_export(model, path, packer), packer)
    except Exception:  # whatever an exporter raises: torch itself still works
        return None
    return (
        runtime if runtime is not None and _is_same(runtime.begin(_SAMPLE)(), wanted) else None
    )


def _opened(path: Path, packer: _Packer) -> Runtime | None:
    """None where there is no file, or a damaged one."""
    try:
        return Runtime(path, packer) if path.exists() else None
    except Exception:  # its errors have no common class of their own
        return None


@torch.no_grad()
def _find_packer(model: PreTrainedModel, pooling: str, wanted: torch.Tensor) -> _Packer:
    """How an encoder is given texts; some count places from behind the number of their pad."""
    for first in (0, int(model.config.pad_token_id or 0) + 1):
        packer = _Packer(first, pooling)
        if _is_same(_Packed(model)(*_tensors(packer)), wanted):
            return packer
    raise ValueError("the encoder does not read texts one behind the other")


def _tensors(packer: _Packer) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(array) for array in packer(_SAMPLE))


def _export(model: PreTrainedModel, path: Path, packer: _Packer) -> Path:
    """Write the graph and its weights beside their place, then move them there at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    tokens, texts = torch.export.Dim("tokens", max=8192), torch.export.Dim("texts", max=8192)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _Packed(model),
            _tensors(packer),
            input_names=_INPUTS,
            dynamic_shapes=({1: tokens}, {1: tokens}, {0: tokens}, {0: texts, 1: tokens}),
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
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        owners: torch.Tensor,
        counted: torch.Tensor,
    ) -> torch.Tensor:
        """(1, tokens) twice, (tokens,) and (texts, tokens) -> (texts, width)."""
        far = torch.finfo(torch.float32).min
        mask = torch.where(owners[:, None] == owners, 0.0, far)[None, None]
        states: torch.Tensor = self.model(
            input_ids=ids, position_ids=positions, attention_mask=mask
        ).last_hidden_state
        return torch.nn.functional.normalize(counted @ states[0], dim=1)


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
