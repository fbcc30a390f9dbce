"""The arguments and the prompt of a request -> what is lifted in it, on the newest spaces."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from trueline.corrector import Correction
from trueline.decoders import DEFAULT, make_method
from trueline.engines import wrap_tokenizer
from trueline.errors import SettingError, TruelineError
from trueline.integrations.vllm.arguments import SPACES, read_arguments
from trueline.space.space import GroundingSpace, read_space

log = logging.getLogger("vllm.trueline")  # below vLLM's own, so that its handlers show it
_TRIAL = "Is the sky blue?"


class SamplingParams(Protocol):
    """What is read of vLLM's sampling parameters of a request."""

    extra_args: Mapping[str, Any] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool

    @property
    def all_stop_token_ids(self) -> set[int]:
        """The tokens that end it: its own, and those of the model."""
        ...


class Requests:
    """Begins requests, each on the newest state of its space, opened once."""

    def __init__(self, folders: Mapping[str, Path], tokenizer: Any) -> None:
        if not folders:
            raise SettingError(
                f"no space is named; set {SPACES}=facts=facts.space before vLLM is started"
            )
        if tokenizer is None:
            raise SettingError(
                "vLLM runs without a tokenizer, and verified answers have to be cut into "
                "tokens; start it without --skip-tokenizer-init"
            )
        self._thread = ThreadPoolExecutor(1, "trueline-scope")
        self._tokenizer = tokenizer
        self._reader = wrap_tokenizer(tokenizer, ())  # a request says what ends it
        self._spaces = {name: read_space(folder) for name, folder in folders.items()}
        for name, space in self._spaces.items():
            space.open_embedder("cpu")
            self._check_prompt(name, space)

    def begin(
        self, params: SamplingParams, prompt_ids: Sequence[int] | None
    ) -> Correction | None:
        """What is lifted in a request; None: nothing, its logits are left alone."""
        asked = read_arguments(params.extra_args)
        if asked.is_off:
            return None
        name = asked.space or next(iter(self._spaces))
        method = make_method(asked.method, space=self._current(name), settings=asked.settings)
        stops = params.stop_token_ids if params.ignore_eos else params.all_stop_token_ids
        return method.corrector(self._reader).begin(
            prompt_ids, question=asked.question, stop_ids=sorted(stops or ())
        )

    def begin_alongside(
        self, params: SamplingParams, prompt_ids: Sequence[int] | None
    ) -> Future[Correction | None]:
        """The same while the model reads: it is needed only once there are logits.

        One thread takes the requests in turn, so that a space is reloaded by nobody else.
        """
        return self._thread.submit(self.begin, params, prompt_ids)

    def _current(self, name: str) -> GroundingSpace:
        """A space as it is on disk now; as it was, if that cannot be read."""
        try:
            self._spaces[name] = self._spaces[name].current()
        except TruelineError as error:
            log.error("the space %s stays as it was: %s", name, error)
        return self._spaces[name]

    def _check_prompt(self, name: str, space: GroundingSpace) -> None:
        """Say at the start if questions cannot be found in this model's prompts."""
        method = make_method(DEFAULT, space=space)
        prompt = space.prompt.encode(_TRIAL, self._tokenizer)
        found = method.corrector(self._reader).find(prompt)
        if found is None or found.question != _TRIAL:
            log.warning(
                "the question cannot be found in prompts of this model, so the space %s "
                "corrects only requests that give trueline_question",
                name,
            )
