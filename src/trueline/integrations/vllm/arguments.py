"""What a server and its clients say -> spaces by name, and the settings of one request.

The server names its spaces once, in the environment: TRUELINE_SPACES="facts=facts.space,...".
A client sends `vllm_xargs`: {"trueline_space": "facts", "trueline_strength": 0.5}.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from trueline.decoders import DEFAULT, check_settings, method_class, settings_fields
from trueline.decoders.base import Decoder
from trueline.errors import SettingError
from trueline.prompts import check_question
from trueline.visible import shown

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
    if method_class(arguments.method).corrector is Decoder.corrector:
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
