"""Answers -> verdicts by a model behind an API, each asked and paid for once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from trueline.errors import SettingError
from trueline.evaluation.judges.apis import APIS
from trueline.evaluation.judges.cache import Response, ResponseCache, key_of
from trueline.evaluation.judges.pace import JudgeClock, Limits
from trueline.evaluation.judges.questions import (
    NO_REFERENCE,
    Items,
    Questions,
    judge_hash,
    judge_id,
    price_of,
    prompt_for,
    read_verdict,
)
from trueline.evaluation.judges.sender import Sender, Unanswered
from trueline.evaluation.samples import About, Task, Verdict
from trueline.records import OnProgress

_LONGEST_NAME = 200  # characters of a model's name
_Outcome = tuple[Response | str, bool]  # a response or why there is none; is it from the cache


class RemoteJudge:
    """A model behind the Cohere, Gemini or an OpenAI-compatible API.

    A response is kept in the cache before anything else is done with it. A verdict's cost is
    what its response cost when it was bought, also where it comes from the cache.
    """

    def __init__(
        self,
        api: str,
        model: str = "",
        *,
        url: str = "",
        cache: Path | None = None,
        limits: Limits | None = None,
        clock: JudgeClock | None = None,
        max_tokens: int = 16,  # a verdict is one word; models that think first need more
        questions: Questions = "ours",
    ) -> None:
        self._api = APIS[api]
        self.model = model or self._api.default_model
        if not self.model:
            raise SettingError(f"the {api} judge needs a model, as in {api}:MODEL@BASE_URL")
        if len(self.model) > _LONGEST_NAME or not self.model.isprintable():
            raise SettingError(
                f"the model of the {api} judge must be a name of at most {_LONGEST_NAME} "
                "printable characters"
            )
        if max_tokens < 1:
            raise SettingError(f"max_tokens must be at least 1, got {max_tokens}")
        address = self._api.address(url)
        name = f"{api}:{self.model}" + (f"@{address}" if address != self._api.url else "")
        self.id, self._questions = judge_id(name, questions), questions
        service = self._api.service(address)
        if service.without_key(self.id) != self.id:
            raise SettingError(f"the name of the {api} judge holds its key, and is printed")
        self._max_tokens, self._cache = max_tokens, ResponseCache(cache)
        self._sender = Sender(service, limits or Limits(), clock or JudgeClock())

    def judge(
        self, task: Task, about: About, items: Items, progress: OnProgress | None = None
    ) -> list[Verdict]:
        """Verdicts in the order of the items; equal questions are asked once."""
        prompts = [prompt_for(task, about, *item, self._questions) for item in items]
        distinct = list(dict.fromkeys(prompt for prompt in prompts if prompt is not None))
        outcomes = self._ask_all(distinct, progress)
        seen: set[str] = set()
        verdicts = []
        for prompt in prompts:
            if prompt is None:
                verdicts.append(Verdict(self.id, about, None, NO_REFERENCE))
            else:
                found, is_known = outcomes[prompt]
                verdicts.append(self._verdict(about, found, is_known or prompt in seen))
                seen.add(prompt)
        return verdicts

    def _verdict(self, about: About, found: Response | str, is_cached: bool) -> Verdict:
        if isinstance(found, str):
            return Verdict(self.id, about, None, found, is_answered=False)
        tokens = (found.prompt_tokens, found.answer_tokens)
        text = self._sender.service.without_key(found.text)  # a cache may be older than this
        label = read_verdict(text, about)
        cost = price_of(self.model, *tokens)
        return Verdict(self.id, about, label, text, *tokens, cost, is_cached)

    def _ask_all(self, prompts: list[str], progress: OnProgress | None) -> dict[str, _Outcome]:
        keys = {prompt: self._key(prompt) for prompt in prompts}
        known = self._cache.read(keys.values())
        outcomes: dict[str, _Outcome] = {
            prompt: (known[key], True) for prompt, key in keys.items() if key in known
        }
        missing = [prompt for prompt in prompts if prompt not in outcomes]
        if progress and prompts:
            progress(len(outcomes), len(prompts))
        if not missing:
            return outcomes
        self._sender.resume()
        with ThreadPoolExecutor(self._sender.limits.concurrency) as pool:
            futures = {pool.submit(self._ask, text, keys[text]): text for text in missing}
            try:
                for future in as_completed(futures):
                    outcomes[futures[future]] = future.result()
                    if progress:
                        progress(len(outcomes), len(prompts))
            except BaseException:  # what is in flight still ends in the cache
                self._sender.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return outcomes

    def _ask(self, prompt: str, key: str) -> _Outcome:
        """One response, from the service unless another process has got it meanwhile."""
        if known := self._cache.read([key]):
            return known[key], True
        path = self._api.path(self.model)
        body = self._api.body(self.model, prompt, self._max_tokens)
        try:
            found = self._sender.post(path, body, self._api.read)
        except Unanswered as reason:
            return f"(no response: {reason})", False
        found = replace(found, text=self._sender.service.without_key(found.text))
        self._cache.write(key, self.id, found)
        return found, False

    @property
    def hash(self) -> str:
        """A hash of all that can change its verdicts; model and address are in its id."""
        return judge_hash(self.id, self._max_tokens, questions=self._questions)

    def _key(self, prompt: str) -> str:
        parameters = {"temperature": 0, "max_tokens": self._max_tokens}
        return key_of(self.id, self.model, prompt, parameters)
