"""The names a command was given in; out: the model they mean, or what is wrong with them.

Nothing heavy is imported, so that a mistake shows at once and not after a wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trueline.decoders import check_method_name
from trueline.engines import DEFAULT_MODEL
from trueline.engines.sources import check_name


def check_parts(
    methods: Iterable[str],
    *,
    space: Path | None = None,
    model: str | None = None,
    embedder: str | None = None,
) -> str:
    """Refuse a name that is no method's, space's, model's or embedder's; say which model."""
    for name in methods:
        check_method_name(name)
    for given, kind in ((model, "language"), (embedder, "embedder")):
        if given is not None:
            check_name(given, kind)  # type: ignore[arg-type]  # kind is a literal
    named = "" if space is None else named_model(space)
    return model or named or DEFAULT_MODEL


def named_model(space: Path) -> str:
    """The model that a space names, which may be none; a folder without a space is refused."""
    from trueline.space.storage import read_manifest

    return read_manifest(space).recipe.model
