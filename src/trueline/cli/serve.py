"""`trueline serve`: an OpenAI-compatible API for a model and its verified answers."""

from __future__ import annotations

import os
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click

from trueline.cli.options import PATH, FlagEnvvarOption, device_option, dtype_option
from trueline.cli.screen import note, progress_bars, show
from trueline.engines import DEFAULT_MODEL
from trueline.errors import SettingError, import_extra
from trueline.settings import read_settings


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
    help="A grounding space; repeat it for more. The shipped facts if left out.",
)
@click.option("--name", help="The model's name in the API; its own name if left out.")
@dtype_option
@device_option
@click.option(
    "--host",
    default="127.0.0.1",
    help="Where to listen; an address that other machines reach needs keys.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000)
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

    The log goes to stdout, one line of JSON for each request. After SIGTERM or SIGHUP, running
    answers are finished before the server ends.

    \b
    Examples:
      trueline serve --space facts.space
      trueline serve --new-key user
      trueline serve --space facts.space --host 0.0.0.0 --keys keys.txt
    """
    for package in ("starlette", "uvicorn", "prometheus_client"):
        import_extra(package, "the server", "serve")
    from trueline.serve import access

    if new_key is not None:
        show("\n".join(access.new_key(new_key)))
        return
    from trueline.serve import process
    from trueline.serve.schemas import Limits
    from trueline.session import check_parts

    keys = access.read_keys(key_file, os.environ)
    process.check_host(host, keys)
    values: dict[str, Any] = read_settings(limits.pop("limit"))
    values |= {name: value for name, value in limits.items() if value is not None}
    known = [one.name for one in fields(Limits)]
    if unknown := sorted({*values} - {*known}):
        raise SettingError(
            f"there is no limit {', '.join(unknown)}; there are {', '.join(known)}"
        )
    checked = Limits(**values)
    check_parts((), model=model)
    with process.listen(host, port) as bound:  # fails before a model is opened
        from trueline.serve.app import LOOPBACK, create_app
        from trueline.serve.metrics import log_line
        from trueline.serve.spaces import open_spaces

        with progress_bars("", "opening the model") as progress, process.one_thread():
            bar = partial(progress, "building the space of the facts")
            lm, opened = open_spaces(model, spaces, progress=bar, dtype=dtype, device=device)
        own_key = ""
        if process.is_loopback(host) and not keys.has("admin"):
            own_key, _ = access.new_key("admin")  # nobody edits spaces without a key
            keys = keys.also("admin", own_key)
        app = create_app(
            lm,
            opened,
            name=name or Path(model or lm.id).name,
            limits=checked,
            keys=keys,
            hosts=None if keys.has("user") else LOOPBACK,
            cors=cors,
            log=lambda facts: show(log_line(facts)),
            logs_text=log_text,
        )
        first, *others = app.state.catalog.names
        address = process.page_address(bound)
        hint = (
            "With the key in that address you can change examples until the server ends; set "
            "TRUELINE_ADMIN_KEY for a key that stays."
        )
        lines = [
            f"serving {first} and {len(others)} other model names",
            f"API:  {address}/v1",
            *([f"page: {address}/#key={own_key}", hint] if own_key else [f"page: {address}/"]),
            "Ctrl-C finishes running answers, then ends the server.",
        ]
        process.serve(app, bound, lambda: note("\n".join(lines)))
