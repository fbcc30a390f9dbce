"""A real vLLM server in a process of its own, and requests to it; also for benchmarks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

PATIENCE = 900  # seconds a server may take to compile its model on a busy machine
FLAG = ("--logits-processors", "trueline.integrations.vllm:Corrective")


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    address: str

    def chat(self, question: str, arguments: Mapping | None = None, **options) -> dict:
        """The first choice for a question; a refusal is {"status": 400, "error": ...}."""
        body = {
            "model": "model",
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": 48,
            **({"vllm_xargs": dict(arguments)} if arguments else {}),
            **options,
        }
        request = urllib.request.Request(
            f"{self.address}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
                return json.load(reply)["choices"][0]
        except urllib.error.HTTPError as error:
            return {"status": error.code, "error": json.load(error)["error"]["message"]}

    def ask(self, question: str, arguments: Mapping | None = None, **options) -> str:
        """The text of the answer."""
        return self.chat(question, arguments, **options)["message"]["content"]

    def ask_all(self, questions: Sequence[tuple[str, Mapping | None]], **options) -> list[str]:
        """The same for many questions at once."""
        with ThreadPoolExecutor(len(questions)) as pool:
            return list(pool.map(lambda one: self.ask(*one, **options), questions))


@contextmanager
def served(
    model: Path, *flags: str, spaces: Mapping[str, Path], python: str = sys.executable
) -> Iterator[Server]:
    """Start a server and wait for it; what it wrote is shown if it does not come up."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    named = ",".join(f"{name}={folder}" for name, folder in spaces.items())
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", "1024", "--max-num-seqs", "16", *flags]
    with TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **variables, "TRUELINE_SPACES": named},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that its workers end with it
        )
        try:
            server = Server(f"http://127.0.0.1:{port}")
            _wait(server, process, log)
            yield server
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def _wait(server: Server, process: subprocess.Popen, log) -> None:
    for _ in range(PATIENCE):
        try:
            urllib.request.urlopen(f"{server.address}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(1)
        if process.poll() is not None:
            break
    log.seek(0)
    raise RuntimeError(f"vLLM did not start:\n{log.read()[-6000:]}")
