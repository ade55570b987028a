# SPDX-License-Identifier: Apache-2.0
"""Engines that serve while the pool is attacked, and engines on several hosts."""

import random
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bowhead_kv as bk
import numpy as np
import pytest
from attack import KINDS, attack, memory_of
from engine import BLOCK_TOKENS, Engine, connector

ROUNDS = 10
PROMPTS = 20


@pytest.fixture(scope="module")
def many_prompts(model: Path) -> list[list[int]]:
    tokens = np.fromfile(model / "prompts-tech.u16", dtype="<u2")
    length = 3 * BLOCK_TOKENS + 5
    return [[int(t) for t in tokens[i * length : (i + 1) * length]] for i in range(PROMPTS)]


class Attacker:
    """Removes blocks, damages them in memory, replaces them by values of another length, and puts
    others until the pool evicts, in a thread of its own."""

    def __init__(self, locator: str, keys: list[bytes]) -> None:
        self.counts = dict.fromkeys(KINDS, 0)
        self._locator, self._keys = locator, keys
        self._random = random.Random(1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: BaseException | None = None

    def __enter__(self) -> "Attacker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with (
                bk.Pool(self._locator) as pool,
                open(memory_of(self._locator), "r+b", buffering=0) as memory,
            ):
                engine = next(each for each in pool.namespaces() if each.name.startswith("vllm"))
                ns = pool.namespace(engine.name, engine.description)
                filler = pool.namespace("filler", "values that make the pool evict")
                while not self._stop.wait(0.002):
                    kind = attack(self._random, ns, filler, memory.fileno(), self._keys)
                    if kind is not None:
                        self.counts[kind] += 1
        except BaseException as error:
            self._error = error


def test_200_requests_under_attack(
    model: Path, tmp_path: Path, many_prompts: list[list[int]]
) -> None:
    locator = f"shm:test-vllm-{uuid.uuid4().hex[:12]}"
    bk.create(locator, 16 << 20)
    try:
        with Engine(model, tmp_path / "log", connector(locator)) as engine:
            expected, _ = engine.generate(many_prompts)
            again, cached = engine.generate(many_prompts)
            assert again == expected
            assert sum(cached) > 0
            with Attacker(locator, engine.keys()) as attacker:
                for _ in range(ROUNDS):
                    assert engine.generate(many_prompts)[0] == expected
            print(attacker.counts)
            assert all(attacker.counts.values()), attacker.counts
            assert "Recovered from KV load failure" in engine.log.read_text()
            # Each handle warns once for each kind of fault.
            warnings = engine.warnings()
            assert len(warnings) == len({line.split("] ", 1)[1] for line in warnings})
            assert engine.close() == 0
    finally:
        bk.destroy(locator, force=True)


@pytest.fixture
def two_hosts() -> Iterator[str]:
    """A pool that two hosts map without hardware coherence; each engine here is one of them."""
    locator = f"shm:test-vllm-{uuid.uuid4().hex[:12]}"
    bk.create(locator, 128 << 20, hosts=2)
    yield locator
    bk.destroy(locator, force=True)


def test_engines_of_two_hosts_share_and_one_is_killed(
    model: Path, tmp_path: Path, two_hosts: str, many_prompts: list[list[int]]
) -> None:
    with ThreadPoolExecutor(2) as threads:
        engines = list(
            threads.map(
                lambda host: Engine(
                    model, tmp_path / f"log{host}", connector(two_hosts, host=host)
                ),
                range(2),
            )
        )
        try:
            # Each stores half, both at once.
            halves = [many_prompts[:10], many_prompts[10:]]
            pairs = list(zip(engines, halves, strict=True))
            first = list(threads.map(lambda pair: pair[0].generate(pair[1]), pairs))
            expected = first[0][0] + first[1][0]
            assert sum(first[0][1]) + sum(first[1][1]) == 0
            time.sleep(1)  # a block of another host is visible after settle_ms
            both = list(threads.map(lambda engine: engine.generate(many_prompts), engines))
            for tokens, cached in both:
                assert tokens == expected
                assert sum(cached) >= 0.95 * PROMPTS * 3 * BLOCK_TOKENS
            engines[1].kill()
            deadline_s = time.monotonic() + 10
            while time.monotonic() < deadline_s:  # it is declared dead meanwhile
                tokens, cached = engines[0].generate(many_prompts)
                assert tokens == expected
            assert sum(cached) >= 0.95 * PROMPTS * 3 * BLOCK_TOKENS
            assert engines[0].close() == 0
        finally:
            for engine in engines:
                engine.kill()


def test_one_of_two_workers_fails_to_load(
    model: Path, tmp_path: Path, locator: str, prompts: list[list[int]]
) -> None:
    with Engine(model, tmp_path / "log", connector(locator), workers=2) as engine:
        expected, cached = engine.generate(prompts)
        assert cached == [0, 0, 0]
        keys = engine.keys()
        assert len(keys) == 2 * 3 * len(prompts)
        assert engine.generate(prompts) == (expected, [3 * BLOCK_TOKENS] * 3)
        with bk.Pool(locator) as pool:
            (found,) = pool.namespaces()
            block = pool.namespace(found.name, found.description).describe(keys[3])
        with open(memory_of(locator), "r+b") as memory:
            memory.seek(block.offset + block.stored_bytes // 2)
            memory.write(b"\xa5" * 64)
        assert engine.generate(prompts)[0] == expected
        assert engine.log.read_text().count("Recovered from KV load failure") == 1
        assert engine.generate(prompts) == (expected, [3 * BLOCK_TOKENS] * 3)
        assert engine.close() == 0
