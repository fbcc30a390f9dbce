"""The server under load: beside `generate`, beside `stream`, and beside `transformers serve`.

python benchmarks/serving.py [--quick] [--only clients,one,tiny,transformers]
"""

import argparse
import asyncio
import inspect
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

os.environ.setdefault(
    "GOMP_SPINCOUNT", "20000"
)  # as the command does, before torch is imported

import measure
from measure import interleaved, model, questions, rate
from page import section_tables

import trueline as tl
from trueline.embed import load_embedder
from trueline.engines.models import ALIASES
from trueline.examples import read_examples
from trueline.prompts import read_messages

TESTS = Path(__file__).parent.parent / "tests"
PAGE = Path(__file__).parent.parent / "docs" / "results" / "serving.md"
PARTS = ("clients", "one", "tiny", "transformers")
CLIENTS, ROWS = 64, 16
# A server in a process of its own; its model ends no answer, so that every side writes as much.
# At its end it prints how many steps its requests waited for their first token, counted from the
# step after which both the request was there and a row was free.
CHILD = """
import json, sys
from collections import Counter, deque
import trueline as tl
from trueline.serve.app import create_app
from trueline.serve.schemas import Limits
from trueline.serve.process import listen, one_thread, page_address, serve
opening = one_thread()
opening.__enter__()  # as the command opens its model
if sys.argv[1] == "tiny":
    sys.path.insert(0, sys.argv[2])
    import tiny
    from trueline.embed import load_embedder
    lm = tiny.language_model("llama", chat=True)
    examples = [tl.Example(question, answers) for question, answers in tiny.FACTS]
    space = tl.build(None, examples, embedder=load_embedder(sys.argv[3]))
else:
    lm = tl.load(sys.argv[1])
    lm.stop_ids = frozenset()
    space = tl.build(None, "facts")
opening.__exit__(None, None, None)
limits = Limits(rows=16, queue=5000, connections=5000, deadline=3600)
app = create_app(lm, {"facts": space}, name="model", limits=limits)
engine, done, waits = app.state.service.engine, 0, Counter()
came, free, join, on_step = {}, deque([0] * limits.rows), engine._join, engine._on_step
def joined(line):
    join(line)
    came[line.ticket] = done
def stepped(rows, seconds):
    global done
    on_step(rows, seconds)
    done += 1
    for row in rows:
        if len(row.tokens) == 1:
            waits[done - max(came.pop(row.ticket), free.popleft())] += 1
    free.extend(done for row in rows if row.is_ended)
if sys.argv[1] != "tiny":  # there, clients leave early, and rows become free in between
    engine._join, engine._on_step = joined, stepped
bound = listen("127.0.0.1", 0)
serve(app, bound, lambda: print(page_address(bound), flush=True))
print(json.dumps(waits))
"""


def serving(quick, only=PARTS):
    """SmolLM2-135M, float32, 16 rows: tokens/s of 64 clients at once over `generate` with batch
    16 (the same conversations, as many tokens), steps from a free row to a first token, seconds
    of one client's stream over `stream`, and 16 clients beside `transformers serve`. A tiny
    random model: 1,000 streams at once, each held to its lone answer, and memory over many
    requests. Medians of the ratios of each round.
    """
    found = on_the_model(quick, only) if set(only) - {"tiny"} else {}
    if "tiny" in only:
        found["tiny_model"] = many(*((100, 500) if quick else (1_000, 10_000)))
    return found


def on_the_model(quick, only):
    """The parts that need SmolLM2, before one server."""
    found = {}
    with running(measure.MODEL) as server:
        for name, case in cases().items():
            if "clients" in only:
                found |= clients(server.url, name, *case, *((16, 1) if quick else (24, 3)))
            if "one" in only:
                found |= one_client(server.url, name, *case, *((16, 3) if quick else (48, 9)))
        held = megabytes(server.pid)
        if "transformers" in only:
            length, rounds = (16, 1) if quick else (32, 3)
            found["beside_transformers_serve"] = beside(server.url, length, rounds)
    if "clients" in only:
        found["steps_from_a_free_row_to_a_first_token"] = server.told
        found["megabytes_of_the_server_with_16_rows"] = held
    return found


def cases():
    """The model name, the method and the conversations of each load."""
    corrective = tl.Corrective(tl.build(None, "facts"))
    covered = [one.question for one in read_examples("facts:ground")][:CLIENTS]
    plain = [f"{text} And then {n}?" for n in range(2) for text in questions(CLIENTS // 2)]
    return {
        "greedy": ("model", tl.Greedy(), plain),
        "covered": ("model+facts", corrective, covered),
    }


def clients(url, name, named, method, asked, length, rounds):
    """64 clients at once over `generate`, and how long they wait for their first token."""
    given = [conversation(text) for text in asked]
    bodies = [body(named, text, length) for text in asked]
    firsts = []

    def crowded():
        found = crowd(url, bodies)
        assert all(tokens == length for _, tokens, _ in found)
        firsts.append(sorted(first for _, _, first in found))

    times = interleaved(
        {
            "generate": lambda: tl.generate(
                model(), method, given, batch_size=ROWS, max_new_tokens=length
            ),
            "server": crowded,
        },
        rounds,
    )
    written = len(asked) * length
    return {
        f"64_clients_over_generate_{name}": rate(times, "server", "generate"),
        f"64_clients_{name}": {
            "tokens_per_second": round(written / median(times["server"]), 1),
            "generate_tokens_per_second": round(written / median(times["generate"]), 1),
            "seconds": times,
            "first_token_seconds_of_the_first_16_rows": round(median(firsts[-1][:ROWS]), 2),
            "first_token_seconds_of_all": round(median(firsts[-1]), 2),
        },
    }


def one_client(url, name, named, method, asked, length, rounds):
    """One client's stream over `stream`."""
    given, sent = conversation(asked[0]), [body(named, asked[0], length)]
    times = interleaved(
        {
            "stream": lambda: list(tl.stream(model(), method, given, max_new_tokens=length)),
            "server": lambda: crowd(url, sent),
        },
        rounds,
    )
    return {
        f"one_client_seconds_over_stream_{name}": rate(times, "stream", "server"),
        f"one_client_{name}": {
            "ms_a_token": round(1000 * median(times["server"]) / length, 2),
            "stream_ms_a_token": round(1000 * median(times["stream"]) / length, 2),
            "seconds": times,
        },
    }


def many(at_once, requests):
    """Streams at once, each held to its lone answer; then memory over many requests.

    Half are corrected, and half the plain model's, drawn by a seed of their own, so that few of
    these are alike. Of the many requests, a tenth of the clients leaves after the first piece.
    """
    with TemporaryDirectory() as folder:
        sys.path.insert(0, str(TESTS))
        import tiny

        embedder = tiny.write_embedder(Path(folder) / "embedder")
        lm = tiny.language_model("llama", chat=True)
        examples = [tl.Example(question, answers) for question, answers in tiny.FACTS]
        method = tl.Corrective(tl.build(None, examples, embedder=load_embedder(embedder)))
        asked = [(f"{tiny.QUESTIONS[n % 5]} {n}", 8 + n % 9, n) for n in range(at_once)]
        lone = [
            tl.generate(
                lm,
                tl.Greedy() if n % 2 else method,
                conversation(text),
                max_new_tokens=length,
                **({"temperature": 1.0, "seed": n} if n % 2 else {}),
            ).text
            for text, length, n in asked
        ]
        with running("tiny", str(TESTS), str(embedder)) as server:
            bodies = [
                body("model", text, length, temperature=1, seed=n)
                if n % 2
                else body("model+facts", text, length)
                for text, length, n in asked
            ]
            begun = time.perf_counter()
            found = crowd(server.url, bodies)
            took = time.perf_counter() - begun
            curve = {}
            for start in range(0, requests, 100):
                if start % (requests // 10) == 0:
                    curve[start] = megabytes(server.pid)
                texts = [f"Is {start + n} odd?" for n in range(100)]
                crowd(server.url, [body("model+facts", text, 8) for text in texts], leave=10)
            curve[requests] = megabytes(server.pid)
    return {
        "streams_at_once": at_once,
        "lost": sum(text is None for text, *_ in found),
        "compared_with_their_lone_answer": len(lone),
        "unlike_it": sum(one != text for one, (text, *_) in zip(lone, found, strict=True)),
        "different_answers_among_them": len(set(lone)),
        "seconds": round(took, 1),
        "requests": requests,
        "megabytes_after_requests": curve,
    }


def beside(url, length, rounds):
    """Tokens/s of 16 clients at once over the same against `transformers serve`."""
    python = os.environ.get("TRUELINE_BENCH_TRANSFORMERS", sys.executable)
    if python == sys.executable and find_spec("fastapi") is None:
        return {"not_run": "transformers serve needs fastapi, which is not installed"}
    folder = str(ALIASES[measure.MODEL].folder)
    texts = questions(ROWS)
    # Neither side ends an answer by itself: their end is the last token of the vocabulary.
    forced = {"eos_token_id": 49_151, "do_sample": False, "max_new_tokens": length}
    sides = {
        "ours": (url, [body("model", text, length) for text in texts]),
        "theirs": (
            "",
            [
                body(folder, text, length, generation_config=json.dumps(forced))
                for text in texts
            ],
        ),
    }
    for one in sides["theirs"][1]:  # not supported there; their last chunk has the usage
        one.pop("stream_options")
    with transformers_serve(python, folder) as other:
        if isinstance(other, dict):
            return other
        sides["theirs"] = (other, sides["theirs"][1])
        rates, tokens, ratios = {"ours": [], "theirs": []}, {}, []
        for turn in range(rounds + 1):
            for name, (base, bodies) in sides.items():
                begun = time.perf_counter()
                tokens[name] = sum(count for _, count, _ in crowd(base, bodies))
                rates[name].append(tokens[name] / (time.perf_counter() - begun))
                print(f"  {name}: {rates[name][-1]:.1f} tokens/s", file=sys.stderr)
            if turn:
                ratios.append(rates["ours"][-1] / rates["theirs"][-1])
    return {
        "tokens_per_second_over_theirs": round(median(ratios), 2),
        "ours": round(median(rates["ours"][1:]), 1),
        "theirs": round(median(rates["theirs"][1:]), 1),
        "tokens_ours_and_theirs": f"{tokens['ours']} and {tokens['theirs']}",
    }


@contextmanager
def transformers_serve(python, folder):
    """`transformers serve` with continuous batching, where it starts."""
    port = 18_123
    command = [python, "-m", "transformers.cli.transformers", "serve", "--device", "cpu"]
    command += ["--continuous-batching", "--dtype", "float32", "--port", str(port), folder]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    url, asked = f"http://127.0.0.1:{port}", body(folder, "Hi?", 1)
    asked.pop("stream_options")
    try:
        for _ in range(120):
            if child.poll() is not None:
                last = child.stderr.read().decode(errors="replace").strip().splitlines()
                yield {"not_run": (last or ["it ended at once"])[-1][:200]}
                return
            try:
                crowd(url, [asked])
                break
            except (OSError, AssertionError):
                time.sleep(1)
        else:
            yield {"not_run": "it answered nothing within 120 s"}
            return
        yield url
    finally:
        child.kill()
        child.wait()
        child.stderr.close()


def conversation(text):
    """A question as the library reads a chat."""
    return read_messages([{"role": "user", "content": text}])


def body(named, text, length, **more):
    """A streamed chat."""
    return {
        "model": named,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": length,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }


def crowd(url, bodies, leave=0):
    """Send all at once: of each the text (None: not whole), its tokens, and the seconds to the
    first piece. Of every `leave` clients, one goes after its first piece.
    """
    return asyncio.run(_all(url, bodies, leave))


async def _all(url, bodies, leave):
    leaving = [bool(leave) and n % leave == 0 for n in range(len(bodies))]
    return await asyncio.gather(
        *(_one(url, one, left) for one, left in zip(bodies, leaving, strict=True))
    )


async def _one(url, given, is_leaving):
    """One request over a connection of its own, read as lines: little work on our side."""
    host, port = url.removeprefix("http://").split(":")
    begun, first = time.perf_counter(), 0.0
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
    content = json.dumps(given).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
        % (len(content), content)
    )
    text, pieces, counted, is_whole = "", 0, None, False
    status = await reader.readline()
    assert b" 200 " in status, status
    async for line in reader:
        is_whole = is_whole or line.startswith(b"data: [DONE]")
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            counted = (chunk.get("usage") or {}).get("completion_tokens", counted)
            for choice in chunk["choices"]:
                piece = choice["delta"].get("content") or ""
                text, pieces = text + piece, pieces + bool(piece)
            first = first or time.perf_counter() - begun
            if is_leaving:
                break
    writer.close()
    return text if is_whole else None, pieces if counted is None else counted, first


class Child:
    """A server in a process of its own; what it tells at its end is there afterwards."""

    def __init__(self, arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True
        )
        self.url, self.pid = self.process.stdout.readline().strip(), self.process.pid
        self.told = None


@contextmanager
def running(*arguments):
    """A server while the block runs."""
    child = Child(arguments)
    try:
        yield child
    finally:
        child.process.terminate()
        child.told = json.loads(child.process.communicate(timeout=60)[0] or "null")


def megabytes(pid):
    """The memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def main():
    """Measure, print the figures as JSON, and keep those of a full run with their page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, shorter answers")
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args()
    measure.pin(2)
    parts = options.only.split(",")
    found = serving(options.quick, parts)
    print(json.dumps(found, indent=1))
    if not options.quick:
        keep(found, parts)


def keep(found, parts):
    """Put figures beside those of other parts, and write the page of all."""
    file = PAGE.with_suffix(".json")
    kept = (
        json.loads(file.read_text("utf-8")) if file.exists() else {"figures": {}, "dates": {}}
    )
    kept["figures"] |= found
    kept["dates"] |= dict.fromkeys(parts, str(date.today()))
    kept["where"] = measure.where(2)
    file.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    where = ", ".join(f"{name} {value}" for name, value in kept["where"].items())
    dates = ", ".join(f"{part} {day}" for part, day in kept["dates"].items())
    about = inspect.getdoc(serving)
    PAGE.write_text(
        f"# The server under load\n\n`python benchmarks/serving.py`, or `--only` some of its parts "
        f"({dates}), on 2 CPU cores: {where}.\n\n{about}\n\n{section_tables(kept['figures'])}\n",
        "utf-8",
    )


if __name__ == "__main__":
    main()
