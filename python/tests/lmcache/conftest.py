# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the LMCache tests: pools of their own, LMCache's objects, and a server."""

from __future__ import annotations

import importlib.util
import select
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bowhead_kv as bk
from bowhead_kv.lmcache import BowheadConnector

POOL_BYTES = 256 << 20


@pytest.fixture
def locator() -> Iterator[str]:
    """A pool, which a test may destroy."""
    name = f"shm:bowhead-test-lmcache-{uuid.uuid4().hex[:12]}"
    bk.create(name, POOL_BYTES)
    yield name
    try:
        bk.destroy(name, force=True)
    except bk.Error as error:
        if error.status != bk.Status.NO_SUCH_POOL:
            raise


@pytest.fixture
def connector(locator: str) -> Iterator[BowheadConnector]:
    connector = BowheadConnector(locator=locator)
    yield connector
    connector.close()


@pytest.fixture
def wait() -> Callable[[BowheadConnector, int], tuple[bool, str, list[bool]]]:
    """Waits for a future of a connector as LMCache does."""
    return wait_for


def wait_for(connector: BowheadConnector, future: int) -> tuple[bool, str, list[bool]]:
    poll = select.poll()
    poll.register(connector.event_fd(), select.POLLIN)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not poll.poll(500):
            continue
        for number, ok, error, results in connector.drain_completions():
            assert number == future
            return ok, error, results
    raise AssertionError(f"future {future} did not end in 10 s")


@pytest.fixture
def lmcache() -> Any:
    if importlib.util.find_spec("lmcache") is None:
        pytest.skip("lmcache is not installed; tools/engines install makes an environment with it")
    return pytest.importorskip("lmcache.v1.distributed.l2_adapters")


@pytest.fixture
def far_dir(tmp_path: Path) -> Path:
    path = tmp_path / "far"
    path.mkdir()
    return path
