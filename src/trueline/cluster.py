"""Map a function over units of work on the workers of a Ray cluster.

`Cluster.map` gives what `map` gives on one machine: the same results in the same order. The
function is pickled once and opened once by every worker; units and results travel with Ray, so
that the machines need no common folder.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from trueline.engines import Origin, origin_of
from trueline.errors import ClusterError, SettingError, SpaceMismatchError, import_extra
from trueline.settings import Between, check_values
from trueline.text import shown

HERE = "ray"  # a new cluster on this machine
# Another version of one of these may compute other numbers.
_PACKAGES = ("trueline", "torch", "transformers", "tokenizers", "numpy", "onnxruntime")
_STARTS = 3  # of a cluster here: on a busy machine Ray gives up after 15 seconds
_PATIENCE = 10.0  # seconds for a cluster elsewhere to answer
_RETRIES = 4  # of a unit whose worker died
_AHEAD = 2  # units at a worker: one that runs, and one that waits so that no worker is idle

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

    def __post_init__(self) -> None:
        check_values(Cluster, {name: getattr(self, name) for name in self.__slots__})
        host, _, port = self.address.rpartition(":")
        if self.address != HERE and ("/" in host or not host or not port.isdecimal()):
            raise SettingError(
                f"there is nothing to run on that is called {shown(self.address)}; it is "
                "`ray` for workers on this machine, or HOST:PORT for a cluster which this "
                "machine has joined with `ray start --address=HOST:PORT`"
            )

    def map(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        """The result of every unit, in the order of the units.

        A worker that dies is restarted, and its unfinished units are computed again. A
        TruelineError in a worker is raised here.
        """
        if len(units) < 2:  # not worth a cluster
            yield from map(function, units)
            return
        pickled = pickle.dumps(function)  # before a cluster starts: it may fail
        for kind, where, content in self._outcomes(self._connect(), pickled, units):
            if kind == "versions":
                raise ClusterError(_version_problem(where, content, _versions(_PACKAGES)))
            if kind == "error":
                raise type(content)(f"{content} (on the worker at {where})") from content
            yield content

    def _outcomes(
        self, ray: Any, function: bytes, units: Sequence[Any]
    ) -> Iterator[tuple[str, str, Any]]:
        """Per unit a kind of outcome, the address of the machine, and the outcome."""
        count = min(self._count_workers(ray), len(units))
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # see _Worker
        options = {"num_cpus": self.threads, "num_gpus": self.gpus}
        options |= {"max_restarts": -1, "max_task_retries": _RETRIES}
        make = ray.remote(**options)(_Worker).remote
        # Not an argument of the constructor: Ray loses large ones when it restarts a worker.
        shared = ray.put(function)
        free = [make(_versions(_PACKAGES), self.threads) for _ in range(count)] * _AHEAD
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
                f"{_RETRIES + 1} workers in turn have ended at the same work "
                f"({_first_line(error)}); they may want memory: take fewer workers, and run "
                "the same again to go on"
            ) from error
        finally:  # a worker without a handle ends after its units; killing it prints an error
            free.clear()
            running.clear()

    def _connect(self) -> Any:
        """Ray, connected to the cluster."""
        ray = import_extra("ray", "--on ray", "ray")
        if ray.is_initialized():
            return ray
        options: dict[str, Any] = {"address": self.address}
        step = (
            "see that the cluster is up and that this machine has joined it (`ray start "
            "--address=HOST:PORT`), or work on this machine alone with `ray`"
        )
        if self.address == HERE:
            options = {"address": "local", "include_dashboard": False}
            step = "the machine may be too busy, or without memory: run the same again later"
        # Ray would report its use to its makers; users who want that set this.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        for left in reversed(range(_STARTS if self.address == HERE else 1)):
            try:
                if self.address != HERE:  # without a listener there Ray would wait a minute
                    host, _, port = self.address.rpartition(":")
                    socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
                ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
                break
            except Exception as error:  # Ray has no narrower one for a node that does not start
                ray.shutdown()
                if not left:
                    raise ClusterError(
                        f"no Ray cluster can be had at {self.address} "
                        f"({_first_line(error)}); {step}"
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
                f"{f' and {self.gpus} GPUs' if self.gpus else ''}, and {max(count, 1)} are "
                "wanted; ask for fewer, or add machines to it"
            )
        return count


class ByName:
    """A function whose first arguments another process opens by name: models and embedders."""

    def __init__(self, function: Callable[..., Any], *opened: Any) -> None:
        self.function, self.opened = function, opened

    def __call__(self, unit: Any) -> Any:
        return self.function(*self.opened, unit)

    def __reduce__(self) -> tuple[object, ...]:
        origins = [origin_of(each) for each in self.opened]
        return _opened_again, (self.function, origins, [*map(_weights, self.opened)])


def _weights(opened: Any) -> str:
    """The hash of what shapes the output of a model or embedder."""
    return str(getattr(opened, "fingerprint", "") or opened.hash)


def _opened_again(
    function: Callable[..., Any], origins: list[Origin], hashes: list[str]
) -> ByName:
    opened = [origin() for origin in origins]
    for each, here in zip(opened, hashes, strict=True):
        if _weights(each) != here:
            raise SpaceMismatchError(
                f"{each.id} has other weights there than on the machine that builds; put the "
                "same on every machine"
            )
    return ByName(function, *opened)


class _Worker:
    """An actor of Ray.

    It is pickled with its code, and imports trueline only when the versions are known to be
    the same: so it can report what is wrong where trueline is another version or missing.
    """

    def __init__(self, versions: dict[str, str], threads: int) -> None:
        self.versions, self.threads = versions, threads
        self.function: Callable[[Any], Any] | None = None

    def run(self, function: bytes, unit: bytes) -> bytes:
        """The pickled outcome: a result, an error or other versions, and the machine."""
        import ray

        where = ray.util.get_node_ip_address()
        if self.function is None and (found := _versions(self.versions)) != self.versions:
            return pickle.dumps(("versions", where, found))
        from trueline.errors import TruelineError

        try:
            if self.function is None:
                import torch

                torch.set_num_threads(self.threads)
                self.function = pickle.loads(function)
            return pickle.dumps(("result", where, self.function(pickle.loads(unit))))
        except TruelineError as error:
            return pickle.dumps(("error", where, error))


def _versions(names: Iterable[str]) -> dict[str, str]:
    """The installed version of each package; empty if it is missing."""
    from importlib.metadata import PackageNotFoundError, version  # of the worker's machine

    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def _version_problem(where: str, there: dict[str, str], here: dict[str, str]) -> str:
    parts = [
        f"{name} is {there[name] or 'missing'} there and {here[name] or 'missing'} here"
        for name in here
        if there[name] != here[name]
    ]
    return (
        f"the worker at {where} may compute otherwise than this machine: {', '.join(parts)}; "
        "install the same on every machine of the cluster"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
