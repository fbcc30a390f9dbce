"""A decoding method as a model of lm-evaluation-harness (docs/lm-eval.md)."""

from __future__ import annotations

import json
import logging
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from trueline import __version__
from trueline.engines import LoadOptions
from trueline.errors import MissingExtraError, SettingError, TruelineError
from trueline.methods import DEFAULT, built_in_names, method_class

try:
    import lm_eval.models  # noqa: F401  # the harness adds its own to an empty registry only
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import model_registry
except ImportError as error:
    raise MissingExtraError(
        f"lm-evaluation-harness is not installed ({error}); install trueline[lm-eval]"
    ) from error

if TYPE_CHECKING:
    from pathlib import Path

    from lm_eval.api.instance import Instance

    from trueline.engines.base import Engine
    from trueline.space import GroundingSpace
    from trueline.types import Sampling

_log = logging.getLogger(__name__)
_OPTIONS = {"do_sample", "temperature", "top_k", "top_p", "until", "max_gen_toks"}
_WINDOW = 2048  # tokens of a rolling window if the model names no limit, as in the harness
LEAST = -1e30  # instead of -inf: the harness subtracts scores, which would make NaN


def _problem(name: str) -> str:
    """Why a method cannot work on finished text; empty if it can."""
    needs = method_class(name).needs
    if needs.own_prompt:
        return "writes its own prompt, which the harness does (--num_fewshot)"
    if needs.second_prompt or needs.question:
        what = "a second prompt" if needs.second_prompt else "the question"
        return f"needs {what}, and the harness gives finished text"
    return ""


class TruelineLM(TemplateLM):
    """A model with a decoding method, for lm-evaluation-harness."""

    def __init__(
        self,
        model: str | Engine | None = None,
        *,
        space: str | Path | GroundingSpace | None = None,
        method: str = DEFAULT,
        embedder: str | None = None,
        batch_size: int | str = 1,
        max_gen_toks: int = 256,
        seed: int = 0,
        **options: Any,  # of `trueline.load`, and settings of the method
    ) -> None:
        import torch

        from trueline.session import open_session

        super().__init__()
        names = {"engine", *LoadOptions.__annotations__} & options.keys()
        opening = {name: options.pop(name) for name in names}
        if opening.get("device") == "cuda:0" and not torch.cuda.is_available():
            del opening["device"]  # the harness's default
        if not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise SettingError(f"batch_size must be a whole number from 1, got {batch_size!r}")
        self.batch_size, self.max_gen_toks, self.seed = int(batch_size), max_gen_toks, seed
        if problem := _problem(method):
            able = ", ".join(other for other in built_in_names() if not _problem(other))
            raise SettingError(
                f"{method} {problem}; with lm-eval you can use {able}, and every method with "
                "`trueline eval`"
            )
        if method_class(method).needs.space and space is None:
            raise SettingError(f"{method} needs a space; add space=FOLDER to --model_args")
        if model is None and space is None:
            raise SettingError("name a model: add model=NAME to --model_args")
        session = open_session(
            [method], model=model, space=space, embedder=embedder, settings=options, **opening
        )
        self.space, self.settings, self.lm = session.space, options, session.lm
        self.method, self.tokenizer = session.methods[method], session.lm.tokenizer
        self.method.check(self.lm)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> TruelineLM:
        """--model_args win over --batch_size and --device."""
        given = {k: v for k, v in (additional_config or {}).items() if v is not None}
        return cls(**{**given, **arg_dict})

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """The token for an empty context: the one that begins a text, or else ends one."""
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return int(token)
        raise SettingError("the tokenizer names no token that begins or ends a text")

    @property
    def max_length(self) -> int:
        return self.lm.limit or _WINDOW

    @property
    def tokenizer_name(self) -> str:
        """The name under which the harness caches prepared requests."""
        return f"{self.lm.id}-{self.lm.tokenizer_hash[:12]}".replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """The same tokens as the harness's `hf` model: no second token that begins the text."""
        if add_special_tokens is None:
            first = str(self.tokenizer.decode([self.prefix_token_id]))
            add_special_tokens = not string.startswith(first)
        return list(self.tokenizer.encode(string, add_special_tokens=add_special_tokens))

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The messages as one text, for --apply_chat_template."""
        from jinja2 import TemplateError

        if not self.tokenizer.chat_template:
            raise SettingError(
                f"{self.lm.id} has no chat template; leave --apply_chat_template out"
            )
        try:
            text = self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        except TemplateError as error:
            raise SettingError(
                f"the chat template of {self.lm.id} refuses the messages ({error}); "
                "leave --system_instruction out, or --apply_chat_template"
            ) from error
        return str(text)

    def get_model_info(self) -> dict[str, Any]:
        """What the harness stores with its results, so that they can be repeated."""
        return {
            "trueline": __version__,
            "model_fingerprint": self.lm.fingerprint,
            "model_dtype": str(self.lm.dtype).removeprefix("torch."),
            "method": self.method.name,
            "settings": self.settings,
            "space_hash": None if self.space is None else self.space.plan,
            "space_entries": None if self.space is None else self.space.info()["entries"],
        }

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Score (texts, context, continuation); `batch_size` contexts form a batch."""
        from tqdm import trange

        from trueline.decode.generate import Continuation, score_continuations
        from trueline.prompts import TokenContext

        by_context: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, (_, context, after) in enumerate(requests):
            if not after:
                raise SettingError(
                    "a continuation is empty, or one token with the end of its context"
                )
            room = self.max_length + 1 - len(after)  # its last token is not read
            if room < 1:
                raise SettingError(
                    f"a continuation has {len(after)} tokens, {self.lm.id} reads "
                    f"{self.max_length} in all"
                )
            by_context[tuple(context[-room:])].append(number)
        contexts = sorted(by_context, key=len)
        scores = [(0.0, False)] * len(requests)
        is_hidden = kwargs.get("disable_tqdm")
        for start in trange(
            0, len(contexts), self.batch_size, desc="scoring", disable=is_hidden
        ):
            batch = contexts[start : start + self.batch_size]
            pairs = [(context, number) for context in batch for number in by_context[context]]
            rows = [
                Continuation(TokenContext(context), (context,), tuple(requests[number][2]))
                for context, number in pairs
            ]
            results = score_continuations(self.lm, self.method, rows)
            for (_, number), (total, is_greedy) in zip(pairs, results, strict=True):
                scores[number] = (max(total, LEAST), is_greedy)
                if texts := requests[number][0]:
                    self.cache_hook.add_partial("loglikelihood", texts, scores[number])
        return scores

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-probability of whole texts, with the harness's windows for long ones."""
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        parts = [
            (number, *make_disjoint_window(window))
            for number, request in enumerate(requests)
            for window in get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length, 1
            )
        ]
        windows: list[tuple[Any, list[int], list[int]]] = [(None, *part) for _, *part in parts]
        scores = self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm)
        totals = [0.0] * len(requests)
        for (number, *_), (total, _) in zip(parts, scores, strict=True):
            totals[number] += total
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continue each context; requests with equal options form batches."""
        from tqdm import tqdm

        from trueline.decode.generate import answer_all
        from trueline.prompts import TokenContext

        groups: dict[str, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            groups[json.dumps(request.args[1], sort_keys=True)].append(number)
        texts = [""] * len(requests)
        for key, numbers in tqdm(groups.items(), desc="generating", disable=disable_tqdm):
            sampling = self._sampling(json.loads(key))
            room = self.max_length - sampling.max_new_tokens
            if room < 1:
                raise SettingError(
                    f"max_gen_toks is {sampling.max_new_tokens}, and {self.lm.id} reads "
                    f"{self.max_length} in all"
                )
            encoded = [self.tok_encode(requests[number].args[0]) for number in numbers]
            if too_long := sum(len(tokens) > room for tokens in encoded):
                _log.warning(
                    "%d contexts are too long; their last %d tokens are read", too_long, room
                )
            contexts = [
                TokenContext(tuple(tokens[-room:] or [self.prefix_token_id]))
                for tokens in encoded
            ]
            answers = answer_all(
                self.lm, self.method, contexts, sampling, batch_size=self.batch_size
            )
            for number, answer in zip(numbers, answers, strict=True):
                texts[number], args = answer.text, requests[number].args
                self.cache_hook.add_partial("generate_until", args, answer.text)
        return texts

    def _sampling(self, given: dict[str, Any]) -> Sampling:
        """The harness's generation options as ours; an unknown one is refused."""
        from lm_eval.models.utils import normalize_gen_kwargs

        from trueline.types import Sampling

        options = dict(normalize_gen_kwargs(given, self.max_gen_toks))
        if unknown := sorted(set(options) - _OPTIONS):
            raise SettingError(
                f"trueline has no generation option {', '.join(unknown)}; "
                f"it has {', '.join(sorted(_OPTIONS))}"
            )
        chance: dict[str, Any] = {}
        temperature = options.get("temperature", 1.0 if options["do_sample"] else 0.0)
        if temperature > 0:  # the other options have no effect on greedy answers
            chance = {name: options[name] for name in ("top_k", "top_p") if name in options}
            chance |= {"temperature": temperature, "seed": self.seed}
        stop = tuple(filter(None, options["until"]))
        return Sampling(max_new_tokens=options["max_gen_toks"], stop=stop, **chance)


if "trueline" not in model_registry:  # a release that reads entry points has put it there
    model_registry.register("trueline", target=TruelineLM)


def main() -> None:
    """Run the harness's command line, with `trueline` as one of its models."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except TruelineError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
