# SPDX-License-Identifier: Apache-2.0
"""A pytest plug-in for LMCache's own tests: where they make their mock of a native connector, they
get a BowheadConnector on a pool of its own."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

import bowhead_kv as bk
from bowhead_kv.lmcache import BowheadConnector

POOL_BYTES = 64 << 20


class PoolConnector(BowheadConnector):
    """Destroys its pool when LMCache closes it."""

    def __init__(self) -> None:
        self._locator = f"shm:bowhead-test-lmcache-{uuid.uuid4().hex[:12]}"
        bk.create(self._locator, POOL_BYTES)
        super().__init__(locator=self._locator)

    def close(self) -> None:
        super().close()
        bk.destroy(self._locator)


def pytest_collection_finish(session: pytest.Session) -> None:
    modules: set[Any] = {item.module for item in session.items if isinstance(item, pytest.Function)}
    replaced = [module for module in modules if hasattr(module, "MockNativeConnector")]
    for module in replaced:
        module.MockNativeConnector = PoolConnector
    if not replaced:
        pytest.exit("LMCache's tests have no MockNativeConnector to replace", returncode=1)
