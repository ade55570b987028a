# SPDX-License-Identifier: Apache-2.0
"""BowheadTier against vLLM's interfaces, without an engine."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bowhead_kv as bk
import numpy as np
import pytest
from bowhead_kv.events import parse_metadata
from bowhead_kv.vllm import _versions
from bowhead_kv.vllm.tier import BowheadTier, tier_identity
from driver import offloading_spec as spec
from hint import envelope
from vllm.v1.kv_offload.base import Locality, LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

CHUNKS = 8
ROW_BYTES = 256 << 10
REQUEST = ReqContext(req_id="request")


def key(number: int) -> Any:
    return make_offload_key(number.to_bytes(32, "big"), 0)


def job(
    number: int, keys: list[Any], chunks: list[int], request: ReqContext = REQUEST
) -> TransferJob:
    return TransferJob(number, keys, np.array(chunks), False, request)


def finish(tier: BowheadTier) -> list[JobResult]:
    tier.drain_jobs()
    return list(tier.get_finished_jobs())


Make = Callable[..., tuple[BowheadTier, np.ndarray]]


@pytest.fixture
def make(locator: str) -> Iterator[Make]:
    """Makes a tier through vLLM's factory, with the memory of its primary tier."""
    tiers = []

    def make_tier(offloading_spec: Any = None, **config: Any) -> tuple[BowheadTier, np.ndarray]:
        memory = np.random.default_rng(len(tiers)).integers(
            0, 256, (CHUNKS, ROW_BYTES), dtype=np.uint8
        )
        tier = SecondaryTierFactory.create_secondary_tier(
            {
                "type": "BowheadTier",
                "module_path": "bowhead_kv.vllm.tier",
                "locator": locator,
                **config,
            },
            memoryview(memory),
            offloading_spec or spec(),
        )
        tiers.append(tier)
        return tier, memory

    yield make_tier
    for tier in tiers:
        tier.shutdown()


def attack(locator: str) -> tuple[bk.Pool, bk.Namespace]:
    pool = bk.Pool(locator)
    (found,) = pool.namespaces()
    return pool, pool.namespace(found.name, found.description)


def test_rows_come_back_in_another_engine(make: Make) -> None:
    first, memory = make()
    assert first.lookup(key(1), REQUEST) == LookupResult.MISS
    first.submit_store(job(1, [key(1), key(2), key(3)], [0, 1, 2]))
    (result,) = finish(first)
    assert (result.job_id, result.success) == (1, True)
    if _versions.release() != "0.30":  # which does not ask
        assert result.transfer_bytes == 3 * ROW_BYTES

    second, other_memory = make()
    assert [second.lookup(key(i), REQUEST) for i in (1, 2, 3, 4)] == [LookupResult.HIT] * 3 + [
        LookupResult.MISS
    ]
    second.touch([key(1), key(4)], REQUEST)
    second.submit_load(job(7, [key(3), key(1)], [6, 5]))
    (result,) = finish(second)
    assert result.success
    assert (other_memory[6] == memory[2]).all()
    assert (other_memory[5] == memory[0]).all()


def test_part_of_a_load_is_kept(make: Make, locator: str) -> None:
    tier, memory = make()
    tier.submit_store(job(1, [key(1), key(2), key(3)], [0, 1, 2]))
    finish(tier)
    pool, ns = attack(locator)
    with pool:
        assert ns.remove(key(2))
    tier.submit_load(job(2, [key(1), key(2), key(3)], [5, 6, 7]))
    (result,) = finish(tier)
    assert not result.success
    assert result.successful_keys == (key(1), key(3))
    assert (memory[5] == memory[0]).all()
    assert (memory[7] == memory[2]).all()


@pytest.mark.parametrize("length_bytes", [1, ROW_BYTES - 1, ROW_BYTES + 1])
def test_value_of_another_length_fails_and_is_replaced(
    make: Make, locator: str, length_bytes: int
) -> None:
    tier, _ = make()
    mine, other = ReqContext(req_id="mine"), ReqContext(req_id="other")
    tier.on_new_request(mine)
    assert tier.lookup(key(1), mine) == LookupResult.MISS
    pool, ns = attack(locator)
    with pool:
        ns.put(key(1), bytes(length_bytes))
    assert tier.lookup(key(1), mine) == LookupResult.HIT
    tier.submit_load(job(1, [key(1)], [0], mine))
    (result,) = finish(tier)
    assert not result.success
    assert tier.lookup(key(1), other) == LookupResult.MISS
    tier.submit_store(job(2, [key(1)], [0]))
    assert finish(tier)[0].success
    # The request that failed to load it does not try again; others do.
    assert tier.lookup(key(1), mine) == LookupResult.MISS
    assert tier.lookup(key(1), other) == LookupResult.HIT
    tier.on_request_finished(mine)
    assert tier.lookup(key(1), mine) == LookupResult.HIT


def test_load_that_fails_after_its_request_leaves_nothing(make: Make) -> None:
    tier, _ = make()
    mine = ReqContext(req_id="mine")
    tier.on_new_request(mine)
    tier.submit_load(job(1, [key(1)], [0], mine))
    tier.on_request_finished(mine)
    assert [result.success for result in finish(tier)] == [False]
    tier.submit_store(job(2, [key(1)], [0]))
    assert [result.success for result in finish(tier)] == [True]
    assert tier.lookup(key(1), mine) == LookupResult.HIT


def test_pool_that_disappears_is_a_miss(
    make: Make, locator: str, caplog: pytest.LogCaptureFixture
) -> None:
    tier, _ = make()
    tier.submit_store(job(1, [key(1)], [0]))
    assert finish(tier)[0].success
    bk.destroy(locator, force=True)
    numbers = set()
    for number in range(2, 22):
        tier.submit_store(job(number, [key(number)], [0]))
        numbers.update(result.job_id for result in finish(tier) if not result.success)
    assert numbers == set(range(2, 22))
    assert tier.lookup(key(2), REQUEST) == LookupResult.MISS
    assert len([record for record in caplog.records if record.name == "vllm.bowhead"]) <= 1

    bk.create(locator, 64 << 20)
    deadline_s = time.monotonic() + 30
    while True:
        tier.submit_store(job(99, [key(99)], [0]))
        (result,) = finish(tier)
        if result.success:
            break
        assert time.monotonic() < deadline_s, "the new pool is not used"
        time.sleep(0.1)
    assert tier.lookup(key(99), REQUEST) == LookupResult.HIT


def test_jobs_above_the_limit_fail_at_once(make: Make) -> None:
    tier, _ = make(jobs_max=2)
    for number in range(5):
        tier.submit_store(job(number, [key(number)], [number]))
    results = {result.job_id: result.success for result in finish(tier)}
    assert results == {0: True, 1: True, 2: False, 3: False, 4: False}
    tier.submit_store(job(9, [key(9)], [0]))
    assert [result.success for result in finish(tier)] == [True]


def test_full_pool_is_a_skipped_store(make: Make, locator: str) -> None:
    bk.destroy(locator)
    bk.create(locator, 16 << 20, no_eviction=True)
    tier, _ = make()
    for number in range(80):
        tier.submit_store(job(number, [key(number)], [number % CHUNKS]))
        results = finish(tier)
        assert len(results) == 1
    assert not results[0].success
    assert tier.lookup(key(79), REQUEST) == LookupResult.MISS
    assert tier.lookup(key(0), REQUEST) == LookupResult.HIT


def test_shutdown_with_jobs_under_way(make: Make) -> None:
    tier, _ = make()
    for number in range(50):
        tier.submit_store(job(number, [key(number)], [number % CHUNKS]))
    tier.shutdown()
    results = list(tier.get_finished_jobs())
    assert {result.job_id for result in results} == set(range(50))
    assert tier.lookup(key(1), REQUEST) == LookupResult.MISS
    tier.submit_load(job(60, [key(1)], [0]))
    assert [result.success for result in tier.get_finished_jobs()] == [False]


def test_events_name_what_is_stored(make: Make) -> None:
    tier, _ = make(enable_kv_events=True, locality="REMOTE")
    tier.submit_store(job(1, [key(1), key(2)], [0, 1]))
    finish(tier)
    (event,) = tier.take_events()
    assert event.keys == [key(1), key(2)]
    assert (event.removed, event.locality) == (False, Locality.REMOTE)
    assert list(tier.take_events()) == []
    silent, _ = make(spec(events=False), enable_kv_events=True)
    silent.submit_store(job(1, [key(5)], [0]))
    finish(silent)
    assert list(silent.take_events()) == []


def test_rows_say_which_block_they_are_and_how_long_to_keep(make: Make, locator: str) -> None:
    tier, _ = make(ttl_s=60, pin="soft")
    hinted = ReqContext(req_id="hinted")
    hinted.kv_hints = envelope({"ttl_s": None, "priority": 9})
    tier.on_new_request(hinted)
    tier.submit_store(job(1, [key(1)], [0]))
    tier.submit_store(job(2, [key(2)], [1], hinted))
    assert [result.success for result in finish(tier)] == [True, True]
    pool, ns = attack(locator)
    with pool:
        blocks = [ns.describe(key(i)) for i in (1, 2)]
    described = [parse_metadata(block.user_metadata) for block in blocks]
    assert described == [(32, 0, None, [], None)] * 2
    plain, asked = (block.attributes for block in blocks)
    assert (plain.pins, plain.priority) == (bk.Pins.SOFT, 0)
    assert 30 < plain.expires_unix_s - time.time() < 62
    assert (asked.pins, asked.priority, asked.expires_unix_s) == (bk.Pins.SOFT, 9, 0)


@pytest.mark.parametrize(
    "settings, error",
    [
        (
            {"colour": "red"},
            "the entry of BowheadTier in secondary_tiers: unknown setting 'colour'; the settings "
            "are locator, host, namespace, threads, wipe, model_id, jobs_max, enable_kv_events, "
            "locality, ttl_s, pin, priority, events_endpoint, events_replay_endpoint, "
            "events_topic",
        ),
        ({"jobs_max": "64"}, "jobs_max is '64'; set it to a number from 1 to 1,048,576"),
        ({"jobs_max": 0}, "jobs_max is 0; set it to a number from 1 to 1,048,576"),
        ({"jobs_max": True}, "jobs_max is True; set it to a number from 1 to 1,048,576"),
        ({"enable_kv_events": "no"}, "enable_kv_events is 'no'; set it to true or false"),
        ({"locality": "HERE"}, "locality is 'HERE'; set it to a Locality: LOCAL, REMOTE"),
        ({"model_id": 5}, "model_id is 5; set it to a text"),
        ({"pin": "herd"}, "pin is 'herd'; set it to one of none, soft, hard"),
    ],
)
def test_wrong_setting_is_refused_by_name(
    make: Make, settings: dict[str, Any], error: str
) -> None:
    with pytest.raises(ValueError) as refused:
        make(**settings)
    assert str(refused.value) == error


def test_another_model_or_layout_is_another_namespace(make: Make) -> None:
    tier, _ = make()
    tier.submit_store(job(1, [key(1)], [0]))
    assert finish(tier)[0].success
    other, _ = make(spec("other"))
    assert other.lookup(key(1), REQUEST) == LookupResult.MISS

    base = tier_identity(spec(), ROW_BYTES, None)
    assert base == tier_identity(spec(), ROW_BYTES, None)
    others = [
        tier_identity(spec("other"), ROW_BYTES, None),
        tier_identity(spec(), ROW_BYTES * 2, None),
        tier_identity(spec(tp_size=2, world_size=2), ROW_BYTES, None),
        tier_identity(spec(rank=1, tp_size=2, world_size=2), ROW_BYTES, None),
    ]
    assert len({base.name, *(each.name for each in others)}) == 5
    assert all(base.description != each.description for each in others)
    assert len(tier_identity(spec("é" * 500), ROW_BYTES, None).description.encode()) <= 383
    # One model at two paths.
    one, two = (tier_identity(spec(path), ROW_BYTES, "m") for path in ("/a/m", "/b/m"))
    assert one == two


# Of vLLM's tests of its file system tier, those that test files, or the inside of its classes.
OF_FILES = (
    "invalid_path shutdown_discards without_o_direct wait_idle batch_lookup out_of_bounds "
    "removes_corrupt_file batched_partial batched_load_first transient_load mixed_job_results "
    "partially_failed_store events_disabled events_require cascade_store_emits cross_tp "
    "factory_forwards by_another_writer newer_probe"
).split()


def test_vllm_own_tests_of_a_tier() -> None:
    """vLLM's tests of its file system tier, with this tier in its place."""
    folder = os.environ.get("BOWHEAD_VLLM_TESTS")
    if not folder:
        pytest.skip("BOWHEAD_VLLM_TESTS does not name vLLM's folder tests; tools/engines sets it")
    path = Path(folder) / "v1/kv_offload/tiering/test_fs_tier.py"
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider"]
    command += ["-p", "fs_tier_as_bowhead", "--rootdir", str(path.parent), str(path)]
    command += ["-k", " and ".join(f"not {name}" for name in OF_FILES)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=path.parent, timeout=300)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed and int(passed[1]) >= 18, run.stdout[-2000:]
