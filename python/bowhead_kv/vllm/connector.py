# SPDX-License-Identifier: Apache-2.0
"""BowheadConnector: vLLM's KV cache on a Bowhead pool, without a copy in between.

A value in the pool is one block of vLLM with all its layers, under vLLM's hash of the block and the
worker's rank. The scheduler looks up the longest prefix; the workers move pages from and to the
pool: in CPU memory before and after the forward pass, in GPU memory layer by layer while it runs.

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
from bowhead_kv import gpu
from bowhead_kv.events import Publisher, block_metadata
from bowhead_kv.link import PoolLink
from bowhead_kv.vllm import _versions
from bowhead_kv.vllm._gpu import GpuPages, layout_of
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
SETTINGS = ("locator", "host", "namespace", "wipe", "model_id", *KEEP_SETTINGS, *EVENT_SETTINGS)


END_S = 10.0
"""The longest that a transfer may take behind a forward pass."""


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
    vllm_config: "VllmConfig",
    kv_cache_config: "KVCacheConfig",
    model_id: str | None,
    layout: bk.Layout | None,
) -> Identity:
    """The namespace of an engine's blocks, the same in the scheduler and in every worker. layout:
    of the values of a GPU."""
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
            )
            if layout is None
            else _versions.row_layout(vllm_config, layout.heads, layout.key_channels),
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
    """Copies pages between vLLM's KV cache in CPU memory and the pool."""

    def __init__(self, link: PoolLink, rank: int) -> None:
        self._link = link
        self._rank = rank
        self._pages: Pages | None = None
        self._failed_blocks: set[int] = set()
        self._report: StepReport | None = None

    def register(self, pages: Pages) -> None:
        self._pages = pages

    def begin(self, metadata: StepMetadata) -> None:
        """Before the forward pass."""
        if metadata.loads.hashes:
            self.load(metadata.step, metadata.loads)

    def wait_layer(self, name: str) -> None:
        """Before the attention of a layer: begin() has loaded all of them."""

    def layer_ready(self, name: str, metadata: StepMetadata) -> None:
        """Behind the attention of a layer: end() stores all of them."""

    def end(self, metadata: StepMetadata) -> None:
        """Behind the forward pass."""
        if metadata.stores.hashes:
            self.store(metadata.step, metadata.stores)

    def _next_report(self) -> StepReport:
        if self._report is None:
            self._report = StepReport()
        return self._report

    def _buffers(self, transfer: Transfer) -> list[list[Any]]:
        assert self._pages is not None, "vLLM loads or stores before register_kv_caches"
        return [self._pages.buffers(block_id) for block_id in transfer.block_ids]

    def load(self, step: int, transfer: Transfer) -> None:
        self._take_loaded(step, transfer, self._get(transfer))

    def _take_loaded(self, step: int, transfer: Transfer, good: list[bool]) -> None:
        report = self._next_report()
        report.loaded_steps.add(step)
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


class _GpuWorker(_Worker):
    """Moves pages between vLLM's KV cache in GPU memory and the pool, layer by layer while the
    forward pass runs. A step's load has ended when vLLM asks for its failures, and its store at the
    end of the step: vLLM may use their blocks otherwise then."""

    def __init__(self, link: PoolLink, rank: int, pages: GpuPages) -> None:
        super().__init__(link, rank)
        self._gpu_pages = pages
        self._load: tuple[StepMetadata, gpu.Job] | None = None
        self._load_is_void = False
        """A layer did not wait for the load: what was computed from it is wrong."""
        self._store: tuple[StepMetadata, gpu.Job] | None = None

    def begin(self, metadata: StepMetadata) -> None:
        loads = metadata.loads
        if not loads.hashes:
            return
        ns, job = self._link.ns(), None
        if ns is not None:
            keys = rank_keys(loads.hashes, [self._rank])
            try:
                job = self._gpu_pages.transfers(ns).restore(
                    ns,
                    list(map(self._gpu_pages.block, keys, loads.block_ids)),
                    after=self._gpu_pages.stream(),
                    urgent=True,
                    layers_at_once=1,
                )
            except bk.Error as error:
                self._link.fault(error, ns)
        if job is None:
            self._take_loaded(metadata.step, loads, [False] * len(loads.hashes))
            return
        self._load, self._load_is_void = (metadata, job), False

    def wait_layer(self, name: str) -> None:
        layer = self._gpu_pages.layer(name)
        if self._load is None or layer is None:
            return
        try:
            self._load[1].wait_layer(layer, self._gpu_pages.stream())
        except bk.Error as error:
            log.warning("layer %s does not wait for its load: %s", name, error)
            self._load_is_void = True

    def layer_ready(self, name: str, metadata: StepMetadata) -> None:
        layer = self._gpu_pages.layer(name)
        if layer is not None and metadata.stores.hashes:
            self._store_layer(metadata, layer)

    def _store_layer(self, metadata: StepMetadata, layer: int) -> None:
        """This layer and those before it are in the pages, once the stream is here."""
        if self._store is None or self._store[0] is not metadata:
            self._store = self._start_store(metadata)
        if self._store is None:
            return
        try:
            self._store[1].layer_ready(layer, self._gpu_pages.stream())
        except bk.Error as error:
            log.warning("layer %d is not stored: %s", layer, error)
            self._store[1].cancel()

    def _start_store(self, metadata: StepMetadata) -> tuple[StepMetadata, gpu.Job] | None:
        stores = metadata.stores
        ns = self._link.ns()
        if ns is None:
            return None
        keys = rank_keys(stores.hashes, [self._rank])
        attributes = [keep.attributes() for keep in stores.keep]
        blocks = map(
            self._gpu_pages.block, keys, stores.block_ids, stores.user_metadata, attributes
        )
        try:
            job = self._gpu_pages.transfers(ns).spill(ns, list(blocks), layers_at_once=1)
        except bk.Error as error:
            self._link.fault(error, ns)
            return None
        return metadata, job

    def end(self, metadata: StepMetadata) -> None:
        self._end_load()
        if not metadata.stores.hashes:
            return
        # vLLM may have had no attention in a layer, or no forward pass.
        self._store_layer(metadata, self._gpu_pages.last_layer)
        report = self._next_report()
        report.stored_steps.add(metadata.step)
        store, self._store = self._store, None
        ns = self._link.ns()
        if store is None or ns is None:
            return
        good = stored(self._link, ns, self._results(store[1]))
        report.stored.update(compress(metadata.stores.hashes, good))

    def take_failed_blocks(self) -> set[int]:
        self._end_load()
        return super().take_failed_blocks()

    def _end_load(self) -> None:
        load, self._load = self._load, None
        if load is None:
            return
        metadata, job = load
        statuses = self._results(job)
        good = [status is bk.Status.OK and not self._load_is_void for status in statuses]
        ns = self._link.ns()
        if ns is not None:
            # A value that is too short: a get succeeds and finds another length.
            results = [
                (bk.Status.OK, 0) if status is bk.Status.INVALID_ARGUMENT
                else (status, self._gpu_pages.block_bytes)
                for status in statuses
            ]
            keys = rank_keys(metadata.loads.hashes, [self._rank])
            loaded(self._link, ns, keys, results, self._gpu_pages.block_bytes)
        self._take_loaded(metadata.step, metadata.loads, good)

    def _results(self, job: gpu.Job) -> list[bk.Status]:
        """Of the blocks of a job, once it is done: its pages are in use until then."""
        if not job.wait(END_S):
            log.warning("a transfer has not ended after %g s; it is cancelled", END_S)
            job.cancel()
            while not job.wait(END_S):
                pass
        self._gpu_pages.forget_done_jobs()
        return [result.status for result in job.results()]


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

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """A graph of the whole model would neither wait for layers nor report them."""
        return not _versions.is_cpu()

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
        # Of the values in GPU memory; on a CPU, kernels pack pages in an order of their own.
        self._layout = None if _versions.is_cpu() else layout_of(kv_cache_config)
        namespace = engine_identity(vllm_config, kv_cache_config, model_id, self._layout)
        parallel = vllm_config.parallel_config
        self._rank = parallel.rank
        self._publisher: Publisher | None = None
        if role == KVConnectorRole.WORKER:  # the process that stores and evicts
            self._publisher = open_publisher(
                events,
                medium=MEDIUM,
                rank=parallel.data_parallel_rank * parallel.world_size + parallel.rank,
                data_parallel_rank=parallel.data_parallel_rank,
                log=log,
            )
        self._link = link_pool(config, namespace, self._publisher, self._layout)
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
        blocks = self._kv_cache_config.num_blocks
        if self._layout is None:
            self._worker.register(Pages(kv_caches, layers, blocks))
            return
        device = kv_caches[layers[0]].device
        pages = GpuPages(
            kv_caches, layers, blocks, self._layout, gpu.Device(device.index), _versions.stream
        )
        self._worker = _GpuWorker(self._link, self._rank, pages)

    def _step_metadata(self) -> StepMetadata:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepMetadata)
        return metadata

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        assert self._worker is not None
        self._worker.begin(self._step_metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        assert self._worker is not None
        self._worker.wait_layer(layer_name)

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: "torch.Tensor",
        attn_metadata: "AttentionMetadata",
        **kwargs: Any,
    ) -> None:
        assert self._worker is not None
        self._worker.layer_ready(layer_name, self._step_metadata())

    def wait_for_save(self) -> None:
        assert self._worker is not None
        self._worker.end(self._step_metadata())

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
