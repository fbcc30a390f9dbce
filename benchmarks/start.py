"""How long `trueline --help` takes, and the first token of `trueline ask` over bare imports."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from measure import seconds

import trueline as tl

CHILD = """
import json, sys, time
begun = time.perf_counter()
marks = {}
def mark(name):
    global begun
    now = time.perf_counter()
    marks[name] = round(now - begun, 3)
    begun = now
from trueline.engines import load
import torch
mark("import torch")
if sys.argv[2] == "transformers":
    from trueline.engines.transformers import model as language
    mark("import transformers")
lm = load("smollm2-135m", engine=sys.argv[2])
mark("open the model and its tokenizer")
import trueline as tl
space = tl.open(sys.argv[1])
mark("open the space")
method = tl.Corrective(space)
method.check(lm)
mark("open the embedder")
next(iter(tl.stream(lm, method, "Are bats blind?")))
mark("read the prompt and pick the first tokens")
print(json.dumps(marks))
"""
BARE = "import torch, transformers"
ROUNDS = 9
QUICK_ROUNDS = 3


def start(quick):
    """Seconds, medians; bare imports and `ask` in turns, with everything in the caches.

    Python keeps what it compiled, as it does for everybody whose environment does not forbid
    it: both sides run with a folder for that, and once before anything is measured.
    """
    bin = Path(sys.executable).parent
    rounds = QUICK_ROUNDS if quick else ROUNDS
    with tempfile.TemporaryDirectory() as scratch:
        env = {**os.environ, "PYTHONPYCACHEPREFIX": f"{scratch}/compiled"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        folder = f"{scratch}/facts.space"
        tl.build(None, "facts").save(folder)
        bare = [sys.executable, "-c", BARE]
        ask = [bin / "trueline", "ask", "--space", folder, "Are bats blind?"]
        help = [bin / "trueline", "--help"]
        llama = [*ask, "--engine", "llama.cpp"]
        times = {"help": [], "bare": [], "first token": [], "llama.cpp": []}
        for number in range(rounds + 1):
            found = {
                "help": seconds(lambda: subprocess.run(help, env=env, capture_output=True)),
                "bare": seconds(lambda: subprocess.run(bare, env=env, check=True)),
                "first token": _first_byte(ask, env),
                "llama.cpp": _first_byte(llama, env),
            }
            for name, taken in found.items() if number else ():  # the first one compiles
                times[name].append(taken)
        parts = {
            engine: _parts([sys.executable, "-c", CHILD, folder, engine], env, quick)
            for engine in ("transformers", "llama.cpp")
        }
    ratios = [ask / bare for ask, bare in zip(times["first token"], times["bare"], strict=True)]
    return {
        "help_seconds": round(median(times["help"]), 3),
        "bare_imports_seconds": round(median(times["bare"]), 2),
        "ask_first_token_seconds": round(median(times["first token"]), 2),
        "ask_over_bare_imports": round(median(ratios), 2),
        "ask_over_bare_imports_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "ask_first_token_seconds_llama_cpp": round(median(times["llama.cpp"]), 2),
        "ask_first_token_range_llama_cpp": [
            round(min(times["llama.cpp"]), 2),
            round(max(times["llama.cpp"]), 2),
        ],
        "parts": parts["transformers"],
        "parts_llama_cpp": parts["llama.cpp"],
    }


def _parts(child, env, quick):
    """The median seconds of each part of a first answer."""
    found = []
    for _ in range(1 if quick else 3):
        done = subprocess.run(child, env=env, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
    return {name: median(one[name] for one in found) for name in found[0]}


def _first_byte(command, env):
    begun = perf_counter()
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        child.stdout.read(1)
        taken = perf_counter() - begun
        child.kill()
    return taken
