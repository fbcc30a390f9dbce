"""How long `trueline --help` takes, and what the time to the first token is made of."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from measure import seconds, space

CHILD = """
import json, sys, time
begun = time.perf_counter()
marks = {}
def mark(name):
    global begun
    now = time.perf_counter()
    marks[name] = round(now - begun, 3)
    begun = now
import torch
mark("import torch")
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
mark("import transformers")
import trueline as tl
lm = tl.load("smollm2-135m")
mark("open the model and its tokenizer")
space = tl.open(sys.argv[1])
mark("open the space")
rad = tl.RAD(space)
space.check_model(lm)
mark("check the model against the space")
lm.head
mark("check the head")
rad.check(lm)
mark("open the embedder")
next(iter(tl.stream(lm, rad, "Are bats blind?")))
mark("read the prompt and pick the first tokens")
print(json.dumps(marks))
"""


def start(quick):
    """Seconds, medians; the parts are those of `trueline ask` with everything in the cache."""
    bin = Path(sys.executable).parent
    help = [
        seconds(lambda: subprocess.run([bin / "trueline", "--help"], capture_output=True))
        for _ in range(7)
    ]
    with tempfile.TemporaryDirectory() as folder:
        space().save(folder)
        parts = []
        for _ in range(1 if quick else 3):
            child = [sys.executable, "-c", CHILD, folder]
            done = subprocess.run(child, capture_output=True, text=True, check=True)
            parts.append(json.loads(done.stdout))
        ask = [bin / "trueline", "ask", "--space", folder, "Are bats blind?"]
        firsts = [_first_byte(ask) for _ in range(1 if quick else 3)]
    return {
        "help_seconds": round(median(help), 3),
        "ask_first_token_seconds": round(median(firsts), 2),
        "parts": {name: median(part[name] for part in parts) for name in parts[0]},
    }


def _first_byte(command):
    begun = perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        child.stdout.read(1)
        taken = perf_counter() - begun
        child.kill()
    return taken
