"""The classes that vLLM 0.32 makes: one for its flag, one for its entry point.

Each is a processor of both interfaces to whoever asks, and becomes that of the runner which
makes it: V1 hands over a device and a flag, V2 the states of its requests.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.sample.logits_processor.interface import LogitsProcessor as V1Processor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as V2Processor

from trueline.errors import SettingError
from trueline.integrations.vllm.requests import (
    Requests,
    V1Rows,
    V2Rows,
    check_arguments,
    named_spaces,
)


class CorrectiveV1(V1Processor):
    """Corrective decoding for the V1 model runner; with no rows it does nothing."""

    def __init__(self, rows: V1Rows | None) -> None:
        self._rows = rows

    def is_argmax_invariant(self) -> bool:
        """Whether vLLM may leave it out where the best token is picked."""
        return self._rows is None

    def update_state(self, batch_update: Any | None) -> None:
        """Follow the batch."""
        if self._rows is not None:
            self._rows.update_state(batch_update)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Lift the rows in scope."""
        return logits if self._rows is None else self._rows.apply(logits)


class CorrectiveV2(V2Processor):
    """Corrective decoding for the V2 model runner; with no rows it does nothing."""

    def __init__(self, rows: V2Rows | None) -> None:
        self._rows = rows

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take over a slot; whether its logits may be changed."""
        return self._rows is not None and self._rows.add_request(req_idx, sampling_params)

    def apply_staged_writes(self) -> None:
        """Read what was written."""
        if self._rows is not None:
            self._rows.apply_staged_writes()

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Lift the rows in scope."""
        return logits if self._rows is None else self._rows.apply(logits, ctx)


class Corrective(V1Processor, V2Processor):
    """Corrective decoding, named with --logits-processors."""

    def __new__(cls, vllm_config: Any, *given: Any) -> Any:
        """The processor of the runner that asks for it."""
        return _made(_requests(vllm_config), given)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse arguments of a request while the client can be told."""
        check_arguments(sampling_params.extra_args)


class Plugin(Corrective):
    """The same, found by vLLM in every environment that trueline is installed in.

    It does nothing where no space is named, or where the flag names the processor already.
    """

    def __new__(cls, vllm_config: Any, *given: Any) -> Any:
        """The processor of the runner that asks for it."""
        if not named_spaces() or _is_named(vllm_config):
            return _made(None, given)
        if len(given) == 2 and vllm_config.scheduler_config.async_scheduling:
            raise SettingError(
                "under asynchronous scheduling vLLM hides the last token from a processor "
                "that it found by itself; add the flag --logits-processors "
                "trueline.integrations.vllm:Corrective, or --no-async-scheduling"
            )
        return _made(_requests(vllm_config), given)


def _requests(vllm_config: Any) -> Requests:
    return Requests(named_spaces(), cached_tokenizer_from_config(vllm_config.model_config))


def _made(requests: Requests | None, given: tuple[Any, ...]) -> Any:
    if len(given) == 2:  # V1: the device, and whether memory is pinned
        return CorrectiveV1(None if requests is None else V1Rows(requests))
    (req_states,) = given
    return CorrectiveV2(None if requests is None else V2Rows(requests, req_states))


def _is_named(vllm_config: Any) -> bool:
    named = vllm_config.model_config.logits_processors or ()
    return any(one is Corrective or str(one).endswith("vllm:Corrective") for one in named)
