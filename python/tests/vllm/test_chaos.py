# SPDX-License-Identifier: Apache-2.0
"""Several engines on a pool of one or two hosts, driven without a model. Engines are killed,
blocks are removed, damaged, replaced and evicted, and the pool is destroyed, missing, full, and
made again: what is loaded is right, no call raises, and none waits long."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import bowhead_kv as bk
import pytest
from attack import KINDS, attack, memory_of
from bowhead_kv.vllm.connector import rank_keys
from driver import PROMPTS, ROW_KEYS, ConnectorDriver, TierDriver, block_hashes, row_key

WORKER = Path(__file__).with_name("chaos_worker.py")
SECONDS = 40
POOL_BYTES = 16 << 20
WAIT_BOUND_S = 5.0
RANKS = 2


class Chaos:
    """What happens to a pool and to its engines."""

    def __init__(self, locator: str, hosts: int) -> None:
        self.locator = locator
        self.hosts = hosts
        self.random = random.Random(1)
        self.counts: Counter[str] = Counter()
        self.victims: list[subprocess.Popen[str]] = []

    def start(self, seconds: int, seed: int) -> "subprocess.Popen[str]":
        host = seed % self.hosts
        return subprocess.Popen(
            [sys.executable, str(WORKER), self.locator, str(host), str(seconds), str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def create(self, **options: Any) -> None:
        bk.create(self.locator, POOL_BYTES, hosts=self.hosts, **options)

    def destroy(self) -> None:
        bk.destroy(self.locator, force=True)
        self.counts["destroyed"] += 1

    def kill_one(self) -> None:
        """Kills an engine in the midst of its work, and starts another."""
        victim = self.victims.pop(0)
        assert victim.stdout is not None
        assert victim.stdout.readline() == "ready\n", victim.communicate()[1]
        time.sleep(self.random.uniform(0.2, 0.7))
        assert victim.poll() is None, victim.communicate()[1]
        victim.kill()
        victim.communicate()
        self.counts["killed"] += 1
        self.victims.append(self.start(600, self.counts["killed"]))

    def attack(self, seconds: float) -> None:
        """Attacks the blocks of all engines."""
        hashes = [each for number in range(PROMPTS) for each in block_hashes(number)]
        keys = [*rank_keys(hashes, range(RANKS)), *(row_key(i) for i in range(ROW_KEYS))]
        end_s = time.monotonic() + seconds
        with (
            bk.Pool(self.locator, host=0) as pool,
            open(memory_of(self.locator), "r+b", buffering=0) as memory,
        ):
            filler = pool.namespace("filler", "values that make the pool evict")
            while time.monotonic() < end_s:
                engines = [each for each in pool.namespaces() if each.name.startswith("vllm")]
                for each in engines:
                    ns = pool.namespace(each.name, each.description)
                    for _ in range(20):
                        kind = attack(self.random, ns, filler, memory.fileno(), keys)
                        self.counts.update([kind] if kind else [])
                time.sleep(0.002)


@pytest.mark.parametrize("hosts", [1, 2])
def test_survivors_load_the_right_bytes(locator: str, hosts: int) -> None:
    chaos = Chaos(locator, hosts)
    chaos.destroy()
    chaos.create()
    survivors = [chaos.start(SECONDS, seed) for seed in (1000, 1001)]
    chaos.victims = [chaos.start(600, seed) for seed in (2000, 2001)]
    try:
        for worker in survivors:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n", worker.communicate()[1]
        end_s = time.monotonic() + SECONDS
        chaos.attack(4)
        chaos.kill_one()
        chaos.destroy()
        time.sleep(2)  # no pool
        chaos.create()
        time.sleep(2)
        chaos.attack(3)
        chaos.kill_one()
        chaos.destroy()
        chaos.create(no_eviction=True)  # soon full
        time.sleep(4)
        chaos.destroy()
        chaos.create()  # replaced while it is in use
        chaos.attack(3)
        while time.monotonic() < end_s - 14:
            chaos.kill_one()
        assert time.monotonic() < end_s - 4, "the chaos took longer than the workers run"
        reports = []
        for worker in survivors:
            output, errors = worker.communicate(timeout=SECONDS + 30)
            assert worker.returncode == 0, errors
            reports.append(json.loads(output))
    finally:
        for process in (*survivors, *chaos.victims):
            process.kill()
            process.communicate()
    print(dict(chaos.counts))
    assert all(chaos.counts[kind] for kind in (*KINDS, "killed", "destroyed")), chaos.counts
    for report in reports:
        call, longest_s = max(report["longest_s"].items(), key=lambda item: item[1])
        print(report["connector"], report["tier"], f"longest: {call}, {longest_s:.3f} s")
        for plug_in in ("connector", "tier"):
            assert report[plug_in]["loaded"] > 0
            assert "wrong" not in report[plug_in]
        assert sum(report[plug_in]["recovered"] for plug_in in ("connector", "tier")) > 0
        assert longest_s < WAIT_BOUND_S, call
        assert report["loaded_at_the_end"]


def test_wrong_bytes_are_seen(locator: str) -> None:
    """Control: once values are overwritten by others of the right length, which nothing can tell
    from right ones, the drivers count wrong pages and rows."""
    settings = {"locator": locator}
    connector, tier = ConnectorDriver(settings, stages=[["layer.0"]]), TierDriver(settings)

    def serve() -> tuple[bool, bool]:
        connector.serve([1, 2])
        for _ in range(8):  # each with some of the rows
            tier.serve()
        return connector.counts["wrong"] > 0, tier.counts["wrong"] > 0

    assert serve() == (False, False)
    with bk.Pool(locator) as pool:
        for each in pool.namespaces():
            ns = pool.namespace(each.name, each.description)
            for key in (*connector.keys(), *tier.keys()):
                if ns.exists([key])[0]:
                    length_bytes = ns.length(key)
                    assert ns.remove(key)
                    ns.put(key, bytes(length_bytes))
    assert serve() == (True, True)
    connector.close()
    tier.close()
