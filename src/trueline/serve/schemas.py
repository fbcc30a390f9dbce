"""The bytes of a request in, a typed body out; what is unknown or not supported is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar

import msgspec

from trueline.serve.access import Refusal
from trueline.settings import Between, check_values
from trueline.text import has_half_character

# What clients send though it changes nothing: these values mean "as it is", others are refused.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "metadata": (None, {}),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None, True, False),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "reasoning_effort": (None,),
    "response_format": (None, {"type": "text"}),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_k": (None, -1),
    "web_search_options": (None,),
}
_IN_MESSAGES = ("audio", "function_call", "name", "refusal", "tool_calls", "tool_call_id")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`")
_WHERE = re.compile(r" - at `\$\.?(.*)`$")
Body = TypeVar("Body")


class Extras(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `trueline` object of a request."""

    method: str | None = None
    space: str | None = None
    strength: float | None = None
    threshold: float | None = None
    only_covered: bool | None = None
    settings: dict[str, Any] = {}  # any other setting of the method
    question: str | list[str] | None = None  # of a completion: of all prompts, or of each
    sources: bool = True
    trace: bool = False

    def named_settings(self) -> dict[str, Any]:
        """The settings of the method that are given, by name."""
        own = {
            "strength": self.strength,
            "threshold": self.threshold,
            "only_covered": self.only_covered,
        }
        return {**self.settings, **{k: value for k, value in own.items() if value is not None}}


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # only false: nothing is padded here


class Shared(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What chats and completions have in common."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None  # says who asks; changes no answer
    safety_identifier: str | None = None  # the same
    prompt_cache_key: str | None = None  # the same
    trueline: Extras = msgspec.field(default_factory=Extras)


class TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a message; only text is read."""

    type: str
    text: str = ""


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message of a chat."""

    role: str
    content: str | list[TextPart]


class ChatBody(Shared):
    """A request for a chat completion."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionBody(Shared):
    """A request for a completion."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None


class NewExample(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An example to be added to a space."""

    question: str
    answers: str | list[str]
    wrong_answers: str | list[str] = []
    id: str = ""
    source: str = ""


class NewExamples(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Examples to be added to a space; with `replace`, in the place of those of their ids."""

    examples: list[NewExample]
    replace: bool = False


def parse(body: bytes, kind: type[Body]) -> Body:
    """A request's body as what it should be, or a refusal that names the parameter."""
    return _as_body(_read_json(body), kind)


def _read_json(body: bytes) -> dict[str, Any]:
    try:
        read = msgspec.json.decode(body)
    except RecursionError:
        raise _malformed("it is nested too deep") from None
    except msgspec.ValidationError as error:  # a number that no float holds
        raise _malformed(_WHERE.sub("", str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(str(error)) from None
    if not isinstance(read, dict):
        raise _malformed(f"it must be an object, got {type(read).__name__}")
    return read


def _malformed(reason: str) -> Refusal:
    return Refusal(400, f"the body is no JSON that can be read: {reason}", code="invalid_json")


def _as_body(read: dict[str, Any], kind: type[Body]) -> Body:
    given = {
        name: value
        for name, value in read.items()
        if name not in _WITHOUT_EFFECT or not _is_neutral(name, value)
    }
    if isinstance(messages := given.get("messages"), list):
        given["messages"] = [_without_neutral(message) for message in messages]
    if given.get("trueline", 0) is None:
        del given["trueline"]
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise _not_taken(str(error)) from None
    except RecursionError:
        raise _malformed("it is nested too deep") from None


def _is_neutral(name: str, value: Any) -> bool:
    return any(
        value == known and isinstance(value, bool) == isinstance(known, bool)
        for known in _WITHOUT_EFFECT[name]
    )


def _without_neutral(message: Any) -> Any:
    """A message without fields that say nothing."""
    if not isinstance(message, dict):
        return message
    return {
        name: value
        for name, value in message.items()
        if name not in _IN_MESSAGES or value not in (None, [])
    }


def _not_taken(problem: str) -> Refusal:
    """What the check of a body found, with the parameter's name."""
    found = _WHERE.search(problem)
    where = found[1] if found else ""
    what = _WHERE.sub("", problem)
    if unknown := _UNKNOWN.match(what):
        param = f"{where}.{unknown[1]}" if where else unknown[1]
        param = param if not has_half_character(param) else where
        return Refusal(
            400,
            f"{param[:200]} is not supported by this server, or has a value that is not",
            code="unsupported_parameter",
            param=param[:200],
        )
    named = re.fullmatch(r"Object missing required field `(.*)`", what)
    if named:
        param = f"{where}.{named[1]}" if where else named[1]
        return Refusal(400, f"{param} is missing", code="missing_parameter", param=param)
    return Refusal(400, f"{where}: {what}", code="invalid_type", param=where or None)


_YEAR = 3e7  # seconds; what a clock can keep


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a server takes on before it says no."""

    rows: Annotated[int, Between(1, 4096)] = 16  # answers that are decoded together
    cached_tokens: Annotated[int, Between(1)] | None = None  # of all rows; None: no cap
    queue: Annotated[int, Between(0)] = 64  # answers that wait for a row; then 429
    deadline: Annotated[float, Between(0, _YEAR, above=True)] = 300.0  # seconds; then 504
    prompt_tokens: Annotated[int, Between(1)] | None = None  # None: what the model reads
    new_tokens: Annotated[int, Between(1)] = 1024  # the most an answer may be asked to have
    usual_tokens: Annotated[int, Between(1)] = 256  # of a chat that does not say how many
    choices: Annotated[int, Between(1)] = 16  # answers of one request: n times its prompts
    connections: Annotated[int, Between(1)] = 1024  # then 503
    body_bytes: Annotated[int, Between(1)] = 1 << 20
    body_seconds: Annotated[float, Between(0, _YEAR, above=True)] = 10.0  # to send a body
    write_seconds: Annotated[float, Between(0, _YEAR, above=True)] = 20.0  # to take a piece
    stuck_seconds: Annotated[float, Between(0, _YEAR, above=True)] = 120.0  # for one step
    drain_seconds: Annotated[int, Between(1, _YEAR)] = 30  # for answers to end at shutdown

    def __post_init__(self) -> None:
        check_values(type(self), {one.name: getattr(self, one.name) for one in fields(self)})
