# SPDX-License-Identifier: Apache-2.0
"""Real engines on a pool: the same tokens as without it, whatever happens to the pool."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import bowhead_kv as bk
import msgspec
import pytest
import zmq
from attack import memory_of
from bowhead_kv.events import block_metadata
from engine import BLOCK_TOKENS, Engine, connector, tier
from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

Tokens = list[list[int]]


def full_blocks(prompts: list[list[int]]) -> int:
    return sum(len(prompt) // BLOCK_TOKENS for prompt in prompts)


@pytest.fixture(scope="module")
def cold(
    model: Path, prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> Tokens:
    """What the model says without a pool."""
    with Engine(model, tmp_path_factory.mktemp("cold") / "log", None) as engine:
        tokens, cached = engine.generate(prompts)
    assert cached == [0, 0, 0]
    assert any(len(set(answer)) > 1 for answer in tokens), "one token for ever proves nothing"
    return tokens


@pytest.fixture(scope="module")
def engine(
    model: Path, pool_locator: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """An engine that several tests attack; it must survive all of them."""
    log = tmp_path_factory.mktemp("engine") / "log"
    with Engine(model, log, connector(pool_locator)) as started:
        yield started


@pytest.fixture(scope="module")
def keys(engine: Engine, prompts: list[list[int]], cold: Tokens) -> list[bytes]:
    """The keys of the blocks of all prompts, in order."""
    assert engine.generate(prompts)[0] == cold
    stored = engine.keys()
    assert len(stored) == full_blocks(prompts)
    return stored


def attack(locator: str) -> tuple[bk.Pool, bk.Namespace]:
    """The pool and the engine's namespace, as another process sees them."""
    pool = bk.Pool(locator)
    (found,) = pool.namespaces()
    return pool, pool.namespace(found.name, found.description)


def test_second_process_is_served_from_the_pool(
    model: Path, locator: str, tmp_path: Path, prompts: list[list[int]], cold: Tokens
) -> None:
    with Engine(model, tmp_path / "first", connector(locator)) as first:
        tokens, cached = first.generate(prompts)
        keys = first.keys()
        events = first.events()
        assert first.close() == 0
    assert tokens == cold
    assert cached == [0, 0, 0]
    assert len(keys) == full_blocks(prompts)
    assert [event["type"] for event in events] == ["BlockStored"] * len(keys)
    blocks = [p[i : i + BLOCK_TOKENS] for p in prompts for i in range(0, 96, BLOCK_TOKENS)]
    assert sorted(event["token_ids"] for event in events) == sorted(blocks)
    hashes = {block_hash for event in events for block_hash in event["block_hashes"]}
    parents = [event["parent_block_hash"] for event in events]
    assert parents.count(None) == len(prompts)
    assert hashes.issuperset(set(parents) - {None})

    with Engine(model, tmp_path / "second", connector(locator)) as second:
        tokens, cached = second.generate(prompts)
        assert tokens == cold
        assert sum(cached) >= 0.95 * full_blocks(prompts) * BLOCK_TOKENS
        assert second.keys() == []
        assert second.warnings() == []

        # Control: if the comparison could not fail, it would prove nothing.
        pool, ns = attack(locator)
        with pool:
            for key in keys:
                value = bytearray(ns.get(key))
                assert ns.remove(key)
                ns.put(key, bytes(len(value)))
        tokens, cached = second.generate(prompts)
        assert sum(cached) == full_blocks(prompts) * BLOCK_TOKENS
        assert tokens != cold


def test_routers_hear_what_is_stored_and_dropped(
    model: Path, locator: str, tmp_path: Path, prompts: list[list[int]], cold: Tokens
) -> None:
    endpoint = f"ipc://{tmp_path}/events"
    router = zmq.Context()
    socket = router.socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"kv")
    socket.connect(endpoint)
    decode = msgspec.msgpack.Decoder(KVEventBatch).decode

    def published() -> list[KVCacheEvent]:
        found: list[KVCacheEvent] = []
        while socket.poll(2000):
            topic, _, payload = socket.recv_multipart()
            batch = decode(payload)
            assert (topic, batch.data_parallel_rank) == (b"kv", 0)
            found += batch.events
        return found

    transfer = connector(locator, events_endpoint=endpoint, events_topic="kv")
    with Engine(model, tmp_path / "log", transfer) as engine:
        assert engine.generate(prompts)[0] == cold
        stored = published()
        # The connector's own events, which vLLM publishes, say the same.
        assert sorted(event.token_ids for event in stored) == sorted(
            event["token_ids"] for event in engine.events()
        )
        own = {event["block_hashes"][0]: event for event in engine.events()}
        for event in stored:
            assert isinstance(event, BlockStored)
            (block_hash,) = event.block_hashes
            assert event.parent_block_hash == own[block_hash]["parent_block_hash"]
            assert (event.block_size, event.medium) == (BLOCK_TOKENS, "BOWHEAD")

        # A value that can never be loaded is dropped by the engine, and stored again.
        key = engine.keys()[-1]
        pool, ns = attack(locator)
        with pool:
            assert ns.remove(key)
            ns.put(key, b"too short", user_metadata=block_metadata(hash_bytes=len(key) - 4))
        assert engine.generate(prompts)[0] == cold
        removed, *again = published()
        lost = maybe_convert_block_hash(key[:-4])
        assert removed == BlockRemoved(block_hashes=[lost], medium="BOWHEAD")
        assert [event.block_hashes for event in again] == [[lost]]
        assert engine.close() == 0
    router.destroy(linger=0)


def test_removed_blocks_are_computed(
    engine: Engine, pool_locator: str, keys: list[bytes], prompts: list[list[int]], cold: Tokens
) -> None:
    pool, ns = attack(pool_locator)
    with pool:
        # The middle block of the first prompt, and all of the second.
        assert [ns.remove(key) for key in (keys[1], *keys[3:6])] == [True] * 4
    assert engine.generate(prompts) == (cold, [BLOCK_TOKENS, 0, 3 * BLOCK_TOKENS])
    assert engine.generate(prompts) == (cold, [3 * BLOCK_TOKENS] * 3), "not stored again"
    assert engine.warnings() == []


def test_damaged_blocks_are_computed(
    engine: Engine, pool_locator: str, keys: list[bytes], prompts: list[list[int]], cold: Tokens
) -> None:
    pool, ns = attack(pool_locator)
    with pool, open(memory_of(pool_locator), "r+b") as memory:
        for key in (keys[0], keys[4]):
            block = ns.describe(key)
            memory.seek(block.offset + block.stored_bytes // 2)
            memory.write(b"\xff" * 64)
    assert engine.generate(prompts)[0] == cold
    assert engine.log.read_text().count("Recovered from KV load failure") == 1
    assert engine.generate(prompts) == (cold, [3 * BLOCK_TOKENS] * 3), "not stored again"
    assert engine.warnings() == []


def test_value_of_another_length_is_never_used(
    engine: Engine, pool_locator: str, keys: list[bytes], prompts: list[list[int]], cold: Tokens
) -> None:
    pool, ns = attack(pool_locator)
    with pool:
        for key, length_bytes in ((keys[0], 100), (keys[3], ns.length(keys[3]) + 1)):
            assert ns.remove(key)
            ns.put(key, bytes(length_bytes))
    assert engine.generate(prompts)[0] == cold
    assert engine.log.read_text().count("Recovered from KV load failure") == 2
    assert engine.generate(prompts) == (cold, [3 * BLOCK_TOKENS] * 3), "not stored again"
    assert len(engine.warnings()) == 1  # BUFFER_TOO_SMALL


def test_engine_outlives_its_pool(
    engine: Engine, pool_locator: str, keys: list[bytes], prompts: list[list[int]], cold: Tokens
) -> None:
    before = len(engine.warnings())
    bk.destroy(pool_locator, force=True)
    other = [prompt[::-1] for prompt in prompts]
    expected, _ = engine.generate(other)
    assert engine.generate(prompts)[0] == cold
    assert engine.generate(other)[0] == expected
    # The scheduler and the worker have a handle each.
    assert 1 <= len(engine.warnings()) - before <= 2
    # A pool of that name comes back, and is used again.
    bk.create(pool_locator, 128 << 20)
    deadline_s = time.monotonic() + 60
    while engine.generate(prompts) != (cold, [3 * BLOCK_TOKENS] * 3):
        assert time.monotonic() < deadline_s, "the new pool is not used"
        time.sleep(0.5)
    assert engine.close() == 0


def test_engine_starts_without_a_pool(
    model: Path, tmp_path: Path, prompts: list[list[int]], cold: Tokens
) -> None:
    missing = f"shm:test-vllm-missing-{os.getpid()}"
    with Engine(model, tmp_path / "log", connector(missing)) as engine:
        assert engine.generate(prompts) == (cold, [0, 0, 0])
        # The scheduler's and the worker's connector each have a handle.
        assert 1 <= len(engine.warnings()) <= 2
        assert engine.close() == 0


def test_full_pool_is_a_skipped_store(
    model: Path, tmp_path: Path, prompts: list[list[int]], cold: Tokens
) -> None:
    locator = f"shm:test-vllm-full-{os.getpid()}"
    bk.create(locator, 16 << 20, no_eviction=True)
    try:
        pool = bk.Pool(locator)
        with pool:
            ns = pool.namespace("filler", "a test")
            size = 1 << 20
            while size >= 4096:
                try:
                    ns.put(os.urandom(8), bytes(size))
                except bk.Error as error:
                    assert error.status in (bk.Status.NO_SPACE, bk.Status.VALUE_TOO_LARGE)
                    size //= 2
        with Engine(model, tmp_path / "log", connector(locator)) as engine:
            assert engine.generate(prompts)[0] == cold
            assert engine.generate(prompts) == (cold, [0, 0, 0])
            assert len(engine.warnings()) == 1
            assert engine.close() == 0
    finally:
        bk.destroy(locator, force=True)


def test_tier_serves_a_second_process(
    model: Path, locator: str, tmp_path: Path, prompts: list[list[int]], cold: Tokens
) -> None:
    other = prompts[0][::-1]
    with Engine(model, tmp_path / "first", tier(locator)) as first:
        assert first.generate(prompts) == (cold, [0, 0, 0])
        first.generate([other])  # what vLLM stores of a request, it may store in its next step
        keys = first.keys()
        assert len(keys) == full_blocks([*prompts, other])
        assert first.close() == 0

    with Engine(model, tmp_path / "second", tier(locator)) as second:
        tokens, cached = second.generate(prompts)
        assert tokens == cold
        assert sum(cached) >= 0.95 * full_blocks(prompts) * BLOCK_TOKENS
        assert second.warnings() == []

    # The first prompt's blocks are overwritten: if the comparison could not fail, it would prove
    # nothing. A block of the second is damaged. The third is asked for without a pool.
    pool, ns = attack(locator)
    with pool, open(memory_of(locator), "r+b") as memory:
        for key in keys[:3]:
            length_bytes = ns.length(key)
            assert ns.remove(key)
            ns.put(key, bytes(length_bytes))
        block = ns.describe(keys[4])
        memory.seek(block.offset + block.stored_bytes // 2)
        memory.write(b"\xff" * 64)
    with Engine(model, tmp_path / "third", tier(locator)) as third:
        assert third.generate([prompts[0]])[0] != [cold[0]]
        tokens, (cached_tokens,) = third.generate([prompts[1]])
        assert tokens == [cold[1]]
        # The tier is given the blocks of a request in no order.
        assert cached_tokens in (0, BLOCK_TOKENS, 2 * BLOCK_TOKENS)
        bk.destroy(locator, force=True)
        assert third.generate([prompts[2]])[0] == [cold[2]]
        assert third.generate([other])[0] != []
        assert third.close() == 0
