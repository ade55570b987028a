# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the LMCache tests: pools of their own, LMCache's objects, and a server."""

from __future__ import annotations

import select
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import bowhead_kv as bk
from bowhead_kv.lmcache import BowheadConnector

POOL_BYTES = 256 << 20

Answer = tuple[bool, str, list[bool]]


@pytest.fixture
def create_pool(locator: str) -> Callable[..., None]:
    """Creates the test's pool anew, with the options of bk.create()."""

    def create(**options: Any) -> None:
        bk.create(locator, POOL_BYTES, **options)

    return create


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
    connector = BowheadConnector(locator=locator, threads=2)
    yield connector
    connector.close()


@pytest.fixture
def wait() -> Callable[[BowheadConnector, int], Answer]:
    """Waits for a future of a connector as LMCache does: ok, error, and a result for each key."""

    def wait(connector: BowheadConnector, future: int) -> Answer:
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

    return wait
