"""A completion with `echo` in; the log-probability of every token of its prompt out.

A harness scores its choices so. The tokens before `trueline.answer_start` are the plain model's
matter; those from there on are scored under the method, as the answer to `trueline.question`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from time import time
from typing import Any

from trueline.decoders import PLAIN, make_method
from trueline.decoders.base import Decoder
from trueline.engines.base import Engine
from trueline.inputs import TokenContext
from trueline.prompts import encode_plain
from trueline.records import TokenLogprobs
from trueline.requests import check_contexts, model_inputs
from trueline.scoring import Continuation, score_tokens
from trueline.serving.asking import (
    check_length,
    method_of,
    prompt_tokens,
    prompts_of,
    questions_of,
)
from trueline.serving.bodies import CompletionBody
from trueline.serving.catalog import Catalog
from trueline.serving.refusals import Refusal
from trueline.serving.replies import old_logprobs
from trueline.serving.service import Service
from trueline.serving.watching import Record

_MOST = 20  # best tokens beside each


@dataclass(frozen=True, slots=True)
class Echoed:
    """One prompt to be scored."""

    tokens: tuple[int, ...]
    start: int | None  # where the answer begins, in tokens; None: all is the plain model's
    question: str | None


async def answer_echo(service: Service, body: CompletionBody, record: Record) -> dict[str, Any]:
    """Score the prompts of a request, one after the other, between the steps of the loop."""
    _check(body)
    catalog = service.catalog
    name, space, method = await service.apart(partial(method_of, catalog, body))
    prompts = await service.apart(partial(_prompts, service, body))
    is_plain = all(one.start is None for one in prompts)
    own = make_method(PLAIN)
    scorer = own if is_plain else method
    choices, written = [], 0
    for number, one in enumerate(prompts):
        job = partial(_score, catalog.lm, own, scorer, one, body)
        choice = await service.with_model(job)
        written += int(body.max_tokens == 1)
        choices.append({"index": number, **choice})
    read = sum(len(one.tokens) for one in prompts)
    record.facts |= {"method": scorer.name, "space": space, "prompt_tokens": read, "echo": True}
    service.watch.prompt_tokens.inc(read)
    return {
        "id": f"cmpl-{token_hex(12)}",
        "object": "text_completion",
        "created": int(time()),
        "model": body.model,
        "choices": choices,
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        },
        "trueline": {
            "method": scorer.name,
            "space": None if is_plain else space,
            "asked_method": name,
            "is_plain": is_plain or name == PLAIN,
            "answer_start": [one.start for one in prompts],
        },
    }


def _check(body: CompletionBody) -> None:
    """Refuse what does not go with echo, by name."""
    wrong = {
        "stream": bool(body.stream),
        "stream_options": body.stream_options is not None,
        "n": (body.n or 1) > 1,
        "temperature": bool(body.temperature),
        "max_tokens": body.max_tokens not in (0, 1),
        "stop": bool(body.stop),
        "trueline.trace": body.trueline.trace,
        "logprobs": body.logprobs is not None and not 0 <= body.logprobs <= _MOST,
    }
    for param, is_wrong in wrong.items():
        if is_wrong:
            raise Refusal(
                400,
                f"{param}: echo scores a prompt; it takes max_tokens 0 or 1, logprobs from 0 "
                f"to {_MOST}, and no stream, n, temperature, stop or trace",
                code="unsupported_parameter",
                param=param,
            )


def _prompts(service: Service, body: CompletionBody) -> list[Echoed]:
    prompts = prompts_of(body)
    starts = body.trueline.answer_start
    given = starts if isinstance(starts, list) else [starts] * len(prompts)
    if len(given) != len(prompts):
        raise _wrong_start(f"{len(given)} places for {len(prompts)} prompts")
    made = []
    for prompt, start, question in zip(
        prompts, given, questions_of(body, len(prompts)), strict=True
    ):
        one = _cut(service.catalog, prompt, start, question)
        context = TokenContext(one.tokens)
        check_contexts(service.catalog.lm, [one.tokens], "prompt")
        check_length(service.catalog, service.limits, context, len(one.tokens))
        made.append(one)
    return made


def _cut(
    catalog: Catalog, prompt: str | list[int], start: int | None, question: str | None
) -> Echoed:
    """A prompt's tokens, and where its answer begins among them.

    A text and the answer in it are cut into tokens as one, unless a token would be in both.
    """
    tokens = prompt_tokens(catalog, prompt)
    if start is None or question is None:
        return Echoed(tokens, None, None)
    if not 0 < start < len(prompt):
        raise _wrong_start(f"it must lie inside the prompt, got {start} of {len(prompt)}")
    if not isinstance(prompt, str):
        return Echoed(tokens, start, question)
    ahead = prompt_tokens(catalog, prompt[:start])
    if tokens[: len(ahead)] != ahead:
        tokens = (*ahead, *encode_plain(prompt[start:], catalog.lm.tokenizer))
    return Echoed(tokens, len(ahead), question)


def _wrong_start(problem: str) -> Refusal:
    param = "trueline.answer_start"
    return Refusal(400, f"{param}: {problem}", code="invalid_value", param=param)


def _score(
    lm: Engine, plain: Decoder, method: Decoder, one: Echoed, body: CompletionBody
) -> dict[str, Any]:
    """The choice of one prompt: its text, and the one token more that may be asked for."""
    tokens, count = one.tokens, max(1, body.logprobs or 0)
    start = len(tokens) if one.start is None else one.start
    more = (next(iter(sorted(lm.stop_ids)), 0),) if body.max_tokens == 1 else ()
    found = [TokenLogprobs(tokens[0], None)]
    ahead = tokens[1:start] + (more if one.start is None else ())
    found += _scored(lm, plain, TokenContext(tokens[:1]), ahead, count)
    if one.start is not None:
        given = TokenContext(tokens[:start], one.question)
        found += _scored(lm, method, given, tokens[start:] + more, count)
    text = lm.decode(tokens)
    finish = "length"
    if more:  # what stands in its place is not what was read, only where it is
        *found, last = found
        token, logprob = last.best[0]
        found.append(TokenLogprobs(token, logprob, last.best))
        text += lm.decode([token])
        finish = "stop" if token in lm.stop_ids else "length"
    return {
        "text": text,
        "logprobs": None if body.logprobs is None else old_logprobs(lm, found, 0),
        "finish_reason": finish,
    }


def _scored(
    lm: Engine, method: Decoder, given: TokenContext, tokens: tuple[int, ...], count: int
) -> list[TokenLogprobs]:
    if not tokens:
        return []
    model_inputs(method, given)  # refuses a method that would rewrite the prompt
    (found,) = score_tokens(
        lm, method, [Continuation(given, (given.tokens,), tokens)], best=count
    )
    return found
