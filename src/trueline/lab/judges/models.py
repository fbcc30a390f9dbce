"""Answers -> verdicts by a language model: on this machine, or of a service."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import random
import re
import sqlite3
from asyncio import sleep
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from trueline.engines.fetch import home
from trueline.errors import SettingError, TruelineError, import_extra
from trueline.lab.judges.questions import (
    NO_REFERENCE,
    Items,
    Questions,
    judge_hash,
    judge_id,
    price_of,
    prompt_for,
    read_verdict,
)
from trueline.lab.samples import About, Task, Verdict
from trueline.prompts import Prompt
from trueline.settings import Between, check_values, whole_number
from trueline.types import OnProgress

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

    from trueline.engines.base import Engine

_KEY, _URL = "TRUELINE_JUDGE_KEY", "TRUELINE_JUDGE_URL"  # a key, and the address it is for
_PROMPT = Prompt(template="{question}")  # of a local judge: the question is the whole prompt
_HEADERS = frozenset(  # all others are removed, such as those of OPENAI_CUSTOM_HEADERS
    "host accept accept-encoding connection content-length content-type user-agent".split()
)
_MOST_TOKENS = 10_000_000  # counted for one request; no model reads more
_BATCH = 8  # questions that a local judge reads together
_DAY = 86_400.0  # seconds
_PLAIN = re.compile(r"(?:(?![@?#\\])[!-~]){1,500}")  # no password, query or fragment
_WRONG_FORM = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
_TABLE = """CREATE TABLE IF NOT EXISTS responses (
    key TEXT PRIMARY KEY, judge TEXT NOT NULL, text TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL, answer_tokens INTEGER NOT NULL, time TEXT NOT NULL
) WITHOUT ROWID"""


class Service(NamedTuple):
    """A service with OpenAI's API; its keys go only to its own address."""

    url: str  # NAME_BASE_URL in the environment is another address of the same service
    key_variables: tuple[str, ...]
    default_model: str = ""  # empty: a model must be named


SERVICES = {
    "cohere": Service(
        "https://api.cohere.ai/compatibility/v1",
        ("COHERE_API_KEY", "CO_API_KEY"),
        "command-a-03-2025",
    ),
    "gemini": Service(
        "https://generativelanguage.googleapis.com/v1beta/openai",
        ("GEMINI_API_KEY",),
        "gemini-2.0-flash",
    ),
    "openai": Service("https://api.openai.com/v1", ("OPENAI_API_KEY",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many requests a service gets, and how long each may take."""

    concurrency: Annotated[int, Between(1, 1000)] = 8  # requests in flight at once
    per_minute: Annotated[float, Between(0.001, 1e9)] | None = None  # requests started
    tries: Annotated[int, Between(1, 100)] = 6  # of one request
    timeout: Annotated[float, Between(0, _DAY, above=True)] = 60.0  # seconds of one try
    backoff: Annotated[float, Between(0, _DAY)] = 1.0  # seconds before the second try; doubles
    patience: Annotated[float, Between(0, _DAY)] = 120.0  # seconds of the longest pause

    def __post_init__(self) -> None:
        check_values(Limits, asdict(self))


@dataclass(frozen=True, slots=True)
class Response:
    """A judge's reply, and the numbers of tokens that the service counted."""

    text: str
    prompt_tokens: int = 0
    answer_tokens: int = 0


class _FailedTry(Exception):
    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause  # seconds requested by the service; inf: do not try again


class LocalJudge:
    """A language model on this machine that generates a few tokens, by plain decoding."""

    def __init__(
        self, lm: Engine, *, max_new_tokens: int = 8, questions: Questions = "ours"
    ) -> None:
        self.id, self._questions = judge_id(f"local:{lm.id}", questions), questions
        self._lm, self._max_new_tokens = lm, whole_number(max_new_tokens, "max_tokens")

    @property
    def hash(self) -> str:
        lm = self._lm
        model = (lm.fingerprint, lm.tokenizer_hash, str(lm.dtype), lm.device.type)
        return judge_hash(*model, self._max_new_tokens, questions=self._questions)

    def judge(
        self, task: Task, about: About, items: Items, progress: OnProgress | None = None
    ) -> list[Verdict]:
        from trueline.decode.generate import generate
        from trueline.methods import PLAIN, make_method

        prompts = [prompt_for(task, about, *item, self._questions) for item in items]
        problems = {prompt: self._problem(prompt) for prompt in prompts}
        found = {p: Verdict(self.id, about, None, why) for p, why in problems.items()}
        readable = [prompt for prompt, why in problems.items() if prompt and not why]
        answers = generate(
            self._lm,
            make_method(PLAIN, prompt=_PROMPT),
            readable,
            max_new_tokens=self._max_new_tokens,
            batch_size=_BATCH,
            progress=progress,
        )
        for prompt, answer in zip(readable, answers, strict=True):
            # A base model may go on with another question after the first line.
            label = read_verdict(answer.text.strip().partition("\n")[0], about)
            counts = (answer.prompt_tokens, len(answer.token_ids))
            found[prompt] = Verdict(self.id, about, label, answer.text, *counts, basis=about)
        return [found[prompt] for prompt in prompts]

    def _problem(self, prompt: str | None) -> str:
        """Why the model cannot read a question; empty if it can."""
        if prompt is None:
            return NO_REFERENCE
        length, limit = len(_PROMPT.encode(prompt, self._lm.tokenizer)), self._lm.limit
        if limit is not None and length + self._max_new_tokens > limit:
            return f"the question is {length} tokens, {self._lm.id} reads {limit}"
        return ""


class ServiceJudge:
    """A model of a service; every response is paid for once.

    A response is written to the cache first. A verdict has the cost its response had when it
    was bought, also if it comes from the cache.
    """

    def __init__(
        self,
        kind: str,
        model: str = "",
        url: str = "",
        *,
        cache: Path | None = None,
        limits: Limits | None = None,
        max_tokens: int = 16,  # a verdict is one word; models that think first need more
        questions: Questions = "ours",
    ) -> None:
        service = SERVICES[kind]
        self.model = model or service.default_model
        if not self.model or len(self.model) > 200 or not self.model.isprintable():
            raise SettingError(
                f"the {kind} judge needs a model of at most 200 printable characters, as in "
                f"{kind}:MODEL@BASE_URL"
            )
        usual = os.environ.get(f"{kind.upper()}_BASE_URL", "").strip() or service.url
        own = _address(usual, service)
        self._url = _address(url, service) if url else own
        self._key, self._key_variable = _key_for(service, self._url, own)
        names = " or ".join(service.key_variables)
        self._set_key = f"set {names}"
        if self._url != own:
            self._set_key = f"{names} goes to {own} only: set {_URL} to {self._url} and {_KEY}"
        if not self._key and (self._url == service.url or kind != "openai"):
            raise TruelineError(
                f"the {kind} judge needs a key; {self._set_key}, or use the judge `offline`, "
                "which needs none"
            )
        name = f"{kind}:{self.model}" + (f"@{self._url}" if self._url != service.url else "")
        self.id, self._questions = judge_id(name, questions), questions
        self.limits, self._max_tokens = (
            limits or Limits(),
            whole_number(max_tokens, "max_tokens"),
        )
        self._cache, self._free_at = ResponseCache(cache), monotonic()
        self._open_client()  # a missing package or a wrong proxy shows before anything is paid

    @property
    def hash(self) -> str:
        return judge_hash(self.id, self._max_tokens, questions=self._questions)

    def judge(
        self, task: Task, about: About, items: Items, progress: OnProgress | None = None
    ) -> list[Verdict]:
        prompts = [prompt_for(task, about, *item, self._questions) for item in items]
        keys = {prompt: self._cache_key(prompt) for prompt in prompts if prompt is not None}
        cached = self._cache.read(keys.values())
        found = {
            prompt: self._verdict(about, cached[key], is_cached=True)
            for prompt, key in keys.items()
            if key in cached
        }
        if progress and keys:
            progress(len(found), len(keys))
        if len(found) < len(keys):
            _run(self._ask_all(about, keys, found, progress))
        verdicts = []
        for prompt in prompts:
            if prompt is None:
                verdicts.append(Verdict(self.id, about, None, NO_REFERENCE))
                continue
            verdicts.append(found[prompt])  # an equal question after it costs nothing
            found[prompt] = replace(found[prompt], is_cached=found[prompt].is_answered)
        return verdicts

    def _verdict(self, about: About, found: Response, is_cached: bool) -> Verdict:
        tokens = (found.prompt_tokens, found.answer_tokens)
        label, cost = read_verdict(found.text, about), price_of(self.model, *tokens)
        return Verdict(self.id, about, label, found.text, *tokens, cost, is_cached)

    def _cache_key(self, prompt: str) -> str:
        parameters = {"temperature": 0, "max_tokens": self._max_tokens}
        parts = json.dumps([self.id, self.model, prompt, parameters], sort_keys=True)
        return hashlib.sha256(parts.encode()).hexdigest()

    async def _ask_all(
        self,
        about: About,
        keys: dict[str, str],
        found: dict[str, Verdict],
        progress: OnProgress | None,
    ) -> None:
        """Send the questions without a verdict; after a fatal error no new one is sent."""
        waiting = deque(prompt for prompt in keys if prompt not in found)

        async def work() -> None:
            try:
                while waiting:
                    prompt = waiting.popleft()
                    found[prompt] = await self._ask(client, about, prompt, keys[prompt])
                    if progress:
                        progress(len(found), len(keys))
            finally:
                waiting.clear()

        async with self._open_client() as client:
            workers = [work() for _ in range(min(self.limits.concurrency, len(waiting)))]
            # A request in flight is paid for: its response is still written to the cache.
            for ended in await asyncio.gather(*workers, return_exceptions=True):
                if ended:
                    raise ended

    async def _ask(self, client: AsyncOpenAI, about: About, prompt: str, key: str) -> Verdict:
        """Send one question, with all its tries, unless another process has done so."""
        if cached := self._cache.read([key]):
            return self._verdict(about, cached[key], is_cached=True)
        limits, attempt = self.limits, 0
        while True:
            attempt += 1
            while (left := self._free_at - monotonic()) > 0:
                await sleep(left)
            self._free_at = monotonic() + 60 / (limits.per_minute or math.inf)
            try:
                response = await self._try(client, prompt)
            except _FailedTry as failed:
                # Random: requests that failed together should not come back together.
                backoff = limits.backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
                pause = min(backoff, limits.patience) if failed.pause is None else failed.pause
                if attempt == limits.tries or pause > limits.patience:
                    reason = f"(no response: {failed}; tried {attempt} times)"
                    return Verdict(self.id, about, None, reason, is_answered=False)
                if failed.pause is None:
                    await sleep(pause)
                else:  # for all requests
                    self._free_at = max(self._free_at, monotonic() + pause)
            else:
                self._cache.write(key, self.id, response)
                return self._verdict(about, response, is_cached=False)

    async def _try(self, client: AsyncOpenAI, prompt: str) -> Response:
        """Send a question once; a TruelineError means that every other would fail too."""
        import openai

        try:
            async with asyncio.timeout(self.limits.timeout):
                completion = await client.chat.completions.create(
                    model=self.model,
                    messages=[{"role": "user", "content": prompt}],
                    temperature=0,
                    max_tokens=self._max_tokens,
                )
            return self._read(completion)
        except TimeoutError:
            raise _FailedTry(f"no response within {self.limits.timeout:g} s") from None
        except openai.APIStatusError as error:
            raise self._failure(error) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__
            reason = self._without_key(f"{type(cause).__name__}: {cause}")
            raise _FailedTry(f"the connection failed ({reason})") from None
        except (openai.OpenAIError, *_WRONG_FORM):
            raise _FailedTry("the response is not of this API's form") from None

    def _failure(self, error: APIStatusError) -> Exception:
        """The error for a status other than 200."""
        status, text = error.status_code, self._without_key(error.response.text)
        reason = f"HTTP {status}: {text[:200]!r}"
        # Gemini calls a key it does not know a bad request.
        if status in (401, 403) or (status == 400 and "API_KEY_INVALID" in text):
            advice = f"needs a key; {self._set_key}"
            if self._key:
                advice = f"refused the key; set {self._key_variable} to one for {self.model}"
            return TruelineError(f"{self._url} (HTTP {status}) {advice}")
        if status == 404:
            return SettingError(
                f"{self._url} does not know {self.model}; check name and address of the "
                f"judge ({reason})"
            )
        if status not in (408, 409, 429) and status < 500:
            return _FailedTry(reason, math.inf)
        pause = _pause_in(error.response.headers.get("retry-after"))
        return _FailedTry(reason if pause is None else f"{reason}, wait {pause:.0f} s", pause)

    def _read(self, completion: Any) -> Response:
        """The text and the token counts of a completion."""
        choice, usage = completion.choices[0], completion.usage
        text = choice.message.content or ""
        if not text.strip():  # paid for like any other
            text = f"(no text: {choice.message.refusal or choice.finish_reason})"
        text = self._without_key(text).encode("utf-8", "replace").decode()  # half a surrogate
        counts = [getattr(usage, f"{kind}_tokens", 0) or 0 for kind in ("prompt", "completion")]
        if any(type(x) not in (int, float) or not 0 <= x <= _MOST_TOKENS for x in counts):
            raise ValueError("not a count of tokens")
        return Response(text, *map(int, counts))

    def _without_key(self, text: str) -> str:
        # A server on this machine may want any short word as a key: that is not a secret.
        return text.replace(self._key, "(the key)") if len(self._key) >= 12 else text

    def _open_client(self) -> AsyncOpenAI:
        openai = import_extra("openai", "a judge of a service", "judge")

        async def sign(request: Any) -> None:
            for name in {*request.headers} - _HEADERS:
                del request.headers[name]
            if self._key:
                request.headers["authorization"] = f"Bearer {self._key}"

        try:
            client = openai.DefaultAsyncHttpxClient(
                timeout=None,  # each try has its own
                follow_redirects=False,  # the key is for this address
                trust_env=not _is_loopback(self._url),  # no proxy for this machine
                event_hooks={"request": [sign]},
            )
            judge: AsyncOpenAI = openai.AsyncOpenAI(
                base_url=self._url,
                api_key=self._key or "none",
                http_client=client,
                max_retries=0,
            )
            return judge
        except (ValueError, OSError, ImportError) as error:
            # Without the error's own words: the address of a proxy may hold a password.
            raise SettingError(
                f"{self._url} cannot be reached ({type(error).__name__}); check the proxy and "
                "certificates in HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and SSL_CERT_FILE"
            ) from None


class ResponseCache:
    """Responses by key, in one SQLite file, which threads and processes can share."""

    def __init__(self, path: Path | None = None, *, lock_seconds: float = 60.0) -> None:
        self.path = Path(path) if path is not None else home() / "judge-cache.sqlite"
        self._lock_seconds = lock_seconds  # wait for another process that writes
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch(0o600)  # questions and answers may be private
        except (OSError, ValueError) as error:
            raise self._unusable(error) from error
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
            if tables and ("responses",) not in tables:
                raise self._unusable("it is a database of another program")
            connection.execute(_TABLE)
            connection.execute("PRAGMA user_version = 1")  # fails if nothing can be written

    def read(self, keys: Iterable[str]) -> dict[str, Response]:
        query = "SELECT text, prompt_tokens, answer_tokens FROM responses WHERE key = ?"
        with self._open() as connection:
            rows = {key: connection.execute(query, (key,)).fetchone() for key in keys}
        return {key: Response(*row) for key, row in rows.items() if row is not None}

    def write(self, key: str, judge: str, response: Response) -> None:
        """Keep a response; an earlier one with the key stays."""
        counts = (response.prompt_tokens, response.answer_tokens)
        time = datetime.now(UTC).isoformat(timespec="seconds")
        with self._open() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO responses VALUES (?, ?, ?, ?, ?, ?)",
                (key, judge, response.text, *counts, time),
            )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            wait = self._lock_seconds
            opened = sqlite3.connect(self.path, timeout=wait, isolation_level=None)
            with closing(opened) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception | str) -> TruelineError:
        return TruelineError(
            f"{self.path} cannot be used as the judges' cache ({error}); "
            "name another file, or move this one away"
        )


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end, also if this thread has an event loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
    else:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, work).result()


def _address(text: str, service: Service) -> str:
    """An address in its normal form, in which addresses are compared and printed."""
    try:
        parts = urlsplit(text)
        is_web = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if is_web and _PLAIN.fullmatch(text):
            return parts._replace(netloc=parts.netloc.lower()).geturl().rstrip("/")
    except ValueError:
        pass
    raise SettingError(  # the text is not repeated: it may hold a password
        "the address of a judge must begin with http:// or https:// and a host, in plain ASCII "
        f"without a password or query, like {service.url}; the key belongs in "
        f"{service.key_variables[0]}"
    )


def _is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def _key_for(service: Service, url: str, own: str) -> tuple[str, str]:
    """The key for an address, and its environment variable; two empty texts without one.

    The keys of a service go to its own address or to that of its *_BASE_URL variable;
    TRUELINE_JUDGE_KEY goes to TRUELINE_JUDGE_URL. A plan cannot send a key anywhere else.
    """
    bound = os.environ.get(_URL, "").strip()
    names = service.key_variables if url == own else ()
    if bound and url == _address(bound, service):
        names = (*names, _KEY)
    keys = {name: os.environ.get(name, "").strip() for name in names}
    name = next((name for name in names if keys[name]), "")
    if name and not re.fullmatch(r"[!-~]{1,4000}", keys[name]):
        raise SettingError(
            f"the key in {name} holds a space, a line break or a character that is not ASCII, "
            "or is too long; set it again, as the service gave it"
        )
    if name and not (url.startswith("https://") or _is_loopback(url)):
        raise SettingError(
            f"{url} is not https, so anyone on the way could read the key in {name}; use an "
            "https:// address, or unset the key if none is needed"
        )
    return keys.get(name, ""), name


def _pause_in(retry_after: str | None) -> float | None:
    """The seconds of a Retry-After header, which has seconds or a date."""
    for read in (float, lambda text: parsedate_to_datetime(text).timestamp() - time()):
        try:
            return max(0.0, read(retry_after or ""))
        except (ValueError, OverflowError):  # not a date, or one in the year 10^30
            continue
    return None
