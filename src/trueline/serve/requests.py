"""The body of a request in, what the loop decodes out: method, question, scope, tokens.

This runs in a small pool of threads, not in the event loop, which an embedding of 10 ms would
keep from every other client, and not in the engine's thread, where it would hold up the tokens
of every other answer. What asks the model itself is handed to that thread: it has the model to
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trueline.decode.generate import make_request
from trueline.decode.loop import Request
from trueline.methods.base import Method
from trueline.prompts import (
    ModelInput,
    TokenContext,
    check_question,
    check_text,
    encode_rendered,
    read_messages,
)
from trueline.serve.access import Refusal
from trueline.serve.catalog import Catalog
from trueline.serve.schemas import ChatBody, CompletionBody, Limits, Message, Shared
from trueline.types import NearExample, Sampling

_STOPS, _STOP_LENGTH = 16, 1000  # stop strings of a request, and characters of one
_MOST_LOGPROBS = 20
_USUAL_COMPLETION = 16  # tokens, as OpenAI's own completions have
_ROLES = {"developer": "system"}  # another name for the same


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request came to before its first token."""

    method: str
    space: str | None
    state: str | None  # of the space: the hash of its last commit, shortened
    requests: tuple[Request, ...]  # one for each answer
    near: tuple[NearExample, ...] | None  # examples near to the question, when asked for

    @property
    def covered(self) -> bool | None:
        """Whether verified examples answer it; None: the method does not go by that."""
        found = [one.prepared.coverage for one in self.requests]
        return None if None in found else all(found)

    @property
    def question(self) -> str | None:
        """The question that scope went by, of the first prompt."""
        return self.requests[0].question

    @property
    def prompt_tokens(self) -> int:
        """The tokens of all prompts, each counted once however many answers it gets."""
        contexts = {id(one.contexts): len(one.contexts[0]) for one in self.requests}
        return sum(contexts.values())


Job = Callable[[], Asked]  # for the engine's thread


def rows_of(body: ChatBody | CompletionBody, limits: Limits) -> int:
    """How many answers a request asks for; too many are refused."""
    n = 1 if body.n is None else body.n
    count = n * (len(prompts_of(body)) if isinstance(body, CompletionBody) else 1)
    if n < 1 or count > limits.choices:
        raise Refusal(
            400,
            f"the request asks for {count} answers; this server gives 1 to {limits.choices}",
            code="invalid_value",
            param="n",
        )
    return count


def prepare_chat(catalog: Catalog, limits: Limits, body: ChatBody) -> Asked | Job:
    """Make the requests of a chat, or what makes them with the model."""
    most = body.max_completion_tokens
    if most is not None and body.max_tokens is not None:
        raise _wrong("max_tokens", "give max_completion_tokens or max_tokens, not both")
    if body.top_logprobs is not None and not body.logprobs:
        raise _wrong("top_logprobs", "top_logprobs needs logprobs to be true")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    tokens = body.max_tokens if most is None else most
    options = _options(
        body, limits, limits.usual_tokens if tokens is None else tokens, logprobs
    )
    question = body.trueline.question
    if isinstance(question, list):
        raise _wrong("trueline.question", "a chat has one question, got a list")
    given = read_messages([_message(one, n) for n, one in enumerate(body.messages)])
    check_question(given.question, "what the user says last")
    if question is not None:
        check_question(question, "trueline.question")
        given = replace(given, asked=question)
    length = sum(len(text) for _, text in given.messages)
    return _prepare(catalog, limits, body, [(given, length)], options)


def prepare_completion(catalog: Catalog, limits: Limits, body: CompletionBody) -> Asked | Job:
    """Make the requests of a completion, or what makes them with the model."""
    most = _USUAL_COMPLETION if body.max_tokens is None else body.max_tokens
    options = _options(body, limits, most, body.logprobs)
    prompts = prompts_of(body)
    given = [
        (TokenContext(prompt_tokens(catalog, prompt), question), len(prompt))
        for prompt, question in zip(prompts, questions_of(body, len(prompts)), strict=True)
    ]
    return _prepare(catalog, limits, body, given, options)


def prompts_of(body: CompletionBody) -> list[str | list[int]]:
    """The prompts of a completion: texts, or tokens."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(isinstance(one, int) for one in prompt):
        return [prompt]  # type: ignore[list-item]
    kinds = {type(one) for one in prompt}
    if not prompt or len(kinds) > 1:
        raise _wrong("prompt", "it must be a text, several, tokens, or several lists of them")
    return prompt  # type: ignore[return-value]


def questions_of(body: CompletionBody, count: int) -> Sequence[str | None]:
    """The question of each prompt, where the request names it."""
    given = body.trueline.question
    found = given if isinstance(given, list) else [given] * count
    if len(found) != count:
        raise _wrong("trueline.question", f"{len(found)} questions for {count} prompts")
    for question in found:
        if question is not None:
            check_question(question, "trueline.question")
    return found


def prompt_tokens(catalog: Catalog, prompt: str | list[int]) -> tuple[int, ...]:
    """The tokens of a prompt; control tokens spelled in a text are text."""
    if not isinstance(prompt, str):
        return tuple(prompt)
    check_text(prompt, "prompt")
    return tuple(encode_rendered(lambda put: put(prompt), catalog.lm.tokenizer, is_chat=False))


def method_of(catalog: Catalog, body: Shared) -> tuple[str, str | None, Method]:
    """The method, the space and both together that a request means."""
    extras = body.trueline
    name, space = catalog.resolve(body.model, extras.method, extras.space)
    return name, space, catalog.method(name, space, extras.named_settings())


def state_of(method: Method) -> str | None:
    """Which commit of its space a method shows."""
    state = getattr(getattr(method, "space", None), "state", None)
    return None if state is None else str(state.hash)[:12]


def _prepare(
    catalog: Catalog,
    limits: Limits,
    body: ChatBody | CompletionBody,
    given: Sequence[tuple[ModelInput, int]],
    options: Sampling,
) -> Asked | Job:
    name, space, method = method_of(catalog, body)
    for one, length in given:
        check_length(catalog, limits, one, length)
    return _make(catalog, body, [one for one, _ in given], options, name, space, method)


def _make(
    catalog: Catalog,
    body: ChatBody | CompletionBody,
    given: Sequence[ModelInput],
    options: Sampling,
    name: str,
    space: str | None,
    method: Method,
) -> Asked:
    made: list[Request] = []
    for one in given:
        first = make_request(catalog.lm, method, one, options, index=len(made))
        made += [replace(first, index=len(made) + at) for at in range(body.n or 1)]
    near = made[0].prepared.scope if len(given) == 1 else None
    return Asked(name, space, state_of(method), tuple(made), near)


def check_length(catalog: Catalog, limits: Limits, given: ModelInput, length: int) -> None:
    """Refuse a prompt that is too long before its question is looked into.

    A text has no more tokens than characters, or about; a short one need not be counted.
    """
    caps = [most for most in (catalog.lm.limit, limits.prompt_tokens) if most is not None]
    if not caps or length < min(caps) // 2:
        return
    tokens = len(given.encode(catalog.lm.tokenizer))
    if tokens > min(caps):
        raise Refusal(
            400,
            f"the prompt has {tokens} tokens; this server reads {min(caps)}",
            code="context_length_exceeded",
        )


def _options(body: Shared, limits: Limits, max_tokens: int, logprobs: int | None) -> Sampling:
    """How the answer is written; a seed and top_p have nothing to do where nothing is drawn."""
    if max_tokens > limits.new_tokens:
        raise _wrong(
            "max_tokens", f"an answer may have {limits.new_tokens} tokens, got {max_tokens}"
        )
    if logprobs is not None and not 0 <= logprobs <= _MOST_LOGPROBS:
        raise _wrong("logprobs", f"it must lie between 0 and {_MOST_LOGPROBS}")
    if body.stream_options is not None:
        _check_stream_options(body)
    temperature = body.temperature or 0.0
    drawn: dict[str, Any] = {}
    if temperature:
        drawn = {"top_p": body.top_p, "seed": body.seed}
    _check(lambda: Sampling(temperature=temperature or 1.0), "temperature")
    _check(lambda: Sampling(temperature=1.0, top_p=body.top_p), "top_p")
    _check(lambda: Sampling(temperature=1.0, seed=body.seed), "seed")
    _check(lambda: Sampling(max_new_tokens=max_tokens), "max_tokens")
    made: Sampling = _check(
        lambda: Sampling(
            max_new_tokens=max_tokens,
            temperature=temperature,
            stop=_stops(body.stop),
            trace=body.trueline.trace,
            logprobs=logprobs,
            **drawn,
        ),
        "stop",
    )
    return made


def _check_stream_options(body: Shared) -> None:
    assert body.stream_options is not None
    if not body.stream:
        raise _wrong("stream_options", "it needs stream to be true")
    if body.stream_options.include_obfuscation:
        raise Refusal(
            400,
            "stream_options.include_obfuscation is not supported",
            code="unsupported_parameter",
            param="stream_options.include_obfuscation",
        )


def _stops(given: str | list[str] | None) -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stops) > _STOPS or any(len(one) > _STOP_LENGTH for one in stops):
        raise _wrong("stop", f"at most {_STOPS} texts of {_STOP_LENGTH} characters each")
    return stops


def _message(message: Message, number: int) -> dict[str, str]:
    where = f"messages[{number}]"
    if isinstance(message.content, str):
        content = message.content
    else:
        for part in message.content:
            if part.type != "text":
                raise Refusal(
                    400,
                    f"{where} has a part of type {part.type[:60]!r}; only text is read",
                    code="unsupported_parameter",
                    param=f"{where}.content",
                )
        content = "".join(part.text for part in message.content)
    if message.role in ("tool", "function"):
        raise Refusal(
            400,
            f"{where} has the role {message.role!r}; tools are not supported",
            code="unsupported_parameter",
            param=f"{where}.role",
        )
    return {"role": _ROLES.get(message.role, message.role), "content": content}


def _check(make: Callable[[], Any], param: str) -> Any:
    try:
        return make()
    except ValueError as error:  # a SettingError is one
        raise Refusal(400, str(error), code="invalid_value", param=param) from None


def _wrong(param: str, message: str) -> Refusal:
    return Refusal(400, f"{param}: {message}", code="invalid_value", param=param)
