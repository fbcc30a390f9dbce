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
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
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
    SUFFIXES,
    About,
    Items,
    Questions,
    Task,
    Verdict,
    judge_hash,
    price_of,
    prompt_for,
    read_verdict,
)
from trueline.prompts import Prompt
from trueline.settings import Between, check_values, whole_number

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from trueline.engines.base import Engine

_KEY, _URL = "TRUELINE_JUDGE_KEY", "TRUELINE_JUDGE_URL"  # a key, and the address it is for
_PROMPT = Prompt(template="{question}")  # of a local judge: the question is the whole prompt
_HEADERS = frozenset(  # all others are removed, such as those of OPENAI_CUSTOM_HEADERS
    "host accept accept-encoding connection content-length content-type user-agent".split()
)
_MOST_TOKENS = 10_000_000  # counted for one request; no model reads more
_BATCH = 8  # questions that a local judge reads together
_DAY = 86_400.0  # seconds
_ADDRESS = re.compile(r"https?://(?:(?![@?#\\])[!-~])+")  # no password, query or fragment
_WRONG_FORM = (AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError)
Response = tuple[str, int, int]  # a reply, and the tokens the service counted in both
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


class LocalJudge:
    """A language model on this machine that generates a few tokens, by plain decoding."""

    def __init__(self, lm: Engine, max_new_tokens: int, questions: Questions) -> None:
        self.id, self._questions = f"local:{lm.id}{SUFFIXES[questions]}", questions
        self._lm, self._max_new_tokens = lm, whole_number(max_new_tokens, "max_tokens")

    @property
    def hash(self) -> str:
        lm = self._lm
        model = (lm.fingerprint, lm.tokenizer_hash, str(lm.dtype), lm.device.type)
        return judge_hash(*model, self._max_new_tokens, questions=self._questions)

    def judge(self, task: Task, about: About, items: Items) -> list[Verdict]:
        from trueline.decode.generate import generate
        from trueline.methods import PLAIN, make_method

        lm, new = self._lm, self._max_new_tokens
        prompts = [prompt_for(task, about, *item, self._questions) for item in items]
        found: dict[str | None, Verdict] = {None: Verdict(self.id, about, None, NO_REFERENCE)}
        readable = []
        for prompt in filter(None, dict.fromkeys(prompts)):
            length = len(_PROMPT.encode(prompt, lm.tokenizer))
            if lm.limit is None or length + new <= lm.limit:
                readable.append(prompt)
            else:
                problem = f"the question is {length} tokens, {lm.id} reads {lm.limit}"
                found[prompt] = Verdict(self.id, about, None, problem)
        plain = make_method(PLAIN, prompt=_PROMPT)
        answers = generate(lm, plain, readable, max_new_tokens=new, batch_size=_BATCH)
        for prompt, answer in zip(readable, answers, strict=True):
            # A base model may go on with another question after the first line.
            label = read_verdict(answer.text.strip().partition("\n")[0], about)
            counts = (answer.prompt_tokens, len(answer.token_ids))
            found[prompt] = Verdict(self.id, about, label, answer.text, *counts, basis=about)
        return [found[prompt] for prompt in prompts]


class ServiceJudge:
    """A model of a service; every response is paid for once.

    A response is written to the cache first. A verdict has the cost its response had when it
    was bought, also if it comes from the cache.
    """

    def __init__(
        self,
        kind: str,
        model: str,
        url: str,
        cache: Path | None,
        limits: Limits | None,
        max_tokens: int,
        questions: Questions,
    ) -> None:
        service, environment = SERVICES[kind], os.environ
        self._model = model or service.default_model
        if not self._model or not self._model.isprintable():
            raise SettingError(f"the {kind} judge needs a model, as in {kind}:MODEL@BASE_URL")
        own = _address(environment.get(f"{kind.upper()}_BASE_URL", "").strip() or service.url)
        bound = environment.get(_URL, "").strip()
        self._url = _address(url) if url else own
        # A plan can name any address; a key goes only to the one the environment gives it.
        names = service.key_variables if self._url == own else ()
        names += (_KEY,) if bound and _address(bound) == self._url else ()
        keys = ((name, environment.get(name, "").strip()) for name in names)
        key_name, self._key = next((pair for pair in keys if pair[1]), ("", ""))
        is_safe = self._url.startswith("https://") or _is_loopback(self._url)
        if self._key and not (is_safe and re.fullmatch("[!-~]+", self._key)):
            raise SettingError(
                f"the key in {key_name} cannot be sent to {self._url}: a key is plain ASCII "
                "without spaces, and goes only to https:// or to this machine"
            )
        self._advice = f"set {' or '.join(service.key_variables)}"
        if self._url != own:
            self._advice = f"set {_URL} to {self._url} and {_KEY} to its key"
        if not self._key and (self._url == service.url or kind != "openai"):
            raise TruelineError(
                f"the {kind} judge needs a key for {self._url}; {self._advice}, or use the "
                "judge `offline`, which needs none"
            )
        name = f"{kind}:{self._model}" + (f"@{self._url}" if self._url != service.url else "")
        self.id, self._questions = name + SUFFIXES[questions], questions
        self._limits = limits or Limits()
        self._max_tokens = whole_number(max_tokens, "max_tokens")
        self._cache, self._free_at = ResponseCache(cache), monotonic()
        self._open_client()  # a missing package or a wrong proxy shows before anything is paid

    @property
    def hash(self) -> str:
        return judge_hash(self.id, self._max_tokens, questions=self._questions)

    def judge(self, task: Task, about: About, items: Items) -> list[Verdict]:
        prompts = [prompt_for(task, about, *item, self._questions) for item in items]
        waiting = dict.fromkeys(filter(None, prompts))

        async def ask_all() -> list[Verdict]:
            gate = asyncio.Semaphore(self._limits.concurrency)
            async with self._open_client() as client:
                work = (self._ask(client, gate, about, prompt) for prompt in waiting)
                return await asyncio.gather(*work)

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            answered = asyncio.run(ask_all())
        else:  # in a notebook
            with ThreadPoolExecutor(1) as pool:
                answered = pool.submit(asyncio.run, ask_all()).result()
        found, verdicts = dict(zip(waiting, answered, strict=True)), []
        for prompt in prompts:
            if prompt is None:
                verdicts.append(Verdict(self.id, about, None, NO_REFERENCE))
                continue
            verdicts.append(found[prompt])  # an equal question after it costs nothing
            found[prompt] = replace(found[prompt], is_cached=found[prompt].is_answered)
        return verdicts

    async def _ask(
        self, client: AsyncOpenAI, gate: asyncio.Semaphore, about: About, prompt: str
    ) -> Verdict:
        """The verdict in the cache, or else that of the service, after some tries."""
        parameters = {"temperature": 0, "max_tokens": self._max_tokens}
        parts = json.dumps([self.id, self._model, prompt, parameters], sort_keys=True)
        key, limits = hashlib.sha256(parts.encode()).hexdigest(), self._limits
        async with gate:
            response = self._cache.read(key)
            is_cached, attempt = response is not None, 0
            while response is None:
                attempt += 1
                try:
                    response = await self._try(client, prompt)
                    self._cache.write(key, self.id, response)
                except _FailedTry as failed:
                    if attempt == limits.tries or (failed.pause or 0.0) > limits.patience:
                        reason = f"(no response: {failed}; tried {attempt} times)"
                        return Verdict(self.id, about, None, reason, is_answered=False)
                    if failed.pause is not None:  # for all requests
                        self._free_at = max(self._free_at, monotonic() + failed.pause)
                        continue
                    # Random: requests that failed together should not come back together.
                    backoff = limits.backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
                    await sleep(min(backoff, limits.patience))
        label, cost = read_verdict(response[0], about), price_of(self._model, *response[1:])
        return Verdict(self.id, about, label, *response, cost, is_cached)

    async def _try(self, client: AsyncOpenAI, prompt: str) -> Response:
        """Send a question once; a TruelineError means that every other would fail too."""
        import openai

        while (left := self._free_at - monotonic()) > 0:
            await sleep(left)
        self._free_at = monotonic() + 60 / (self._limits.per_minute or math.inf)
        try:
            async with asyncio.timeout(self._limits.timeout):
                completion = await client.chat.completions.create(
                    model=self._model,
                    messages=[{"role": "user", "content": prompt}],
                    temperature=0,
                    max_tokens=self._max_tokens,
                )
            choice, usage = completion.choices[0], completion.usage
            text = choice.message.content or ""
            if not text.strip():  # paid for like any other
                text = f"(no text: {choice.message.refusal or choice.finish_reason})"
            names = ("prompt_tokens", "completion_tokens")
            read, wrote = (int(getattr(usage, name, 0) or 0) for name in names)
            if not (0 <= read <= _MOST_TOKENS and 0 <= wrote <= _MOST_TOKENS):
                raise ValueError("not a count of tokens")
            return self._clean(text), read, wrote
        except TimeoutError:
            raise _FailedTry(f"no response within {self._limits.timeout:g} s") from None
        except openai.APIStatusError as error:
            status, text = error.status_code, self._clean(error.response.text)
            reason = f"HTTP {status}: {text[:200]!r}"
            # Gemini calls a key it does not know a bad request.
            if status in (401, 403, 404) or (status == 400 and "API_KEY_INVALID" in text):
                raise TruelineError(
                    f"{self._url} refuses {self._model} or its key ({reason}); check the "
                    f"judge's name, or {self._advice}"
                ) from None
            if status not in (408, 409, 429) and status < 500:
                raise _FailedTry(reason, math.inf) from None  # the same again would fail again
            if (pause := _pause_in(error.response.headers.get("retry-after", ""))) is not None:
                reason += f", wait {pause:.0f} s"
            raise _FailedTry(reason, pause) from None
        except openai.APIConnectionError as error:
            raise _FailedTry(f"no connection: {self._clean(str(error.__cause__))}") from None
        except (openai.OpenAIError, *_WRONG_FORM):
            raise _FailedTry("the response is not of this API's form") from None

    def _clean(self, text: str) -> str:
        """Text of a service, without the key and half surrogates."""
        # A server on this machine may want any short word as a key: that is not a secret.
        text = text.replace(self._key, "(the key)") if len(self._key) >= 12 else text
        return text.encode("utf-8", "replace").decode()

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
        except (ValueError, OSError, ImportError) as error:
            # Without the error's own words: the address of a proxy may hold a password.
            raise SettingError(
                f"{self._url} cannot be reached ({type(error).__name__}); check the proxy and "
                "certificates in HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and SSL_CERT_FILE"
            ) from None
        options = {"base_url": self._url, "api_key": "none", "max_retries": 0}
        judge: AsyncOpenAI = openai.AsyncOpenAI(http_client=client, **options)
        return judge


class _FailedTry(Exception):
    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause  # seconds requested by the service; inf: do not try again


class ResponseCache:
    """Responses by key, in one SQLite file, which threads and processes can share."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or home() / "judge-cache.sqlite"
        self._execute(_TABLE)
        self._execute("PRAGMA user_version = 1")  # fails if nothing can be written

    def read(self, key: str) -> Response | None:
        query = "SELECT text, prompt_tokens, answer_tokens FROM responses WHERE key = ?"
        found: Response | None = self._execute(query, key)
        return found

    def write(self, key: str, judge: str, response: Response) -> None:
        """Keep a response; an earlier one with the key stays."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        query = "INSERT OR IGNORE INTO responses VALUES (?, ?, ?, ?, ?, ?)"
        self._execute(query, key, judge, *response, time)

    def _execute(self, query: str, *values: object) -> Any:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch(0o600)  # questions and answers may be private
            with closing(
                sqlite3.connect(self.path, timeout=60, isolation_level=None)
            ) as opened:
                return opened.execute(query, values).fetchone()
        except (OSError, ValueError, sqlite3.Error) as error:
            raise TruelineError(
                f"{self.path} cannot be used as the judges' cache ({error}); "
                "name another file, or move this one away"
            ) from error


def _address(text: str) -> str:
    """An address in its normal form, in which addresses are compared and printed."""
    try:
        parts = urlsplit(text)
        if _ADDRESS.fullmatch(text) and parts.hostname and parts.port != 0:
            return parts._replace(netloc=parts.netloc.lower()).geturl().rstrip("/")
    except ValueError:
        pass
    raise SettingError(  # the text is not repeated: it may hold a password
        f"a judge's address is in plain ASCII, like {SERVICES['openai'].url}, without a "
        "password or query; its key belongs in the environment"
    )


def _is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def _pause_in(retry_after: str) -> float | None:
    """The seconds of a Retry-After header, which has seconds or a date."""
    for read in (float, lambda text: parsedate_to_datetime(text).timestamp() - time()):
        try:
            return max(0.0, read(retry_after))
        except (ValueError, OverflowError):  # not a date, or one in the year 10^30
            continue
    return None
