# SPDX-License-Identifier: Apache-2.0
"""BowheadConnector's two halves without an engine: several workers, failures, layouts."""

import logging
import time
from types import SimpleNamespace
from typing import Any

import bowhead_kv as bk
import pytest
import torch
from bowhead_kv.config import Config
from bowhead_kv.events import parse_metadata
from bowhead_kv.link import PoolLink
from bowhead_kv.vllm._identity import identity
from bowhead_kv.vllm._pages import Pages
from bowhead_kv.vllm.connector import (
    MEDIUM,
    StepMetadata,
    StepReport,
    Transfer,
    _Scheduler,
    _Worker,
    check_config,
    rank_keys,
)
from driver import ConnectorDriver
from hint import envelope
from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

BLOCK = 32
BLOCKS = 16
LAYERS = ["layer.0", "layer.1"]


def link(locator: str) -> PoolLink:
    return PoolLink(
        Config(locator=locator),
        namespace="vllm-test",
        description="a test",
        log=logging.getLogger("vllm.bowhead"),
    )


class Request(SimpleNamespace):
    """As much of vLLM's Request as the connector uses."""

    def __init__(self, name: str, tokens: list[int], block_ids: list[int]) -> None:
        blocks = len(tokens) // BLOCK
        super().__init__(
            request_id=name,
            all_token_ids=tokens,
            num_tokens=len(tokens),
            num_computed_tokens=0,
            block_hashes=[bytes(str(tokens[: (i + 1) * BLOCK]), "ascii") for i in range(blocks)],
            lora_request=None,
            kv_hints=None,
            block_ids=block_ids,
        )
        self.block_hashes = [hash_of.rjust(32)[-200:] for hash_of in self.block_hashes]


class Engine:
    """The connector of an engine with several workers, driven as vLLM drives it."""

    def __init__(self, locator: str, workers: int = 2, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.scheduler = _Scheduler(link(locator), BLOCK, BLOCK, workers)
        self.workers = [_Worker(link(locator), rank) for rank in range(workers)]
        self.caches = []
        for worker in self.workers:
            caches = {name: torch.rand(BLOCKS, 2, BLOCK, 8) for name in LAYERS}
            self.caches.append(caches)
            worker.register(Pages(caches, LAYERS, BLOCKS))
        self.requests: dict[str, Request] = {}

    def add(self, request: Request) -> int:
        """Adds a request and looks it up; the tokens that will be loaded."""
        self.requests[request.request_id] = request
        self.scheduler.add(request)
        found = self.scheduler.match(request, 0)
        if found:
            self.scheduler.load(request, request.block_ids, found)
        request.num_computed_tokens = found
        return found

    def schedule(self) -> StepMetadata:
        scheduled = {
            name: len(request.all_token_ids) - request.num_computed_tokens
            for name, request in self.requests.items()
        }
        output: Any = SimpleNamespace(
            num_scheduled_tokens=scheduled,
            kv_connector_block_state=SimpleNamespace(
                resolve_block_ids=lambda name: (self.requests[name].block_ids,)
            ),
        )
        metadata = self.scheduler.metadata(output)
        for name, count in scheduled.items():
            self.requests[name].num_computed_tokens += count
        return metadata

    def execute(self, metadata: StepMetadata) -> StepReport | None:
        reports = []
        for worker in self.workers:
            if metadata.loads.hashes:
                worker.load(metadata.step, metadata.loads)
            if metadata.stores.hashes:
                worker.store(metadata.step, metadata.stores)
            reports.append(worker.take_report())
        if reports[0] is None:
            return None
        total = reports[0]
        for report in reports[1:]:
            assert report is not None
            total = total.aggregate(report)
        return total

    def step(self) -> StepReport | None:
        report = self.execute(self.schedule())
        if report is not None:
            self.scheduler.report(report)
        return report

    def page(self, rank: int, layer: str, block_id: int) -> torch.Tensor:
        return self.caches[rank][layer][block_id].clone()


def tokens(blocks: int) -> list[int]:
    return list(range(blocks * BLOCK + 1))


def test_each_worker_stores_and_loads_its_own_pages(locator: str) -> None:
    first = Engine(locator, seed=1)
    request = Request("a", tokens(3), [4, 5, 6, 7])
    assert first.add(request) == 0
    report = first.step()
    assert report is not None
    assert report.stored == set(request.block_hashes)
    assert first.step() is None, "stored twice"

    second = Engine(locator, seed=2)
    assert second.add(Request("b", tokens(3), [9, 8, 3, 2])) == 3 * BLOCK
    report = second.step()
    assert report is not None
    assert (report.failed, report.stored) == (set(), set())
    for rank in range(2):
        assert second.workers[rank].take_failed_blocks() == set()
        for layer in LAYERS:
            for there, here in ((4, 9), (5, 8), (6, 3)):
                expected = first.page(rank, layer, there)
                assert torch.equal(second.page(rank, layer, here), expected)


def test_block_of_one_worker_only_is_no_hit(locator: str) -> None:
    first = Engine(locator)
    request = Request("a", tokens(3), [0, 1, 2, 3])
    first.add(request)
    first.step()
    ns = link(locator).ns()
    assert ns is not None
    assert ns.remove(rank_keys(request.block_hashes[1:2], [1])[0])
    second = Engine(locator)
    assert second.add(Request("b", tokens(3), [0, 1, 2, 3])) == BLOCK
    # The missing share is stored, with what follows.
    second.step()
    report = second.step()
    assert report is not None
    assert report.stored == {request.block_hashes[1]}


def test_last_token_is_never_loaded(locator: str) -> None:
    first = Engine(locator)
    first.add(Request("a", tokens(2), [0, 1, 2]))
    first.step()
    assert Engine(locator).add(Request("b", tokens(2)[:-1], [0, 1])) == BLOCK


def test_nothing_is_stored_behind_a_load_that_one_worker_failed(locator: str) -> None:
    first = Engine(locator)
    first.add(Request("a", tokens(2), [0, 1, 2]))
    first.step()

    second = Engine(locator)
    request = Request("b", tokens(4), [0, 1, 2, 3, 4])
    assert second.add(request) == 2 * BLOCK
    ns = link(locator).ns()
    assert ns is not None
    lost = request.block_hashes[1]
    ns.remove(rank_keys([lost], [1])[0])
    metadata = second.schedule()
    assert metadata.stores.hashes == []
    # With asynchronous scheduling the next step is made before this one is reported.
    assert second.schedule().stores.hashes == []
    report = second.execute(metadata)
    assert report is not None
    assert report.failed == {lost}
    assert [worker.take_failed_blocks() for worker in second.workers] == [set(), {1}]

    # vLLM goes back to the first lost token and computes.
    request.num_computed_tokens = BLOCK
    second.scheduler.report(report)
    report = second.step()
    assert report is not None
    assert report.stored == set(request.block_hashes[1:])
    assert Engine(locator).add(Request("c", tokens(4), [0, 1, 2, 3, 4])) == 4 * BLOCK


def test_other_request_that_shares_loaded_blocks_waits_too(locator: str) -> None:
    first = Engine(locator)
    first.add(Request("a", tokens(1), [0, 1]))
    first.step()
    second = Engine(locator)
    second.add(Request("b", tokens(1), [5, 6]))
    sharing = Request("c", tokens(3), [5, 7, 8, 9])
    second.requests["c"] = sharing
    second.scheduler.add(sharing)
    sharing.num_computed_tokens = BLOCK  # found in vLLM's own cache: the block that b loads
    metadata = second.schedule()
    assert metadata.stores.hashes == []
    report = second.execute(metadata)
    assert report is not None
    second.scheduler.report(report)
    report = second.step()
    assert report is not None
    assert report.stored == set(sharing.block_hashes[1:])


def test_no_pool_is_a_miss_and_a_failed_load(caplog: pytest.LogCaptureFixture) -> None:
    missing = Engine("shm:test-vllm-missing", workers=1)
    assert missing.add(Request("b", tokens(2), [0, 1, 2])) == 0
    assert missing.step() is None
    missing.workers[0].load(7, Transfer([b"hash"], [3]))
    report = missing.workers[0].take_report()
    assert report is not None
    assert report.failed == {b"hash"}
    assert missing.workers[0].take_failed_blocks() == {3}
    assert len(caplog.records) == 2  # one for each handle


def test_events(locator: str) -> None:
    engine = Engine(locator)
    engine.scheduler.publish_events()
    request = Request("a", tokens(2), [0, 1, 2])
    engine.add(request)
    engine.step()
    events = engine.scheduler.take_events()
    assert [type(event) for event in events] == [BlockStored, BlockStored]
    second = events[1]
    assert isinstance(second, BlockStored)
    assert second.block_hashes == [maybe_convert_block_hash(request.block_hashes[1])]
    assert second.parent_block_hash == maybe_convert_block_hash(request.block_hashes[0])
    assert second.token_ids == tokens(2)[BLOCK : 2 * BLOCK]
    assert (second.block_size, second.medium) == (BLOCK, MEDIUM)
    assert engine.scheduler.take_events() == []

    other = Engine(locator)
    other.scheduler.publish_events()
    other.add(Request("b", tokens(2), [0, 1, 2]))
    ns = link(locator).ns()
    assert ns is not None
    ns.remove_batch(rank_keys(request.block_hashes[:1], range(2)))
    other.step()
    (removed,) = other.scheduler.take_events()
    assert isinstance(removed, BlockRemoved)
    assert removed.block_hashes == [maybe_convert_block_hash(request.block_hashes[0])]


def test_report_before_the_stores_of_a_step(locator: str) -> None:
    """As vLLM asks for it where it drafts tokens: no event is lost, and nothing waits for ever."""
    engine = Engine(locator, workers=1)
    engine.scheduler.publish_events()
    engine.add(Request("a", tokens(1), [0, 1]))
    engine.step()
    assert len(engine.scheduler.take_events()) == 1
    second = Request("b", tokens(1), [2, 3])
    third = Request("c", tokens(1)[::-1], [4, 5])
    assert (engine.add(second), engine.add(third)) == (BLOCK, 0)
    metadata = engine.schedule()
    (worker,) = engine.workers
    worker.load(metadata.step, metadata.loads)
    early = worker.take_report()
    worker.store(metadata.step, metadata.stores)
    late = worker.take_report()
    for report in (early, late):
        assert report is not None
        engine.scheduler.report(report)
    (event,) = engine.scheduler.take_events()
    assert isinstance(event, BlockStored)
    assert event.block_hashes == [maybe_convert_block_hash(third.block_hashes[0])]


def test_blocks_say_what_a_router_needs(locator: str) -> None:
    engine = Engine(locator)
    request = Request("a", tokens(2), [0, 1, 2])
    request.lora_request = SimpleNamespace(name="adapter")
    engine.add(request)
    engine.step()
    ns = link(locator).ns()
    assert ns is not None
    for rank in range(2):
        for i, key in enumerate(rank_keys(request.block_hashes, [rank])):
            block = parse_metadata(ns.describe(key).user_metadata)
            assert block is not None
            assert key[: block.hash_bytes] == request.block_hashes[i]
            assert block.parent == (request.block_hashes[0] if i else None)
            assert block.token_ids == tokens(2)[i * BLOCK : (i + 1) * BLOCK]
            assert (block.group, block.lora_name) == (None, "adapter")


def test_hints_become_attributes(locator: str) -> None:
    engine = Engine(locator, workers=1)
    first, second = Request("a", tokens(2), [0, 1, 2]), Request("b", tokens(1)[::-1], [3, 4])
    first.kv_hints = envelope({"ttl_s": 60, "pin": "soft", "priority": 9})
    engine.add(first)
    engine.add(second)
    engine.step()
    ns = link(locator).ns()
    assert ns is not None
    for key in rank_keys(first.block_hashes, [0]):
        found = ns.describe(key).attributes
        assert (found.pins, found.priority) == (bk.Pins.SOFT, 9)
        assert 30 < found.expires_unix_s - time.time() < 62
    (key,) = rank_keys(second.block_hashes, [0])
    assert ns.describe(key).attributes == bk.Attributes()


@pytest.mark.parametrize(
    "cache",
    [
        torch.zeros(BLOCKS, 2, BLOCK, 8),
        torch.zeros(BLOCKS * 2, 2, BLOCK // 2, 8),  # two kernel blocks in a block
        torch.zeros(BLOCKS, BLOCK, 2, 8).transpose(1, 2),
        torch.zeros(BLOCKS, 3, 2, BLOCK, 8)[:, 1],  # layers interleaved in each block
        torch.zeros(BLOCKS, 1, BLOCK, 8, dtype=torch.bfloat16),
    ],
)
def test_pages_are_the_memory_of_the_cache(cache: torch.Tensor) -> None:
    pages = Pages({"layer": cache}, ["layer"], BLOCKS)
    elements = cache.numel() // BLOCKS
    assert pages.block_bytes == elements * cache.element_size()
    (page,) = pages.buffers(3)
    page[:] = 1
    kernel_blocks = cache.shape[0] // BLOCKS
    touched = (cache != 0).flatten(1).all(1).nonzero().flatten().tolist()
    assert touched == list(range(3 * kernel_blocks, 4 * kernel_blocks))
    assert int((cache != 0).sum()) == elements


def test_pages_refuse_scattered_and_foreign_caches() -> None:
    halves = torch.zeros(2, BLOCKS, 2, BLOCK, 8).transpose(0, 1)  # K and V apart
    with pytest.raises(NotImplementedError, match="layer.*in one piece"):
        Pages({"layer": halves}, ["layer"], BLOCKS)
    with pytest.raises(NotImplementedError, match="layer is on meta"):
        Pages({"layer": torch.zeros(BLOCKS, 8, device="meta")}, ["layer"], BLOCKS)


def test_shared_layers_are_moved_once() -> None:
    cache = torch.zeros(BLOCKS, 2, BLOCK, 8)
    assert len(Pages({"a": cache, "b": cache}, ["a", "b"], BLOCKS).buffers(0)) == 1


def config(**changes: Any) -> tuple[Any, Any]:
    fields = {"policy": "recompute", "groups": 1, "prefill": 1, "decode": 1, **changes}
    return (
        SimpleNamespace(
            parallel_config=SimpleNamespace(
                prefill_context_parallel_size=fields["prefill"],
                decode_context_parallel_size=fields["decode"],
            ),
            kv_transfer_config=SimpleNamespace(kv_load_failure_policy=fields["policy"]),
        ),
        SimpleNamespace(kv_cache_groups=[None] * fields["groups"]),
    )


def test_configuration_that_cannot_be_served_is_refused_by_name() -> None:
    check_config(*config())
    for changes, text in (
        ({"policy": "fail"}, "kv_load_failure_policy"),
        ({"groups": 2}, "2: vLLM cannot recover"),
        ({"decode": 2}, "decode_context_parallel_size"),
        ({"prefill": 2}, "prefill_context_parallel_size"),
    ):
        with pytest.raises(ValueError, match=text):
            check_config(*config(**changes))


@pytest.mark.parametrize(
    "settings, error",
    [
        (
            {"locater": "shm:kv"},
            "kv_connector_extra_config of BowheadConnector: unknown setting 'locater'; the "
            "settings are locator, host, namespace, wipe, model_id, ttl_s, pin, priority, "
            "events_endpoint, events_replay_endpoint, events_topic",
        ),
        (
            {},
            "kv_connector_extra_config of BowheadConnector, or what stands for it in the "
            "environment or a file: no pool is configured",
        ),
        ({"locator": "shm:kv", "model_id": 5}, "model_id is 5; set it to a text"),
        ({"locator": "shm:kv", "host": 64}, "host is 64; set it to 0 to 63"),
    ],
)
def test_wrong_setting_is_refused_by_name(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        ConnectorDriver(settings, stages=[["layer"]])


def test_namespace_names_and_describes_every_field(locator: str) -> None:
    fields = {"model": "m", "dtype": "float16", "block_tokens": 32, "ranks": 1, "page": "cpu vec"}
    base = identity(fields)
    for key, value in (("model", "n"), ("block_tokens", 64), ("page", "cpu amx")):
        other = identity({**fields, key: value})
        assert other.name != base.name
        assert other.description != base.description
    # Under a name of the user's own, the pool refuses another description.
    with bk.Pool(locator) as pool:
        pool.namespace("own", base.description)
        with pytest.raises(bk.Error) as error:
            pool.namespace("own", identity({**fields, "ranks": 2}).description)
        assert error.value.status == bk.Status.NAMESPACE_MISMATCH
