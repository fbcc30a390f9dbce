"""Answers -> verdicts by a model on this machine, through our own decoding loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trueline.errors import SettingError
from trueline.evaluation.judges.questions import (
    NO_REFERENCE,
    Items,
    Questions,
    judge_hash,
    judge_id,
    prompt_for,
    read_verdict,
)
from trueline.evaluation.samples import About, Task, Verdict
from trueline.prompts import Prompt
from trueline.records import OnProgress

if TYPE_CHECKING:
    from trueline.engines.base import Engine

_PROMPT = Prompt(template="{question}")  # the judge's question is the whole prompt


class LocalJudge:
    """A language model that writes a few tokens, by plain decoding."""

    def __init__(
        self,
        lm: Engine,
        *,
        max_new_tokens: int = 8,
        batch_size: int = 8,
        questions: Questions = "ours",
    ) -> None:
        if max_new_tokens < 1 or batch_size < 1:
            raise SettingError(
                "max_new_tokens and batch_size must be at least 1, got "
                f"{max_new_tokens} and {batch_size}"
            )
        self.id, self._questions = judge_id(f"local:{lm.id}", questions), questions
        self._lm, self._max_new_tokens, self._batch_size = lm, max_new_tokens, batch_size

    @property
    def hash(self) -> str:
        """A hash of all that can change its verdicts."""
        lm = self._lm
        model = (lm.fingerprint, lm.tokenizer_hash, str(lm.dtype), lm.device.type)
        return judge_hash(*model, self._max_new_tokens, questions=self._questions)

    def judge(
        self, task: Task, about: About, items: Items, progress: OnProgress | None = None
    ) -> list[Verdict]:
        """Verdicts in the order of the items; equal questions are asked once."""
        from trueline.decoders import PLAIN, make_method
        from trueline.generation import generate

        prompts = [prompt_for(task, about, *item, self._questions) for item in items]
        reasons = {prompt: self._problem(prompt) for prompt in dict.fromkeys(prompts)}
        usable = [text for text, reason in reasons.items() if text is not None and not reason]
        answers = generate(
            self._lm,
            make_method(PLAIN, prompt=_PROMPT),
            usable,
            max_new_tokens=self._max_new_tokens,
            batch_size=self._batch_size,
            progress=progress,
        )
        by_prompt = {answer.question: answer for answer in answers}
        verdicts = []
        for prompt in prompts:
            if prompt is None or prompt not in by_prompt:
                verdicts.append(Verdict(self.id, about, None, reasons[prompt]))
                continue
            answer = by_prompt[prompt]
            # A model that only continues text goes on with a question of its own.
            first = next(iter(answer.text.strip().splitlines()), "")
            label = read_verdict(first, about)
            tokens = (answer.prompt_tokens, len(answer.token_ids))
            verdicts.append(Verdict(self.id, about, label, answer.text, *tokens, basis=about))
        return verdicts

    def _problem(self, prompt: str | None) -> str:
        """Why a question cannot be put to the model; empty if it can."""
        if prompt is None:
            return NO_REFERENCE
        length, limit = len(_PROMPT.encode(prompt, self._lm.tokenizer)), self._lm.limit
        if limit is not None and length + self._max_new_tokens > limit:
            return f"the question is {length} tokens, {self._lm.id} reads {limit}"
        return ""
