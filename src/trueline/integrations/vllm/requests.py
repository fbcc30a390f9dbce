"""The arguments and the prompt of a request in vLLM -> its correction, on the newest space."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trueline.corrective.votes import Correction, lift_rows
from trueline.engines import wrap_tokenizer
from trueline.errors import SettingError, TruelineError
from trueline.methods import DEFAULT, check_settings, make_method, method_class, settings_fields
from trueline.prompts import check_question
from trueline.space import read_space
from trueline.text import shown

SPACES = "TRUELINE_SPACES"
PREFIX = "trueline_"  # of our arguments: other processors have arguments too
_OWN = ("space", "question", "off", "method")  # besides the settings of the method
_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}
_TRIAL = "Is the sky blue?"
HIDDEN_TOKENS = (
    "under asynchronous scheduling vLLM hides the last token from processors of entry points; "
    "add the flag --logits-processors trueline.integrations.vllm:Corrective, or "
    "--no-async-scheduling"
)
log = logging.getLogger("vllm.trueline")  # a child of vLLM's logger, so that it is shown


class RequestArguments(NamedTuple):
    """The arguments of one request."""

    space: str | None  # None: the first space of the server
    question: str | None  # None: it is found in the prompt
    is_off: bool
    method: str
    settings: Mapping[str, Any]


def named_spaces() -> dict[str, Path]:
    """The spaces of this server by name; the first one is the default."""
    folders: dict[str, Path] = {}
    for part in filter(str.strip, os.environ.get(SPACES, "").split(",")):
        name, equals, folder = (text.strip() for text in part.partition("="))
        if not (name and equals and folder):
            raise SettingError(
                f"{SPACES} must be name=folder,name=folder; {shown(part)} is not name=folder"
            )
        if name in folders:
            raise SettingError(f"{SPACES} names {shown(name)} twice; names must differ")
        folders[name] = Path(folder)
    return folders


def read_arguments(given: Mapping[str, Any] | None) -> RequestArguments:
    """The arguments of a request; one that this server cannot follow is an error."""
    items, spaces = (given or {}).items(), named_spaces()
    ours = {name.removeprefix(PREFIX): x for name, x in items if name.startswith(PREFIX)}
    method = str(ours.pop("method", DEFAULT))
    known = settings_fields(method)
    space, question = ours.pop("space", None), ours.pop("question", None)
    is_off = _boolean("off", ours.pop("off", False))
    if unknown := [name for name in ours if name not in known]:
        names = ", ".join(PREFIX + one for one in (*_OWN, *known))
        raise SettingError(f"there is no argument {PREFIX}{unknown[0]}; there are {names}")
    for name in ours:
        if isinstance(known[name].default, bool):
            ours[name] = _boolean(name, ours[name])
    check_settings(method, ours)
    if question is not None:
        check_question(question, f"{PREFIX}question")
    if space is not None and space not in list(spaces):
        has = ", ".join(spaces) or f"none ({SPACES} is not set)"
        raise SettingError(f"this server has no space {shown(space)}; it has {has}")
    if not hasattr(method_class(method), "corrector"):
        raise SettingError(
            f"{method} needs more than logits, and vLLM gives a processor only "
            f"logits; leave {PREFIX}method out, or use trueline's own server"
        )
    return RequestArguments(space, question, is_off, method, ours)


def _boolean(name: str, value: object) -> bool:
    """vLLM passes numbers and texts, but not true and false."""
    truth = _BOOLEANS.get(str(value).lower().removesuffix(".0"))
    if truth is None:
        raise SettingError(f"{PREFIX}{name} must be 0 or 1, got {shown(value)}")
    return truth


Begun = Future[Correction | None]  # None: the logits of the request stay as they are


class Requests:
    """Begins requests, each on the newest state of its space."""

    def __init__(self, folders: Mapping[str, Path], tokenizer: Any) -> None:
        if not folders:
            raise SettingError(
                f"no space is named; set {SPACES}=facts=facts.space before vLLM starts"
            )
        if tokenizer is None:
            raise SettingError(
                "vLLM runs without a tokenizer, which verified answers need; start it without "
                "--skip-tokenizer-init"
            )
        # One thread for all requests, so that only one of them reloads a space.
        self._thread = ThreadPoolExecutor(1, "trueline-scope")
        self._reader = wrap_tokenizer(tokenizer, ())  # each request has its own stop ids
        self._spaces = {name: read_space(folder) for name, folder in folders.items()}
        for name, space in self._spaces.items():
            method: Any = make_method(DEFAULT, space=space)
            trial = space.prompt.encode(_TRIAL, tokenizer)
            found = method.corrector(self._reader).find(trial)
            if found is None or found[0] != _TRIAL:
                log.warning(
                    "the question cannot be found in prompts of this model; the space %s "
                    "corrects only requests with trueline_question",
                    name,
                )

    def begin(self, params: Any, prompt_ids: Sequence[int] | None) -> Correction | None:
        """The correction of a request with vLLM's sampling parameters."""
        arguments = read_arguments(params.extra_args)
        if arguments.is_off:
            return None
        name = arguments.space or next(iter(self._spaces))
        try:
            self._spaces[name] = self._spaces[name].current()
        except TruelineError as error:
            log.error("the space %s stays as it was: %s", name, error)
        space, settings = self._spaces[name], arguments.settings
        method: Any = make_method(arguments.method, space=space, settings=settings)
        stops = params.stop_token_ids if params.ignore_eos else params.all_stop_token_ids
        correction: Correction | None = method.corrector(self._reader).begin(
            prompt_ids, question=arguments.question, stop_ids=sorted(stops or ())
        )
        return correction

    def submit(self, params: Any, prompt_ids: Sequence[int] | None) -> Begun:
        """The same in a thread, while the model reads the prompt."""
        return self._thread.submit(self.begin, params, prompt_ids)


class V1Rows:
    """The V1 interface: a request has a row of the batch, and vLLM reports how rows move.

    Without requests it does nothing.
    """

    def __init__(self, requests: Requests | None) -> None:
        self._requests = requests
        # By row, with vLLM's own list of the answer's tokens, which grows.
        self._rows: dict[int, tuple[Begun, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        """Whether vLLM may skip it for greedy requests."""
        return self._requests is None

    def update_state(self, batch_update: Any | None) -> None:
        """Follow a BatchUpdate: first the removed rows, then the added, then the moved."""
        if batch_update is None or self._requests is None:
            return
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, prompt_ids, output_ids in batch_update.added:
            self._rows[row] = self._requests.submit(params, prompt_ids), output_ids
        for source, target, direction in batch_update.moved:
            moved, replaced = self._rows.pop(source, None), self._rows.pop(target, None)
            if moved is not None:
                self._rows[target] = moved
            if replaced is not None and direction.name == "SWAP":
                self._rows[source] = replaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits (rows, vocabulary); the same tensor if no row is in scope."""
        self._rows = {at: row for at, row in self._rows.items() if row[0].result()}
        if not self._rows:
            return logits
        corrections: list[Correction | None] = [None] * len(logits)
        outputs: list[Sequence[int]] = [()] * len(logits)
        for row, (begun, output) in self._rows.items():
            if output and output[-1] < 0:
                raise SettingError(HIDDEN_TOKENS)
            corrections[row], outputs[row] = begun.result(), output
        return lift_rows(corrections, outputs, logits).logits


class V2Rows:
    """The V2 interface: a request has a slot, and its rows are looked up at every step.

    Without requests it does nothing.
    """

    def __init__(self, requests: Requests | None, req_states: Any) -> None:
        self._requests, self._states = requests, req_states
        self._new: dict[int, Any] = {}  # parameters of slots whose prompts are not written yet
        self._slots: dict[int, Begun] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take a slot; its prompt can be read after vLLM has written it."""
        self._slots.pop(req_idx, None)
        if self._requests is not None:
            self._new[req_idx] = sampling_params
        return self._requests is not None

    def apply_staged_writes(self) -> None:
        """Begin new requests, now that their prompts are written."""
        for slot, params in self._new.items():
            assert self._requests is not None
            prompt = self._tokens(slot, 0, int(self._states.prompt_len.np[slot]))
            self._slots[slot] = self._requests.submit(params, prompt)
        self._new.clear()

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The logits (rows, vocabulary); the same tensor if no row is in scope.

        A request has one row for each drafted token, after those drafted before it.
        """
        self._slots = {slot: begun for slot, begun in self._slots.items() if begun.result()}
        if not self._slots or self._slots.keys().isdisjoint(ctx.idx_mapping_np.tolist()):
            return logits
        corrections: list[Correction | None] = [None] * len(logits)
        outputs: list[Sequence[int]] = [()] * len(logits)
        drafted = ctx.expanded_local_pos.tolist()
        for row, slot in enumerate(ctx.expanded_idx_mapping.tolist()):
            if slot in self._slots:
                start = int(self._states.prompt_len.np[slot])
                settled = self._tokens(slot, start, int(self._states.total_len.gpu[slot]))
                drafts = ctx.input_ids[row - drafted[row] + 1 : row + 1].tolist()
                corrections[row] = self._slots[slot].result()
                outputs[row] = [*settled, *drafts]
        return lift_rows(corrections, outputs, logits).logits

    def _tokens(self, slot: int, start: int, end: int) -> list[int]:
        tokens: list[int] = self._states.all_token_ids.gpu[slot, start:end].tolist()
        return tokens
