# SPDX-License-Identifier: Apache-2.0
"""LMCache's own L2 adapters on the plug-ins, built from their specifications as the server does."""

from __future__ import annotations

import argparse
import json
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bowhead_kv as bk

pytest.importorskip(
    "lmcache",
    reason="lmcache is not installed; `tools/engines install` makes an environment with it",
)

from lmcache.cli.commands.bench.l2_adapter_bench.data import (  # noqa: E402
    create_l1_memory_desc,
    make_aligned_tensor,
    make_memory_objects,
    make_object_keys,
    verify_round_trip,
)
from lmcache.v1.distributed.l2_adapters import create_l2_adapter  # noqa: E402
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface  # noqa: E402
from lmcache.v1.distributed.l2_adapters.config import (  # noqa: E402
    parse_args_to_l2_adapters_config,
)
from lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter import (  # noqa: E402
    _object_key_to_string,
)
from lmcache.v1.platform import consume_fd  # noqa: E402

KEYS = 8
OBJECT_BYTES = 96 << 10

Make = Callable[[dict[str, Any]], "Driver"]


class Driver:
    """An adapter, and waits for its tasks."""

    def __init__(self, adapter: L2AdapterInterface) -> None:
        self.adapter = adapter

    def store(self, keys: list[Any], objects: list[Any]) -> bool:
        task = self.adapter.submit_store_task(keys, objects)
        result = self._wait(
            self.adapter.get_store_event_fd(),
            lambda: self.adapter.pop_completed_store_tasks().get(task),
        )
        return result.is_successful()

    def lookup(self, keys: list[Any]) -> list[int]:
        task = self.adapter.submit_lookup_and_lock_task(keys, {})
        return self._wait(
            self.adapter.get_lookup_and_lock_event_fd(),
            lambda: self.adapter.query_lookup_and_lock_result(task),
        ).get_indices_list()

    def load(self, keys: list[Any], objects: list[Any]) -> list[int]:
        task = self.adapter.submit_load_task(keys, objects)
        return self._wait(
            self.adapter.get_load_event_fd(), lambda: self.adapter.query_load_result(task)
        ).get_indices_list()

    def _wait(self, fd: int, result: Callable[[], Any]) -> Any:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if poll.poll(500):
                consume_fd(fd)
                ended = result()
                if ended is not None:
                    return ended
        raise AssertionError("the task did not end in 10 s")


class Objects:
    """Buffers of LMCache: `stored` has a pattern for each key, `loaded` another one."""

    def __init__(self) -> None:
        buffer = make_aligned_tensor(2 * KEYS * OBJECT_BYTES)
        self.desc = create_l1_memory_desc(buffer)
        self.stored = make_memory_objects(buffer, KEYS, OBJECT_BYTES, 0)
        self.loaded = make_memory_objects(
            buffer, KEYS, OBJECT_BYTES, KEYS * OBJECT_BYTES, fill_offset=77
        )


@pytest.fixture
def objects() -> Objects:
    return Objects()


@pytest.fixture
def keys() -> list[Any]:
    return make_object_keys(KEYS)


@pytest.fixture
def make(objects: Objects) -> Iterator[Make]:
    """Makes adapters from specifications and closes them after the test."""
    adapters: list[L2AdapterInterface] = []

    def make(spec: dict[str, Any]) -> Driver:
        args = argparse.Namespace(l2_adapter=[json.dumps(spec)])
        (config,) = parse_args_to_l2_adapters_config(args).adapters
        adapters.append(create_l2_adapter(config, l1_memory_desc=objects.desc))
        return Driver(adapters[-1])

    yield make
    for adapter in adapters:
        adapter.close()


def pool_spec(locator: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "native_plugin",
        "module_path": "bowhead_kv.lmcache",
        "class_name": "BowheadConnector",
        "adapter_params": {"locator": locator},
        **more,
    }


def read_through_spec(locator: str, far: Any) -> dict[str, Any]:
    return {
        "type": "plugin",
        "module_path": "bowhead_kv.lmcache",
        "class_name": "BowheadReadThrough",
        "adapter_params": {"locator": locator, "far": far},
    }


@pytest.fixture
def far(tmp_path: Path) -> dict[str, Any]:
    return {"type": "fs", "base_path": str(tmp_path)}


def test_store_lookup_load(make: Make, locator: str, objects: Objects, keys: list[Any]) -> None:
    pool = make(pool_spec(locator))
    assert pool.lookup(keys) == []
    assert pool.store(keys[:5], objects.stored[:5])
    assert pool.lookup(keys) == [0, 1, 2, 3, 4]
    assert pool.load(keys, objects.loaded) == [0, 1, 2, 3, 4]
    assert verify_round_trip(keys[:5], objects.stored[:5], objects.loaded[:5], print)


def test_restarted_adapter_finds_the_objects(
    make: Make, locator: str, objects: Objects, keys: list[Any]
) -> None:
    assert make(pool_spec(locator)).store(keys, objects.stored)
    other = make(pool_spec(locator))
    assert other.load(keys, objects.loaded) == list(range(KEYS))
    assert verify_round_trip(keys, objects.stored, objects.loaded, print)


def test_usage_follows_stores_and_deletes(
    make: Make, locator: str, objects: Objects, keys: list[Any]
) -> None:
    pool = make(pool_spec(locator, max_capacity_gb=1))
    pool.store(keys, objects.stored)
    assert pool.adapter.get_usage().total_bytes_used == KEYS * OBJECT_BYTES
    with bk.Pool(locator) as other:  # an eviction, as LMCache sees it
        namespace = other.namespace("lmcache")
        for key in keys[:2]:
            assert namespace.remove(_object_key_to_string(key).encode())
    pool.adapter.delete(keys[:3])
    assert pool.adapter.get_usage().total_bytes_used == (KEYS - 3) * OBJECT_BYTES
    assert pool.lookup(keys) == [3, 4, 5, 6, 7]


def test_block_removed_after_the_lookup_is_a_failed_load(
    make: Make, locator: str, objects: Objects, keys: list[Any]
) -> None:
    pool = make(pool_spec(locator))
    pool.store(keys, objects.stored)
    assert pool.lookup(keys) == list(range(KEYS))
    with bk.Pool(locator) as other:
        other.remove_namespace("lmcache")
    assert pool.load(keys, objects.loaded) == []
    # The namespace comes back, empty.
    deadline = time.monotonic() + 10
    while not pool.store(keys, objects.stored):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert pool.lookup(keys) == list(range(KEYS))


def test_destroyed_pool_fails_tasks_and_ends_none_late(
    make: Make, locator: str, objects: Objects, keys: list[Any]
) -> None:
    pool = make(pool_spec(locator))
    pool.store(keys, objects.stored)
    bk.destroy(locator, force=True)
    for _ in range(3):
        pool.lookup(keys)
        pool.load(keys, objects.loaded)
        pool.store(keys, objects.stored)
    pool.adapter.delete(keys)
    assert pool.adapter.report_status()["is_healthy"]


def test_far_hit_fills_the_pool(
    make: Make, locator: str, far: dict[str, Any], objects: Objects, keys: list[Any]
) -> None:
    assert make(far).store(keys[:5], objects.stored[:5])
    pool = make(pool_spec(locator))
    read_through = make(read_through_spec(locator, far))
    assert pool.lookup(keys) == []
    assert read_through.lookup(keys) == [0, 1, 2, 3, 4]
    assert read_through.load(keys, objects.loaded) == [0, 1, 2, 3, 4]
    assert verify_round_trip(keys[:5], objects.stored[:5], objects.loaded[:5], print)
    assert pool.lookup(keys) == [0, 1, 2, 3, 4]
    again = Objects()
    assert pool.load(keys[:5], again.loaded[:5]) == [0, 1, 2, 3, 4]
    assert verify_round_trip(keys[:5], objects.stored[:5], again.loaded[:5], print)


def test_store_goes_to_the_far_tier_alone(
    make: Make, locator: str, far: dict[str, Any], objects: Objects, keys: list[Any]
) -> None:
    read_through = make(read_through_spec(locator, far))
    assert read_through.store(keys, objects.stored)
    assert make(far).lookup(keys) == list(range(KEYS))
    assert make(pool_spec(locator)).lookup(keys) == []


def test_far_hit_is_served_without_a_pool(
    make: Make, locator: str, far: dict[str, Any], objects: Objects, keys: list[Any]
) -> None:
    make(far).store(keys, objects.stored)
    bk.destroy(locator)
    read_through = make(read_through_spec(locator, far))
    for _ in range(2):
        assert read_through.load(keys, objects.loaded) == list(range(KEYS))
    assert read_through.adapter.report_status()["is_healthy"]
    assert verify_round_trip(keys, objects.stored, objects.loaded, print)


@pytest.mark.parametrize(
    ("far", "text"),
    [
        (None, 'need "far"'),
        ({"base_path": "/nowhere"}, 'need "far"'),
        ({"type": "no-such-type"}, '"no-such-type"'),
        ({"type": "fs", "base_path": "/nowhere", "serde": {"type": "fp8"}}, '"far" has serde'),
    ],
)
def test_unusable_far_tier_is_refused(make: Make, locator: str, far: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make(read_through_spec(locator, far))
