"""Requests of lm-evaluation-harness in, the scores and answers of a decoding method out."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any

from trueline import __version__
from trueline.errors import MissingExtraError, SettingError, TruelineError
from trueline.methods import DEFAULT, built_in_names, method_class

if TYPE_CHECKING:
    from pathlib import Path

    from lm_eval.api.instance import Instance

    from trueline.engines.base import Engine
    from trueline.prompts import TokenContext, Tokenizer
    from trueline.space import GroundingSpace
    from trueline.types import Sampling


def first_token(tokenizer: Tokenizer) -> int:
    """What an empty context is read as: the token that begins a text, or else ends one."""
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    if begin is None and end is None:
        raise SettingError("the tokenizer names no token that begins or ends a text")
    return int(end if begin is None else begin)


def encode_finished(text: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens the harness's own `hf` model would read; a text that begins itself is left."""
    begun = text.startswith(str(tokenizer.decode([first_token(tokenizer)])))
    return list(tokenizer.encode(text, add_special_tokens=not begun))


def reason_against(name: str) -> str:
    """Why a method cannot work on finished text; empty if it can."""
    needs = method_class(name).needs
    if needs.own_prompt:
        return (
            "chooses what stands in the prompt, which the harness does itself (--num_fewshot)"
        )
    if needs.second_prompt:
        return (
            "reads a second prompt beside the question's, and the harness gives finished text"
        )
    if needs.question:
        return "goes by the question, and the harness gives finished text"
    return ""


def check_method(name: str, *, has_space: bool) -> None:
    """Refuse a method that cannot read the harness's text as it is."""
    if reason := reason_against(name):
        able = ", ".join(other for other in built_in_names() if not reason_against(other))
        raise SettingError(
            f"{name} {reason}; through lm-eval there are {able}, "
            "and `trueline eval` runs every method"
        )
    if method_class(name).needs.space and not has_space:
        raise SettingError(f"{name} needs a space; add space=FOLDER to --model_args")


def fit_context(context: list[int], after: list[int], lm: Engine) -> list[int]:
    """A context cut on the left so that it can be read with its continuation."""
    if not after:
        raise SettingError("a continuation is empty, or one token with the end of its context")
    if lm.limit is None:
        return context
    room = lm.limit + 1 - len(after)  # the last token of a continuation is not read
    if room < 1:
        raise SettingError(
            f"a continuation has {len(after)} tokens, {lm.id} reads {lm.limit} in all"
        )
    return context[-room:]


try:
    import lm_eval.models  # noqa: F401  # the harness adds its own to an empty registry only
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import model_registry
except ImportError as error:
    raise MissingExtraError(
        f"lm-evaluation-harness is not installed ({error}); install trueline[lm-eval]"
    ) from error
_log = logging.getLogger(__name__)
_PICKS = {"do_sample", "temperature", "top_k", "top_p", "until", "max_gen_toks"}
_LENGTH = 2048  # tokens of a rolling window where the model names no limit, as the harness has
LEAST = -1e30  # what a probability of 0 counts: the harness subtracts, and infinities make NaN


class TruelineLM(TemplateLM):
    """A model and a decoding method behind the interface of lm-evaluation-harness."""

    def __init__(
        self,
        model: str | Engine | None = None,
        *,
        space: str | Path | GroundingSpace | None = None,
        method: str = DEFAULT,
        embedder: str | None = None,
        engine: str = "transformers",
        dtype: str = "auto",
        device: str | None = None,
        trust_remote_code: bool = False,
        batch_size: int | str = 1,
        max_gen_toks: int = 256,
        seed: int = 0,
        **settings: object,
    ) -> None:
        from trueline.session import open_session

        super().__init__()
        if not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise SettingError(f"batch_size must be a whole number from 1, got {batch_size!r}")
        self.batch_size, self.max_gen_toks, self.seed = int(batch_size), max_gen_toks, seed
        check_method(method, has_space=space is not None)
        if model is None and space is None:
            raise SettingError("name a model: add model=NAME to --model_args")
        session = open_session(
            [method],
            model=model,
            space=space,
            embedder=embedder,
            settings=settings,
            engine=engine,
            dtype=dtype,
            device=_device(device),
            trust_remote_code=trust_remote_code,
        )
        self.space, self.settings, self.lm = session.space, settings, session.lm
        self.method, self.tokenizer = session.methods[method], session.lm.tokenizer
        self.method.check(self.lm)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> TruelineLM:
        """Open it with --model_args; --batch_size and --device stand in for what they leave."""
        given = {k: v for k, v in (additional_config or {}).items() if v is not None}
        return cls(**{**given, **arg_dict})

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        return first_token(self.tokenizer)

    @property
    def max_length(self) -> int:
        """How many tokens are read at once."""
        return self.lm.limit or _LENGTH

    @property
    def tokenizer_name(self) -> str:
        """What the harness files prepared requests under."""
        return f"{self.lm.id}-{self.lm.tokenizer_hash[:12]}".replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        if add_special_tokens is None:
            return encode_finished(string, self.tokenizer)
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
            return str(
                self.tokenizer.apply_chat_template(
                    chat_history,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=not add_generation_prompt,
                )
            )
        except TemplateError as error:
            raise SettingError(
                f"the chat template of {self.lm.id} refuses the messages ({error}); "
                "leave --system_instruction out, or --apply_chat_template"
            ) from error

    def get_model_info(self) -> dict[str, Any]:
        """What the harness writes beside its results, so that they can be redone."""
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
        """Score (texts, context, continuation); `batch_size` contexts are read at once."""
        from tqdm import tqdm

        from trueline.decode.generate import Continuation, score_continuations
        from trueline.prompts import TokenContext

        pairs = [
            (tuple(fit_context(context, after, self.lm)), tuple(after))
            for _, context, after in requests
        ]
        places: dict[tuple[int, ...], list[int]] = {}
        for place, (context, _) in enumerate(pairs):
            places.setdefault(context, []).append(place)
        groups = sorted(places.values(), key=lambda group: len(pairs[group[0]][0]))
        found: dict[int, tuple[float, bool]] = {}
        with tqdm(total=len(pairs), desc="scoring", disable=kwargs.get("disable_tqdm")) as bar:
            for start in range(0, len(groups), self.batch_size):
                batch = [
                    place for group in groups[start:][: self.batch_size] for place in group
                ]
                rows = [
                    Continuation(TokenContext(context), (context,), after)
                    for context, after in (pairs[place] for place in batch)
                ]
                scores = score_continuations(self.lm, self.method, rows)
                for place, (total, is_own) in zip(batch, scores, strict=True):
                    score = found[place] = (max(total, LEAST), is_own)
                    if requests[place][0] is not None:
                        self.cache_hook.add_partial("loglikelihood", requests[place][0], score)
                bar.update(len(batch))
        return [found[place] for place in range(len(pairs))]

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-probability of whole texts, cut as the harness cuts what is too long."""
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        windows = [
            (place, *make_disjoint_window(window))
            for place, request in enumerate(requests)
            for window in get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length, 1
            )
        ]
        scores = self._loglikelihood_tokens(
            [(None, context, after) for _, context, after in windows], disable_tqdm=disable_tqdm
        )
        totals = [0.0] * len(requests)
        for (place, *_), (total, _) in zip(windows, scores, strict=True):
            totals[place] += total
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continue each context up to a stop string; equal options go together."""
        from tqdm import tqdm

        from trueline.decode.generate import answer_all

        groups: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(place)
        texts = [""] * len(requests)
        with tqdm(total=len(requests), desc="writing", disable=disable_tqdm) as bar:
            for places in groups.values():
                options = _generation(requests[places[0]].args[1], self.max_gen_toks, self.seed)
                texts_read = [requests[place].args[0] for place in places]
                contexts = self._contexts(texts_read, options.max_new_tokens)
                answers = answer_all(
                    self.lm, self.method, contexts, options, batch_size=self.batch_size
                )
                for place, answer in zip(places, answers, strict=True):
                    texts[place] = answer.text
                    self.cache_hook.add_partial(
                        "generate_until", requests[place].args, answer.text
                    )
                bar.update(len(places))
        return texts

    def _contexts(self, texts: list[str], new: int) -> list[TokenContext]:
        """The tokens of each text; of one too long to be continued, the last ones."""
        from trueline.prompts import TokenContext

        first = first_token(self.tokenizer)
        read = [encode_finished(text, self.tokenizer) or [first] for text in texts]
        if self.lm.limit is not None:
            keep = self.lm.limit - new
            if keep < 1:
                raise SettingError(
                    f"max_gen_toks is {new}, and {self.lm.id} reads {self.lm.limit} "
                    "tokens in all"
                )
            cut = sum(len(tokens) > keep for tokens in read)
            if cut:
                _log.warning(
                    "%d contexts are too long; their last %d tokens are read", cut, keep
                )
            read = [tokens[-keep:] for tokens in read]
        return [TokenContext(tuple(tokens)) for tokens in read]


def _generation(given: dict[str, Any], max_gen_toks: int, seed: int) -> Sampling:
    """The options of a request as those of `generate`; one without an equal is refused."""
    from lm_eval.models.utils import normalize_gen_kwargs

    from trueline.types import Sampling

    options = dict(normalize_gen_kwargs(given, max_gen_toks))
    if unknown := sorted(set(options) - _PICKS):
        raise SettingError(
            f"trueline has no generation option {', '.join(unknown)}; "
            f"it has {', '.join(sorted(_PICKS))}"
        )
    made: dict[str, Any] = {
        "max_new_tokens": options["max_gen_toks"],
        "stop": tuple(string for string in options["until"] if string),
    }
    temperature = options.get("temperature", 1.0 if options["do_sample"] else 0.0)
    if temperature > 0:  # the others mean nothing where the best token is taken
        made |= {"temperature": temperature, "seed": seed}
        made |= {name: options[name] for name in ("top_k", "top_p") if name in options}
    return Sampling(**made)


def _device(name: str | None) -> str | None:
    """The device asked for; lm_eval asks for cuda:0 where nobody said anything."""
    import torch

    return None if name == "cuda:0" and not torch.cuda.is_available() else name


if "trueline" not in model_registry:  # a release that reads entry points has put it there
    model_registry.register("trueline", target=TruelineLM)


def main() -> None:
    """Run lm_eval's own command line with `trueline` among its models."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except TruelineError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
