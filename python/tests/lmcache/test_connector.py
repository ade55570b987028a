# SPDX-License-Identifier: Apache-2.0
"""BowheadConnector through the calls that LMCache makes. Needs no LMCache."""

from __future__ import annotations

import importlib.metadata
import logging
import mmap
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bowhead_kv as bk
from bowhead_kv.lmcache import BowheadConnector

Wait = Callable[[BowheadConnector, int], tuple[bool, str, list[bool]]]
KEYS = ["model@00000000@0@aa", "model@00000000@0@bb", "model@00000000@0@cc@tenant"]


def buffers(count: int, size_bytes: int) -> list[memoryview]:
    return [memoryview(bytearray(size_bytes)) for _ in range(count)]


def values(count: int, size_bytes: int) -> list[memoryview]:
    return [memoryview(bytearray(os.urandom(size_bytes))) for _ in range(count)]


def test_what_was_set_is_got(connector: BowheadConnector, wait: Wait) -> None:
    stored = values(3, 70_000)
    assert wait(connector, connector.submit_batch_set(KEYS, stored)) == (True, "", [True] * 3)
    loaded = buffers(3, 70_000)
    assert wait(connector, connector.submit_batch_get(KEYS, loaded)) == (True, "", [True] * 3)
    assert loaded == stored


def test_batch_larger_than_a_part_is_whole(connector: BowheadConnector, wait: Wait) -> None:
    keys = [f"key{i}" for i in range(7)]
    stored = values(7, 1 << 20)
    assert wait(connector, connector.submit_batch_set(keys, stored))[0]
    loaded = buffers(8, 1 << 20)
    result = wait(connector, connector.submit_batch_get([*keys[:3], "absent", *keys[3:]], loaded))
    assert result == (True, "", [True] * 3 + [False] + [True] * 4)
    assert loaded[:3] + loaded[4:] == stored


def test_exists_and_delete_answer_for_each_key(connector: BowheadConnector, wait: Wait) -> None:
    wait(connector, connector.submit_batch_set(KEYS[:2], values(2, 4096)))
    exists = connector.submit_batch_exists(KEYS)
    assert wait(connector, exists) == (True, "", [True, True, False])
    # An absent key counts as deleted: LMCache then takes it out of its accounts, also where the
    # pool evicted it first.
    deleted = connector.submit_batch_delete(KEYS[1:])
    assert wait(connector, deleted) == (True, "", [True, True])
    exists = connector.submit_batch_exists(KEYS)
    assert wait(connector, exists) == (True, "", [True, False, False])


@pytest.mark.parametrize("stored_bytes", [4000, 5000])
def test_value_of_another_length_is_a_miss(
    connector: BowheadConnector, wait: Wait, stored_bytes: int
) -> None:
    wait(connector, connector.submit_batch_set(KEYS[:1], values(1, stored_bytes)))
    future = connector.submit_batch_get(KEYS[:1], buffers(1, 4096))
    assert wait(connector, future) == (True, "", [False])


def test_second_connector_finds_what_the_first_stored(locator: str, wait: Wait) -> None:
    stored = values(3, 4096)
    first = BowheadConnector(locator=locator)
    wait(first, first.submit_batch_set(KEYS, stored))
    first.close()
    second = BowheadConnector(locator=locator)
    loaded = buffers(3, 4096)
    assert wait(second, second.submit_batch_get(KEYS, loaded))[2] == [True] * 3
    assert loaded == stored
    second.close()


def test_namespaces_are_apart(locator: str, wait: Wait) -> None:
    one = BowheadConnector(locator=locator, namespace="one")
    two = BowheadConnector(locator=locator, namespace="two")
    wait(one, one.submit_batch_set(KEYS, values(3, 4096)))
    assert wait(two, two.submit_batch_exists(KEYS))[2] == [False] * 3
    one.close()
    two.close()


def test_other_description_gets_misses(
    locator: str, wait: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    one = BowheadConnector(locator=locator, description="model A, float16")
    wait(one, one.submit_batch_set(KEYS, values(3, 4096)))
    two = BowheadConnector(locator=locator, description="model A, bfloat16")
    with caplog.at_level(logging.WARNING):
        assert wait(two, two.submit_batch_exists(KEYS))[2] == [False] * 3
        assert wait(two, two.submit_batch_get(KEYS, buffers(3, 4096)))[2] == [False] * 3
        assert not wait(two, two.submit_batch_set(KEYS, values(3, 4096)))[0]
    assert len(caplog.records) == 1
    one.close()
    two.close()


def test_destroyed_pool_is_a_miss_with_one_warning(
    locator: str, wait: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    connector = BowheadConnector(locator=locator)
    assert wait(connector, connector.submit_batch_set(KEYS, values(3, 4096)))[0]
    bk.destroy(locator, force=True)
    with caplog.at_level(logging.WARNING):
        # Blocks of a destroyed pool stay readable until its first store fails.
        for _ in range(3):
            assert not wait(connector, connector.submit_batch_set(KEYS, values(3, 4096)))[0]
            assert not any(wait(connector, connector.submit_batch_exists(KEYS))[2])
            assert not any(wait(connector, connector.submit_batch_get(KEYS, buffers(3, 4096)))[2])
            assert not any(wait(connector, connector.submit_batch_delete(KEYS))[2])
    assert len(caplog.records) == 1
    connector.close()


def test_many_jobs_under_way_when_the_pool_is_destroyed_all_end(
    locator: str, connector: BowheadConnector
) -> None:
    stored = values(8, 1 << 20)
    futures = set()
    for i in range(60):
        futures.add(connector.submit_batch_set([f"{i} {k}" for k in range(8)], stored))
        if i == 20:
            bk.destroy(locator, force=True)
    deadline = time.monotonic() + 20
    while futures and time.monotonic() < deadline:
        for number, _, _, results in connector.drain_completions():
            futures.remove(number)
            assert len(results) == 8
        time.sleep(0.01)
    assert not futures


def test_pool_that_appears_later_is_used(
    locator: str, wait: Wait, create_pool: Callable[..., None]
) -> None:
    bk.destroy(locator)
    connector = BowheadConnector(locator=locator)
    assert wait(connector, connector.submit_batch_exists(KEYS))[2] == [False] * 3
    create_pool()
    deadline = time.monotonic() + 10
    while not wait(connector, connector.submit_batch_set(KEYS, values(3, 4096)))[0]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert wait(connector, connector.submit_batch_exists(KEYS))[2] == [True] * 3
    connector.close()


def test_full_pool_fails_the_store_and_nothing_else(
    locator: str,
    wait: Wait,
    caplog: pytest.LogCaptureFixture,
    create_pool: Callable[..., None],
) -> None:
    bk.destroy(locator)
    create_pool(no_eviction=True)
    connector = BowheadConnector(locator=locator)
    one = values(1, 8 << 20)
    with caplog.at_level(logging.WARNING):
        stored = [
            wait(connector, connector.submit_batch_set([f"key{i}"], one))[0] for i in range(64)
        ]
    assert stored[0] and not stored[-1]
    assert len(caplog.records) == 1
    future = connector.submit_batch_get(["key0"], buffers(1, 8 << 20))
    assert wait(connector, future)[2] == [True]
    connector.close()


def test_too_long_key_fails_alone(connector: BowheadConnector, wait: Wait) -> None:
    keys = [KEYS[0], "m" * 513, KEYS[1]]
    assert not wait(connector, connector.submit_batch_set(keys, values(3, 4096)))[0]
    future = connector.submit_batch_get(keys, buffers(3, 4096))
    assert wait(connector, future) == (True, "", [True, False, True])
    assert wait(connector, connector.submit_batch_exists(keys))[2] == [True, False, True]
    assert wait(connector, connector.submit_batch_delete(keys))[2] == [True, False, True]


STOPPED_HOST = """
import os, signal, sys
import bowhead_kv as bk

ns = bk.Pool(sys.argv[1], host=1).namespace("lmcache", "")
ns.put(sys.argv[2].encode(), b"of another host")
print("stored", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_load_does_not_wait_for_a_delete(locator: str, create_pool: Callable[..., None]) -> None:
    """The delete of a stopped host's object waits for that host; one thread copies."""
    bk.destroy(locator)
    create_pool(hosts=2, dead_ms=60_000, grace_ms=60_000)
    connector = BowheadConnector(locator=locator, host=0, threads=1)
    theirs, ours = KEYS[:2]
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED_HOST, locator, theirs], stdout=subprocess.PIPE
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"stored\n"
            stored, loaded = values(1, 4096), buffers(1, 4096)
            poll = select.poll()
            poll.register(connector.event_fd(), select.POLLIN)

            def ends(future: int) -> bool:
                """The next future that ends is this one."""
                assert poll.poll(10_000)
                return [answer[0] for answer in connector.drain_completions()] == [future]

            assert ends(connector.submit_batch_set([ours], stored))
            found = False
            while not found:  # look-ups see the other host a heartbeat later
                connector.submit_batch_exists([theirs])
                ((_, _, _, (found,)),) = connector.drain_completions()
            deleted = connector.submit_batch_delete([theirs])
            assert ends(connector.submit_batch_get([ours], loaded))
            assert loaded == stored
            assert ends(deleted)
        finally:
            other.kill()
            connector.close()


def test_evicted_objects_are_misses(connector: BowheadConnector, wait: Wait) -> None:
    keys = [f"key{i}" for i in range(80)]  # of 4 MiB each: more than the pool has
    stored = values(8, 4 << 20)
    for i, key in enumerate(keys):
        assert wait(connector, connector.submit_batch_set([key], [stored[i % 8]]))[0]
    hits = 0
    for i, key in enumerate(keys):
        loaded = buffers(1, 4 << 20)
        if wait(connector, connector.submit_batch_get([key], loaded))[2][0]:
            assert loaded[0] == stored[i % 8]
            hits += 1
    assert 0 < hits < len(keys)


def test_damaged_object_is_a_miss(
    locator: str, connector: BowheadConnector, wait: Wait
) -> None:
    memory = Path("/dev/shm") / locator.replace("shm:", "bowhead-")
    if not memory.is_file():
        pytest.skip(f"the pool's memory is not at {memory}")
    stored = values(3, 70_000)
    wait(connector, connector.submit_batch_set(KEYS, stored))
    with memory.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        place = content.find(bytes(stored[1][:4096]))
        assert place > 0
        content[place + 50] ^= 1
    future = connector.submit_batch_get(KEYS, buffers(3, 70_000))
    assert wait(connector, future) == (True, "", [True, False, True])
    with bk.Pool(locator, observe=True) as pool:
        assert pool.info().damaged == 1


def test_calls_after_close_do_not_raise(connector: BowheadConnector) -> None:
    connector.close()
    connector.close()
    numbers = {
        connector.submit_batch_set(KEYS, values(3, 4096)),
        connector.submit_batch_get(KEYS, buffers(3, 4096)),
        connector.submit_batch_exists(KEYS),
        connector.submit_batch_delete(KEYS),
    }
    assert len(numbers) == 4
    assert connector.drain_completions() == []


def test_close_with_jobs_under_way_gives_the_buffers_back(connector: BowheadConnector) -> None:
    stored = [bytearray(1 << 20) for _ in range(16)]
    connector.submit_batch_set([f"key{i}" for i in range(16)], [memoryview(b) for b in stored])
    connector.close()
    for value in stored:
        value.append(0)  # BufferError while the buffer is held by a job


def test_unknown_lmcache_is_refused(monkeypatch: pytest.MonkeyPatch, locator: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.9.0")
    with pytest.raises(RuntimeError, match=r"lmcache 0\.9\.0 is not supported.*0\.5\.6"):
        BowheadConnector(locator=locator)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("description", 5), ("description", 384 * "d"), ("namespace", 64 * "n"), ("threads", "4")],
)
def test_wrong_parameter_is_refused_by_name(locator: str, parameter: str, value: object) -> None:
    parameters: dict[str, Any] = {"locator": locator, parameter: value}
    with pytest.raises(ValueError, match=f"{parameter} is .*; set it to"):
        BowheadConnector(**parameters)


def test_key_that_is_no_text(connector: BowheadConnector, wait: Wait) -> None:
    """The name of a model can be a path that is no UTF-8."""
    key = os.fsdecode(b"/models/\xff")
    assert wait(connector, connector.submit_batch_set([key], values(1, 4096)))[0]
    assert wait(connector, connector.submit_batch_exists([key]))[2] == [True]


def test_unknown_parameter_is_refused_by_name(locator: str) -> None:
    with pytest.raises(ValueError, match="num_workers"):
        BowheadConnector(locator=locator, num_workers=8)
