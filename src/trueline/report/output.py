"""The files of a report and their folder -> all of them written, or none.

What was written is listed beside it: a file that is not as a report left it is somebody else's.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from trueline.errors import SettingError
from trueline.files import file_hash, open_regular, reason, scratch_beside, sync

LISTED = ".trueline-report.json"  # file name -> the hashes of what reports wrote, newest last
_LONGEST_LIST = 1 << 20  # bytes; a file takes about 200
_KEPT = 2  # hashes of a file: a kill leaves some files as the report before had them


def write_files(
    folder: Path, contents: Mapping[str, bytes], *, overwrite: bool = False
) -> list[Path]:
    """Write files into a folder; a full disk leaves all of them as they were."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"{folder} cannot be written to ({reason(error)})") from error
    check_free(folder, contents, overwrite=overwrite)
    known = _listed(folder)
    for name, content in contents.items():
        before = known.get(name, [])
        known[name] = [*before, hashlib.sha256(content).hexdigest()][-_KEPT:]
    # The list takes its place first: after a kill it knows the files that follow.
    _write_all(folder, {LISTED: json.dumps(known, indent=1).encode(), **contents})
    return [folder / name for name in contents]


def check_free(folder: Path, names: Iterable[str], *, overwrite: bool = False) -> None:
    """Refuse to replace a folder, and files that no report wrote or that were changed since.

    With `overwrite` files are not looked at; a folder is refused all the same.
    """
    paths = [folder / name for name in names]
    known = _listed(folder)
    try:
        taken = [path for path in (*paths, folder / LISTED) if path.is_dir()]
        foreign = [
            path
            for path in paths
            if not overwrite
            and os.path.lexists(path)
            and not (path.is_file() and file_hash(path) in known.get(path.name, []))
        ]
    except OSError as error:
        raise SettingError(f"{folder} cannot be read ({reason(error)})") from error
    if taken:
        raise SettingError(
            f"{', '.join(map(str, taken))} should be a file and is a folder; move it away, or "
            "name another folder with --out"
        )
    if foreign:
        raise SettingError(
            f"{', '.join(map(str, foreign))} would be replaced, and no earlier report wrote "
            "that; move it away, name another folder with --out, or say --overwrite"
        )


def _write_all(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write every file beside its place; when all are on the disk, put them there in order."""
    outcome = "what was there is as it was"
    try:
        with ExitStack() as stack:
            scratches = {}
            for name, content in contents.items():
                scratches[name] = stack.enter_context(scratch_beside(folder / name))
                scratches[name].write_bytes(content)
                sync(scratches[name])
            for name, scratch in scratches.items():
                os.replace(scratch, folder / name)
                outcome = "some files are replaced and some are not; write the report again"
    except OSError as error:
        raise SettingError(
            f"{folder} cannot be written to ({reason(error)}); {outcome}"
        ) from error


def _listed(folder: Path) -> dict[str, list[str]]:
    """What reports wrote into a folder; nothing where the list cannot be read."""
    try:
        with open_regular(folder / LISTED) as file:
            found = json.loads(file.read(_LONGEST_LIST))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: x for name, x in found.items() if isinstance(x, list)}
