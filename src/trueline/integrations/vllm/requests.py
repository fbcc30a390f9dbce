"""The arguments and the prompt of a request -> what is lifted in it, on the newest spaces."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, get_type_hints

import torch

from trueline.corrective.votes import Correction, lift_rows
from trueline.engines import wrap_tokenizer
from trueline.errors import SettingError, TruelineError
from trueline.methods import DEFAULT, check_settings, make_method, method_class, settings_fields
from trueline.prompts import check_question
from trueline.space.space import GroundingSpace, read_space
from trueline.text import shown

SPACES = "TRUELINE_SPACES"
PREFIX = "trueline_"  # of every argument of ours: other processors have arguments too
_OWN = ("space", "question", "off", "method")  # beside the settings of the method
_YES_OR_NO = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, slots=True)
class RequestArguments:
    """What one request asks for."""

    space: str | None = None  # None: the first that the server names
    question: str | None = None  # None: it is found in the prompt
    is_off: bool = False
    method: str = DEFAULT
    settings: Mapping[str, Any] = field(default_factory=dict)


def named_spaces() -> dict[str, Path]:
    """The spaces of this server by name, in order; the first is the one that nobody names."""
    found: dict[str, Path] = {}
    for part in filter(str.strip, os.environ.get(SPACES, "").split(",")):
        name, equals, folder = (one.strip() for one in part.partition("="))
        if not (name and equals and folder):
            raise SettingError(
                f"{SPACES} must read name=folder,name=folder; {shown(part)} does not"
            )
        if name in found:
            raise SettingError(f"{SPACES} names {shown(name)} twice; give each its own name")
        found[name] = Path(folder)
    return found


def read_arguments(given: Mapping[str, Any] | None) -> RequestArguments:
    """The arguments of a request, or an error that names the one that is wrong."""
    ours = {
        name.removeprefix(PREFIX): value
        for name, value in (given or {}).items()
        if name.startswith(PREFIX)
    }
    method = str(ours.pop("method", DEFAULT))
    known = settings_fields(method)
    space, question = ours.pop("space", None), ours.pop("question", None)
    is_off = _yes_or_no("off", ours.pop("off", False))
    for name in ours:
        if name not in known:
            names = ", ".join(PREFIX + one for one in (*_OWN, *known))
            raise SettingError(f"there is no argument {PREFIX}{name}; there are {names}")
    hints = get_type_hints(method_class(method))
    settings = {
        name: _yes_or_no(name, value) if hints[name] is bool else value
        for name, value in ours.items()
    }
    check_settings(method, settings)
    if question is not None:
        check_question(question, f"{PREFIX}question")
    return RequestArguments(space, question, is_off, method, settings)


def check_arguments(given: Mapping[str, Any] | None) -> None:
    """Refuse what cannot be done, while the client can still be told."""
    arguments, spaces = read_arguments(given), named_spaces()
    if arguments.space is not None and arguments.space not in spaces:
        there = (
            f"it has {', '.join(spaces)}" if spaces else f"it has none ({SPACES} is not set)"
        )
        raise SettingError(f"this server has no space {shown(arguments.space)}; {there}")
    if not hasattr(method_class(arguments.method), "corrector"):
        raise SettingError(
            f"{arguments.method} needs more of an engine than logits, and vLLM gives a "
            f"processor no more; leave {PREFIX}method out, or use trueline's own server"
        )


def _yes_or_no(name: str, value: object) -> bool:
    """Yes or no as JSON, a form or a shell says it: vLLM hands on no true and false."""
    found = _YES_OR_NO.get(str(value).lower().removesuffix(".0"))
    if found is None:
        raise SettingError(f"{PREFIX}{name} must be 0 or 1, got {shown(value)}")
    return found


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
        method: Any = make_method(
            asked.method, space=self._current(name), settings=asked.settings
        )
        stops = params.stop_token_ids if params.ignore_eos else params.all_stop_token_ids
        correction: Correction | None = method.corrector(self._reader).begin(
            prompt_ids, question=asked.question, stop_ids=sorted(stops or ())
        )
        return correction

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
        method: Any = make_method(DEFAULT, space=space)
        prompt = space.prompt.encode(_TRIAL, self._tokenizer)
        found = method.corrector(self._reader).find(prompt)
        if found is None or found.question != _TRIAL:
            log.warning(
                "the question cannot be found in prompts of this model, so the space %s "
                "corrects only requests that give trueline_question",
                name,
            )


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
