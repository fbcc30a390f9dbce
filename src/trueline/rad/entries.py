"""RAD's entries: contexts and what the model predicts in them, attached to a space.

A space uses `open_entries` and the public methods of `RadEntries`; rad/build.py makes entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from trueline.errors import SettingError, SpaceMismatchError
from trueline.settings import check_values, plain
from trueline.store import Array, Arrays, Read, are_unit, arrays_bytes, arrays_in
from trueline.types import Example

if TYPE_CHECKING:
    from trueline.engines.base import Engine

Context = int | Literal["full"]  # M: how many tokens a window holds
# What a window is the end of: all that the model reads, question and answer, or the answer.
Window = Literal["template", "text", "answer"]
TRUTHFUL, WRONG = "rad/truthful.safetensors", "rad/wrong.safetensors"
_LARGEST = 1e30  # no hidden state is larger; sums of such numbers are still numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrySettings:
    """How entries are made; the build replaces "auto" and fills in the fields from `model`."""

    context: Context
    window: Window = "template"
    end: bool = False  # whether there is an entry after the last token of each answer
    wrong: bool = False  # whether the wrong answers make a second set of entries
    values: Literal["auto", "hidden", "logits"] = "auto"
    dtype: Literal["auto", "float32", "float16"] = "auto"  # of keys and values at rest
    model: str = ""
    model_fingerprint: str = ""
    vocabulary: int = 0
    tokenizer_hash: str = ""
    head: Literal["", "linear", "nonlinear", "opaque"] = ""
    computed: Literal["", "float64", "float32", "bfloat16", "float16"] = ""  # by the model

    def __post_init__(self) -> None:
        object.__setattr__(self, "context", plain(self.context))
        check_values(EntrySettings, asdict(self))
        if isinstance(self.context, int) and self.context < 1:
            raise SettingError(f"context must be 1 or more, 'full' or None; got {self.context}")
        if self.values == "hidden" and self.head == "opaque":
            raise SettingError(
                "this model's head is of no known form: its hidden states do not give its "
                "logits; use values='auto' or 'logits'"
            )

    def settled(self, lm: Engine, head: str) -> EntrySettings:
        """The settings of the entries that a model makes, whose head has some form."""
        values, dtype = self.values, self.dtype
        if values == "auto":
            values = "logits" if head == "opaque" else "hidden"
        if dtype == "auto":  # half precision leaves the tokens as they are (docs/speed.md)
            dtype = "float16" if values == "hidden" else "float32"
        made: dict[str, Any] = {"values": values, "dtype": dtype, "head": head}
        made |= {"model": lm.id, "model_fingerprint": lm.fingerprint}
        made |= {"vocabulary": lm.vocabulary, "tokenizer_hash": lm.tokenizer_hash}
        made |= {"computed": str(lm.dtype).removeprefix("torch.")}
        return replace(self, **made)


def window_tokens(
    tokens: Sequence[int], start: int, question: Sequence[int], settings: EntrySettings
) -> tuple[Sequence[int], Sequence[int]]:
    """The last M tokens: those of the question alone, and those of what the model reads.

    `start` is where the answer begins in `tokens`.
    """
    before = question if settings.window == "text" else ()
    after = tokens if settings.window == "template" else tokens[start:]
    if settings.context == "full":
        return before, after
    room = settings.context - len(after)
    return before[-room:] if room > 0 else (), after[-settings.context :]


def window_texts(
    lm: Engine, windows: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[str]:
    """Windows as text; question and answer are separate words."""
    answers = lm.decode_all([after for _, after in windows])
    if not any(len(before) for before, _ in windows):
        return answers
    pairs = zip(lm.decode_all([before for before, _ in windows]), answers, strict=True)
    return [f"{q} {a.lstrip()}" if q and a else q or a for q, a in pairs]


@dataclass(frozen=True, slots=True)
class Entries:
    """One set of entries; row i of each array is entry i."""

    keys: Array  # (n, dimension), unit length
    values: Array  # (n, d) hidden states or (n, vocabulary) logits
    tokens: Array  # (n,) int32, the answer's own next token
    examples: Array  # (n,) int32, the number of the example among the examples
    answers: Array  # (n,) int32, which of its answers
    steps: Array  # (n,) int32, which token of that answer

    def __len__(self) -> int:
        return len(self.keys)

    def arrays(self) -> Arrays:
        """The arrays by the name under which they are stored."""
        return {name: getattr(self, name) for name in self.__slots__}

    def kept(self, examples: Array) -> Entries:
        """The entries of some examples; `examples` (count,) is true where they are kept."""
        rows, numbers = examples[self.examples], np.cumsum(examples) - 1
        arrays = {name: array[rows] for name, array in self.arrays().items()}
        return Entries(**arrays | {"examples": numbers[arrays["examples"]].astype(np.int32)})

    def joined(self, other: Entries, first: int) -> Entries:
        """With those of another set, whose examples are numbered from `first` on."""
        more = other.arrays() | {"examples": (other.examples + first).astype(np.int32)}
        return Entries(**{n: np.concatenate([x, more[n]]) for n, x in self.arrays().items()})

    def flaw(self, settings: EntrySettings, dimension: int, answers: Array) -> str:
        """What is wrong with the entries; `answers` (count,) of each example. "" if nothing."""
        arrays, width = self.arrays().values(), self.values.shape[1]
        is_logits = settings.values == "logits"
        if {len(array) for array in arrays} != {len(self)} or self.keys.shape[1] != dimension:
            return f"its rows and numbers are {[array.shape for array in arrays]}"
        if not width or (is_logits and width != settings.vocabulary):
            return f"values have {width} numbers, which the model's have not"
        if not len(self):
            return ""
        tokens = self.tokens.clip(0) if settings.end else self.tokens  # an end may have none
        most = np.append(answers, 0).take(self.examples, mode="clip")
        for what, numbers, end in (
            ("a token that the model does not have", tokens, settings.vocabulary),
            ("an example that does not exist", self.examples, len(answers)),
            ("an answer that does not exist", self.answers, most),
        ):
            if not ((numbers >= 0) & (numbers < end)).all():
                return f"it names {what}"
        if not are_unit(self.keys):
            return "some keys are not of unit length"
        if self.values.dtype == np.float16:  # comparing these is seven times slower
            is_sound = np.isfinite(self.values).all()
        else:  # NaN fails both comparisons; a model may forbid a token by its lowest number
            low = np.finfo(np.float32).min if is_logits else -_LARGEST
            is_sound = low <= self.values.min() and self.values.max() <= _LARGEST
        return "" if is_sound else "some values are not finite, or too large"


@dataclass(frozen=True, eq=False)
class RadEntries:
    """The entries of a space: of truthful answers, and perhaps of the wrong ones."""

    settings: EntrySettings
    truthful: Entries
    wrong: Entries | None = None
    # What was opened of them, by device: every method and setting shares it.
    opened: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.truthful)

    def sets(self) -> list[tuple[str, Entries]]:
        """The sets of entries with the name of their file."""
        wrong = [] if self.wrong is None else [(WRONG, self.wrong)]
        return [(TRUTHFUL, self.truthful), *wrong]

    def kept(self, examples: Array) -> RadEntries:
        """The entries of some examples; `examples` (count,) is true where they are kept."""
        return RadEntries(self.settings, *(own.kept(examples) for _, own in self.sets()))

    def joined(self, other: RadEntries, first: int) -> RadEntries:
        """With other entries made alike, whose examples are numbered from `first` on."""
        theirs = dict(other.sets())  # more examples may have no wrong answers
        sets = [
            x.joined(theirs[name], first) if name in theirs else x for name, x in self.sets()
        ]
        return RadEntries(self.settings, *sets)

    def contents(self) -> dict[str, bytes]:
        """The files of the entries."""
        return {name: arrays_bytes(entries.arrays()) for name, entries in self.sets()}

    def flaw(self, examples: Sequence[Example], dimension: int) -> str:
        """What is wrong with these entries of some examples; "" if nothing is."""
        for name, entries in self.sets():
            kind = "wrong_answers" if name == WRONG else "answers"
            answers = np.array([len(getattr(example, kind)) for example in examples])
            if flaw := entries.flaw(self.settings, dimension, answers):
                return f"{name}: {flaw}"
        return ""

    def counts(self) -> dict[str, int]:
        """How many entries there are, and how many wrong ones if the space has them."""
        names = {TRUTHFUL: "entries", WRONG: "wrong"}
        return {names[name]: len(own) for name, own in self.sets()}

    def info(self) -> dict[str, Any]:
        """What `GroundingSpace.info` lists of them."""
        size = sum(array.nbytes for array in self.truthful.arrays().values())
        names = ("model", "context", "window", "end", "values", "head", "dtype")
        return {
            **{name: getattr(self.settings, name) for name in names},
            "model_fingerprint": self.settings.model_fingerprint[:16],
            "entries": len(self),
            "wrong_entries": 0 if self.wrong is None else len(self.wrong),
            "width": self.truthful.values.shape[1],
            "bytes_per_entry": round(size / max(1, len(self))),
            "logits_would_be": 4 * self.settings.vocabulary,
        }

    def check_model(self, lm: Engine) -> None:
        """Refuse a model or tokenizer the entries were not made with."""
        made, problem = self.settings, ""
        if (lm.fingerprint, lm.vocabulary) != (made.model_fingerprint, made.vocabulary):
            problem = (
                f"the space was built with the model {made.model} (fingerprint "
                f"{made.model_fingerprint[:12]}, vocabulary {made.vocabulary}), this is "
                f"{lm.id} (fingerprint {lm.fingerprint[:12]}, vocabulary {lm.vocabulary}): "
                "other weights, or the same in another precision"
            )
        elif lm.tokenizer_hash != made.tokenizer_hash:
            problem = "the space was built with another tokenizer: texts become other tokens"
        elif made.values == "hidden" and not self._fit_head(lm):
            problem = f"the space keeps hidden states that the head of {lm.id} does not take"
        if problem:
            again = f"build it anew with `trueline build --model {lm.id}`"
            raise SpaceMismatchError(f"{problem}; {again}")

    def _fit_head(self, lm: Engine) -> bool:
        """Whether the model's head takes the hidden states, tried on one of each set."""
        import torch

        if lm.head is None:
            return False
        options: dict[str, Any] = {"dtype": lm.dtype, "device": lm.device}
        token = torch.zeros(1, dtype=torch.long, device=lm.device)
        try:
            for _, entries in self.sets():
                lm.head.at(torch.zeros(1, entries.values.shape[1], **options), token)
        except RuntimeError:  # from torch, where the widths differ
            return False
        return True


def open_entries(stored: Mapping[str, Any], read: Read) -> RadEntries:
    """The entries of a space, from how they were made and a reader of its files."""
    settings = msgspec.convert(dict(stored), EntrySettings)
    is_made = "auto" not in (settings.values, settings.dtype) and settings.vocabulary > 0
    if not (is_made and settings.head and settings.computed and asdict(settings) == stored):
        raise ValueError("it does not say how its entries were made")
    forms = dict.fromkeys(("keys", "values"), (str(settings.dtype), 2))
    forms |= dict.fromkeys(("tokens", "examples", "answers", "steps"), ("int32", 1))
    names = [TRUTHFUL, WRONG][: 1 + settings.wrong]
    return RadEntries(settings, *(Entries(**arrays_in(read(name), forms)) for name in names))
