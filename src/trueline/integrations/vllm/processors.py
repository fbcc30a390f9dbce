"""The classes that vLLM 0.32 makes: one for its flag, one for its entry point.

Each implements both interfaces, and makes the processor of the model runner that calls it.
"""

from __future__ import annotations

from typing import Any

from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.sample.logits_processor.interface import LogitsProcessor as V1Processor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as V2Processor

from trueline.errors import SettingError
from trueline.integrations.vllm.requests import (
    HIDDEN_TOKENS,
    Requests,
    V1Rows,
    V2Rows,
    named_spaces,
    read_arguments,
)


class CorrectiveV1(V1Rows, V1Processor):
    """Corrective decoding for the V1 model runner."""


class CorrectiveV2(V2Rows, V2Processor):
    """Corrective decoding for the V2 model runner."""


class Corrective(V1Processor, V2Processor):
    """Corrective decoding, named with --logits-processors."""

    def __new__(cls, vllm_config: Any, *given: Any) -> Any:
        tokenizer = cached_tokenizer_from_config(vllm_config.model_config)
        return _make(Requests(named_spaces(), tokenizer), given)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse wrong arguments of a request with an error for the client."""
        read_arguments(sampling_params.extra_args)


class Plugin(Corrective):
    """The same for the entry point, which vLLM uses wherever trueline is installed.

    It does nothing if no space is named, or if the flag names the processor already.
    """

    def __new__(cls, vllm_config: Any, *given: Any) -> Any:
        flags = vllm_config.model_config.logits_processors or ()
        if not named_spaces() or any(
            one is Corrective or str(one).endswith("vllm:Corrective") for one in flags
        ):
            return _make(None, given)
        if len(given) == 2 and vllm_config.scheduler_config.async_scheduling:
            raise SettingError(HIDDEN_TOKENS)
        return super().__new__(cls, vllm_config, *given)


def _make(requests: Requests | None, given: tuple[Any, ...]) -> Any:
    """The processor of the runner that passes these arguments; idle without requests.

    V1 passes a device and whether memory is pinned, V2 the states of its requests.
    """
    return CorrectiveV1(requests) if len(given) == 2 else CorrectiveV2(requests, *given)
