"""Builds and evaluations on a Ray cluster: the same bytes, also after kills."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import tiny
import torch
from cluster_work import work
from tiny_run import lines_in, steady

import trueline as tl
from trueline import cluster
from trueline.cluster import Cluster, dumps
from trueline.embed import load_embedder
from trueline.engines import origin_of, remember
from trueline.errors import ClusterError, MissingExtraError, SettingError
from trueline.examples import to_lines
from trueline.lab.cells import benchmark_of, cells_of, model_of
from trueline.lab.plan import plan_from
from trueline.lab.run import _chunk_lines, run_plan, sample_lines
from trueline.space import build
from trueline.types import Example

QUESTIONS = [f"{one} {number}" for number in range(24) for one in tiny.QUESTIONS]
EXAMPLES = [
    Example(question, [f"No, {question.lower()}", "That is not known."], [f"Yes, {number}"])
    for number, question in enumerate(QUESTIONS)
]
pytestmark = [  # Ray warns of its own old names, and leaves processes of starts that failed
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A tiny model and embedder in folders, which every process opens by name."""
    folder = tmp_path_factory.mktemp("parts")
    lm = tiny.language_model("llama")
    lm.model.save_pretrained(folder / "model")
    lm.tokenizer.save_pretrained(folder / "model")
    tiny.write_embedder(folder / "embedder")
    return folder


@pytest.fixture(autouse=True)
def one_thread():
    """What a worker has: with more, another order of sums could give other last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def ray():
    """A cluster on this machine, started once.

    Ray would run its workers at niceness 15: they would wait for the other tests.
    """
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'trueline[ray]'")
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:  # so that workers find `work`
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        patch.setenv("RAY_worker_niceness", "0")
        Cluster()._connect()
    yield ray
    ray.shutdown()


def made(parts, out, **options):
    options = {"context": 4, "wrong": True, "now": lambda: NOW} | options
    embedder = str(parts / "embedder")
    return build(tl.load(parts / "model"), EXAMPLES, out=out, embedder=embedder, **options)


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def alone(parts, tmp_path_factory):
    """The files of the space that one process builds."""
    torch.set_num_threads(1)
    made(parts, tmp_path_factory.mktemp("alone") / "space")
    return files(tmp_path_factory.getbasetemp() / "alone0" / "space")


def workers_of(parent: int) -> list[int]:
    """The processes of the workers, in the cluster that a process has started."""
    children: dict[int, list[tuple[int, bytes]]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            ppid = int((path / "stat").read_text("ascii").rpartition(")")[2].split()[1])
            children.setdefault(ppid, []).append(
                (int(path.name), (path / "cmdline").read_bytes())
            )
        except OSError:  # it has ended
            continue
    raylets = [pid for pid, _ in children.get(parent, ())]
    found = [one for raylet in raylets for one in children.get(raylet, ())]
    return [pid for pid, command in found if command.startswith(b"ray::_Worker")]


@pytest.mark.parametrize("address", ["spark", "ray://host:10001", "host:port"])
def test_another_form_of_address_is_refused(address):
    with pytest.raises(SettingError, match=r"there is no cluster at .* HOST:PORT"):
        Cluster(address=address)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'trueline[ray]'")):
        list(Cluster().map(str, [1, 2]))


def test_a_single_unit_needs_no_cluster(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert list(Cluster().map(str, [1])) == ["1"]
    assert list(Cluster().map(str, [])) == []


def vectors_of(lm, embedder, question):
    return lm.id, embedder.embed([question]).tolist()


def test_a_function_of_models_opens_them_by_name_in_another_process(parts, monkeypatch):
    lm, embedder = tl.load(parts / "model"), load_embedder(parts / "embedder")
    ours = partial(vectors_of, lm, embedder)
    theirs = pickle.loads(dumps(ours))
    assert ours(QUESTIONS[0]) == theirs(QUESTIONS[0])
    assert not {id(one) for one in ours.args} & {id(one) for one in theirs.args}
    other, pickled = tiny.language_model("llama", seed=1), dumps(embedder)
    remember(other, origin_of(lm))
    with pytest.raises(ClusterError, match="would compute other numbers"):
        pickle.loads(dumps(other))
    versions = {**cluster._versions(), "torch": "1.0"}
    monkeypatch.setattr(cluster, "_versions", lambda: versions)
    with pytest.raises(ClusterError, match=r"torch 1\.0 there and torch 2\S+ here"):
        pickle.loads(pickled)
    with pytest.raises(SettingError, match="was not opened by name"):
        dumps(tl.LanguageModel(lm.model, lm.tokenizer))


@pytest.fixture
def table(parts, tmp_path):
    (tmp_path / "ground.jsonl").write_text("".join(to_lines(EXAMPLES[:20])), "utf-8")
    (tmp_path / "test.jsonl").write_text("".join(to_lines(EXAMPLES[20:30])), "utf-8")
    return {
        "models": [str(parts / "model")],
        "benchmarks": [f"{tmp_path / 'ground.jsonl'}:{tmp_path / 'test.jsonl'}"],
        "methods": ["greedy", "corrective", "rad"],
        "build": {"embedder": str(parts / "embedder")},
        "max_new_tokens": 4,
        "batch_size": 3,
        "threads": 1,
        "controls": False,
    }


@pytest.mark.parametrize("method", ["greedy", "corrective", "rad"])
def test_a_cell_in_another_process_gives_the_same_lines(method, table, parts):
    plan = plan_from({**table, "methods": [method]})
    lm, benchmark = model_of(plan, plan.models[0]), benchmark_of(plan, plan.benchmarks[0])
    variant = plan.variants[0]
    space = None
    if variant.build is not None:
        embedder, context = load_embedder(parts / "embedder"), variant.build.context
        space = build(lm, benchmark.ground, embedder=embedder, context=context)
    (cell,) = cells_of(plan, lm, benchmark, variant, space)
    here = steady(sample_lines(cell, cell.samples[3:6]))  # now its embedder has run
    there = pickle.loads(dumps(cell))
    assert steady(sample_lines(there, there.samples[3:6])) == here
    assert [line["index"] for line in here] == [3, 4, 5]


def test_a_cell_refuses_other_versions_than_it_was_planned_with(table, monkeypatch):
    plan = plan_from({**table, "methods": ["greedy"]})
    lm, benchmark = model_of(plan, plan.models[0]), benchmark_of(plan, plan.benchmarks[0])
    (cell,) = cells_of(plan, lm, benchmark, plan.variants[0], None)
    monkeypatch.setattr("trueline.lab.cells._version", lambda name: "9.9")
    with pytest.raises(ClusterError, match=r"another version of trueline, .*rouge-score"):
        _chunk_lines({cell.id: cell}, 3, (cell.id, 0))


@pytest.mark.slow
def test_a_build_on_ray_has_the_bytes_of_one_alone_though_a_worker_is_killed(
    ray, parts, alone, tmp_path
):
    calls, killed = [], []

    def progress(done, total):
        calls.append((done, total))
        if done > total // 4 and not killed:
            killed.append(workers_of(os.getpid())[0])
            os.kill(killed[0], signal.SIGKILL)

    made(parts, tmp_path / "s", on=Cluster(workers=2), progress=progress)
    assert killed
    assert files(tmp_path / "s") == alone
    assert [done for done, _ in calls] == sorted({done for done, _ in calls} | {0})
    assert calls[-1][0] == calls[-1][1]


@pytest.mark.slow
def test_a_build_outlives_its_killed_driver(ray, parts, alone, tmp_path):
    """The first driver is the command, on the address of the cluster; the second is alone."""
    folder, log = tmp_path / "s", tmp_path / "stderr"
    (tmp_path / "examples.jsonl").write_text("".join(to_lines(EXAMPLES)), "utf-8")
    options = {"--model": parts / "model", "--embedder": parts / "embedder", "--context": 4}
    options |= {"--on": ray.get_runtime_context().gcs_address, "--workers": 1, "--out": folder}
    given = [str(word) for option in options.items() for word in option]
    command = [sys.executable, "-m", "trueline", "build", str(tmp_path / "examples.jsonl")]
    with log.open("wb") as stderr:
        driver = subprocess.Popen([*command, "--wrong", *given], stderr=stderr)
        try:
            deadline = time.monotonic() + 120
            while len(kept := list(folder.glob(".trueline/work-*/entries-*.safetensors"))) < 3:
                assert driver.poll() is None, log.read_text()
                assert time.monotonic() < deadline, "the driver has made nothing"
                time.sleep(0.01)
        finally:
            driver.kill()
            driver.wait()
    assert re.search(r"building: [\d,]+ of [\d,]+ entries", log.read_text())
    assert not (folder / "space.json").exists()
    begun = {path: path.stat().st_mtime_ns for path in kept}
    seen = []

    def look(done, total):
        seen.append({path: path.stat().st_mtime_ns for path in begun})

    made(parts, folder, progress=look)
    assert seen[-1] == begun  # what the first had finished was not made again
    assert files(folder) == alone


@pytest.mark.slow
def test_an_evaluation_on_ray_has_the_lines_of_one_alone(ray, table, tmp_path):
    plan = plan_from(table)
    run_plan(plan, tmp_path / "alone")
    stopped = run_plan(plan, tmp_path / "ray", on=Cluster(workers=1), max_samples=7)
    assert stopped.stopped
    killed = []

    def kill(label, done, total):
        if not label.startswith("building") and done > total // 3 and not killed:
            killed.append(workers_of(os.getpid())[0])
            os.kill(killed[0], signal.SIGKILL)

    done = run_plan(plan, tmp_path / "ray", on=Cluster(workers=2), progress=kill)
    assert killed
    assert all(cell.is_done for cell in done.cells)
    assert steady(lines_in(tmp_path / "ray")) == steady(lines_in(tmp_path / "alone"))


@pytest.mark.slow
def test_an_error_of_a_worker_is_one_here(ray):
    with pytest.raises(SettingError, match=r"give another \(on the worker at [\d.]+\)$"):
        list(Cluster(workers=1).map(work, ["fine", "refused", "fine"]))


@pytest.mark.slow
def test_a_unit_that_ends_every_worker_ends_in_an_error(ray):
    with pytest.raises(ClusterError, match="2 workers in turn have ended"):
        list(Cluster(workers=1, retries=1).map(work, ["fine", "broken"]))


@pytest.mark.slow
def test_more_workers_than_there_is_room_for_are_refused(ray):
    with pytest.raises(ClusterError, match=r"room for \d+ workers"):
        list(Cluster(workers=4096).map(work, ["fine", "fine"]))


@pytest.mark.slow
def test_an_address_without_a_cluster_is_an_error(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ClusterError, match=r"there is no Ray cluster at 127\.0\.0\.1:9"):
        list(Cluster(address="127.0.0.1:9").map(str, [1, 2]))
