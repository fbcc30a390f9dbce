"""The files of a report and their folder -> all of them written, or none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from trueline.errors import SettingError
from trueline.files import open_regular, reason, scratch_beside, sync
from trueline.report.formats import CSV_HEAD
from trueline.report.grids import MARK


def write_files(
    folder: Path, contents: Mapping[str, bytes], *, overwrite: bool = False
) -> list[Path]:
    """Write files into a folder; a full disk leaves all of them as they were."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"{folder} cannot be written to ({reason(error)})") from error
    check_free(folder, contents, overwrite=overwrite)
    _write_all(folder, contents)
    return [folder / name for name in contents]


def check_free(folder: Path, names: Iterable[str], *, overwrite: bool = False) -> None:
    """Refuse to replace a folder, or a file without the mark of a report.

    `overwrite` replaces any file, but no folder.
    """
    paths = [folder / name for name in names]
    try:
        taken = [path for path in paths if path.is_dir()]
        foreign = [
            path
            for path in paths
            if not overwrite and os.path.lexists(path) and not _is_report(path)
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


def _is_report(path: Path) -> bool:
    """Whether a report wrote a file."""
    if not path.is_file():
        return False
    with open_regular(path) as file:
        content = file.read()
    return MARK.encode() in content or content.startswith(CSV_HEAD.encode())
