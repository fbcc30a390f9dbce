"""The body of a request -> a typed object, and its sampling options; the limits of a server."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.requests import ClientDisconnect, Request

from trueline.serve.access import APIError, invalid
from trueline.settings import Between, check_values
from trueline.text import visible_line
from trueline.types import Sampling

# Fields of OpenAI's API that are not supported. They may be empty, false, 0 or null, or have
# one of these values, which change nothing either.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = dict.fromkeys(
    "audio echo frequency_penalty functions include_obfuscation logit_bias metadata name "
    "prediction presence_penalty reasoning_effort refusal store suffix tool_call_id tool_calls "
    "tools web_search_options trueline".split(),  # the last is supported, and may be null
    (),
) | {
    "best_of": (1,),
    "function_call": ("none",),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "tool_choice": ("none", "auto"),
    "top_k": (-1,),
}
_COMPLETION_TOKENS = 16  # of a completion that names no length, as in OpenAI's API
_CLOSE = {"connection": "close"}  # the rest of the body is not read
Body = TypeVar("Body")
Logprobs = Annotated[int, Meta(ge=0, le=20)]
Least1 = Annotated[int, Meta(ge=1)]
Stop = Annotated[str, Meta(min_length=1, max_length=1000)]
Question = Annotated[str, Meta(max_length=8000)]  # scope takes longer the longer it is
Seconds = Annotated[float, Between(0, 3e7, above=True)]  # up to a year
Count = Annotated[int, Between(1)]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a server accepts."""

    rows: Annotated[int, Between(1, 4096)] = 16  # answers decoded together
    cached_tokens: Count | None = None  # of all rows; None: no limit
    queue: Annotated[int, Between(0)] = 64  # answers that wait for a row; then 429
    deadline: Seconds = 300.0  # then 504
    prompt_tokens: Count | None = None  # None: what the model reads
    new_tokens: Count = 1024  # of one answer
    usual_tokens: Count = 256  # of a chat that names no length
    choices: Count = 16  # answers to one request: n times its prompts
    connections: Count = 1024  # then 503
    body_bytes: Count = 1 << 20
    body_seconds: Seconds = 10.0  # to send a body
    write_seconds: Seconds = 20.0  # to take a chunk
    stuck_seconds: Seconds = 120.0  # for one step
    drain_seconds: Annotated[int, Between(1, 3e7)] = 30  # for answers to end at shutdown

    def __post_init__(self) -> None:
        check_values(type(self), asdict(self))


class _Strict(Struct, forbid_unknown_fields=True):
    pass


class Extras(_Strict):
    """The `trueline` object of a request."""

    method: str | None = None
    space: str | None = None
    strength: float | None = None
    threshold: float | None = None
    only_covered: bool | None = None
    settings: dict[str, Any] = {}  # other settings of the method
    question: Question | list[Question] | None = None  # of a completion: of all or each prompt
    sources: bool = True
    trace: bool = False

    def method_settings(self) -> dict[str, Any]:
        """All settings of the method that the request names."""
        own = {name: getattr(self, name) for name in ("strength", "threshold", "only_covered")}
        return self.settings | {name: one for name, one in own.items() if one is not None}


class StreamOptions(_Strict):
    include_usage: bool | None = None


class _Shared(_Strict, kw_only=True):
    model: str
    max_tokens: Least1 | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Least1 | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    seed: Annotated[int, Meta(ge=0, lt=1 << 62)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None  # accepted, changes nothing; so do the next two
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    trueline: Extras = msgspec.field(default_factory=Extras)


class TextPart(_Strict):
    type: Literal["text"]
    text: str = ""


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]


class ChatBody(_Shared, kw_only=True):
    """A request for a chat completion."""

    messages: list[Message]
    max_completion_tokens: Least1 | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None


class CompletionBody(_Shared, kw_only=True):
    """A request for a completion."""

    prompt: str | list[str | int | list[int]]
    logprobs: Logprobs | None = None


class NewExample(_Strict):
    question: str
    answers: str | list[str]
    wrong_answers: str | list[str] = []
    id: str = ""
    source: str = ""


class NewExamples(_Strict):
    """Examples to add to a space; with `replace`, they replace those with their ids."""

    examples: list[NewExample]
    replace: bool = False


def read_sampling(body: ChatBody | CompletionBody, limits: Limits) -> Sampling:
    """The sampling options of a request under their names in the library."""
    tokens, usual, logprobs = body.max_tokens, _COMPLETION_TOKENS, body.logprobs
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "it needs stream to be true")
    if isinstance(body, ChatBody):
        if None not in (tokens, body.max_completion_tokens):
            raise invalid("max_tokens", "give max_completion_tokens or max_tokens, not both")
        if body.top_logprobs is not None and not body.logprobs:
            raise invalid("top_logprobs", "it needs logprobs to be true")
        tokens = body.max_completion_tokens if tokens is None else tokens
        usual = limits.usual_tokens
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
    tokens = usual if tokens is None else tokens
    if tokens > limits.new_tokens:
        raise invalid("max_tokens", f"the limit is {limits.new_tokens}, got {tokens}")
    return Sampling(
        max_new_tokens=tokens,
        temperature=body.temperature or 0.0,
        top_p=body.top_p if body.temperature else None,  # greedy needs neither
        seed=body.seed if body.temperature else None,
        stop=body.stop if isinstance(body.stop, str) else tuple(body.stop or ()),
        trace=body.trueline.trace,
        logprobs=logprobs,
    )


async def read_body(request: Request, kind: type[Body], limits: Limits) -> Body:
    """The body of a request; refused if it is too large, too slow or of the wrong type."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":  # also keeps forms of other sites away
        message = "the body must be JSON: send Content-Type: application/json"
        raise APIError(415, message, "not_json")
    content = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                content += part
                if len(content) > limits.body_bytes:
                    message = f"the limit for a body is {limits.body_bytes} bytes"
                    raise APIError(413, message, "body_too_large", headers=_CLOSE)
        given = _without_neutral(msgspec.json.decode(content))
        return msgspec.convert(given, kind)
    except TimeoutError:
        message = f"the body did not arrive within {limits.body_seconds:g} s"
        raise APIError(408, message, "slow_body", headers=_CLOSE) from None
    except ClientDisconnect:
        raise APIError(400, "the body ended too early", "half_body") from None
    except msgspec.ValidationError as error:
        raise _type_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise APIError(400, f"the body is not valid JSON: {error}", "invalid_json") from None


def _without_neutral(given: Any) -> Any:
    """A body without the unsupported fields that change nothing."""
    if isinstance(given, list):
        return [_without_neutral(one) for one in given]
    if not isinstance(given, dict):
        return given
    return {
        name: _without_neutral(value)
        for name, value in given.items()
        if name not in _UNSUPPORTED or (value and value not in _UNSUPPORTED[name])
    }


def _type_error(problem: str) -> APIError:
    """The error for what msgspec found, such as "Expected `int`, got `str` - at `$.n`"."""
    found, at, path = problem.rpartition(" - at `$")
    problem, param = (found, path.strip(".`")) if at else (problem, "")
    if "field `" in problem:
        name = problem.partition("field `")[2].removesuffix("`")
        param = f"{param}.{name}" if param else name
    param = visible_line(param)[:200]
    if problem.startswith("Object missing"):
        return APIError(400, f"{param} is missing", "missing_parameter", param)
    if problem.startswith(("Object contains unknown", "Invalid enum value")):
        message = f"{param} is not supported by this server, or has a value that is not"
        return APIError(400, message, "unsupported_parameter", param)
    code = "invalid_type" if ", got" in problem else "invalid_value"
    return APIError(400, f"{param or 'the body'}: {problem}", code, param or None)
