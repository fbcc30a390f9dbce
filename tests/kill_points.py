"""A process that is killed at a chosen change of the disk, whatever the time and the machine.

What a kill leaves differs only with the changes that were made before it: a file opened
for writing, synced, renamed or removed, a folder made. So a process that dies just before its
n-th change, for every n, has died everywhere. A kill amid a write is one before a sync, with
the end of what was written cut off.
"""

import os
import signal
import sys
from pathlib import Path

_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}


class KillPoints:
    """Counts the changes this process makes in a folder; before the `fatal`-th it dies.

    `kept` is the share of the unsynced bytes that is kept where that change is a sync.
    """

    def __init__(self, folder: Path, fatal: int | None = None, kept: float = 1.0) -> None:
        self.count, self._fatal, self._kept = 0, fatal, kept
        self._folder = os.path.realpath(folder)
        self._sizes: dict[str, int] = {}  # what of a file is on the disk for good
        self._sync, os.fsync = os.fsync, self._before_sync
        sys.addaudithook(self._before)

    def _before(self, event: str, args: tuple) -> None:
        if event == "open" and isinstance(args[0], str) and args[2] & os.O_CREAT:
            path = os.path.realpath(args[0])
            is_new = args[2] & os.O_TRUNC or not os.path.exists(path)
            self._sizes[path] = 0 if is_new else os.path.getsize(path)
        elif event not in _CHANGES:
            return
        if self._is_inside(args[0]):
            self._step()

    def _before_sync(self, file: int) -> None:
        path, size = os.path.realpath(f"/proc/self/fd/{file}"), os.fstat(file).st_size
        if self._is_inside(path):
            if self.count + 1 == self._fatal:
                safe = self._sizes.get(path, size)
                os.truncate(path, safe + int(self._kept * (size - safe)))
            self._step()
        self._sync(file)
        self._sizes[path] = size

    def _is_inside(self, path: object) -> bool:
        if not isinstance(path, str | os.PathLike):
            return False
        return os.path.realpath(path).startswith(self._folder + os.sep)

    def _step(self) -> None:
        self.count += 1
        if self.count == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)
