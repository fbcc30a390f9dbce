"""Names -> a model, a space and methods; wrong names are refused before torch is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
    from trueline.prompts import Prompt
    from trueline.space import GroundingSpace
    from trueline.types import OnProgress

_CONTEXT = 8  # tokens in the window of entries that are built without being requested


@dataclass(frozen=True)
class Session:
    """A model, a space, and methods by name that work with both."""

    lm: Engine
    space: GroundingSpace | None  # None: no method needs one, and none was named
    methods: Mapping[str, Method] = field(default_factory=dict)
    is_shipped: bool = False  # whether the space is that of the shipped facts
    _shipped: dict[bool, GroundingSpace] = field(default_factory=dict)  # by: has it entries

    def method(
        self,
        name: str,
        settings: Mapping[str, Any] | None = None,
        *,
        prompt: Prompt | None = None,
    ) -> Method:
        """A method on the model and the space, or on a prompt if it needs no space."""
        space, with_entries = self.space, needs_entries(name)
        if self.is_shipped and with_entries and space is not None and space.entries is None:
            space = None
        if space is None and method_class(name).needs.space:
            if with_entries not in self._shipped:
                self._shipped[with_entries] = shipped_space(self.lm if with_entries else None)
            space = self._shipped[with_entries]
        return make_method(name, space=space, prompt=prompt, settings=settings)

    def current(self) -> Session:
        """The same on the newest state of the space's folder, at the cost of one small read.

        Answers that are being generated go on with the state they began with.
        """
        if self.space is None or (space := self.space.current()) is self.space:
            return self
        return replace(self.on(space), is_shipped=self.is_shipped)

    def on(self, space: GroundingSpace) -> Session:
        """The same model and methods on another space."""
        moved = Session(self.lm, space)
        methods = {
            name: moved.method(name, method.settings()) for name, method in self.methods.items()
        }
        for method in methods.values():
            method.check(self.lm)
        return replace(moved, methods=methods)


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
    given = settings or {}
    check_names(names, given)
    if isinstance(space, str | Path):
        from trueline.space import read_space

        space = read_space(space, embedder=embedder)
    own = {name: _meant_for(name, given) for name in names}
    needs_space = any(method_class(name).needs.space for name in names)
    needs_any_entries = any(map(needs_entries, names))
    if space is not None:  # a space that lacks something is refused before a model is opened
        for name in names:
            if not (builds_entries and needs_entries(name)):
                make_method(name, space=space, settings=own[name])
        if needs_space:
            _open_embedder(space)
    lm: Engine = (
        _load(model, space, **weights) if model is None or isinstance(model, str) else model
    )
    is_shipped = space is None and needs_space
    if is_shipped:
        space = shipped_space(lm if needs_any_entries else None, progress)
    elif builds_entries and space is not None and needs_any_entries:
        space = entries_for(space, lm, progress=progress)
    session = Session(lm, space, is_shipped=is_shipped)
    return replace(session, methods={name: session.method(name, own[name]) for name in names})


def needs_entries(name: str) -> bool:
    """Whether a method needs the entries of a model in its space."""
    return method_class(name).needs.context is not None


def _open_embedder(space: GroundingSpace) -> None:
    """Open the embedder in a thread while the model is opened; most of it is outside Python.

    An error shows again when the embedder is needed.
    """

    def run() -> None:
        with suppress(Exception):
            space.open_embedder("cpu")

    Thread(target=run, daemon=True).start()


def check_names(names: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Refuse unknown methods, and settings that none of the methods has."""
    for name in names:
        method_class(name)
    for key, value in settings.items():
        method, dot, setting = key.rpartition(".")
        if dot:
            method_class(method)  # refuses an unknown name
        if dot and method not in names:
            raise SettingError(f"{key} is set, but {method} is not among the methods")
        takers = [name for name in names if setting in _meant_for(name, {key: value})]
        for name in takers or [method or next(iter(names), PLAIN)]:
            check_settings(name, {setting: value})


def shipped_space(
    lm: Engine | None = None, progress: OnProgress | None = None
) -> GroundingSpace:
    """The space of the shipped facts, with entries if a model is given; kept in the cache."""
    from trueline.space import build

    spaces = home() / "spaces"
    name = "facts.space" if lm is None else f"facts-{lm.fingerprint[:12]}.space"
    entries: dict[str, Any] = {} if lm is None else {"context": _CONTEXT, "wrong": True}
    with locked(spaces):
        return build(
            lm, "facts", out=spaces / name, overwrite=True, progress=progress, **entries
        )


def entries_for(
    space: GroundingSpace,
    lm: Engine,
    *,
    progress: OnProgress | None = None,
) -> GroundingSpace:
    """The space with entries of this model: those it has, or new ones that are kept with it.

    Entries of another model stay in its folder; those built here then last for this process.
    """
    from trueline.space import build

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


def _load(model: str | None, space: GroundingSpace | None, **options: Any) -> Engine:
    entries = None if space is None else space.entries
    named = "" if entries is None else entries.settings.model
    try:
        if model is None and named:
            check_named(named, "--model")
        lm: Engine = load(model or named or DEFAULT_MODEL, **options)
        return lm
    except ModelError as error:
        if model is not None or space is None:
            raise
        raise SpaceMismatchError(
            f"{space.folder or 'the space'} was built with the model {named!r}, which cannot "
            f"be opened by that name; say where it is with --model ({error})"
        ) from error


def _meant_for(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for one method: plain names that it has, then `name.setting`."""
    known = settings_fields(name)
    own = {key.removeprefix(f"{name}."): key for key in settings if key.startswith(f"{name}.")}
    keys = {key: key for key in settings} | own
    return {name: settings[key] for name, key in keys.items() if name in known}


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
