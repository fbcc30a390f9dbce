"""A name -> a judge of answers: by known answers, a service or a local model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from trueline.errors import SettingError
from trueline.lab.judges.models import SERVICES, Limits, LocalJudge, ServiceJudge
from trueline.lab.judges.questions import Judge, Questions, prompt_for, questions_for

if TYPE_CHECKING:
    from trueline.embed import Embedder
    from trueline.engines.base import Engine


__all__ = ["JUDGES", "Judge", "Limits", "open_judge", "prompt_for", "questions_for"]
JUDGES = ("offline", "cohere", "gemini", "openai:MODEL", "openai:MODEL@BASE_URL", "local:MODEL")
_NAME = re.compile(r"([a-z]+)(?::(.+?))?(?:@(https?://.*))?")  # kind, model, address


def open_judge(
    name: str = "offline",
    *,
    lm: Engine | None = None,
    embedder: Embedder | None = None,
    cache: Path | None = None,
    limits: Limits | None = None,
    max_tokens: int | None = None,
    questions: Questions = "ours",
) -> Judge:
    """Open a judge by its name in JUDGES; the key of a service must be in the environment.

    `embedder` is for the offline judge; `lm` for a local judge named without a model or with
    this model's id; `cache` and `limits` for services; `questions` for all but the offline one.
    """
    found = _NAME.fullmatch(name)
    kind, model, url = found.groups(default="") if found else ("", "", "")
    if name == "offline":
        from trueline.embed import load_embedder
        from trueline.lab.judges.offline import OfflineJudge  # here, to keep --help instant

        return OfflineJudge(embedder or load_embedder())
    if name == "local" or name.startswith("local:"):
        model = name[len("local:") :]
        if not model and lm is None:
            raise SettingError("a local judge needs a model, as in local:smollm2-135m")
        if lm is None or model not in ("", lm.id):
            from trueline.engines import load

            lm = load(model)
        return LocalJudge(lm, 8 if max_tokens is None else max_tokens, questions)
    # An address without http:// would pass as part of the model.
    if kind in SERVICES and not re.search(r"@(?:localhost|[^@]*[.:/])", model):
        # A verdict is one word; models that think first need more.
        tokens = 16 if max_tokens is None else max_tokens
        return ServiceJudge(kind, model, url, cache, limits, tokens, questions)
    raise SettingError(
        f"{name!r} is not a judge; there are {', '.join(JUDGES)}, and BASE_URL begins with "
        "http:// or https://"
    )
