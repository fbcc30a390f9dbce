"""A chat template and messages in, the text a model reads out, as transformers writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trueline.errors import SettingError


class _Generation(Extension):
    """`generation` marks what the assistant says, for training; it stands for its content."""

    tags = {"generation"}  # noqa: RUF012  # as jinja has it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """What stands inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, str]],
    add_generation_prompt: bool,
    special: Mapping[str, str],
) -> str:
    """The messages as one text; `special` names the tokens that begin and end one."""
    return _compiled(template).render(
        messages=messages, add_generation_prompt=add_generation_prompt, **special
    )


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise SettingError(f"the model's chat template cannot be read ({error})") from error


def _json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise SettingError(message)
