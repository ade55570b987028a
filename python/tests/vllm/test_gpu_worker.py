# SPDX-License-Identifier: Apache-2.0
"""The half of BowheadConnector that moves pages of GPU memory, with the CPU in place of a GPU."""

import logging
import mmap
import time
from types import SimpleNamespace

import bowhead_kv as bk
import numpy as np
import pytest
from bowhead_kv import gpu
from bowhead_kv.config import Config
from bowhead_kv.link import PoolLink
from bowhead_kv.vllm._gpu import GpuPages, layout_of
from bowhead_kv.vllm._hints import Keep
from bowhead_kv.vllm.connector import StepMetadata, Stores, Transfer, _GpuWorker, rank_keys

LAYERS = ["layer.0", "layer.1", "layer.2"]
BLOCKS, HEADS, TOKENS, CONTENT = 16, 2, 8, 24


def config(heads: int = HEADS, tokens: int = TOKENS) -> SimpleNamespace:
    """As much of vLLM's KVCacheConfig as a layout depends on."""
    spec = SimpleNamespace(
        num_heads=heads, state_content_size_bytes=CONTENT * 2, block_size=tokens,
        dtype="torch.float16",
    )
    return SimpleNamespace(
        kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, layer_names=LAYERS)]
    )


class Worker:
    """A worker of an engine, whose axes lie in memory as `axes` nests page, head, token."""

    def __init__(self, locator: str, axes=(0, 1, 2), split: int = 1, rank: int = 0) -> None:
        self.split = split  # kernel blocks in a block
        self.layout = layout_of(config())
        self.memory = mmap.mmap(-1, 1 << 20)
        shape = (BLOCKS * split, HEADS, TOKENS // split)
        flat = np.frombuffer(self.memory, np.float16, 3 * np.prod(shape) * CONTENT)
        nested = flat.reshape(3, *(shape[axis] for axis in axes), CONTENT)
        order = [axes.index(axis) for axis in range(3)]
        self.caches = {
            name: nested[i].transpose(*order, 3) for i, name in enumerate(LAYERS)
        }
        self.device = gpu.Device.cpu()
        self.registered = self.device.register_memory(self.memory)
        self.link = PoolLink(
            Config(locator=locator), namespace="vllm-gpu", description="a test",
            layout=self.layout, log=logging.getLogger("vllm.bowhead"),
        )
        self.pages = GpuPages(
            self.caches, LAYERS, BLOCKS, self.layout, self.device, lambda: 0
        )
        self.worker = _GpuWorker(self.link, rank, self.pages)
        self.steps = 0

    def fill(self, seed: int) -> None:
        for i, cache in enumerate(self.caches.values()):
            cache[:] = np.random.default_rng((seed, i)).normal(size=cache.shape)

    def block(self, layer: str, block_id: int) -> np.ndarray:
        """[head][token][content]"""
        pages = self.caches[layer][block_id * self.split : (block_id + 1) * self.split]
        return np.concatenate(list(pages), axis=1)

    def step(self, loads=None, stores=None, seed: int | None = None, attention: bool = True):
        """As vLLM's forward pass, which computes what it stores."""
        self.steps += 1
        metadata = StepMetadata(self.steps, loads or Transfer(), stores or Stores())
        if metadata.loads.hashes:
            self.worker.begin(metadata)
        seen = {}
        for i, layer in enumerate(LAYERS if attention else []):
            self.worker.wait_layer(layer)
            self.device.synchronize()
            seen[layer] = {id_: self.block(layer, id_).copy() for id_ in metadata.loads.block_ids}
            if seed is not None:
                cache = self.caches[layer]
                cache[:] = np.random.default_rng((seed, i)).normal(size=cache.shape)
            self.worker.layer_ready(layer, metadata)
        self.worker.end(metadata)
        return seen, self.worker.take_failed_blocks(), self.worker.take_report()


def stores(hashes: list[bytes], block_ids: list[int]) -> Stores:
    return Stores(hashes, block_ids, [b"metadata"] * len(hashes), [Keep()] * len(hashes))


HASHES = [bytes([i]) * 32 for i in range(3)]


@pytest.mark.parametrize("attention", [True, False])
def test_each_layer_is_stored_and_is_there_for_its_attention(locator, attention) -> None:
    first = Worker(locator, axes=(0, 2, 1))
    first.fill(1)
    seed = 2 if attention else None
    _, failed, report = first.step(stores=stores(HASHES, [4, 5, 6]), seed=seed, attention=attention)
    assert (failed, report.stored) == (set(), set(HASHES))
    ns = first.link.ns()
    assert ns.describe(rank_keys(HASHES[:1], [0])[0]).user_metadata == b"metadata"

    # Pages of another order, blocks of two pages.
    second = Worker(locator, axes=(1, 0, 2), split=2)
    second.fill(3)
    seen, failed, report = second.step(loads=Transfer(HASHES, [9, 0, 2]), attention=attention)
    assert (failed, report.failed) == (set(), set())
    for layer in LAYERS:
        for there, here in ((4, 9), (5, 0), (6, 2)):
            expected = first.block(layer, there)
            assert (second.block(layer, here) == expected).all()
            assert not attention or (seen[layer][here] == expected).all()


def test_failed_loads_are_reported_and_can_be_stored_again(locator) -> None:
    worker = Worker(locator)
    worker.fill(1)
    worker.step(stores=stores(HASHES, [1, 2, 3]))
    ns = worker.link.ns()
    keys = rank_keys(HASHES, [0])
    assert ns.remove(keys[0])
    assert ns.remove(keys[1])
    ns.put(keys[1], b"short")
    _, failed, report = worker.step(loads=Transfer(HASHES, [7, 8, 9]))
    assert (failed, report.failed) == ({7, 8}, set(HASHES[:2]))
    assert ns.exists(keys) == [False, False, True]
    _, _, report = worker.step(stores=stores(HASHES, [1, 2, 3]))
    assert report.stored == set(HASHES)


def test_a_load_that_a_layer_did_not_wait_for_is_void(locator, monkeypatch) -> None:
    worker = Worker(locator)
    worker.step(stores=stores(HASHES, [1, 2, 3]))
    monkeypatch.setattr(worker.pages, "stream", lambda: 12345)
    _, failed, report = worker.step(loads=Transfer(HASHES, [7, 8, 9]))
    assert (failed, report.failed) == ({7, 8, 9}, set(HASHES))
    monkeypatch.setattr(worker.pages, "stream", lambda: 0)
    worker.worker.begin(StepMetadata(9, Transfer(HASHES, [7, 8, 9]), Stores()))
    worker.pages.stream = lambda: 12345
    worker.worker.wait_layer(LAYERS[0])
    assert worker.worker.take_failed_blocks() == {7, 8, 9}


def test_the_pool_goes_and_comes_back(locator) -> None:
    worker = Worker(locator)
    worker.step(stores=stores(HASHES, [1, 2, 3]))
    first = worker.link.ns()
    bk.destroy(locator, force=True)
    worker.link.fault(bk.Error(bk.Status.CLOSED), first)
    _, failed, _ = worker.step(loads=Transfer(HASHES, [7, 8, 9]))
    assert failed == {7, 8, 9}
    bk.create(locator, 128 << 20)
    for _ in range(100):
        if worker.link.ns() is not None:
            break
        time.sleep(0.1)
    _, _, report = worker.step(stores=stores(HASHES, [1, 2, 3]))
    assert report.stored == set(HASHES)


def test_a_cache_that_does_not_fit_is_refused_by_name(locator) -> None:
    worker = Worker(locator)
    shared = {**worker.caches, "layer.2": worker.caches["layer.1"]}
    with pytest.raises(NotImplementedError, match="layers that share one"):
        GpuPages(shared, LAYERS, BLOCKS, worker.layout, worker.device, lambda: 0)
    with pytest.raises(NotImplementedError, match=r"layer\.0, shape .* pages of 3 heads"):
        GpuPages(
            worker.caches, LAYERS, BLOCKS, layout_of(config(heads=3)), worker.device, lambda: 0
        )
    no_rows = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=object())])
    with pytest.raises(NotImplementedError, match="BowheadTier"):
        layout_of(no_rows)
