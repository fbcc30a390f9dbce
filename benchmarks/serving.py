"""The server under load: beside `generate`, beside `stream`, and beside `transformers serve`."""

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import measure
from measure import interleaved, model, questions, rate

import trueline as tl
from trueline.engines.aliases import ALIASES
from trueline.examples import read_examples
from trueline.inputs import read_messages

TESTS = Path(__file__).parent.parent / "tests"
CLIENTS, ROWS = 64, 16
# A server in a process of its own; its model ends no answer, so that every side writes as much.
CHILD = """
import sys
import trueline as tl
from trueline.serving.app import create_app
from trueline.serving.limits import Limits
from trueline.serving.process import listen, page_address, serve
if sys.argv[1] == "tiny":
    sys.path.insert(0, sys.argv[2])
    import tempfile, pathlib, tiny
    lm = tiny.language_model("llama", chat=True)
    examples = [tl.Example(question, answers) for question, answers in tiny.FACTS]
    folder = tiny.write_embedder(pathlib.Path(tempfile.mkdtemp()) / "embedder")
    from trueline.embedders.loading import load_embedder
    space = tl.build(None, examples, embedder=load_embedder(folder))
else:
    lm = tl.load(sys.argv[1])
    lm.stop_ids = frozenset()
    space = tl.build(None, "facts")
limits = Limits(rows=16, queue=5000, connections=5000, deadline=3600)
app = create_app(lm, {"facts": space}, name="model", limits=limits)
bound = listen("127.0.0.1", 0)
serve(app, bound, lambda: print(page_address(bound), flush=True))
"""


def serving(quick):
    """SmolLM2-135M, float32, 16 rows: tokens/s of 64 clients at once over `generate` with batch
    16 (the same conversations, as many tokens), and seconds of one client's stream over
    `stream`. A tiny random model: 1,000 streams at once, and memory over many requests. Medians
    of the ratios of each round.
    """
    length, rounds = (16, 1) if quick else (48, 5)
    found = {}
    lm = model()
    corrective = tl.Corrective(tl.build(None, "facts"))
    covered = [one.question for one in read_examples("facts:ground")][:CLIENTS]
    plain = [f"{text} And then {n}?" for n in range(2) for text in questions(CLIENTS // 2)]
    cases = {
        "greedy": ("model", tl.Greedy(), plain),
        "covered": ("model+facts", corrective, covered),
    }
    with running(measure.MODEL) as (url, _):
        for name, (named, method, asked) in cases.items():
            given = [read_messages([{"role": "user", "content": text}]) for text in asked]
            bodies = [body(named, text, length) for text in asked]
            times = interleaved(
                {
                    "generate": lambda: tl.generate(
                        lm, method, given, batch_size=ROWS, max_new_tokens=length
                    ),
                    "server": lambda: crowd(url, bodies),
                },
                rounds,
            )
            found[f"64_clients_over_generate_{name}"] = rate(times, "server", "generate")
            times = interleaved(
                {
                    "stream": lambda: list(
                        tl.stream(lm, method, given[0], max_new_tokens=length)
                    ),
                    "server": lambda: crowd(url, bodies[:1]),
                },
                2 * rounds + 1,
            )
            found[f"one_client_seconds_over_stream_{name}"] = rate(times, "stream", "server")
        found["beside_transformers_serve"] = beside_transformers(url, length, 1 if quick else 2)
    found["tiny_model"] = many(*((100, 500) if quick else (1_000, 10_000)))
    return found


def many(at_once, requests):
    """Streams at once, each held to its lone answer; then memory over many requests."""
    asked = [f"Is it true {n}?" for n in range(at_once)]
    with running("tiny", str(TESTS)) as (url, pid):
        lone = [crowd(url, [body("model+facts", text, 8)])[0] for text in asked]
        begun = time.perf_counter()
        found = crowd(url, [body("model+facts", text, 8) for text in asked])
        took = time.perf_counter() - begun
        lost = sum(not text for text, _ in found)
        mixed = sum(one != other for one, other in zip(lone, found, strict=True))
        warm = resident(pid)
        for start in range(0, requests, 100):
            crowd(url, [body("model+facts", f"Is {start + n} odd?", 2) for n in range(100)])
            if start == requests // 10:
                warm = resident(pid)
        after = resident(pid)
    return {
        "streams_at_once": at_once,
        "lost": lost,
        "unlike_their_lone_answer": mixed,
        "seconds": round(took, 1),
        "requests": requests,
        "megabytes_after_a_tenth": round(warm / 1e6, 1),
        "megabytes_at_the_end": round(after / 1e6, 1),
    }


def beside_transformers(url, length, rounds):
    """Tokens/s of 16 clients at once over the same against `transformers serve`."""
    python = os.environ.get("TRUELINE_BENCH_TRANSFORMERS", sys.executable)
    if python == sys.executable and find_spec("fastapi") is None:
        return {"not_run": "transformers serve needs fastapi, which is not installed"}
    folder = str(ALIASES[measure.MODEL].folder)
    texts = questions(ROWS)
    # Neither side ends an answer by itself: their end is the last token of the vocabulary.
    forced = {"eos_token_id": 49_151, "do_sample": False, "max_new_tokens": length}
    theirs = [
        {**body(folder, text, length), "generation_config": json.dumps(forced)}
        for text in texts
    ]
    for one in theirs:  # it is not supported there; their last chunk has the usage
        one.pop("stream_options")
    with transformers_serve(python, folder) as other:
        if isinstance(other, dict):
            return other
        times, tokens = {"ours": [], "theirs": []}, {}
        for turn in range(rounds + 1):
            for name, base, bodies in (
                ("ours", url, [body("model", text, length) for text in texts]),
                ("theirs", other, theirs),
            ):
                begun = time.perf_counter()
                tokens[name] = sum(count for _, count in crowd(base, bodies))
                if turn:
                    times[name].append(tokens[name] / (time.perf_counter() - begun))
    ours, other = median(times["ours"]), median(times["theirs"])
    return {
        "tokens_per_second_over_theirs": round(ours / other, 2),
        "ours": round(ours, 1),
        "theirs": round(other, 1),
        "tokens_ours_and_theirs": f"{tokens['ours']} and {tokens['theirs']}",
    }


@contextmanager
def transformers_serve(python, folder):
    """`transformers serve` with continuous batching, where it starts."""
    port = 18_123
    command = [python, "-m", "transformers.cli.transformers", "serve", "--device", "cpu"]
    command += ["--continuous-batching", "--dtype", "float32", "--port", str(port), folder]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(180):
            if child.poll() is not None:
                last = child.stderr.read().decode(errors="replace").strip().splitlines()
                yield {"not_run": (last or ["it ended at once"])[-1][:200]}
                return
            try:
                crowd(
                    url,
                    [
                        {
                            k: v
                            for k, v in body(folder, "Hi?", 1).items()
                            if k != "stream_options"
                        }
                    ],
                )
                break
            except (OSError, AssertionError):
                time.sleep(1)
        yield url
    finally:
        child.kill()
        child.wait()


def body(named, text, length):
    """A streamed chat."""
    return {
        "model": named,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": length,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def crowd(url, bodies):
    """Send all at once; the text and the number of tokens of each."""
    return asyncio.run(_all(url, bodies))


async def _all(url, bodies):
    return await asyncio.gather(*(_one(url, one) for one in bodies))


async def _one(url, given):
    """One request over a connection of its own, read as lines: little work on our side."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
    content = json.dumps(given).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
        % (len(content), content)
    )
    text, pieces, counted, status = "", 0, None, await reader.readline()
    assert b" 200 " in status, status
    async for line in reader:
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            counted = (chunk.get("usage") or {}).get("completion_tokens", counted)
            for choice in chunk["choices"]:
                piece = choice["delta"].get("content") or ""
                text, pieces = text + piece, pieces + bool(piece)
    writer.close()
    return text, pieces if counted is None else counted


@contextmanager
def running(*arguments):
    """A server in a process of its own: its address and its process id."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        yield child.stdout.readline().strip(), child.pid
    finally:
        child.terminate()
        child.wait(60)


def resident(pid):
    """Bytes of memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    measure.pin(2)
    print(json.dumps(serving("--quick" in sys.argv), indent=1))
