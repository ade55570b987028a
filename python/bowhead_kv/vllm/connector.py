# SPDX-License-Identifier: Apache-2.0
"""BowheadConnector: vLLM's KV cache on a Bowhead pool, without a copy in between.

A value in the pool is one block of vLLM with all its layers, under vLLM's hash of the block and the
worker's rank. The scheduler looks up the longest prefix; the workers copy pages from and to the
pool before and after the forward pass.

A load that fails (evicted in the meantime, damaged, pool gone) is reported to vLLM, which computes
the tokens instead. Blocks that were computed behind a load are stored only when every worker has
reported that load as good, because a wrong page in one worker makes wrong pages in all of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress, groupby
from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash, resolve_kv_cache_block_sizes

import bowhead_kv as bk
from bowhead_kv.events import Publisher, block_metadata
from bowhead_kv.link import PoolLink
from bowhead_kv.vllm import _versions
from bowhead_kv.vllm._hints import NAMES as KEEP_SETTINGS
from bowhead_kv.vllm._hints import Hints, Keep, take_keep
from bowhead_kv.vllm._identity import Identity, identity
from bowhead_kv.vllm._pages import Pages
from bowhead_kv.vllm._pool import link_pool, log
from bowhead_kv.vllm._publisher import NAMES as EVENT_SETTINGS
from bowhead_kv.vllm._publisher import open_publisher, take_event_settings
from bowhead_kv.vllm._settings import check, check_names, pool_config
from bowhead_kv.vllm._values import loaded, stored

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.forward_context import ForwardContext
    from vllm.lora.request import LoRARequest
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

MEDIUM = "BOWHEAD"
"""The medium that the connector's KV cache events name."""

PLACE = "kv_connector_extra_config of BowheadConnector"
SETTINGS = ("locator", "host", "namespace", "model_id", *KEEP_SETTINGS, *EVENT_SETTINGS)


@dataclass
class Transfer:
    """Blocks to load, or to store: hashes and the ids of vLLM's blocks."""

    hashes: list[bytes] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)


@dataclass
class Stores(Transfer):
    """Blocks to store, and what to store with them."""

    user_metadata: list[bytes] = field(default_factory=list)
    keep: list[Keep] = field(default_factory=list)


@dataclass
class StepMetadata(KVConnectorMetadata):
    """What the workers do in one step."""

    step: int
    loads: Transfer
    stores: Stores


@dataclass
class StepReport(KVConnectorWorkerMetadata):
    """What the workers did since the last report. vLLM may ask for it before the stores of a step
    are done; these are then in the next report."""

    loaded_steps: set[int] = field(default_factory=set)
    """Steps whose loads are done."""
    failed: set[bytes] = field(default_factory=set)
    """Hashes whose load failed in some worker."""
    stored_steps: set[int] = field(default_factory=set)
    """Steps whose stores are done."""
    stored: set[bytes] = field(default_factory=set)
    """Hashes that every worker stored."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "StepReport":
        assert isinstance(other, StepReport)
        return StepReport(
            self.loaded_steps | other.loaded_steps,
            self.failed | other.failed,
            self.stored_steps | other.stored_steps,
            self.stored & other.stored,
        )


def check_config(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> None:
    """Raises ValueError for a configuration that the connector cannot serve."""
    parallel = vllm_config.parallel_config
    transfer = vllm_config.kv_transfer_config
    if transfer.kv_load_failure_policy != "recompute":
        raise ValueError(
            "BowheadConnector needs kv_load_failure_policy \"recompute\" in vLLM's "
            f"kv_transfer_config, not \"{transfer.kv_load_failure_policy}\": the pool may lose a "
            "block at any time, and vLLM must then compute it"
        )
    if len(kv_cache_config.kv_cache_groups) != 1:
        raise ValueError(
            "BowheadConnector serves models with one KV cache group, and this one has "
            f"{len(kv_cache_config.kv_cache_groups)}: vLLM cannot recover the failed load of a "
            "block otherwise. Use BowheadTier for this model"
        )
    if parallel.prefill_context_parallel_size > 1 or parallel.decode_context_parallel_size > 1:
        raise ValueError(
            "BowheadConnector does not support context parallelism; set "
            "prefill_context_parallel_size and decode_context_parallel_size to 1"
        )


def engine_identity(
    vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig", model_id: str | None
) -> Identity:
    """The namespace of an engine's blocks, the same in the scheduler and in every worker."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    architecture = model.hf_config.to_dict()
    # Neither determines a byte, and both differ between hosts that run the same model.
    for key in ("_name_or_path", "transformers_version"):
        architecture.pop(key, None)
    return identity(
        {
            "release": _versions.release(),
            "model": model_id or model.model,
            "revision": model.revision,
            "architecture": architecture,
            "quantization": str(model.quantization),
            "dtype": str(model.dtype),
            "cache_dtype": cache.cache_dtype,
            "block_tokens": kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size,
            "page": _versions.page_layout(
                cache, kv_cache_config.kv_cache_layout, model.dtype, model.get_head_size()
            ),
            "ranks": vllm_config.parallel_config.world_size,
            "pipeline": vllm_config.parallel_config.pipeline_parallel_size,
            "stages": envs.VLLM_PP_LAYER_PARTITION,
            "hash": cache.prefix_caching_hash_algo,
        }
    )


def rank_keys(hashes: Iterable[bytes], ranks: Iterable[int]) -> list[bytes]:
    """The keys of blocks, for each rank in turn."""
    suffixes = [rank.to_bytes(4, "big") for rank in ranks]
    return [block_hash + suffix for block_hash in hashes for suffix in suffixes]


class _Scheduler:
    """Decides what is loaded and stored. Every call is bounded: it reads the pool's index and
    waits for nothing."""

    def __init__(
        self,
        link: PoolLink,
        block_tokens: int,
        hash_tokens: int,
        ranks: int,
        keep: Keep = Keep(),
    ) -> None:
        self._link = link
        self._hints = Hints(keep, log)
        self._block_tokens = block_tokens
        self._hashes_per_block = block_tokens // hash_tokens
        self._ranks = range(ranks)
        self._step = 0
        self._requests: dict[str, Request] = {}
        self._next_store: dict[str, int] = {}
        """For each request, its first block that was not yet considered for storing."""
        self._keep: dict[str, Keep] = {}
        self._first_load: dict[str, int] = {}
        """For each request that was looked up, the first block that a load would fill."""
        self._loads = Transfer()
        self._unconfirmed: dict[int, set[int]] = {}
        """For each step, the ids of the blocks whose load the workers have not yet reported."""
        self._events: dict[int, dict[bytes, BlockStored]] | None = None
        """For each step that stores, the event of each hash; None if vLLM publishes no events."""
        self._ready_events: list[KVCacheEvent] = []

    def publish_events(self) -> None:
        """Collect events from now on."""
        self._events = {}

    def add(self, request: "Request") -> None:
        self._requests[request.request_id] = request
        self._next_store[request.request_id] = 0
        self._keep[request.request_id] = self._hints.of(_versions.kv_hints(request))

    def finish(self, request: "Request") -> None:
        self._requests.pop(request.request_id, None)
        self._next_store.pop(request.request_id, None)
        self._keep.pop(request.request_id, None)
        self._first_load.pop(request.request_id, None)

    def _hashes(self, request: "Request", first: int, end: int) -> list[bytes]:
        """The hashes of blocks first to end; a block's is that of the last tokens in it."""
        count = self._hashes_per_block
        return list(request.block_hashes[(first + 1) * count - 1 : end * count : count])

    def match(self, request: "Request", computed_tokens: int) -> int:
        """Tokens after the first computed_tokens that the pool has."""
        ns = self._link.ns()
        first = computed_tokens // self._block_tokens
        # vLLM has to compute at least one token to sample from.
        end = min(
            (request.num_tokens - 1) // self._block_tokens,
            len(request.block_hashes) // self._hashes_per_block,
        )
        if ns is None or end <= first:
            return 0
        try:
            found = ns.longest_prefix(rank_keys(self._hashes(request, first, end), self._ranks))
        except bk.Error as error:
            self._link.fault(error, ns)
            return 0
        self._first_load[request.request_id] = first
        return found // len(self._ranks) * self._block_tokens

    def load(self, request: "Request", block_ids: list[int], tokens: int) -> None:
        """Have the next step load tokens that match() found."""
        first = self._first_load[request.request_id]
        end = first + tokens // self._block_tokens
        self._loads.hashes += self._hashes(request, first, end)
        self._loads.block_ids += block_ids[first:end]

    def metadata(self, output: "SchedulerOutput") -> StepMetadata:
        self._step += 1
        loads, self._loads = self._loads, Transfer()
        if loads.block_ids:
            self._unconfirmed[self._step] = set(loads.block_ids)
        return StepMetadata(self._step, loads, self._stores(output))

    def _stores(self, output: "SchedulerOutput") -> Stores:
        stores = Stores()
        ns = self._link.ns()
        if ns is None:
            return stores
        in_doubt = set().union(*self._unconfirmed.values())
        for request_id, scheduled in output.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is None:
                continue
            first = self._next_store[request_id]
            end = min(
                (request.num_computed_tokens + scheduled) // self._block_tokens,
                len(request.block_hashes) // self._hashes_per_block,
            )
            if end <= first:
                continue
            block_ids = _versions.block_ids(output, request_id)
            if not in_doubt.isdisjoint(block_ids[:end]):
                continue
            self._next_store[request_id] = end
            hashes = self._hashes(request, first, end)
            try:
                present = ns.exists(rank_keys(hashes, self._ranks))
            except bk.Error as error:
                self._link.fault(error, ns)
                return stores
            for i, block_hash in enumerate(hashes):
                ranks = len(self._ranks)
                if not all(present[i * ranks : (i + 1) * ranks]):
                    stores.hashes.append(block_hash)
                    stores.block_ids.append(block_ids[first + i])
                    stores.keep.append(self._keep[request_id])
                    stores.user_metadata.append(self._describe(request, first + i, block_hash))
        return stores

    def _describe(self, request: "Request", block: int, block_hash: bytes) -> bytes:
        """The user metadata of a block that is stored; prepares its event too."""
        parent = self._hashes(request, block - 1, block)[0] if block else None
        start = block * self._block_tokens
        token_ids = list(request.all_token_ids[start : start + self._block_tokens])
        lora = request.lora_request
        if self._events is not None:
            self._prepare_event(block_hash, parent, token_ids, lora)
        return block_metadata(
            hash_bytes=len(block_hash),
            parent=parent,
            token_ids=token_ids,
            lora_name=lora.name if lora else None,
        )

    def _prepare_event(
        self,
        block_hash: bytes,
        parent: bytes | None,
        token_ids: list[int],
        lora: "LoRARequest | None",
    ) -> None:
        assert self._events is not None
        self._events.setdefault(self._step, {})[block_hash] = BlockStored(
            block_hashes=[maybe_convert_block_hash(block_hash)],
            parent_block_hash=None if parent is None else maybe_convert_block_hash(parent),
            token_ids=token_ids,
            block_size=self._block_tokens,
            lora_id=lora.adapter_id if lora else None,
            medium=MEDIUM,
            lora_name=lora.name if lora else None,
        )

    def report(self, report: StepReport) -> None:
        """Takes in what the workers did."""
        for step in report.loaded_steps:
            self._unconfirmed.pop(step, None)
        if report.failed:
            # vLLM computes these blocks and those behind them. They are stored again where they
            # are missing, by whichever request has them.
            self._next_store = dict.fromkeys(self._next_store, 0)
        if self._events is None:
            return
        for block_hash in report.failed:
            removed = [maybe_convert_block_hash(block_hash)]
            self._ready_events.append(BlockRemoved(block_hashes=removed, medium=MEDIUM))
        for step in report.stored_steps:
            events = self._events.pop(step, {})
            self._ready_events += [event for h, event in events.items() if h in report.stored]

    def take_events(self) -> "list[KVCacheEvent]":
        events, self._ready_events = self._ready_events, []
        return events


class _Worker:
    """Copies pages between vLLM's KV cache and the pool."""

    def __init__(self, link: PoolLink, rank: int) -> None:
        self._link = link
        self._rank = rank
        self._pages: Pages | None = None
        self._failed_blocks: set[int] = set()
        self._report: StepReport | None = None

    def register(self, pages: Pages) -> None:
        self._pages = pages

    def _next_report(self) -> StepReport:
        if self._report is None:
            self._report = StepReport()
        return self._report

    def _buffers(self, transfer: Transfer) -> list[list[Any]]:
        assert self._pages is not None, "vLLM loads or stores before register_kv_caches"
        return [self._pages.buffers(block_id) for block_id in transfer.block_ids]

    def load(self, step: int, transfer: Transfer) -> None:
        report = self._next_report()
        report.loaded_steps.add(step)
        good = self._get(transfer)
        for is_good, block_hash, block_id in zip(
            good, transfer.hashes, transfer.block_ids, strict=True
        ):
            if not is_good:
                report.failed.add(block_hash)
                self._failed_blocks.add(block_id)

    def _get(self, transfer: Transfer) -> list[bool]:
        """For each block, whether its pages now hold the value."""
        ns = self._link.ns()
        if ns is None:
            return [False] * len(transfer.hashes)
        keys = rank_keys(transfer.hashes, [self._rank])
        try:
            results = ns.get_batch(keys, self._buffers(transfer))
        except bk.Error as error:
            self._link.fault(error, ns)
            return [False] * len(keys)
        assert self._pages is not None
        return loaded(self._link, ns, keys, results, self._pages.block_bytes)

    def store(self, step: int, stores: Stores) -> None:
        report = self._next_report()
        report.stored_steps.add(step)
        ns = self._link.ns()
        if ns is None:
            return
        keys = rank_keys(stores.hashes, [self._rank])
        buffers = self._buffers(stores)
        # The blocks of requests with the same hints in one batch.
        for keep, group in groupby(range(len(keys)), key=stores.keep.__getitem__):
            part = list(group)
            batch = slice(part[0], part[-1] + 1)
            try:
                statuses = ns.put_batch(
                    keys[batch],
                    buffers[batch],
                    user_metadata=stores.user_metadata[batch],
                    attributes=keep.attributes(),
                )
            except bk.Error as error:
                self._link.fault(error, ns)
                return
            good = stored(self._link, ns, statuses)
            report.stored.update(compress(stores.hashes[batch], good))

    def take_failed_blocks(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_report(self) -> StepReport | None:
        report, self._report = self._report, None
        return report


class BowheadConnector(KVConnectorBase_V1):
    """vLLM's KV cache on a Bowhead pool.

    Settings in ``kv_connector_extra_config``, all optional: those of ``bowhead_kv.config``
    (``locator``, ``host``, ``namespace``), ``model_id``, the name under which the model's blocks
    are shared (default: the model's path or its name at Hugging Face), how blocks are kept
    (``ttl_s``, ``pin``, ``priority``), and events for routers (``events_endpoint``,
    ``events_topic``, ``events_replay_endpoint``).
    """

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def __init__(
        self,
        vllm_config: "VllmConfig",
        role: KVConnectorRole,
        kv_cache_config: "KVCacheConfig",
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        check_config(vllm_config, kv_cache_config)
        settings = dict(self._kv_transfer_config.kv_connector_extra_config or {})
        check_names(settings, SETTINGS, PLACE)
        model_id = settings.pop("model_id", None)
        check("model_id", model_id, model_id is None or isinstance(model_id, str), "a text")
        keep = take_keep(settings)
        events = take_event_settings(settings)
        config = pool_config(settings, PLACE)
        namespace = engine_identity(vllm_config, kv_cache_config, model_id)
        parallel = vllm_config.parallel_config
        self._publisher: Publisher | None = None
        if role == KVConnectorRole.WORKER:  # the process that stores and evicts
            self._publisher = open_publisher(
                events,
                medium=MEDIUM,
                rank=parallel.data_parallel_rank * parallel.world_size + parallel.rank,
                data_parallel_rank=parallel.data_parallel_rank,
                log=log,
            )
        self._link = link_pool(config, namespace, self._publisher)
        self._link.ns()  # opens the pool now, not when the first request waits for it
        self._scheduler: _Scheduler | None = None
        self._worker: _Worker | None = None
        if role == KVConnectorRole.WORKER:
            self._worker = _Worker(self._link, parallel.rank)
            return
        block_tokens = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        _, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
        self._scheduler = _Scheduler(
            self._link, block_tokens, hash_tokens, parallel.world_size, keep
        )
        vllm_events = vllm_config.kv_events_config
        if vllm_events is not None and vllm_events.enable_kv_cache_events:
            self._scheduler.publish_events()

    # Worker

    def register_kv_caches(self, kv_caches: "dict[str, torch.Tensor]") -> None:
        assert self._worker is not None
        layers = self._kv_cache_config.kv_cache_groups[0].layer_names
        self._worker.register(Pages(kv_caches, layers, self._kv_cache_config.num_blocks))

    def _step_metadata(self) -> StepMetadata:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepMetadata)
        return metadata

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        assert self._worker is not None
        metadata = self._step_metadata()
        if metadata.loads.hashes:
            self._worker.load(metadata.step, metadata.loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing: start_load_kv() has loaded all layers."""

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: "torch.Tensor",
        attn_metadata: "AttentionMetadata",
        **kwargs: Any,
    ) -> None:
        """Does nothing: wait_for_save() stores all layers of a block as one value."""

    def wait_for_save(self) -> None:
        assert self._worker is not None
        metadata = self._step_metadata()
        if metadata.stores.hashes:
            self._worker.store(metadata.step, metadata.stores)

    def get_block_ids_with_load_errors(self) -> set[int]:
        assert self._worker is not None
        return self._worker.take_failed_blocks()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        assert self._worker is not None
        return self._worker.take_report()

    def shutdown(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
        self._link.close()

    # Scheduler

    def on_new_request(self, request: "Request") -> None:
        assert self._scheduler is not None
        self._scheduler.add(request)

    def get_num_new_matched_tokens(
        self, request: "Request", num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        return self._scheduler.match(request, num_computed_tokens), False

    def update_state_after_alloc(
        self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int
    ) -> None:
        assert self._scheduler is not None
        if num_external_tokens:
            (block_ids,) = blocks.get_block_ids()
            self._scheduler.load(request, block_ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        assert self._scheduler is not None
        return self._scheduler.metadata(scheduler_output)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        assert self._scheduler is not None
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, StepReport):
            self._scheduler.report(report)

    def request_finished(
        self, request: "Request", block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        self._scheduler.finish(request)
        return False, None

    def take_events(self) -> "Iterable[KVCacheEvent]":
        assert self._scheduler is not None
        return self._scheduler.take_events()
