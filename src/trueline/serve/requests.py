"""The body of a request -> what the decoding loop runs: method, question, scope and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from sys import maxsize
from typing import Any

from trueline.decode.generate import make_request
from trueline.decode.loop import Request
from trueline.prompts import (
    ModelInput,
    TokenContext,
    check_question,
    check_text,
    encode_plain,
    read_messages,
)
from trueline.serve.access import APIError, invalid
from trueline.serve.schemas import ChatBody, CompletionBody, Limits, read_sampling
from trueline.serve.spaces import Catalog, short_state

Input = tuple[ModelInput, int]  # what the model reads, and its length in characters or tokens


@dataclass(frozen=True, slots=True)
class Job:
    """A request that is ready to be decoded."""

    about: dict[str, Any]  # method, space and its state, question, covered, and perhaps scope
    requests: tuple[Request, ...]  # one for each answer
    prompt_tokens: int  # of all prompts; a prompt with several answers counts once

    @property
    def covered(self) -> str:
        """Whether verified examples answer it, for headers and metrics."""
        return {True: "true", False: "false", None: "none"}[self.about["covered"]]


def count_answers(body: ChatBody | CompletionBody, limits: Limits) -> int:
    """The number of answers that a request wants; too many are refused."""
    prompts = len(_prompts(body)) if isinstance(body, CompletionBody) else 1
    count = (body.n or 1) * prompts
    if count > limits.choices:
        raise invalid("n", f"the limit is {limits.choices} answers a request, got {count}")
    return count


def prepare(catalog: Catalog, limits: Limits, body: ChatBody | CompletionBody) -> Job:
    """The job of a request; runs the encoder that finds the examples in scope."""
    sampling, extras, lm = read_sampling(body, limits), body.trueline, catalog.lm
    inputs = [_chat_input(body)] if isinstance(body, ChatBody) else _inputs(catalog, body)
    name, space = catalog.resolve(body.model, extras.method, extras.space)
    method = catalog.method(name, space, extras.method_settings())
    limit = min(lm.limit or maxsize, limits.prompt_tokens or maxsize)
    requests: list[Request] = []
    for given, length in inputs:
        # A text has at most about as many tokens as characters.
        if length >= limit // 2 and (tokens := len(given.encode(lm.tokenizer))) > limit:
            message = f"the prompt has {tokens} tokens; the limit is {limit}"
            raise APIError(400, message, "context_length_exceeded")
        first = make_request(lm, method, given, sampling, index=len(requests))
        requests += [replace(first, index=first.index + n) for n in range(body.n or 1)]
    found = [one.prepared.coverage for one in requests]
    about: dict[str, Any] = {
        "method": name,
        "space": space,
        "state": short_state(getattr(method, "space", None)),
        "question": requests[0].question,
        "covered": None if None in found else all(found),
    }
    if len(inputs) == 1 and requests[0].prepared.scope is not None:
        about["scope"] = requests[0].prepared.scope
    prompts = requests[:: body.n or 1]
    return Job(about, tuple(requests), sum(len(one.contexts[0]) for one in prompts))


def _chat_input(body: ChatBody) -> Input:
    question, messages = body.trueline.question, []
    if isinstance(question, list):
        raise invalid("trueline.question", "a chat has one question, got a list")
    for one in body.messages:
        parts = [one.content] if isinstance(one.content, str) else [p.text for p in one.content]
        role = "system" if one.role == "developer" else one.role
        messages.append({"role": role, "content": "".join(parts)})
    given = read_messages(messages)
    check_question(given.question, "the last user message")
    if question is not None:
        check_question(question, "trueline.question")
        given = replace(given, question_text=question)
    return given, sum(len(text) for _, text in given.messages)


def _inputs(catalog: Catalog, body: CompletionBody) -> list[Input]:
    prompts, question = _prompts(body), body.trueline.question
    questions = question if isinstance(question, list) else [question] * len(prompts)
    if len(questions) != len(prompts):
        problem = f"{len(questions)} questions for {len(prompts)} prompts"
        raise invalid("trueline.question", problem)
    inputs: list[Input] = []
    for prompt, one in zip(prompts, questions, strict=True):
        if one is not None:
            check_question(one, "trueline.question")
        if isinstance(prompt, str):  # a control token that is spelled out in it is text
            check_text(prompt, "prompt")
            prompt = encode_plain(prompt, catalog.lm.tokenizer, special=True)
        inputs.append((TokenContext(tuple(prompt), one), len(prompt)))
    return inputs


def _prompts(body: CompletionBody) -> Sequence[str | list[int]]:
    prompt = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    texts = [one for one in prompt if isinstance(one, str)]
    tokens = [one for one in prompt if isinstance(one, int)]
    lists = [one for one in prompt if isinstance(one, list)]
    if not prompt or len(prompt) not in (len(texts), len(tokens), len(lists)):
        raise invalid("prompt", "it must be a text, a list of texts, tokens or lists of tokens")
    return [tokens] if tokens else texts or lists
