"""A function and units of work -> their results, made by the workers of a Ray cluster.

`Cluster.map` stands where `map` stands on one machine: the same results in the same order. The
function is pickled once and opened once by every worker; units and results travel with Ray, so
that the machines need no folder in common.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from trueline.errors import ClusterError, SettingError, import_extra
from trueline.settings import Between, check_values
from trueline.text import shown

HERE = "ray"  # a new cluster on this machine
# What computes: another version of one of these may give other numbers.
_PACKAGES = ("trueline", "torch", "transformers", "tokenizers", "numpy", "onnxruntime")
_LEFT = 0.1  # of a CPU, by which a worker asks for less: Ray Data needs some for itself
_STARTS = 3  # of a cluster here: Ray gives a node of a busy machine up after 15 seconds
_PATIENCE = 10.0  # seconds for a cluster elsewhere to answer
_RETRIES = 4  # how often a unit is tried again after its worker died
_BLOCKS = 4096  # in which the units are handed out: each costs this process milliseconds

Run = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]  # what `map` does


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A Ray cluster, and how much of it is taken.

    `ray` is one of this machine alone, for as long as the program runs. HOST:PORT is one that
    `ray start` made and that this machine has joined. A program that is connected to a cluster
    already stays with that.
    """

    address: str = HERE
    workers: Annotated[int, Between(1)] | None = None  # None: as many as there is room for
    threads: Annotated[int, Between(1)] = 1  # of each worker
    gpus: Annotated[int, Between(0)] = 0  # of each worker

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in self.__slots__}
        check_values(Cluster, given)
        host, _, port = self.address.rpartition(":")
        if self.address != HERE and ("/" in host or not host or not port.isdecimal()):
            raise SettingError(
                f"there is nothing to run on that is called {shown(self.address)}; it is "
                "`ray` for workers on this machine, or HOST:PORT for a cluster which this "
                "machine has joined with `ray start --address=HOST:PORT`"
            )

    def map(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        """The result of every unit, in the order of the units, as soon as it is there.

        A worker that dies is replaced, and what it had not finished is done again. An error of
        the tree of TruelineError in a worker is raised here.
        """
        if len(units) < 2:  # not worth a cluster
            yield from map(function, units)
            return
        pickled = pickle.dumps(function)  # what cannot be opened elsewhere shows here
        for kind, where, content in self._outcomes(self._connect(), pickled, units):
            if kind == "versions":
                raise ClusterError(_version_problem(where, content, _versions(_PACKAGES)))
            if kind == "error":
                raise type(content)(f"{content} (on the worker at {where})") from content
            yield content

    def _outcomes(
        self, ray: Any, function: bytes, units: Sequence[Any]
    ) -> Iterator[tuple[str, str, Any]]:
        """What came of every unit: a kind of outcome, the machine, and the outcome."""
        dead = (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError)
        try:
            for row in self._dataset(ray, function, units).iter_rows():
                yield pickle.loads(row["outcome"])
        except dead as error:
            raise ClusterError(
                f"{_RETRIES + 1} workers in turn have ended at the same work "
                f"({_first_line(error)}); they may want memory: take fewer workers, and run "
                "the same again to go on"
            ) from error

    def _connect(self) -> Any:
        """Ray, connected to the cluster."""
        ray = import_extra("ray", "--on ray", "ray")
        import_extra("ray.data", "--on ray", "ray")
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        if ray.is_initialized():
            return ray
        options: dict[str, Any] = {"address": self.address}
        if self.address == HERE:
            options = {"address": "local", "include_dashboard": False}
        # Ray would tell its makers that it is used; who wants that sets this.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        problems: list[Exception] = []
        try:
            self._reach()
        except OSError as error:
            raise self._no_cluster(error) from error
        for _ in range(_STARTS if self.address == HERE else 1):
            try:
                ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
                return ray
            except Exception as error:  # Ray has no narrower one for a node that does not start
                problems.append(error)
                ray.shutdown()
        raise self._no_cluster(problems[-1]) from problems[-1]

    def _reach(self) -> None:
        """Find out whether anything listens at the address: Ray would wait for a minute."""
        if self.address != HERE:
            host, _, port = self.address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=_PATIENCE).close()

    def _no_cluster(self, problem: Exception) -> ClusterError:
        """What to say where no cluster is to be had."""
        step = (
            "see that the cluster is up and that this machine has joined it (`ray start "
            "--address=HOST:PORT`), or work on this machine alone with `ray`"
        )
        if self.address == HERE:
            step = "the machine may be too busy, or without memory: run the same again later"
        return ClusterError(
            f"no Ray cluster can be had at {self.address} ({_first_line(problem)}); {step}"
        )

    def _dataset(self, ray: Any, function: bytes, units: Sequence[Any]) -> Any:
        """The units as a dataset of their outcomes, nothing of which has run yet."""
        import pyarrow

        data = ray.data
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # see _Worker
        context = data.DataContext.get_current().copy()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        size = -(-len(units) // _BLOCKS)
        pickled = [pickle.dumps(unit) for unit in units]
        tables = [
            pyarrow.table(
                {"unit": pyarrow.array(pickled[start : start + size], pyarrow.large_binary())}
            )
            for start in range(0, len(pickled), size)
        ]
        with data.DataContext.current(context), warnings.catch_warnings():
            # Ray 2.64 is to take other arguments by name; it names none yet for the retries.
            warnings.simplefilter("ignore", DeprecationWarning)
            return data.from_blocks(tables).map_batches(
                _Worker,
                fn_constructor_args=(function, _versions(_PACKAGES), self.threads),
                compute=data.ActorPoolStrategy(size=self._size(ray, len(tables))),
                batch_format="pyarrow",
                batch_size=1,
                num_cpus=self.threads - _LEFT,
                num_gpus=self.gpus,
                max_task_retries=_RETRIES,
            )

    def _size(self, ray: Any, blocks: int) -> int:
        """How many workers there are to be."""
        there = ray.cluster_resources()
        room = int(there.get("CPU", 0) // self.threads)
        if self.gpus:
            room = min(room, int(there.get("GPU", 0) // self.gpus))
        wanted = self.workers or room
        if not 1 <= wanted <= room:
            raise ClusterError(
                f"the Ray cluster has room for {room} workers of {self.threads} CPUs"
                f"{f' and {self.gpus} GPUs' if self.gpus else ''}, and {max(wanted, 1)} are "
                "wanted; ask for fewer, or add machines to it"
            )
        return min(wanted, blocks)


class _Worker:
    """What Ray runs in its processes.

    It is pickled whole, and imports nothing of trueline before the versions are known to be
    the same: so it can tell what is wrong where trueline is another one or none.
    """

    def __init__(self, function: bytes, versions: dict[str, str], threads: int) -> None:
        self.pickled, self.versions, self.threads = function, versions, threads
        self.function: Callable[[Any], Any] | None = None

    def __call__(self, table: Any) -> Any:
        import pyarrow

        found = [pickle.dumps(self._outcome(unit.as_py())) for unit in table["unit"]]
        return pyarrow.table({"outcome": pyarrow.array(found, pyarrow.large_binary())})

    def _outcome(self, unit: bytes) -> tuple[str, str, Any]:
        """What came of a unit (a result, an error, other versions), on which machine."""
        import ray

        where = ray.util.get_node_ip_address()
        if self.function is None and (found := _versions(self.versions)) != self.versions:
            return "versions", where, found
        from trueline.errors import TruelineError

        try:
            if self.function is None:
                import torch

                torch.set_num_threads(self.threads)
                self.function = pickle.loads(self.pickled)
            return "result", where, self.function(pickle.loads(unit))
        except TruelineError as error:
            return "error", where, error


def _versions(names: Iterable[str]) -> dict[str, str]:
    """The installed version of each package; empty where it is not there."""
    from importlib.metadata import PackageNotFoundError, version  # where the worker is

    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def _version_problem(where: str, there: dict[str, str], here: dict[str, str]) -> str:
    """What is installed otherwise on a worker, and what to do."""
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
