"""Map a function over units of work on the workers of a Ray cluster.

`Cluster.map` gives what `map` gives on one machine: the same results in the same order. The
function is pickled once and opened once by every worker; units and results travel with Ray, so
that the machines need no common folder.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any

from trueline.engines import Origin, origin_of
from trueline.errors import (
    ClusterError,
    SettingError,
    SpaceMismatchError,
    TruelineError,
    import_extra,
)
from trueline.settings import Between, check_values
from trueline.text import shown

HERE = "ray"  # a new cluster on this machine
# Another version of one of these may compute other numbers.
_PACKAGES = ("trueline", "torch", "transformers", "tokenizers", "numpy", "onnxruntime")
_STARTS = 3  # of a cluster here: on a busy machine Ray gives up after 15 seconds
_PATIENCE = 10.0  # seconds for a cluster elsewhere to answer
_QUEUED = 2  # units at a worker: one that runs, and one that waits so that no worker is idle

Run = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]  # the type of `map`


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A Ray cluster, and how much of it to use.

    `ray` is a cluster of this machine, for as long as the program runs. HOST:PORT is one that
    `ray start` made and that this machine has joined. A program that is connected to a cluster
    already uses that.
    """

    address: str = HERE
    workers: Annotated[int, Between(1)] | None = None  # None: as many as there is room for
    threads: Annotated[int, Between(1)] = 1  # of each worker
    gpus: Annotated[int, Between(0)] = 0  # of each worker
    retries: Annotated[int, Between(0)] = 4  # of a unit whose worker died

    def __post_init__(self) -> None:
        check_values(Cluster, {name: getattr(self, name) for name in self.__slots__})
        host, _, port = self.address.rpartition(":")
        if self.address != HERE and ("/" in host or not host or not port.isdecimal()):
            raise SettingError(
                f"there is no cluster at {shown(self.address)}; give `ray` for workers on this "
                "machine, or HOST:PORT for a cluster which this machine has joined with "
                "`ray start --address=HOST:PORT`"
            )

    def map(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        """The result of every unit, in the order of the units.

        A worker that dies is restarted, and its unfinished units are computed again. A
        TruelineError in a worker is raised here.
        """
        if len(units) < 2:  # not worth a cluster
            yield from map(function, units)
            return
        pickled = dumps(function)  # before a cluster starts: it may fail
        for where, error, result in self._outcomes(self._connect(), pickled, units):
            if error is not None:
                raise type(error)(f"{error} (on the worker at {where})") from error
            yield result

    def _outcomes(
        self, ray: Any, function: bytes, units: Sequence[Any]
    ) -> Iterator[tuple[str, TruelineError | None, Any]]:
        """For each unit where its worker is, an error if there is one, and the result."""
        count = min(self._count_workers(ray), len(units))
        options = {"num_cpus": self.threads, "num_gpus": self.gpus}
        options |= {"max_restarts": -1, "max_task_retries": self.retries}
        make = ray.remote(**options)(_Worker).remote
        # Not an argument of the constructor: Ray loses large ones when it restarts a worker.
        shared = ray.put(function)
        versions = _versions()
        free = [make(versions, self.threads) for _ in range(count)] * _QUEUED
        running, ordered = dict[Any, Any](), deque[Any]()
        try:
            for unit in units:
                ordered.append(free[0].run.remote(shared, pickle.dumps(unit)))
                running[ordered[-1]] = free.pop(0)
                while not free:
                    for done in ray.wait(list(running))[0]:
                        free.append(running.pop(done))
                    while ordered and ordered[0] not in running:
                        yield pickle.loads(ray.get(ordered.popleft()))
            while ordered:
                yield pickle.loads(ray.get(ordered.popleft()))
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
            raise ClusterError(
                f"{self.retries + 1} workers in turn have ended at the same work "
                f"({_first_line(error)}); they may need more memory: take fewer workers, and "
                "run the same command again to go on"
            ) from error
        finally:  # a worker without a handle ends after its units; killing it prints an error
            free.clear()
            running.clear()

    def _connect(self) -> Any:
        ray = import_extra("ray", "--on ray", "ray")
        if ray.is_initialized():
            return ray
        options: dict[str, Any] = {"address": "local", "include_dashboard": False}
        if is_elsewhere := self.address != HERE:
            options = {"address": self.address}
        # Ray would report its use to its makers; users who want that set this.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        for left in reversed(range(1 if is_elsewhere else _STARTS)):
            try:
                if is_elsewhere:  # without a listener there Ray would wait a minute
                    host, _, port = self.address.rpartition(":")
                    socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
                ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
                break
            except Exception as error:  # Ray has no narrower one for a node that does not start
                ray.shutdown()
                if not left:
                    raise ClusterError(
                        f"there is no Ray cluster at {self.address} ({_first_line(error)}); "
                        "check that it runs and that this machine has joined it (`ray start "
                        "--address=HOST:PORT`); if it is `ray`, the machine may be too busy: "
                        "run the same command again later"
                    ) from error
        return ray

    def _count_workers(self, ray: Any) -> int:
        resources = ray.cluster_resources()
        room = int(resources.get("CPU", 0) // self.threads)
        if self.gpus:
            room = min(room, int(resources.get("GPU", 0) // self.gpus))
        count = self.workers or room
        if not 1 <= count <= room:
            raise ClusterError(
                f"the Ray cluster has room for {room} workers of {self.threads} CPUs"
                f"{f' and {self.gpus} GPUs' if self.gpus else ''}, not for {max(count, 1)}; "
                "take fewer workers, or add machines to it"
            )
        return count


class _Pickler(pickle.Pickler):
    """Models and embedders travel by name; another process opens the same weights."""

    def reducer_override(self, value: Any) -> Any:
        if weights := _weights(value):
            return _opened, (origin_of(value), weights)
        return NotImplemented


def dumps(value: Any) -> bytes:
    """A value as bytes for another process, with models and embedders by name."""
    content = io.BytesIO()
    _Pickler(content).dump(value)
    return content.getvalue()


def _weights(value: Any) -> str:
    """What shapes the output of a model or an embedder; empty for other values."""
    if hasattr(type(value), "head_kind"):
        return f"{value.fingerprint} {value.tokenizer_hash} {value.dtype} {value.device.type}"
    return str(getattr(value, "hash", "")) if hasattr(type(value), "embed") else ""


def _opened(origin: Origin, weights: str) -> Any:
    opened = origin()
    if _weights(opened) != weights:
        raise SpaceMismatchError(
            f"{opened.id} has other weights or another device there than on the first machine; "
            "put the same on every machine"
        )
    return opened


class _Worker:
    """An actor of Ray, which opens the function once."""

    def __init__(self, versions: dict[str, str], threads: int) -> None:
        self.versions, self.threads = versions, threads
        self.function: Callable[[Any], Any] | None = None

    def run(self, function: bytes, unit: bytes) -> bytes:
        """Where it is, an error if there is one, and the result, pickled."""
        import ray
        import torch

        where = ray.util.get_node_ip_address()
        try:
            if self.function is None:
                _check_versions(self.versions)
                torch.set_num_threads(self.threads)
                self.function = pickle.loads(function)
            return pickle.dumps((where, None, self.function(pickle.loads(unit))))
        except TruelineError as error:
            return pickle.dumps((where, error, None))


def _versions() -> dict[str, str]:
    """The installed version of each package; empty if it is missing."""
    found = dict.fromkeys(_PACKAGES, "")
    for name in found:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _check_versions(first: dict[str, str]) -> None:
    """Refuse to work with other versions than the first machine has."""
    differing = [
        f"{name} is {here or 'missing'} there and {first[name] or 'missing'} here"
        for name, here in _versions().items()
        if first[name] != here
    ]
    if differing:
        raise ClusterError(
            f"a worker may compute other numbers: {', '.join(differing)}; install the same "
            "versions on every machine of the cluster"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
