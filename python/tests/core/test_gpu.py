# SPDX-License-Identifier: Apache-2.0
"""Transfers on the CPU device."""

import dataclasses
import gc
import mmap
import select
import threading
import weakref

import bowhead_kv as bk
import numpy as np
import pytest
from bowhead_kv import Status, gpu

LAYERS, HEADS, CHANNELS, PAGE_TOKENS, PAGES = 3, 2, 8, 4, 12
LAYOUT = bk.Layout(
    number_format=bk.NumberFormat.FP16,
    order=bk.Order.TOKENS_FIRST,
    parts=2,
    layers=LAYERS,
    heads=HEADS,
    key_channels=CHANNELS,
    value_channels=CHANNELS,
)
BLOCK_TOKENS = 8


class Engine:
    """A paged cache in host memory, registered with the CPU device."""

    def __init__(self, pool, layout=LAYOUT):
        self.device = gpu.Device.cpu()
        self.pages = mmap.mmap(-1, 64 << 10)
        shape = (LAYERS, 2, PAGES, PAGE_TOKENS, HEADS, CHANNELS)
        self.array = np.frombuffer(self.pages, np.float16, np.prod(shape)).reshape(shape)
        self.memory = self.device.register_pool(pool, chunk_bytes=2 << 20)
        self.cache_memory = self.device.register_memory(self.pages)
        self.cache = gpu.Cache.of_tensors(
            layout, [self.array[layer, part] for layer in range(LAYERS) for part in range(2)]
        )
        self.transfers = gpu.Transfers(pool, self.device, self.memory, self.cache)

    def fill(self, seed):
        self.array[:] = np.random.default_rng(seed).normal(size=self.array.shape)

    def tokens(self, table, first, count):
        """[layer][part][token][head][channel]: the value of a block."""
        at = [table[t // PAGE_TOKENS] * PAGE_TOKENS + t % PAGE_TOKENS
              for t in range(first, first + count)]
        return self.array.reshape(LAYERS, 2, -1, HEADS, CHANNELS)[:, :, at]


@pytest.fixture
def ns(pool):
    return pool.namespace("gpu", layout=LAYOUT)


@pytest.fixture
def engine(pool):
    engine = Engine(pool)
    yield engine
    engine.transfers.close()


def blocks_of(table, count=3, name="block"):
    return [gpu.Block(f"{name} {i}".encode(), table, i * BLOCK_TOKENS, BLOCK_TOKENS)
            for i in range(count)]


def statuses(job):
    assert job.wait(30)
    return [result.status for result in job.results()]


def test_the_device(engine):
    info = engine.device.info()
    assert info.is_cpu and info.name == "cpu" and info.driver == "none"
    assert engine.cache.page_tokens == PAGE_TOKENS and engine.cache.pages == PAGES
    assert engine.transfers.cache is engine.cache


def test_blocks_come_back_in_other_pages(engine, ns):
    engine.fill(1)
    table = [7, 3, 11, 0, 5, 2]
    values = [engine.tokens(table, i * BLOCK_TOKENS, BLOCK_TOKENS).copy() for i in range(3)]
    assert statuses(engine.transfers.spill(ns, blocks_of(table))) == [Status.OK] * 3
    for block, value in zip(blocks_of(table), values, strict=True):
        assert ns.get(block.key) == value.tobytes()
    engine.fill(2)
    other = np.array([1, 4, 6, 8, 9, 10], np.int32)
    job = engine.transfers.restore(ns, blocks_of(other), urgent=True, path=gpu.Path.COPIES)
    assert statuses(job) == [Status.OK] * 3
    for i, value in enumerate(values):
        assert (engine.tokens(other, i * BLOCK_TOKENS, BLOCK_TOKENS) == value).all()
    assert {result.staging for result in job.results()} <= set(gpu.Staging)
    info = engine.transfers.info()
    moved = (info.straight_blocks + info.not_yet_blocks + info.not_reached_blocks
             + info.no_lease_blocks + info.compressed_blocks)
    assert moved == 6 and info.refusal == ""


def test_layers(engine, ns):
    engine.fill(1)
    table = list(range(6))
    spill = engine.transfers.spill(ns, blocks_of(table), layers_at_once=1)
    for layer in range(LAYERS):
        assert not spill.wait(0)
        with pytest.raises(bk.Error) as caught:
            spill.results()
        assert caught.value.status is Status.BUSY
        engine.array[layer] = layer + 1
        spill.layer_ready(layer)
    assert statuses(spill) == [Status.OK] * 3
    engine.fill(2)
    restore = engine.transfers.restore(ns, blocks_of(table), layers_at_once=1, after=0)
    for layer in range(LAYERS):
        restore.wait_layer(layer)
        engine.device.synchronize()
        assert (engine.tokens(table, 0, 24)[layer] == layer + 1).all()
    assert statuses(restore) == [Status.OK] * 3


def test_an_event_loop_learns_of_each_job_once(engine, ns):
    table = list(range(6))
    jobs = [engine.transfers.spill(ns, blocks_of(table, name=f"job {i}")) for i in range(100)]
    done = []
    while len(done) < len(jobs):
        assert select.select([engine.transfers], [], [], 30)[0], "nothing is done in 30 seconds"
        done += engine.transfers.poll(7)
    assert len(set(map(id, done))) == 100 and set(map(id, done)) == set(map(id, jobs))
    assert engine.transfers.poll() == []
    assert all(statuses(job) == [Status.OK] * 3 for job in jobs)


def test_a_job_that_the_caller_forgets_goes_on(engine, ns):
    table = list(range(6))
    job = weakref.ref(engine.transfers.spill(ns, blocks_of(table)))
    gc.collect()
    assert statuses(job()) == [Status.OK] * 3
    assert engine.transfers.poll() == [job()]
    gc.collect()
    assert job() is None
    assert ns.exists([block.key for block in blocks_of(table)]) == [True] * 3


def test_failures_of_blocks(engine, ns):
    table = list(range(6))
    assert statuses(engine.transfers.restore(ns, blocks_of(table))) == [Status.NOT_FOUND] * 3
    ns.put(b"block 0", bytes(engine.tokens(table, 0, BLOCK_TOKENS).nbytes - 2))
    ns.put(b"block 1", bytes(engine.tokens(table, 0, BLOCK_TOKENS).nbytes + 2))
    found = statuses(engine.transfers.restore(ns, blocks_of(table)))
    assert found == [Status.INVALID_ARGUMENT, Status.BUFFER_TOO_SMALL, Status.NOT_FOUND]
    assert statuses(engine.transfers.spill(ns, [(b"", table, 0, 1)])) == [Status.KEY_TOO_LONG]


def test_what_is_stored_with_a_block(engine, ns):
    table = [0, 1]
    keep = bk.Attributes(priority=9)
    blocks = [gpu.Block(b"1", table, 0, 4, b"parent", keep), gpu.Block(b"2", table, 4, 4)]
    assert statuses(engine.transfers.spill(ns, blocks)) == [Status.OK] * 2
    assert ns.describe(b"1").user_metadata == b"parent"
    assert ns.describe(b"1").attributes == keep
    assert ns.describe(b"2").attributes == bk.Attributes()
    with pytest.raises(bk.Error, match=r"blocks\[0\].options"):
        engine.transfers.restore(ns, blocks)
    with pytest.raises(TypeError, match="user_metadata is a str"):
        engine.transfers.spill(ns, [gpu.Block(b"3", table, 0, 4, "parent")])


def test_cancel(engine, ns):
    job = engine.transfers.spill(ns, blocks_of(list(range(6))), layers_at_once=1)
    job.layer_ready(0)
    job.cancel()
    assert statuses(job) == [Status.CANCELLED] * 3
    assert ns.exists([b"block 0"]) == [False]


@pytest.mark.parametrize(
    ("blocks", "error", "text"),
    [
        (5, TypeError, "blocks is a int"),
        ([b"key"], TypeError, "blocks is a bytes"),
        ([(b"key", [0], 0)], ValueError, r"blocks\[0\] has 3 fields"),
        ([("key", [0], 0, 1)], TypeError, r"keys\[0\] is a str"),
        ([(b"key", 7, 0, 1)], TypeError, "pages is a int"),
        ([(b"key", [-1], 0, 1)], ValueError, "pages is -1"),
        ([(b"key", [0], 0, "1")], TypeError, "tokens is a str"),
        ([(b"key", [0], 0, 0)], bk.Error, "block 0"),
        ([(b"key", [PAGES], 0, 1)], bk.Error, f"page {PAGES}"),
        ([(b"key", [], 0, 1)], bk.Error, "block table"),
    ],
)
def test_wrong_blocks(engine, ns, blocks, error, text):
    for start in (engine.transfers.spill, engine.transfers.restore):
        with pytest.raises(error, match=text):
            start(ns, blocks)


def test_wrong_arguments(engine, pool, ns, locator):
    block = blocks_of(list(range(6)))
    for options in ({"path": 3}, {"after": 12345}, {"lease_ms": 600_001}):
        with pytest.raises(bk.Error) as caught:
            engine.transfers.restore(ns, block, **options)
        assert caught.value.status is Status.INVALID_ARGUMENT
    with pytest.raises(bk.Error) as caught:
        engine.transfers.spill(pool.namespace("opaque"), block)
    assert caught.value.status is Status.LAYOUT_MISMATCH
    with bk.Pool(locator) as other, pytest.raises(ValueError, match="opened elsewhere"):
        engine.transfers.spill(other.namespace("gpu"), block)
    with pytest.raises(bk.Error) as caught:
        gpu.Device(9999)
    assert caught.value.status in (Status.NOT_SUPPORTED, Status.NOT_FOUND)
    with pytest.raises(BufferError):
        engine.device.register_memory(bytes(4096))
    with pytest.raises(bk.Error) as caught:
        engine.device.register_memory(memoryview(mmap.mmap(-1, 8192))[1:])
    assert caught.value.status is Status.MISALIGNED
    with pytest.raises(ValueError, match="timeout_s"):
        engine.transfers.spill(ns, block).wait(-1)


def test_wrong_caches(engine, pool):
    tensors = [engine.array[layer, part] for layer in range(LAYERS) for part in range(2)]
    for wrong, text in [
        ([], "empty"),
        ([tensors[0][0]], "3 axes"),
        ([tensors[0], tensors[0][1:]], "shape"),
        ([tensors[0][..., ::2]], "contiguous"),
        ([tensors[0].astype(np.float32)], "rows of 32 bytes"),
        (["tensor"], "is a str"),
    ]:
        with pytest.raises((ValueError, TypeError), match=text):
            gpu.Cache.of_tensors(LAYOUT, wrong)
    unregistered = [np.zeros((PAGES, PAGE_TOKENS, HEADS, CHANNELS), np.float16)] * 6
    for cache in (
        gpu.Cache.of_tensors(LAYOUT, unregistered),
        gpu.Cache.of_tensors(LAYOUT, tensors[:5]),
        dataclasses.replace(engine.cache, pages=0),
    ):
        with pytest.raises(bk.Error) as caught:
            gpu.Transfers(pool, engine.device, engine.memory, cache)
        assert caught.value.status is Status.INVALID_ARGUMENT
    with pytest.raises(bk.Error, match="bh_gpu_register_pool") as caught:
        gpu.Transfers(pool, engine.device, engine.cache_memory, engine.cache)


def test_memory(engine):
    assert engine.memory.size_bytes >= 128 << 20
    engine.memory.ensure(0, 1)
    assert engine.memory.registered_bytes >= 2 << 20
    engine.memory.retry()
    engine.memory.register_rest()
    engine.memory.ensure(0, engine.memory.size_bytes)
    assert engine.memory.registered_bytes == engine.memory.size_bytes
    with pytest.raises(bk.Error) as caught:
        engine.memory.ensure(engine.memory.size_bytes, 1)
    assert caught.value.status is Status.INVALID_ARGUMENT


def test_closing(engine, pool, ns):
    job = engine.transfers.spill(ns, blocks_of(list(range(6))), layers_at_once=1)
    engine.device.close()
    engine.memory.close()
    for closed in (engine.device.info, lambda: engine.memory.size_bytes):
        with pytest.raises(bk.Error) as caught:
            closed()
        assert caught.value.status is Status.CLOSED
    assert engine.transfers.poll() == []
    pool.close()
    assert engine.transfers.closed
    assert [result.status for result in job.results()] == [Status.CANCELLED] * 3
    with pytest.raises(bk.Error) as caught:
        engine.transfers.poll()
    assert caught.value.status is Status.CLOSED
    engine.transfers.close()


def test_threads(engine, ns):
    failed = []

    def work(number):
        table = [number * 2, number * 2 + 1]
        for i in range(50):
            block = [gpu.Block(f"{number} {i}".encode(), table, 0, BLOCK_TOKENS)]
            if statuses(engine.transfers.spill(ns, block)) != [Status.OK]:
                failed.append((number, i))
            engine.transfers.poll()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_the_child_of_a_fork(engine, ns, in_child):
    job = engine.transfers.spill(ns, blocks_of(list(range(6))), layers_at_once=1)

    def body():
        for call in (engine.transfers.poll, job.results, engine.device.info,
                     lambda: engine.memory.size_bytes, lambda: job.layer_ready(0)):
            with pytest.raises(bk.Error) as caught:
                call()
            assert caught.value.status is Status.FORKED
        engine.transfers.close()
        engine.memory.close()
        engine.device.close()

    in_child(body)
    for layer in range(LAYERS):
        job.layer_ready(layer)
    assert statuses(job) == [Status.OK] * 3
