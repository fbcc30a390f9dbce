"""Names -> a model, a space and methods; wrong names are refused before torch is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from trueline.engines import DEFAULT_MODEL, load
from trueline.engines.fetch import home, locked
from trueline.engines.models import check_name, check_named
from trueline.errors import ModelError, SettingError, SpaceMismatchError
from trueline.methods import (
    PLAIN,
    check_method_name,
    check_settings,
    make_method,
    method_class,
    settings_fields,
)

if TYPE_CHECKING:
    from trueline.engines.base import Engine
    from trueline.methods.base import Method
    from trueline.space import GroundingSpace
    from trueline.types import OnProgress

_CONTEXT = 8  # tokens in the window of entries that are built without being requested


@dataclass(frozen=True)
class Session:
    """A model, a space, and methods by name that work with both."""

    lm: Engine
    space: GroundingSpace | None  # None: no method needs one, and none was named
    methods: Mapping[str, Method]


def open_session(
    names: Sequence[str],
    *,
    model: str | Engine | None = None,
    space: str | Path | GroundingSpace | None = None,
    embedder: str | None = None,
    settings: Mapping[str, Any] | None = None,
    builds_entries: bool = False,
    progress: OnProgress | None = None,
    **weights: Any,
) -> Session:
    """Open a model, a space and methods; wrong names are refused before a model is opened.

    Without a space, methods that need one get that of the shipped facts. A space without the
    entries that a method needs is refused; with `builds_entries` they are built. Settings are
    named `tau` for every method that has one, or `rad.tau` for one of them. Without a model,
    it is the one the space was built with; `weights` are the options of `load`.
    """
    own = _settings_by_method(names, settings or {})
    if isinstance(space, str | Path):
        from trueline.space import read_space

        space = read_space(space, embedder=embedder)
    if space is not None:  # a space that lacks something is refused before a model is opened
        for name in names:
            if not (builds_entries and needs_entries(name)):
                make_method(name, space=space, settings=own[name])
        if any(method_class(name).needs.space for name in names):
            Thread(target=_open_embedder, args=(space,), daemon=True).start()
    lm = _load(model, space, **weights) if model is None or isinstance(model, str) else model
    if space is None or builds_entries:
        space = space_for(names, lm, space, progress=progress)
    made = {name: make_method(name, space=space, settings=own[name]) for name in names}
    return Session(lm, space, made)


def _settings_by_method(
    names: Sequence[str], settings: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """The settings of each method; refuses unknown methods, and settings that none has."""
    for name in names:
        check_method_name(name)
    own: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key in sorted(settings, key=lambda key: "." in key):  # `rad.tau` wins over `tau`
        method, dot, setting = key.rpartition(".")
        if dot:
            check_method_name(method)
            if method not in names:
                raise SettingError(f"{key} is set, but {method} is not among the methods")
        takers = [name for name in names if setting in settings_fields(name)]
        for name in [method] if dot else takers or [*names, PLAIN][:1]:
            check_settings(name, {setting: settings[key]})
            own[name][setting] = settings[key]
    return own


def _open_embedder(space: GroundingSpace) -> None:
    """Open the embedder while the model is opened; most of both is outside Python."""
    with suppress(Exception):  # it shows again when the embedder is needed
        space.open_embedder("cpu")


def _load(model: str | None, space: GroundingSpace | None, **options: Any) -> Engine:
    entries = None if space is None else space.entries
    named = "" if entries is None else entries.settings.model
    try:
        if model is None and named:
            check_named(named, "--model")
        lm: Engine = load(model or named or DEFAULT_MODEL, **options)
        return lm
    except ModelError as error:
        if model is not None or not named:
            raise
        raise SpaceMismatchError(
            f"the space was built with the model {named!r}, which cannot be opened by that "
            f"name; say where it is with --model ({error})"
        ) from error


def needs_entries(name: str) -> bool:
    """Whether a method needs the entries of a model in its space."""
    return method_class(name).needs.context is not None


def is_shipped(space: GroundingSpace) -> bool:
    """Whether a space is that of the shipped facts."""
    return space.folder is not None and space.folder.parent == home() / "spaces"


def space_for(
    names: Sequence[str],
    lm: Engine,
    space: GroundingSpace | None = None,
    *,
    progress: OnProgress | None = None,
) -> GroundingSpace | None:
    """The space that methods need: the shipped facts if there is none, with entries if needed.

    Missing entries are built and kept with the space; if it has those of another model, they
    stay in its folder, and the new ones last for this process.
    """
    from trueline.space import build

    has_entries = any(map(needs_entries, names))
    if space is None or is_shipped(space):
        if not any(method_class(name).needs.space for name in names):
            return space
        folder, name, entries = home() / "spaces", "facts.space", dict[str, Any]()
        if has_entries:
            name = f"facts-{lm.fingerprint[:12]}.space"
            entries = {"context": _CONTEXT, "wrong": True}
        model = lm if has_entries else None
        options: dict[str, Any] = {"overwrite": True, "progress": progress}
        with locked(folder):
            return build(model, "facts", out=folder / name, **options, **entries)
    if not has_entries:
        return space
    if space.entries is not None:
        with suppress(SpaceMismatchError):
            space.entries.check_model(lm)
            return space
    built = build(
        lm,
        space.examples,
        context=_CONTEXT,
        prompt=space.prompt,
        embedder=space.open_embedder(lm.device),
        out=None if space.entries is not None else space.folder,
        overwrite=True,
        progress=progress,
    )
    return built.tune(space.tuned)


def check_parts(
    methods: Iterable[str],
    *,
    space: Path | None = None,
    model: str | None = None,
    embedder: str | None = None,
) -> str:
    """Refuse unknown methods, models, embedders and folders without a space; name the model."""
    for name in methods:
        check_method_name(name)
    if model is not None:
        check_name(model, "language")
    if embedder is not None:
        check_name(embedder, "embedder")
    if space is None:
        return model or DEFAULT_MODEL
    from trueline.store import read_manifest

    entries = read_manifest(space).entries or {}
    return model or str(entries.get("model", "")) or DEFAULT_MODEL
