"""Map a function over units of work on the workers of a Ray cluster.

`Cluster.map` gives what `map` gives: the same results in the same order. Functions, units and
results travel with Ray, so the machines need no common folder.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Annotated, Any

from trueline.engines import Origin, origin_of
from trueline.errors import ClusterError, SettingError, TruelineError, import_extra
from trueline.settings import Between, check_values
from trueline.text import shown

HERE = "ray"  # a new cluster on this machine
# Another version of one of these may compute other numbers.
_PACKAGES = ("trueline", "torch", "transformers", "tokenizers", "numpy", "onnxruntime")
_PATIENCE = 10.0  # seconds for a cluster elsewhere to answer
_QUEUED = 3  # units at a worker: one runs, and the others wait so that no worker is idle

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
        ray = self._connect()
        options = {"num_cpus": self.threads, "num_gpus": self.gpus}
        options |= {"max_restarts": -1, "max_task_retries": self.retries}
        make = ray.remote(**options)(_Worker).remote
        # Not an argument of the constructor: Ray loses large ones when it restarts a worker.
        shared = ray.put(pickled)
        count = min(self._count_workers(ray), len(units))
        pool = ray.util.ActorPool([make(self.threads) for _ in range(count)] * _QUEUED)
        try:
            for done in pool.map(lambda worker, unit: worker.run.remote(shared, unit), units):
                result, error = pickle.loads(done)
                if error is not None:
                    raise error
                yield result
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as ended:
            raise ClusterError(
                f"{self.retries + 1} workers in turn have ended at the same work; they may "
                "need more memory: take fewer workers, and run the same command again to go on"
            ) from ended

    def _connect(self) -> Any:
        ray = import_extra("ray", "--on ray", "ray")
        if ray.is_initialized():
            return ray
        # Ray would report its use to its makers; users who want that set this.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options = {"logging_level": logging.ERROR, "log_to_driver": False}
        host, _, port = self.address.rpartition(":")
        try:
            if host:  # without a listener there Ray would wait a minute
                socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
                ray.init(address=self.address, **options)
            else:
                ray.init(address="local", include_dashboard=False, **options)
        except Exception as error:  # Ray has no narrower one for a node that does not start
            reason = str(error).strip().partition("\n")[0]
            raise ClusterError(
                f"there is no Ray cluster at {self.address} ({reason}); check that it runs and "
                "that this machine has joined it (`ray start --address=HOST:PORT`); if it is "
                "`ray`, the machine may be too busy: run the same command again later"
            ) from error
        return ray

    def _count_workers(self, ray: Any) -> int:
        resources, needs = ray.cluster_resources(), {"CPU": self.threads, "GPU": self.gpus}
        room = min(int(resources.get(kind, 0) // n) for kind, n in needs.items() if n)
        count = self.workers or room
        if not 1 <= count <= room:
            raise ClusterError(
                f"the Ray cluster has room for {room} workers of {self.threads} CPUs and "
                f"{self.gpus} GPUs, not for {max(count, 1)}; take fewer workers, or add "
                "machines to it"
            )
        return count


class _Pickler(pickle.Pickler):
    """Models and embedders travel by name; another process opens the same ones."""

    def reducer_override(self, value: Any) -> Any:
        identity = _identity(value)
        return (_opened, (origin_of(value), identity)) if identity else NotImplemented


def dumps(value: Any) -> bytes:
    """A value as bytes for another process, with models and embedders by name."""
    content = io.BytesIO()
    _Pickler(content).dump(value)
    return content.getvalue()


def _identity(value: Any) -> list[str]:
    """What shapes the numbers of a model or an embedder; empty for other values."""
    if hasattr(type(value), "head_kind"):
        own = [value.fingerprint, value.tokenizer_hash, str(value.dtype), value.device.type]
    elif hasattr(type(value), "embed") and hasattr(value, "hash"):
        own = [value.hash]
    else:
        return []
    return own + [f"{name} {version}" for name, version in _versions().items()]


def _opened(origin: Origin, identity: list[str]) -> Any:
    opened = origin()
    pairs = zip(_identity(opened), identity, strict=True)
    if other := [f"{there} there and {here} here" for there, here in pairs if there != here]:
        raise ClusterError(
            f"{opened.id} would compute other numbers on a worker ({', '.join(other)}); put "
            "the same weights, versions and kind of device on every machine"
        )
    return opened


@cache
def _versions() -> dict[str, str]:
    installed = {one.name: one.version for one in metadata.distributions()}
    return {name: installed.get(name, "missing") for name in _PACKAGES}


class _Worker:
    """An actor of Ray, which opens the function once."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.function: Callable[[Any], Any] | None = None

    def run(self, function: bytes, unit: Any) -> bytes:
        """The result and an error, one of them None; Ray itself would not copy arrays."""
        import ray
        import torch

        try:
            if self.function is None:
                torch.set_num_threads(self.threads)
                self.function = pickle.loads(function)
            return pickle.dumps((self.function(unit), None))
        except TruelineError as error:
            where = f"(on the worker at {ray.util.get_node_ip_address()})"
            return pickle.dumps((None, type(error)(f"{error} {where}")))
