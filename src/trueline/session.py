"""Names in, a model, a space and methods out, opened together: what every face begins with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import Any

from trueline.engines import DEFAULT_MODEL, load
from trueline.engines.base import Engine
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
from trueline.methods.base import Method
from trueline.prompts import Prompt
from trueline.space import GroundingSpace, build, read_space
from trueline.types import OnProgress

_CONTEXT = 8  # of the entries of the shipped facts


@dataclass(frozen=True)
class Session:
    """A model, a space, and methods by name that work with both."""

    lm: Engine
    space: GroundingSpace | None  # None: no method needs one, and none was named
    methods: Mapping[str, Method] = field(default_factory=dict)
    is_shipped: bool = False  # whether the space is that of the shipped facts

    @property
    def prompt(self) -> Prompt:
        """What a question is put into."""
        return Prompt() if self.space is None else self.space.prompt

    def method(
        self,
        name: str,
        settings: Mapping[str, Any] | None = None,
        *,
        prompt: Prompt | None = None,
    ) -> Method:
        """A method on the model and the space, or on a prompt if it needs no space."""
        space, needs = self.space, method_class(name).needs
        if needs.context is not None and (space is None or self.is_shipped):
            space = self._shipped_with_entries
        elif space is None and needs.space:
            space = self._shipped
        return make_method(name, space=space, prompt=prompt, settings=settings)

    @cached_property
    def _shipped(self) -> GroundingSpace:
        return shipped_space()

    @cached_property
    def _shipped_with_entries(self) -> GroundingSpace:
        if self.space is not None and self.space.entries is not None:
            return self.space
        return shipped_space(self.lm)

    def current(self) -> Session:
        """The same on the newest state of the space's folder; costs one look at its manifest.

        Answers that are being written go on with the state they began with.
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
    engine: str = "transformers",
    dtype: str = "auto",
    device: str | None = None,
    trust_remote_code: bool = False,
    progress: OnProgress | None = None,
) -> Session:
    """Open a model, a space and methods; wrong names are refused before a model is opened.

    Without a space, methods that need one get that of the shipped facts, with entries only
    where one of them needs entries. Settings are named
    `tau` for every method that has one, or `rad.tau` for one of them. Without a model, it is
    the one the space was built with.
    """
    given = settings or {}
    check_names(names, given)
    if isinstance(space, (str, Path)):
        space = read_space(space, embedder=embedder)
    own = {name: _meant_for(name, given) for name in names}
    if space is not None:  # before a model is opened: what the space cannot give shows at once
        for name in names:
            make_method(name, space=space, settings=own[name])
        _open_meanwhile(space, names)
    if model is None or isinstance(model, str):
        lm: Engine = _load(
            model,
            space,
            engine=engine,
            dtype=dtype,
            device=device,
            trust_remote_code=trust_remote_code,
        )
    else:
        lm = model
    is_shipped = space is None and any(method_class(name).needs.space for name in names)
    if is_shipped:
        needs_entries = any(method_class(name).needs.context is not None for name in names)
        space = shipped_space(lm if needs_entries else None, progress)
    session = Session(lm, space, is_shipped=is_shipped)
    return replace(session, methods={name: session.method(name, own[name]) for name in names})


def _open_meanwhile(space: GroundingSpace, names: Sequence[str]) -> None:
    """Open the embedder of a space in a thread while the model is opened.

    Most of its work is outside Python. Whoever needs it first waits for it; an error is met
    again there, and told.
    """

    def open_embedder() -> None:
        with suppress(Exception):
            space.open_embedder("cpu")

    if any(method_class(name).needs.space for name in names):
        Thread(target=open_embedder, daemon=True).start()


def check_names(names: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Refuse methods that are none, and settings that none of the methods has."""
    for name in names:
        method_class(name)
    for key, value in settings.items():
        method, dot, setting = key.rpartition(".")
        if dot:
            method_class(method)  # refuses a name that is none
        if dot and method not in names:
            raise SettingError(f"{key} is set, but {method} is not asked for")
        takers = [name for name in names if setting in _meant_for(name, {key: value})]
        for name in takers or [method or next(iter(names), PLAIN)]:
            check_settings(name, {setting: value})


def shipped_space(
    lm: Engine | None = None, progress: OnProgress | None = None
) -> GroundingSpace:
    """The space of the shipped facts, with the entries of a model if one is given.

    Built once and kept in the cache.
    """
    spaces = home() / "spaces"
    name = "facts.space" if lm is None else f"facts-{lm.fingerprint[:12]}.space"
    entries: dict[str, Any] = {} if lm is None else {"context": _CONTEXT, "wrong": True}
    with locked(spaces):
        return build(
            lm, "facts", out=spaces / name, overwrite=True, progress=progress, **entries
        )


def _load(model: str | None, space: GroundingSpace | None, **options: Any) -> Engine:
    engine: str = options.pop("engine")
    if space is None or space.entries is None:
        return load(model or DEFAULT_MODEL, engine=engine, **options)
    made = space.entries.settings.model
    try:
        if model is None:
            check_named(made, "--model")
        return load(model or made, engine=engine, **options)
    except ModelError as error:
        if model is not None:
            raise
        raise SpaceMismatchError(
            f"{space.folder or 'the space'} was built with the model {made!r}, "
            f"which cannot be opened by that name; say where it is with --model ({error})"
        ) from error


def _meant_for(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for one method: `name.setting`, and plain names of settings it has."""
    known = settings_fields(name)
    shared = {key: value for key, value in settings.items() if key in known}
    own = {
        key.removeprefix(f"{name}."): value
        for key, value in settings.items()
        if key.startswith(f"{name}.") and key.removeprefix(f"{name}.") in known
    }
    return {**shared, **own}


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
    from trueline.store import read_manifest

    entries = read_manifest(space).entries or {}
    return str(entries.get("model", ""))
