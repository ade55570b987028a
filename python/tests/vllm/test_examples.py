# SPDX-License-Identifier: Apache-2.0
"""The examples run as they stand."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from engine import ENVIRONMENT

EXAMPLES = Path(__file__).parents[3] / "examples/vllm"


def test_generate_twice(model: Path, locator: str) -> None:
    answers = []
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, EXAMPLES / "generate.py", model, "--locator", locator],
            capture_output=True,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            timeout=300,
        )
        assert run.returncode == 0, run.stderr[-4000:]
        answers.append(re.findall(r"(\d+) of 325 prompt tokens cached, then (.*)", run.stdout))
    first, second = answers
    assert [cached for cached, _ in first] == ["0"] * 3
    assert [cached for cached, _ in second] == ["320"] * 3
    assert [tokens for _, tokens in first] == [tokens for _, tokens in second]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ask(port: int, body: dict) -> dict:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def serve(model: Path, locator: str, log: Path, prompt: list[int]) -> tuple[int, list[int]]:
    """Starts a server, asks it once and stops it: cached tokens and the answer's tokens."""
    port = free_port()
    further = ["--port", str(port), "--host", "127.0.0.1", "--skip-tokenizer-init"]
    further += ["--enforce-eager", "--max-model-len", "512"]
    environment = {**os.environ, **ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [EXAMPLES / "serve.sh", model, locator, *further],
            stdout=stream,
            stderr=stream,
            env=environment,
        )
    try:
        deadline_s = time.monotonic() + 240
        while True:
            assert server.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline_s, log.read_text()[-4000:]
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(1)
        body = {"model": str(model), "prompt": prompt, "max_tokens": 16, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True, "detokenize": False}
        answer = ask(port, body)
        details = answer["usage"]["prompt_tokens_details"] or {}
        return details.get("cached_tokens") or 0, answer["choices"][0]["token_ids"]
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def test_server_is_restarted(
    model: Path, locator: str, tmp_path: Path, prompts: list[list[int]]
) -> None:
    cached, tokens = serve(model, locator, tmp_path / "first", prompts[0])
    assert cached == 0
    assert serve(model, locator, tmp_path / "second", prompts[0]) == (96, tokens)
