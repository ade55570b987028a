# SPDX-License-Identifier: Apache-2.0
"""`lmcache bench l2` on the pool and on LMCache's `fs` adapter in a tmpfs, in one run."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RATIO_MIN = 2.0
TMPFS = Path("/dev/shm")

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("lmcache") is None,
        reason="lmcache is not installed; `tools/engines install` makes an environment with it",
    ),
    pytest.mark.skipif(not TMPFS.is_dir(), reason=f"no tmpfs at {TMPFS}"),
]


def bench(spec: dict[str, Any], output: Path) -> dict[str, float]:
    """MB/s of LMCache's stores and loads, after it has verified what it loaded."""
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("lmcache")), "bench", "l2", "--no-skip-verify"),
            *("--num-keys", "32", "--data-size-kb", "256", "--warmup-rounds", "2"),
            *("--rounds", "8", "--l2-adapter", json.dumps(spec)),
            *("--format", "json", "--output", str(output)),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "LMCACHE_TRACK_USAGE": "false"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All 32 keys data verified OK" in done.stdout, done.stdout
    metrics = json.loads(output.read_text())["metrics"].values()
    return {
        section["operation"]: section["throughput_avg_mbps"]
        for section in metrics
        if section.get("operation") in ("Store", "Load")
    }


@pytest.fixture
def tmpfs_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="bowhead-test-", dir=TMPFS))
    yield path
    shutil.rmtree(path)


def test_pool_is_faster_than_files_in_memory(
    locator: str, tmpfs_dir: Path, tmp_path: Path
) -> None:
    files = bench({"type": "fs", "base_path": str(tmpfs_dir)}, tmp_path / "fs.json")
    pool = bench(
        {
            "type": "native_plugin",
            "module_path": "bowhead_kv.lmcache",
            "class_name": "BowheadConnector",
            "adapter_params": {"locator": locator},
        },
        tmp_path / "pool.json",
    )
    for operation, rate in files.items():
        ratio = pool[operation] / rate
        print(f"{operation}: pool {pool[operation]} MB/s, fs {rate} MB/s, ratio {ratio:.2f}")
    assert all(pool[operation] >= RATIO_MIN * rate for operation, rate in files.items())
