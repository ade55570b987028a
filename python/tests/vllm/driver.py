# SPDX-License-Identifier: Apache-2.0
"""Drives BowheadConnector and BowheadTier as an engine does, without a model.

The KV cache of a made-up model: a page is a function of the tokens and of the page before it, so
that a wrong page, if it is ever used, makes all that follow wrong, in the pool as well. Every page
is compared with the right one.
"""

import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from bowhead_kv.vllm import _versions
from bowhead_kv.vllm.connector import BowheadConnector, rank_keys
from bowhead_kv.vllm.tier import BowheadTier
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingKVEventsConfig,
    ReqContext,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import TransferJob

BLOCK_TOKENS = 16
PAGE_BYTES = 4096
BLOCKS = 64
PROMPTS = 24
PROMPT_BLOCKS = 6
ROWS = 16
ROW_BYTES = 32 << 10
ROW_KEYS = 64


@cache
def prompt(number: int) -> tuple[int, ...]:
    """Token ids. Each prompt shares its first two blocks with those of the same remainder."""
    shared, own = random.Random(number % 6), random.Random(1000 + number)
    start = [shared.randrange(1000) for _ in range(2 * BLOCK_TOKENS)]
    return (*start, *(own.randrange(1000) for _ in range((PROMPT_BLOCKS - 2) * BLOCK_TOKENS + 1)))


@cache
def block_hashes(number: int) -> list[bytes]:
    tokens = prompt(number)
    ends = range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS)
    return [hashlib.sha256(repr(tokens[:end]).encode()).digest() for end in ends]


def compute(before: bytes, tokens: tuple[int, ...], layer: str) -> bytes:
    """A page, from the page before it."""
    text = before + repr((tokens, layer)).encode()
    return hashlib.shake_128(text).digest(PAGE_BYTES)


@cache
def right_page(number: int, block: int, layer: str) -> bytes:
    before = right_page(number, block - 1, layer) if block else b""
    start = block * BLOCK_TOKENS
    return compute(before, prompt(number)[start : start + BLOCK_TOKENS], layer)


def vllm_config(
    settings: dict[str, Any],
    *,
    rank: int = 0,
    tensor: int = 1,
    pipeline: int = 1,
    data_parallel_rank: int = 0,
) -> Any:
    """As much of vLLM's VllmConfig as the connector uses."""
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_load_failure_policy="recompute", kv_connector_extra_config=settings
        ),
        parallel_config=SimpleNamespace(
            rank=rank,
            world_size=tensor * pipeline,
            tensor_parallel_size=tensor,
            pipeline_parallel_size=pipeline,
            prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
            data_parallel_rank=data_parallel_rank,
        ),
        model_config=SimpleNamespace(
            model="made-up",
            revision=None,
            quantization=None,
            dtype=torch.float16,
            hf_config=SimpleNamespace(to_dict=lambda: {"hidden_size": 64}),
            get_head_size=lambda: 64,
        ),
        cache_config=SimpleNamespace(
            block_size=BLOCK_TOKENS,
            cache_dtype="auto",
            prefix_caching_hash_algo="sha256",
            prefix_match_unit=None,
        ),
        kv_events_config=SimpleNamespace(enable_kv_cache_events=True),
    )


def kv_cache_config(layers: list[str]) -> Any:
    """As much of vLLM's KVCacheConfig as the connector uses."""
    spec = SimpleNamespace(block_size=BLOCK_TOKENS, dcp_sharded=False)
    group = SimpleNamespace(kv_cache_spec=spec, layer_names=layers)
    return SimpleNamespace(kv_cache_groups=[group], kv_cache_layout=None, num_blocks=BLOCKS)


class Stopwatch:
    """Calls, and the longest time that each took."""

    def __init__(self) -> None:
        self.longest_s: dict[str, float] = {}

    def __call__(self, call: Callable[..., Any], *arguments: Any) -> Any:
        start_s = time.monotonic()
        try:
            return call(*arguments)
        finally:
            self.note(call.__name__, time.monotonic() - start_s)

    def note(self, name: str, seconds: float) -> None:
        self.longest_s[name] = max(seconds, self.longest_s.get(name, 0.0))


@dataclass
class _Step:
    """A step that is scheduled."""

    metadata: Any
    parts: list[tuple[Any, int, int]]
    """Requests, and the tokens that the step computes of each: first, end."""


class ConnectorDriver:
    """The scheduler and the workers of an engine, each with its connector. stages: the layers of
    each stage of pipeline parallelism."""

    def __init__(
        self,
        settings: dict[str, Any],
        *,
        stages: list[list[str]],
        tensor: int = 1,
        data_parallel_rank: int = 0,
        seed: int = 0,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.time = Stopwatch()
        self._random = random.Random(seed)
        self._number = 0
        self.layers = [layers for layers in stages for _ in range(tensor)]
        """Of each rank."""

        def connector(role: KVConnectorRole, rank: int) -> BowheadConnector:
            config = vllm_config(
                settings,
                rank=rank,
                tensor=tensor,
                pipeline=len(stages),
                data_parallel_rank=data_parallel_rank,
            )
            # The pages are in CPU memory, also with a vLLM that is built for no device.
            with patch.object(_versions, "is_cpu", return_value=True):
                return BowheadConnector(config, role, kv_cache_config(self.layers[rank]))

        self.scheduler = connector(KVConnectorRole.SCHEDULER, 0)
        self.workers = [
            connector(KVConnectorRole.WORKER, rank) for rank in range(len(self.layers))
        ]
        self.caches: list[dict[str, torch.Tensor]] = []
        for worker, layers in zip(self.workers, self.layers, strict=True):
            caches = {
                name: torch.randint(0, 256, (BLOCKS, PAGE_BYTES), dtype=torch.uint8)
                for name in layers
            }
            self.caches.append(caches)
            worker.register_kv_caches(caches)

    def page(self, rank: int, layer: str, block_id: int) -> np.ndarray:
        return self.caches[rank][layer][block_id].numpy()

    def _request(self, number: int, block_ids: list[int]) -> Any:
        self._number += 1
        return SimpleNamespace(
            request_id=f"request-{self._number}",
            number=number,
            all_token_ids=list(prompt(number)),
            num_tokens=len(prompt(number)),
            num_computed_tokens=0,
            loaded_tokens=None,
            block_hashes=block_hashes(number),
            lora_request=None,
            block_ids=block_ids,
        )

    def serve(self, numbers: list[int], chunk_blocks: int = 2) -> list[int]:
        """Serves the prompts at once, to the end, in two batches that are in flight at a time, as
        with pipeline parallelism; the number of tokens that each loaded."""
        free = self._random.sample(range(BLOCKS), BLOCKS)
        requests = []
        for number in numbers:
            ids = [free.pop() for _ in range(PROMPT_BLOCKS + 1)]
            requests.append(self._request(number, ids))
        batches = [requests[0::2], requests[1::2]]
        flights: list[_Step | None] = [None, None]
        while any(batches):
            for i in range(2):
                if flight := flights[i]:
                    self._complete(flight)
                    batches[i] = [
                        each for each in batches[i] if each.num_computed_tokens < each.num_tokens
                    ]
                flights[i] = self._schedule(batches[i], chunk_blocks) if batches[i] else None
        for request in requests:
            self.time(self.scheduler.request_finished, request, request.block_ids)
            for rank, layers in enumerate(self.layers):
                for layer in layers:
                    for block in range(PROMPT_BLOCKS):
                        self._compare(request, block, rank, layer, "served")
        return [request.loaded_tokens for request in requests]

    def _admit(self, request: Any) -> None:
        self.time(self.scheduler.on_new_request, request)
        tokens, is_async = self.time(self.scheduler.get_num_new_matched_tokens, request, 0)
        assert tokens % BLOCK_TOKENS == 0 and tokens < request.num_tokens and not is_async
        blocks = SimpleNamespace(get_block_ids=lambda: (request.block_ids,))
        self.time(self.scheduler.update_state_after_alloc, request, blocks, tokens)
        request.num_computed_tokens = request.loaded_tokens = tokens

    def _schedule(self, batch: list[Any], chunk_blocks: int) -> "_Step":
        by_id = {each.request_id: each for each in batch}
        parts = {}
        for name, each in by_id.items():
            if each.loaded_tokens is None:
                self._admit(each)
            start = each.num_computed_tokens
            parts[name] = (each, start, min(start + chunk_blocks * BLOCK_TOKENS, each.num_tokens))
        output = SimpleNamespace(
            num_scheduled_tokens={name: end - start for name, (_, start, end) in parts.items()},
            kv_connector_block_state=SimpleNamespace(
                resolve_block_ids=lambda name: (by_id[name].block_ids,)
            ),
        )
        metadata = self.time(self.scheduler.build_connector_meta, output)
        for each, _, end in parts.values():
            each.num_computed_tokens = end
        return _Step(metadata, list(parts.values()))

    def _complete(self, step: "_Step") -> None:
        """Executes a step, and tells the scheduler of it."""
        failed: set[int] = set()
        report = None
        for rank, worker in enumerate(self.workers):
            lost, own = self._execute(rank, worker, step)
            failed |= lost
            report = own if report is None else report.aggregate(own)
        for request, _, _ in step.parts:
            lost_blocks = [i for i, block in enumerate(request.block_ids) if block in failed]
            if lost_blocks:  # vLLM computes from there
                self.counts["recovered"] += 1
                request.num_computed_tokens = lost_blocks[0] * BLOCK_TOKENS
        self.time(
            self.scheduler.update_connector_output,
            SimpleNamespace(kv_connector_worker_meta=report),
        )
        list(self.time(self.scheduler.take_events))

    def _execute(self, rank: int, worker: BowheadConnector, step: "_Step") -> tuple[set[int], Any]:
        """What a worker does in a step: the blocks that it failed to load, and its report."""
        worker.bind_connector_metadata(step.metadata)
        self.time(worker.start_load_kv, None)
        failed = self.time(worker.get_block_ids_with_load_errors)
        good = set(step.metadata.loads.block_ids) - failed
        for request, start, end in step.parts:
            for block, block_id in enumerate(request.block_ids):
                for layer in self.layers[rank] if block_id in good else ():
                    self._compare(request, block, rank, layer, "loaded")
            for block in range(start // BLOCK_TOKENS, end // BLOCK_TOKENS):
                self._forward(rank, request, block)
        self.time(worker.wait_for_save)
        report = self.time(worker.build_connector_worker_meta)
        worker.clear_connector_metadata()
        return failed, report

    def _forward(self, rank: int, request: Any, block: int) -> None:
        """Computes a block from the one before it, right or wrong."""
        start = block * BLOCK_TOKENS
        tokens = prompt(request.number)[start : start + BLOCK_TOKENS]
        ids = request.block_ids
        for layer in self.layers[rank]:
            before = self.page(rank, layer, ids[block - 1]).tobytes() if block else b""
            page = compute(before, tokens, layer)
            self.page(rank, layer, ids[block])[:] = np.frombuffer(page, np.uint8)

    def _compare(self, request: Any, block: int, rank: int, layer: str, kind: str) -> None:
        self.counts[kind] += 1
        found = self.page(rank, layer, request.block_ids[block]).tobytes()
        if found != right_page(request.number, block, layer):
            self.counts["wrong"] += 1

    def keys(self) -> list[bytes]:
        """The keys that the engine may store."""
        hashes = {each for number in range(PROMPTS) for each in block_hashes(number)}
        return rank_keys(sorted(hashes), range(len(self.layers)))

    def close(self) -> None:
        for connector in (self.scheduler, *self.workers):
            self.time(connector.shutdown)


def offloading_spec(
    model: str = "model", *, events: bool = True, canonical: bool = False, **parallel: Any
) -> Any:
    """As much of vLLM's OffloadingSpec as the tier uses."""
    config = OffloadingConfig(
        groups=(OffloadingGroupConfig(32, ("layer.0", "layer.1"), 0),),
        worker_kv_bytes_per_block=ROW_BYTES,
        enable_kv_cache_events=events,
        extra_config={},
        engine_id="engine",
        model=OffloadingModelConfig(name=model, dtype="float16"),
        cache=OffloadingCacheConfig(tokens_per_hash=32, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(
            **{
                "rank": 0,
                "world_size": 1,
                "tp_size": 1,
                "pp_size": 1,
                "pcp_size": 1,
                "dcp_size": 1,
                "data_parallel_index": 0,
                "data_parallel_size": 1,
                "data_parallel_rank_local": None,
                "is_parallelism_agnostic": False,
                **parallel,
            }
        ),
        canonical_layout=canonical,
        kv_cache_layout="LBHNC",
    )
    return SimpleNamespace(
        config=config, kv_events_config=OffloadingKVEventsConfig(events, False)
    )


@cache
def row_key(number: int) -> Any:
    return make_offload_key(hashlib.sha256(b"row %d" % number).digest(), 0)


@cache
def right_row(number: int) -> np.ndarray:
    return np.frombuffer(hashlib.shake_128(b"row %d" % number).digest(ROW_BYTES), np.uint8)


class TierDriver:
    """A tiering manager with BowheadTier behind its primary tier."""

    def __init__(self, settings: dict[str, Any], *, seed: int = 0) -> None:
        self.counts: Counter[str] = Counter()
        self.time = Stopwatch()
        self._random = random.Random(seed)
        self._rows = np.zeros((ROWS, ROW_BYTES), np.uint8)
        self._number = 0
        self.tier = BowheadTier(
            offloading_spec(), memoryview(self._rows), "bowhead", enable_kv_events=True, **settings
        )

    def serve(self) -> None:
        """A request: what the pool has is loaded, the rest is stored."""
        self._number += 1
        request = ReqContext(req_id=f"request-{self._number}")
        numbers = self._random.sample(range(ROW_KEYS), ROWS)
        chunks = dict(zip(numbers, range(ROWS), strict=True))
        self.time(self.tier.on_new_request, request)
        hits = [
            number
            for number in numbers
            if self.time(self.tier.lookup, row_key(number), request) == LookupResult.HIT
        ]
        self._rows[:] = 0
        loaded = self._run(self.tier.submit_load, hits, chunks, request)
        for number in loaded:
            self.counts["loaded"] += 1
            if not (self._rows[chunks[number]] == right_row(number)).all():
                self.counts["wrong"] += 1
        if len(loaded) < len(hits):
            self.counts["recovered"] += 1
        computed = [number for number in numbers if number not in loaded]
        for number in computed:
            self._rows[chunks[number]] = right_row(number)
        self.counts["stored"] += len(self._run(self.tier.submit_store, computed, chunks, request))
        self.time(self.tier.touch, [row_key(number) for number in hits], request)
        list(self.time(self.tier.take_events))
        self.time(self.tier.on_request_finished, request)

    def _run(
        self,
        submit: Callable[[TransferJob], None],
        numbers: list[int],
        chunks: dict[int, int],
        request: ReqContext,
    ) -> list[int]:
        """Submits a job and polls until it has ended; those of the numbers that succeeded."""
        if not numbers:
            return []
        is_load = submit == self.tier.submit_load
        keys = {row_key(number): number for number in numbers}
        ids = np.array([chunks[number] for number in numbers])
        start_s = time.monotonic()
        self.time(submit, TransferJob(self._number, list(keys), ids, is_load, request))
        finished: list[Any] = []
        while not finished:
            finished = list(self.time(self.tier.get_finished_jobs))
            time.sleep(0.0005)
        self.time.note("a load" if is_load else "a store", time.monotonic() - start_s)
        (result,) = finished
        assert result.job_id == self._number
        if result.success:
            return numbers
        return [keys[key] for key in result.successful_keys or ()]

    def keys(self) -> list[bytes]:
        """The keys that the engine may store."""
        return [bytes(row_key(number)) for number in range(ROW_KEYS)]

    def close(self) -> None:
        self.time(self.tier.drain_jobs)
        self.time(self.tier.shutdown)
