"""Anybody's transformers LogitsProcessor as a method, named `module:Name`.

Its arguments are the settings of the method. An argument `examples` gets the examples of the
grounding space, `tokenizer` that of the model: so a processor with a datastore is made, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from importlib import import_module
from typing import Any, ClassVar

import torch

from trueline.engines.base import Engine
from trueline.errors import SettingError
from trueline.methods.base import Adjusted, Method, Needs, Prepared, Step
from trueline.prompts import ModelInput, Prompt
from trueline.space import GroundingSpace
from trueline.types import Sampling

_GIVEN = ("examples", "tokenizer")  # arguments that are no settings


@dataclass(frozen=True)
class ProcessorMethod(Method):
    """Changes the logits as a transformers LogitsProcessor does, a new one for each answer."""

    make: ClassVar[Callable[..., Any]]
    parameters: ClassVar[Mapping[str, inspect.Parameter]]

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> None:
        """Refuse a missing one; the processor checks their values when it is made."""
        own = [one.name for one in fields(cls) if one.name not in ("space", "prompt")]
        if missing := [name for name in own if name not in settings]:
            needed = " ".join(f"--set {name}=VALUE" for name in missing)
            raise SettingError(f"{cls.name} has arguments without a default: give {needed}")

    def prepare(self, lm: Engine, given: ModelInput, options: Sampling) -> Prepared:
        found: dict[str, Any] = {}
        if "examples" in self.parameters:
            found["examples"] = list(self.space.examples)  # type: ignore[attr-defined]
        if "tokenizer" in self.parameters:
            found["tokenizer"] = getattr(lm, "tokenizer", None)
        for name, value in self.settings().items():  # some refuse an int for a float
            is_float = self.parameters[name].annotation in (float, "float")
            found[name] = float(value) if is_float and isinstance(value, int) else value
        try:
            processor = self.make(**found)
        except Exception as error:  # whatever somebody else's code raises
            raise SettingError(
                f"{self.name} cannot be made with {self.settings()}: {error}; give its "
                "arguments as settings, such as --set NAME=VALUE"
            ) from error
        if not callable(processor):
            raise SettingError(f"{self.name} made {type(processor).__name__}, no processor")
        return Prepared(processor)

    def adjust(self, step: Step) -> Adjusted:
        rows = zip(step.rows.prepared, step.contexts, step.logits, strict=True)
        changed = [
            processor(torch.tensor([tokens], device=logits.device), logits[None].clone())
            for processor, tokens, logits in rows
        ]
        return Adjusted(torch.cat(changed).to(step.logits.dtype))


def processor_method(path: str) -> type[Method]:
    """The method that runs the processor at `module:Name`, with its arguments as fields."""
    module, _, attribute = path.partition(":")
    try:
        made = getattr(import_module(module), attribute)
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(made).parameters
    except Exception as error:  # whatever the import of somebody else's module raises
        raise SettingError(
            f"the processor {path} cannot be imported ({type(error).__name__}: {error}); write "
            "module:Name, such as transformers:RepetitionPenaltyLogitsProcessor"
        ) from error
    has_space = "examples" in parameters
    made_of: list[Any] = [("space", GroundingSpace)] if has_space else []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name, parameter in parameters.items():
        if parameter.kind in named and name not in _GIVEN:
            missing = parameter.default is inspect.Parameter.empty
            default = {} if missing else {"default": parameter.default}
            made_of.append((name, Any, field(kw_only=True, **default)))
    if not has_space:
        made_of.append(("prompt", Prompt | None, None))
    inside = {
        "name": path,
        "needs": Needs(space=has_space),
        "make": staticmethod(made),
        "parameters": parameters,
    }
    return make_dataclass(
        attribute, made_of, bases=(ProcessorMethod,), namespace=inside, frozen=True
    )
