"""A name -> a judge of answers: by known answers, an API or a local model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueline.errors import SettingError
from trueline.evaluation.judges.offline import agreement
from trueline.evaluation.judges.pace import JudgeClock, Limits
from trueline.evaluation.judges.questions import (
    Judge,
    Questions,
    prompt_for,
    questions_for,
    read_verdict,
)

if TYPE_CHECKING:
    from trueline.embedders.base import Embedder
    from trueline.engines.base import Engine

__all__ = [
    "JUDGES",
    "Judge",
    "JudgeClock",
    "Limits",
    "agreement",
    "open_judge",
    "prompt_for",
    "questions_for",
    "read_verdict",
]

JUDGES = {  # how a judge is named -> what it is
    "offline": "a regression on how near known answers are; needs no key",
    "cohere": "command-a-03-2025, or cohere:MODEL; key in COHERE_API_KEY or CO_API_KEY",
    "gemini": "gemini-2.0-flash, or gemini:MODEL; key in GEMINI_API_KEY",
    "openai:MODEL": "OpenAI's API; key in OPENAI_API_KEY",
    "openai:MODEL@BASE_URL": "any server of OpenAI's form; key, where it needs one, in "
    "TRUELINE_JUDGE_KEY, with the address in TRUELINE_JUDGE_URL",
    "local:MODEL": "a model on this machine, through trueline's own loop",
}
_NAME = re.compile(r"([a-z]+)(?::(.+?))?(?:@(https?://.*))?")  # kind, model, address
_HOST = re.compile(r"@(?:localhost|[^@]*[.:/])")  # an address that lacks its http://


def open_judge(
    name: str = "offline",
    *,
    lm: Engine | None = None,
    embedder: Embedder | None = None,
    cache: Path | None = None,
    limits: Limits | None = None,
    clock: JudgeClock | None = None,
    max_tokens: int | None = None,
    questions: Questions = "ours",
) -> Judge:
    """Open a judge by its name in JUDGES; a key it needs must be in the environment.

    `embedder` serves the offline judge, `lm` a local one that is named without a model or with
    this model's id; `cache`, `limits` and `clock` are for judges behind an API. `questions` are
    those of judges that are language models; the offline judge is asked none.
    """
    found = _NAME.fullmatch(name)
    kind, model, url = found.groups(default="") if found else ("", "", "")
    if name == "offline":
        return _offline(embedder)
    options: dict[str, Any] = {"questions": questions}
    if kind == "local":
        options |= {} if max_tokens is None else {"max_new_tokens": max_tokens}
        return _local(name.removeprefix("local").removeprefix(":"), lm, options)
    if kind in ("cohere", "gemini", "openai"):
        if _HOST.search(model):
            raise SettingError(
                f"the address of a judge must begin with http:// or https://, as in "
                f"{kind}:MODEL@http://localhost:8000/v1"
            )
        from trueline.evaluation.judges.remote import RemoteJudge

        options |= {} if max_tokens is None else {"max_tokens": max_tokens}
        return RemoteJudge(
            kind, model, url=url, cache=cache, limits=limits, clock=clock, **options
        )
    raise SettingError(f"{name!r} is no judge; there are {', '.join(JUDGES)}")


def _offline(embedder: Embedder | None) -> Judge:
    from trueline.embedders.loading import load_embedder
    from trueline.evaluation.judges.offline import OfflineJudge

    return OfflineJudge(embedder or load_embedder())


def _local(model: str, lm: Engine | None, options: dict[str, Any]) -> Judge:
    from trueline.evaluation.judges.local import LocalJudge

    if lm is None or model not in ("", lm.id):
        if not model:
            raise SettingError("a local judge needs a model, as in local:smollm2-135m")
        from trueline.engines import load

        lm = load(model)
    return LocalJudge(lm, **options)
