"""RAD's entries: contexts and what the model predicts in them, attached to a space.

A space uses `open_entries`, `contents`, `flaw`, `kept` (without some examples), `joined` (with
those of another space), `counts` and `info`; rad.build makes the entries of new examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    from trueline.space import GroundingSpace

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
        made: dict[str, Any] = {
            "values": values,
            "dtype": dtype,
            "model": lm.id,
            "model_fingerprint": lm.fingerprint,
            "vocabulary": lm.vocabulary,
            "tokenizer_hash": lm.tokenizer_hash,
            "head": head,
            "computed": str(lm.dtype).removeprefix("torch."),
        }
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
    questions = lm.decode_all([before for before, _ in windows])
    pairs = zip(questions, answers, strict=True)
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
        rows = examples[self.examples]
        arrays = {name: array[rows] for name, array in self.arrays().items()}
        numbers = np.cumsum(examples) - 1
        return Entries(**arrays | {"examples": numbers[arrays["examples"]].astype(np.int32)})

    def joined(self, other: Entries, first: int) -> Entries:
        """With those of another set, whose examples are numbered from `first` on."""
        shifted = replace(other, examples=(other.examples + first).astype(np.int32))
        pairs = {name: (mine, getattr(shifted, name)) for name, mine in self.arrays().items()}
        return Entries(**{name: np.concatenate(pair) for name, pair in pairs.items()})

    def flaw(self, settings: EntrySettings, dimension: int, answers: Array) -> str:
        """What is wrong with the entries; `answers` (count,) of each example. "" if nothing."""
        width, count = self.values.shape[1], len(self)
        if {len(array) for array in self.arrays().values()} != {count}:
            return "its arrays have different numbers of rows"
        if self.keys.shape[1] != dimension:
            return f"keys have {self.keys.shape[1]} numbers, vectors {dimension}"
        if not width or (settings.values == "logits" and width != settings.vocabulary):
            return f"values have {width} numbers, which the model's have not"
        if not count:
            return ""
        least = -1 if settings.end else 0  # an end without a token
        checks = (
            (self.tokens, least, settings.vocabulary, "a token that the model does not have"),
            (self.examples, 0, len(answers), "an example that does not exist"),
            (self.answers, 0, answers, "an answer that does not exist"),
        )
        for numbers, low, end, what in checks:
            end = end if isinstance(end, int) else end[self.examples]
            if not ((low <= numbers) & (numbers < end)).all():
                return f"it names {what}"
        return self._value_flaw(settings)

    def _value_flaw(self, settings: EntrySettings) -> str:
        if not are_unit(self.keys):
            return "some keys are not of unit length"
        if self.values.dtype == np.float16:  # comparing these is seven times slower
            is_sound = np.isfinite(self.values).all()
        else:  # NaN fails both comparisons; a model may forbid a token by its lowest number
            low = -_LARGEST if settings.values == "hidden" else np.finfo(np.float32).min
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

    def kept(self, examples: Array) -> RadEntries:
        """The entries of some examples; `examples` (count,) is true where they are kept."""
        wrong = None if self.wrong is None else self.wrong.kept(examples)
        return RadEntries(self.settings, self.truthful.kept(examples), wrong)

    def joined(self, other: RadEntries, first: int) -> RadEntries:
        """With other entries made alike, whose examples are numbered from `first` on."""
        wrong = self.wrong
        if wrong is not None and other.wrong is not None:
            wrong = wrong.joined(other.wrong, first)
        return RadEntries(self.settings, self.truthful.joined(other.truthful, first), wrong)

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

    def sets(self) -> Iterator[tuple[str, Entries]]:
        """The sets of entries by the name of their file."""
        yield TRUTHFUL, self.truthful
        if self.wrong is not None:
            yield WRONG, self.wrong

    def counts(self) -> dict[str, int]:
        """How many entries there are, and how many wrong ones if the space has them."""
        wrong = {} if self.wrong is None else {"wrong": len(self.wrong)}
        return {"entries": len(self), **wrong}

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
        """Refuse a model or tokenizer the entries were not made with, or a head they miss."""
        made, again = self.settings, f"build it anew with `trueline build --model {lm.id}`"
        if (lm.fingerprint, lm.vocabulary) != (made.model_fingerprint, made.vocabulary):
            if lm.id == made.model:
                again = (
                    "the name is the same, the weights or their precision are not (float32 and "
                    f"bfloat16 count as one, float16 does not); {again}"
                )
            problem = (
                f"the space was built with the model {made.model} "
                f"(fingerprint {made.model_fingerprint[:12]}, vocabulary {made.vocabulary}), "
                f"this is {lm.id} (fingerprint {lm.fingerprint[:12]}, vocabulary "
                f"{lm.vocabulary})"
            )
        elif lm.tokenizer_hash != made.tokenizer_hash:
            problem = (
                "the space was built with another tokenizer "
                f"(hash {made.tokenizer_hash[:12]}, this one has {lm.tokenizer_hash[:12]}): "
                "the same text would become other tokens"
            )
        elif made.values == "hidden" and not self._fit_head(lm):
            problem = f"the space keeps hidden states that the head of {lm.id} does not take"
        else:
            return
        raise SpaceMismatchError(f"{problem}; {again}")

    def _fit_head(self, lm: Engine) -> bool:
        """Whether the model's head takes its hidden states, tried on one of them."""
        import torch

        if lm.head is None:
            return False
        state = torch.zeros(1, self.truthful.values.shape[1], dtype=lm.dtype, device=lm.device)
        try:
            lm.head.at(state, torch.zeros(1, dtype=torch.long, device=lm.device))
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


def entries_of(space: GroundingSpace, method: str, context: Context) -> RadEntries:
    """The entries of a space; refused where a method needs them and there are none."""
    if space.entries is None:
        raise SpaceMismatchError(
            f"{method} needs entries, and this space holds examples only; build it with "
            f"context={context!r} (`trueline build --context {context}`)"
        )
    return space.entries
