# SPDX-License-Identifier: Apache-2.0
"""vLLM, LMCache's server, and a pool, as processes.

Needs vllm and lmcache, and a model: BOWHEAD_TEST_MODEL, or shared/data/model beside the
repository, with a file of token ids, prompts-tech.u16.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import bowhead_kv as bk

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "lmcache"
MODEL = Path(os.environ.get("BOWHEAD_TEST_MODEL", ROOT.parent / "shared" / "data" / "model"))
PROMPTS = MODEL / "prompts-tech.u16"
CHUNKS = 9  # three prompts of 100 tokens have three whole chunks each
CHUNK_TOKENS = 32
CACHED = [3 * CHUNK_TOKENS] * 3

missing = [name for name in ("lmcache", "vllm") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(
        bool(missing),
        reason=f"{' and '.join(missing)} not installed; `tools/engines install` makes an "
        "environment with them",
    ),
    pytest.mark.skipif(
        not PROMPTS.is_file(),
        reason=f"no model with prompts at {MODEL}; name one in BOWHEAD_TEST_MODEL",
    ),
]


def pool_spec(locator: str) -> dict[str, Any]:
    return {
        "type": "native_plugin",
        "module_path": "bowhead_kv.lmcache",
        "class_name": "BowheadConnector",
        "adapter_params": {"locator": locator},
    }


def read_through_spec(locator: str, far: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "plugin",
        "module_path": "bowhead_kv.lmcache",
        "class_name": "BowheadReadThrough",
        "adapter_params": {"locator": locator, "far": far},
    }


def free_ports(count: int) -> list[int]:
    """Different ports that no process uses."""
    listeners = [socket.socket() for _ in range(count)]
    for listener in listeners:
        listener.bind(("127.0.0.1", 0))
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} after {timeout_s} s"
        time.sleep(0.2)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


@contextmanager
def server(log: Path, *specs: dict[str, Any]) -> Iterator[int]:
    """LMCache's server with these L2 adapters; its port."""
    port, http_port = free_ports(2)
    command = [
        *(str(Path(sys.executable).with_name("lmcache")), "server"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--http-host", "127.0.0.1", "--http-port", str(http_port)),
        *("--chunk-size", str(CHUNK_TOKENS), "--l1-size-gb", "1", "--eviction-policy", "LRU"),
        *("--supported-transfer-mode", "engine_driven"),
    ]
    for spec in specs:
        command += ["--l2-adapter", json.dumps(spec)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LMCACHE_TRACK_USAGE": "false"},
        )

    def healthy() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/healthcheck", timeout=2):
                return True
        except (urllib.error.URLError, TimeoutError):
            return False

    try:
        wait_until(healthy, "healthy server", 90)
        yield port
        assert process.poll() is None, log.read_text()[-4000:]
    finally:
        stop(process)


def generate(port: int | None = None) -> tuple[list[list[int]], list[int]]:
    """Runs vLLM once: the tokens and the number of cached tokens for each prompt."""
    arguments = [] if port is None else ["--lmcache-port", str(port)]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "generate.py"), str(MODEL), str(PROMPTS), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return parse(done.stdout.splitlines()[-1])


def parse(line: str) -> tuple[list[list[int]], list[int]]:
    answers = json.loads(line)
    return [a["tokens"] for a in answers], [a["cached"] for a in answers]


def blocks(locator: str) -> int:
    with bk.Pool(locator, observe=True) as pool:
        return sum(namespace.blocks for namespace in pool.namespaces())


@pytest.fixture(scope="module")
def cold() -> list[list[int]]:
    """The tokens of vLLM without LMCache."""
    tokens, cached = generate()
    assert cached == [0, 0, 0]
    assert len({token for answer in tokens for token in answer}) > 10
    return tokens


@pytest.fixture(scope="module")
def filled(cold: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that LMCache's `fs` adapter has filled."""
    path = tmp_path_factory.mktemp("filled")
    with server(path / "server.log", {"type": "fs", "base_path": str(path / "fs")}) as port:
        assert generate(port) == (cold, [0, 0, 0])
        wait_until(lambda: len(list((path / "fs").iterdir())) == CHUNKS, "stored chunks", 30)
    return path / "fs"


@pytest.fixture
def redis() -> Iterator[int]:
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed")
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"],
        stdout=subprocess.DEVNULL,
    )
    try:
        yield port
    finally:
        stop(process)


def test_restarted_server_serves_from_the_pool(
    cold: list[list[int]], locator: str, tmp_path: Path
) -> None:
    with server(tmp_path / "first.log", pool_spec(locator)) as port:
        assert generate(port) == (cold, [0, 0, 0])
        wait_until(lambda: blocks(locator) == CHUNKS, "stored chunks", 30)
    with server(tmp_path / "second.log", pool_spec(locator)) as port:
        assert generate(port) == (cold, CACHED)


def test_overwritten_blocks_change_the_tokens(
    cold: list[list[int]], filled: Path, locator: str, tmp_path: Path
) -> None:
    """The control of the other tests: the tokens do depend on what the pool returns."""
    with bk.Pool(locator) as pool:
        namespace = pool.namespace("lmcache")
        for file in filled.iterdir():
            model, rank, group, chunk = file.stem.split("@")
            key = f"{model.replace('-SEP-', '/')}@{int(rank, 16):08x}@{group}@{chunk}"
            namespace.put(key.encode(), file.read_bytes()[::-1])
    with server(tmp_path / "server.log", pool_spec(locator)) as port:
        tokens, cached = generate(port)
    assert cached == CACHED
    assert tokens != cold


def test_far_tier_fills_the_pool(
    cold: list[list[int]], filled: Path, locator: str, tmp_path: Path
) -> None:
    far = {"type": "fs", "base_path": str(filled)}
    with server(
        tmp_path / "far.log", pool_spec(locator), read_through_spec(locator, far)
    ) as port:
        assert blocks(locator) == 0
        assert generate(port) == (cold, CACHED)
        assert blocks(locator) == CHUNKS
    with server(tmp_path / "near.log", pool_spec(locator)) as port:
        assert generate(port) == (cold, CACHED)


def test_redis_fills_the_pool(
    cold: list[list[int]], redis: int, locator: str, tmp_path: Path
) -> None:
    far = {"type": "resp", "host": "127.0.0.1", "port": redis}
    with server(tmp_path / "fill.log", far) as port:
        assert generate(port) == (cold, [0, 0, 0])
        time.sleep(2)  # the server stores in the background
    with server(
        tmp_path / "far.log", pool_spec(locator), read_through_spec(locator, far)
    ) as port:
        assert generate(port) == (cold, CACHED)
        assert blocks(locator) == CHUNKS
    with server(tmp_path / "near.log", pool_spec(locator)) as port:
        assert generate(port) == (cold, CACHED)


def test_engine_goes_on_when_the_pool_is_destroyed(
    cold: list[list[int]], locator: str, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    with server(log, pool_spec(locator)) as port:
        assert generate(port) == (cold, [0, 0, 0])
        wait_until(lambda: blocks(locator) == CHUNKS, "stored chunks", 30)
        bk.destroy(locator, force=True)
        tokens, _ = generate(port)  # LMCache's own memory may still have the chunks
        assert tokens == cold
    with server(log, pool_spec(locator)) as port:
        assert generate(port) == (cold, [0, 0, 0])
    assert log.read_text().count("The engine goes on without") == 1


def test_example_runs_as_it_stands(cold: list[list[int]]) -> None:
    port, http_port = free_ports(2)
    done = subprocess.run(
        [str(EXAMPLES / "restart.sh"), str(MODEL), str(PROMPTS)],
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PORT": str(port),
            "HTTP_PORT": str(http_port),
        },
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    _, first, _, second = done.stdout.splitlines()
    assert parse(first) == (cold, [0, 0, 0])
    assert parse(second) == (cold, CACHED)
