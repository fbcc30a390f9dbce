"""A question -> the request of an API; its response -> text and token counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from trueline.errors import SettingError, TruelineError
from trueline.evaluation.judges.addresses import is_loopback, is_private, read_address
from trueline.evaluation.judges.cache import Response
from trueline.evaluation.judges.keys import Key, key_from
from trueline.evaluation.judges.sender import Service

_KEY, _URL = "TRUELINE_JUDGE_KEY", "TRUELINE_JUDGE_URL"  # a key, and the address it is for
_MOST_TOKENS = 10_000_000  # counted for one request; no model reads more
_LONGEST = 200_000  # characters of a reply; one that thinks aloud has some ten thousand


@dataclass(frozen=True, slots=True)
class Api:
    """How one kind of service is asked, and how its responses are read."""

    name: str
    default_model: str  # empty: a model must be named
    url: str  # its own address, the only one its keys go to unless `variable` gives another
    variable: str  # the environment variable for another address of the same service
    keys: tuple[str, ...]  # environment variables the key may be in
    path: Callable[[str], str]  # model -> what follows the address
    headers: Callable[[str], dict[str, str]]  # key -> the headers that carry it
    body: Callable[[str, str, int], dict[str, Any]]  # model, prompt, max tokens
    read: Callable[[Any], Response]  # fails on what is not in the API's form

    def address(self, given: str) -> str:
        """The address to ask: the one in the judge's name, or the service's."""
        return read_address(given, **self._form) if given else self._own_address()

    def service(self, url: str) -> Service:
        """The service at an address, with the key that belongs to that address.

        The keys of the service go to its own address, or to the one its user put into
        `variable`; TRUELINE_JUDGE_KEY goes to TRUELINE_JUDGE_URL. A name in a plan moves none.
        A server that speaks OpenAI's form may need no key.
        """
        key = self._key(url)
        if key is None and (url == self.url or self.name != "openai"):
            raise TruelineError(
                f"the {self.name} judge needs a key; {self._set_key(url)}, or use the judge "
                "`offline`, which needs none"
            )
        if key and not is_private(url):
            raise SettingError(
                f"{url} is not https, so anyone on the way could read the key in "
                f"{key.variable}; use an https:// address, or unset the key if none is needed"
            )
        headers = self.headers(key.value) if key else {}
        return Service(self.name, url, headers, key, self._set_key(url))

    def _key(self, url: str) -> Key | None:
        is_own, is_local = url == self._own_address(), is_loopback(url)
        if is_own and (key := key_from(self.keys, is_local=is_local)):
            return key
        bound = os.environ.get(_URL, "").strip()
        if bound and url == read_address(bound, **self._form):
            return key_from([_KEY], is_local=is_local)
        if not bound and not is_own and os.environ.get(_KEY, "").strip():
            raise SettingError(
                f"{_KEY} is set and {_URL} is not; a key goes to the address it is meant for "
                f"alone: set {_URL} to {url}, if that is the one"
            )
        return None

    def _own_address(self) -> str:
        return read_address(os.environ.get(self.variable, "").strip() or self.url, **self._form)

    @property
    def _form(self) -> dict[str, str]:
        return {"example": self.url, "variable": self.keys[0]}

    def _set_key(self, url: str) -> str:
        """What a person has to set for an address to get a key."""
        names, own = " or ".join(self.keys), self._own_address()
        if url == own:
            return f"set {names}"
        return f"{names} goes to {own} alone: set {_URL} to {url} and {_KEY} to its key"


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _chat(model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    message = {"role": "user", "content": prompt}
    return {"model": model, "messages": [message], "temperature": 0, "max_tokens": max_tokens}


def _generate(model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    return {
        "contents": [{"role": "user", "parts": [{"text": prompt}]}],
        "generationConfig": {"temperature": 0, "maxOutputTokens": max_tokens},
    }


def _read_cohere(data: Any) -> Response:
    parts = data["message"].get("content") or []
    text = "".join(part["text"] for part in parts if part.get("type") == "text")
    usage = data.get("usage") or {}
    counts = usage.get("billed_units") or usage.get("tokens") or {}
    return _response(text, data.get("finish_reason"), counts, "input_tokens", "output_tokens")


def _read_gemini(data: Any) -> Response:
    if not data.get("candidates"):  # the question itself was blocked
        text, reason = "", data["promptFeedback"]["blockReason"]
    else:
        first = data["candidates"][0]
        parts = (first.get("content") or {}).get("parts") or []
        text = "".join(part["text"] for part in parts if not part.get("thought"))
        reason = first.get("finishReason")
    counts = dict(data.get("usageMetadata") or {})
    counts["written"] = _count(counts, "candidatesTokenCount") + _count(
        counts, "thoughtsTokenCount"
    )
    return _response(text, reason, counts, "promptTokenCount", "written")


def _read_openai(data: Any) -> Response:
    choice = data["choices"][0]
    text = choice["message"].get("content") or ""
    counts = data.get("usage") or {}
    reason = choice["message"].get("refusal") or choice.get("finish_reason")
    return _response(text, reason, counts, "prompt_tokens", "completion_tokens")


def _response(
    text: str, reason: object, counts: Mapping[str, Any], read: str, written: str
) -> Response:
    """A response; one without text says why, since it was paid for like any other."""
    if not isinstance(reason, str | None) or len(text) > _LONGEST:
        raise ValueError("the reason is no text, or the text is too long")
    text = text if text.strip() else f"(no text: {reason})"
    return Response(
        text.encode("utf-8", "replace").decode(),  # no file can hold half a surrogate
        _count(counts, read),
        _count(counts, written),
    )


def _count(counts: Mapping[str, Any], name: str) -> int:
    """A count of tokens, 0 where there is none; Cohere writes whole numbers as 17.0."""
    count = counts.get(name) or 0
    if type(count) not in (int, float) or not 0 <= count <= _MOST_TOKENS or count % 1:
        raise ValueError(f"{name} is no count of tokens")
    return int(count)


APIS = {
    api.name: api
    for api in (
        Api(
            "cohere",
            "command-a-03-2025",
            "https://api.cohere.com",
            "COHERE_BASE_URL",
            ("COHERE_API_KEY", "CO_API_KEY"),
            lambda model: "/v2/chat",
            _bearer,
            _chat,
            _read_cohere,
        ),
        Api(
            "gemini",
            "gemini-2.0-flash",
            "https://generativelanguage.googleapis.com",
            "GEMINI_BASE_URL",
            ("GEMINI_API_KEY",),
            lambda model: f"/v1beta/models/{quote(model, safe='')}:generateContent",
            lambda key: {"x-goog-api-key": key},  # a key in the address would end up in logs
            _generate,
            _read_gemini,
        ),
        Api(
            "openai",
            "",
            "https://api.openai.com/v1",
            "OPENAI_BASE_URL",
            ("OPENAI_API_KEY",),
            lambda model: "/chat/completions",
            _bearer,
            _chat,
            _read_openai,
        ),
    )
}
