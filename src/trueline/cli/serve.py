"""`trueline serve`: a model with its verified answers behind the API every client speaks."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from trueline.cli.options import PATH, FlagEnvvarOption
from trueline.engines import DEFAULT_MODEL
from trueline.errors import SettingError, import_extra
from trueline.settings import read_settings

if TYPE_CHECKING:
    from trueline.serve.access import Keys
    from trueline.serve.catalog import Catalog


_PACKAGES = ("msgspec", "starlette", "uvicorn", "prometheus_client")


@click.command()
@click.option(
    "--model", help=f"Alias, hub id, folder or .gguf file; {DEFAULT_MODEL} if left out."
)
@click.option(
    "--space",
    "spaces",
    cls=FlagEnvvarOption,
    multiple=True,
    metavar="[NAME=]FOLDER",
    help="A grounding space, more than once for several; the shipped facts if left out.",
)
@click.option("--name", help="What the model is called in the API; its own name if left out.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    show_default=True,
    help="auto: float32 on a CPU.",
)
@click.option("--device", help="cpu, cuda, mps; the best there is if left out.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen; an address that other machines reach needs keys.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option(
    "--keys",
    "key_file",
    cls=FlagEnvvarOption,
    type=PATH,
    help="A file of hashed keys. Also read: TRUELINE_API_KEY and TRUELINE_ADMIN_KEY.",
)
@click.option(
    "--new-key",
    type=click.Choice(["user", "admin"]),
    help="Print a new key and its line for the key file, and do nothing else.",
)
@click.option(
    "--cors", multiple=True, metavar="ORIGIN", help="A site whose pages may call this server."
)
@click.option("--rows", type=int, help="Answers decoded together; 16 if left out.")
@click.option("--queue", type=int, help="Answers that may wait for a row; 64 if left out.")
@click.option("--deadline", type=float, help="Seconds for an answer; 300 if left out.")
@click.option(
    "--limit",
    "limits",
    cls=FlagEnvvarOption,
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other limit, such as new_tokens=512 or body_bytes=65536.",
)
@click.option("--log-text", is_flag=True, help="Write questions and answers to the log, too.")
def serve(
    model: str | None,
    spaces: tuple[str, ...],
    name: str | None,
    dtype: str,
    device: str | None,
    host: str,
    port: int,
    key_file: Path | None,
    new_key: Literal["user", "admin"] | None,
    cors: tuple[str, ...],
    log_text: bool,
    **limits: Any,
) -> None:
    """Serve a model and spaces over an OpenAI-compatible API, with a page to try them.

    The log goes to stdout, a line of JSON for each request. SIGTERM and SIGHUP let answers end,
    then the server.

    \b
    Examples:
      trueline serve --space facts.space
      trueline serve --new-key user
      trueline serve --space facts.space --host 0.0.0.0 --keys keys.txt
    """
    from trueline.cli.screen import note, show
    from trueline.serve.access import new_key as make_key
    from trueline.serve.access import read_keys
    from trueline.session import check_parts

    if new_key is not None:
        show("\n".join(make_key(new_key)))
        return
    for package in _PACKAGES:
        import_extra(package, "the server", "serve")
    from trueline.serve.process import check_host, is_loopback, listen, page_address, serve
    from trueline.serve.schemas import Limits

    keys = read_keys(key_file, os.environ)
    check_host(host, keys)
    checked = Limits(**_limits(limits, [one.name for one in fields(Limits)]))
    check_parts((), model=model)
    with listen(host, port) as bound:  # a port that is taken shows before a model is opened
        catalog = _open(model, spaces, name=name, dtype=dtype, device=device)
        from trueline.serve.app import LOOPBACK, create_app
        from trueline.serve.metrics import log_line

        keys, made = _with_admin(keys) if is_loopback(host) else (keys, "")
        app = create_app(
            catalog,
            limits=checked,
            keys=keys,
            hosts=None if keys.has("user") else LOOPBACK,
            cors=cors,
            log=lambda facts: show(log_line(facts)),
            logs_text=log_text,
        )
        started = _started(list(catalog.names()), page_address(bound), made)
        serve(app, bound, lambda: note(started))


def _started(names: list[str], address: str, made: str) -> str:
    """What is said once the server listens: what it serves, where, and with which key."""
    others = f" and {len(names) - 1} other model names" if len(names) > 1 else ""
    lines = [f"serving {names[0]}{others}", f"API:  {address}/v1"]
    lines += [f"page: {address}/" + (f"#key={made}" if made else "")]
    if made:
        lines += [
            "The key in that address lets you change examples, in this run; set "
            "TRUELINE_ADMIN_KEY for one that stays."
        ]
    return "\n".join([*lines, "Ctrl-C lets running answers end, then the server."])


def _open(model: str | None, spaces: tuple[str, ...], **options: Any) -> Catalog:
    """The model and the spaces, with a bar where the shipped facts are built first."""
    from trueline.cli.screen import progress_bar

    with progress_bar("building the space of the facts", "", "opening the model") as progress:
        from trueline.serve.catalog import open_catalog
        from trueline.serve.process import one_thread

        with one_thread():
            return open_catalog(model, spaces, progress=progress, **options)


def _with_admin(keys: Keys) -> tuple[Keys, str]:
    """The keys with one for an admin, and that key if it was made for this run.

    What changes spaces is never open to everybody.
    """
    from trueline.serve.access import new_key

    if keys.has("admin"):
        return keys, ""
    key, _ = new_key("admin")
    return keys.also("admin", key), key


def _limits(given: dict[str, Any], known: list[str]) -> dict[str, Any]:
    """The limits by name, from their own options and from --limit."""
    named = read_settings(given.pop("limits"))
    if unknown := sorted(set(named) - set(known)):
        raise SettingError(
            f"there is no limit {', '.join(unknown)}; there are {', '.join(known)}"
        )
    return {**named, **{key: value for key, value in given.items() if value is not None}}
