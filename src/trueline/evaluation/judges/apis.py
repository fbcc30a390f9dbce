"""A question -> the request of an API; its response -> text and token counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from trueline.errors import SettingError, TruelineError
from trueline.evaluation.judges.cache import Response
from trueline.evaluation.judges.sender import Service


@dataclass(frozen=True, slots=True)
class Api:
    """How one kind of service is asked, and how its responses are read."""

    name: str
    default_model: str  # empty: a model must be named
    url: str  # its address, unless the judge's name or `variable` gives another
    variable: str  # the environment variable for another address
    keys: tuple[str, ...]  # environment variables the key may be in
    path: Callable[[str], str]  # model -> what follows the address
    headers: Callable[[str], dict[str, str]]  # key -> the headers that carry it
    body: Callable[[str, str, int], dict[str, Any]]  # model, prompt, max tokens
    read: Callable[[Any], Response]  # fails on what is not in the API's form

    def service(self, url: str) -> Service:
        """The service at an address, with the key from the environment.

        At another address than the usual one, an OpenAI-compatible server may need no key.
        """
        key = next((os.environ[name] for name in self.keys if os.environ.get(name)), "").strip()
        if not key and not (url != self.url and self.name == "openai"):
            raise TruelineError(
                f"the {self.name} judge needs a key; set {' or '.join(self.keys)}, "
                "or use the judge `offline`, which needs none"
            )
        headers = self.headers(key) if key else {}
        return Service(self.name, url, headers, key, self.keys[0])

    def address(self, given: str) -> str:
        """The address to ask: given, from the environment, or the usual one."""
        url = (given or os.environ.get(self.variable) or self.url).rstrip("/")
        if "@" in url or "?" in url:
            raise SettingError(
                f"the address of the {self.name} judge holds a name, a password or a query, "
                f"which would be printed with results; put the key into {self.keys[0]}"
            )
        try:
            parts = urlsplit(url)
            is_whole = parts.hostname and parts.port != 0 and url.split() == [url]
            if parts.scheme not in ("http", "https") or not is_whole:
                raise ValueError("http:// or https:// and a host are wanted")
        except ValueError as error:
            raise SettingError(
                f"{url!r} is no address ({error}); it should look like {self.url}"
            ) from error
        return url


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
    text = text if text.strip() else f"(no text: {reason})"
    return Response(
        text.encode("utf-8", "replace").decode(),  # no file can hold half a surrogate
        _count(counts, read),
        _count(counts, written),
    )


def _count(counts: Mapping[str, Any], name: str) -> int:
    return int(counts.get(name) or 0)


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
