"""An encoder of torch in, the same encoder on ONNX Runtime out: exported once, then kept."""

from __future__ import annotations

import os
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trueline.models.quiet import quiet
from trueline.models.sources import home

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CLOSE = 1e-5  # how far a value of a state may be off, in multiples of the largest one


class Runtime:
    """The last hidden states of an encoder, without the cost of a Python call an operation."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the core the language model leaves it
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(texts, tokens) twice -> (texts, tokens, width)."""
        feed = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
        states: Any = self._session.run(None, feed)[0]
        return torch.from_numpy(np.asarray(states))


def open_runtime(model: PreTrainedModel, name: str) -> Runtime | None:
    """The runtime of an encoder, kept in the cache under a name; None where there is none.

    There is none without the packages, on another device than a CPU, or if the exported model
    does not give the states of the one it was made from.
    """
    if model.device.type != "cpu":
        return None
    path = home() / "runtimes" / f"{name[:32]}.onnx"
    try:
        runtime = _opened(path) or _opened(_export(model, path))
    except Exception:  # whatever an exporter raises: torch itself still works
        return None
    return runtime if runtime is not None and _is_same(model, runtime) else None


def _opened(path: Path) -> Runtime | None:
    """None where there is no file, or a damaged one."""
    try:
        return Runtime(path) if path.exists() else None
    except Exception:  # its errors have no common class of their own
        return None


def _export(model: PreTrainedModel, path: Path) -> Path:
    """Write the graph and its weights beside their place, then move them there at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    ids, mask = _sample(model)
    dims = {0: torch.export.Dim("texts", max=4096), 1: torch.export.Dim("tokens", max=512)}
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _States(model),
            (ids, mask),
            input_names=["input_ids", "attention_mask"],
            dynamic_shapes=(dims, dims),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        program.save(str(scratch), external_data=False)
    os.replace(scratch, path)
    return path


class _States(torch.nn.Module):
    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask
        ).last_hidden_state
        return states


@torch.no_grad()
def _is_same(model: PreTrainedModel, runtime: Runtime) -> bool:
    ids, mask = _sample(model)
    own = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return bool((runtime(ids, mask) - own).abs().max() <= _CLOSE * own.abs().max())


def _sample(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Two texts of unequal length, as ids and mask."""
    ids = torch.arange(14).reshape(2, 7) * 37 % int(model.config.vocab_size)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    return ids, mask
