"""The files of a report and their folder -> all of them written, or none.

What was written is listed beside it: a file that is not as a report left it is somebody else's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from trueline.errors import SettingError
from trueline.files import file_hash, replacing, sync

LISTED = ".trueline-report.json"  # file name -> the hashes of what reports wrote, newest last
_KEPT = 2  # hashes of a file: a kill leaves some files as the report before had them


def write_files(
    folder: Path, contents: Mapping[str, bytes], *, overwrite: bool = False
) -> list[Path]:
    """Write files into a folder; a full disk leaves all of them as they were."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not overwrite:
            check_free(folder, contents)
        known = _listed(folder)
        for name, content in contents.items():
            before = known.get(name, [])
            known[name] = [*before, hashlib.sha256(content).hexdigest()][-_KEPT:]
        _write_all(folder, {**contents, LISTED: json.dumps(known, indent=1).encode()})
    except OSError as error:
        raise SettingError(
            f"{folder} cannot be written to ({error.strerror}); what was there is as it was"
        ) from error
    return [folder / name for name in contents]


def check_free(folder: Path, names: Iterable[str]) -> None:
    """Refuse to replace files that no report wrote, or that were changed since."""
    known = _listed(folder)
    try:
        foreign = [
            path
            for path in (folder / name for name in names)
            if path.exists()
            and not (path.is_file() and file_hash(path) in known.get(path.name, []))
        ]
    except OSError as error:
        raise SettingError(f"{folder} cannot be read ({error.strerror})") from error
    if foreign:
        raise SettingError(
            f"{', '.join(map(str, foreign))} would be replaced, and no earlier report wrote "
            "that; move it away, name another folder with --out, or say --overwrite"
        )


def _write_all(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write every file beside its place, and put them there when all are on the disk.

    The list comes last and is put there first, so that it knows the others after a kill.
    """
    with ExitStack() as stack:
        for name, content in contents.items():
            scratch = stack.enter_context(replacing(folder / name))
            scratch.write_bytes(content)
            sync(scratch)


def _listed(folder: Path) -> dict[str, list[str]]:
    """What reports wrote into a folder; nothing where the list cannot be read."""
    try:
        found = json.loads((folder / LISTED).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: x for name, x in found.items() if isinstance(x, list)}
