# SPDX-License-Identifier: Apache-2.0
"""Several processes on two hosts of a pool, some of which are killed; the pool is destroyed and
created again meanwhile."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import bowhead_kv as bk

WORKER = Path(__file__).resolve().with_name("worker.py")
SECONDS = 12
KILLS = 8
WAIT_BOUND_S = 5.0


def start(locator: str, host: int, seconds: float, seed: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), locator, str(host), str(int(seconds)), str(seed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_survivors_load_the_right_bytes(locator: str, create_pool: Callable[..., None]) -> None:
    chance = random.Random(1)
    bk.destroy(locator)
    create_pool(hosts=2)
    end_s = time.monotonic() + SECONDS
    survivors = [start(locator, host, SECONDS, host) for host in (0, 1)]
    victims: list[subprocess.Popen[str]] = []
    for i in range(KILLS):
        victims.append(start(locator, i % 2, 60, 100 + i))
        time.sleep(SECONDS / (KILLS + 4) * chance.uniform(0.7, 1.0))
        victims[-1].kill()
        victims[-1].communicate()
        if i == KILLS // 2:
            bk.destroy(locator, force=True)
            create_pool(hosts=2)
    assert time.monotonic() < end_s, "the kills took longer than the workers run"
    for worker in survivors:
        output, errors = worker.communicate(timeout=SECONDS + 30)
        assert worker.returncode == 0, errors
        report = json.loads(output)
        print(report)
        assert report["loads"] > 0
        assert report["wrong"] == 0
        assert report["longest_wait_s"] < WAIT_BOUND_S
        assert report["loaded_at_the_end"]
