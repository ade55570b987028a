# SPDX-License-Identifier: Apache-2.0
"""BowheadTier: a Bowhead pool behind vLLM's CPU tier (TieringOffloadingSpec).

A value in the pool is one row of the primary tier under vLLM's offload key. Rows are copied by the
threads of a queue of the pool; vLLM's scheduler thread only submits and polls. A load that fails is
reported with the keys that did arrive, and vLLM computes the others.
"""

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from vllm import envs
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    get_offload_block_hash,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

import bowhead_kv as bk
from bowhead_kv.events import block_metadata
from bowhead_kv.vllm import _versions
from bowhead_kv.vllm._hints import NAMES as KEEP_SETTINGS
from bowhead_kv.vllm._hints import Hints, Keep, take_keep
from bowhead_kv.vllm._identity import Identity, identity
from bowhead_kv.vllm._pool import link_pool, log
from bowhead_kv.vllm._publisher import NAMES as EVENT_SETTINGS
from bowhead_kv.vllm._publisher import open_publisher, take_event_settings
from bowhead_kv.vllm._settings import OF_THE_POOL, check, check_names, pool_config
from bowhead_kv.vllm._values import loaded, stored

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingSpec
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector

PLACE = "the entry of BowheadTier in secondary_tiers"
OWN_SETTINGS = ("model_id", "jobs_max", "enable_kv_events", "locality")
SETTINGS = (*OF_THE_POOL, *OWN_SETTINGS, *KEEP_SETTINGS, *EVENT_SETTINGS)

JOBS_MOST = 1 << 20
"""Of a queue of the pool."""

LOAD_PRIORITY = 1
"""Above that of stores, 0: a request waits for a load, and nothing waits for a store."""


def tier_identity(spec: "OffloadingSpec", row_bytes: int, model_id: str | None) -> Identity:
    """The namespace of an engine's rows."""
    config = spec.config
    parallel = config.parallel
    fields: dict[str, Any] = {
        "release": _versions.release(),
        "model": model_id or config.model.name,
        "dtype": config.model.dtype,
        "hash_tokens": config.cache.tokens_per_hash,
        "chunk_blocks": config.cache.blocks_per_chunk,
        "groups": [[group.tokens_per_block, *group.layer_names] for group in config.groups],
        "page": _versions.tier_page_layout(config),
        "row_bytes": row_bytes,
    }
    # A row of copies that are all the same is one copy; vLLM's canonical page has all heads.
    is_portable = config.replicated_layout or (
        config.canonical_layout and parallel.is_parallelism_agnostic
    )
    if not is_portable:
        fields["ranks"] = parallel.world_size
        fields["parallel"] = [
            parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size, parallel.rank
        ]
        fields["stages"] = envs.VLLM_PP_LAYER_PARTITION
    return identity(fields)


@dataclass
class _Job:
    """A job of vLLM's that is under way in the queue."""

    job: TransferJob
    keys: list[OffloadKey]
    is_load: bool
    start_s: float


class BowheadTier(SecondaryTierManager):
    """A Bowhead pool as a secondary tier.

    Settings of the tier in ``secondary_tiers``, all optional: those of ``bowhead_kv.config``
    (``locator``, ``host``, ``namespace``, ``threads``), how rows are kept (``ttl_s``, ``pin``,
    ``priority``), events for routers (``events_endpoint``, ``events_topic``,
    ``events_replay_endpoint``), and the arguments of the constructor.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: "OffloadingSpec",
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: "BackpressureDetector | None" = None,
        *,
        model_id: str | None = None,
        jobs_max: int = 1024,
        enable_kv_events: bool = False,
        locality: str | None = None,
        **settings: Any,
    ) -> None:
        """model_id: the name under which the model's blocks are shared (default: the model's
        path or its name at Hugging Face). jobs_max: jobs that may be under way; more fail at
        once. enable_kv_events: report stored blocks, where vLLM publishes events. locality: LOCAL
        or REMOTE, for such events and filters of tiers."""
        further = _versions.tier_arguments(backpressure_detector)
        super().__init__(offloading_spec, primary_kv_view, tier_type, **further)
        check_names(settings, SETTINGS, PLACE)
        check("model_id", model_id, model_id is None or isinstance(model_id, str), "a text")
        good_jobs = type(jobs_max) is int and 1 <= jobs_max <= JOBS_MOST
        check("jobs_max", jobs_max, good_jobs, f"a number from 1 to {JOBS_MOST:,}")
        is_flag = isinstance(enable_kv_events, bool)
        check("enable_kv_events", enable_kv_events, is_flag, "true or false")
        places = [place.value for place in Locality]
        check("locality", locality, locality in (None, *places), f"a Locality: {', '.join(places)}")
        self.locality = Locality(locality) if locality is not None else None
        self._rows = np.asarray(primary_kv_view)
        self._jobs_max = jobs_max
        self._row_bytes = row_bytes = self._rows[0].nbytes
        self._hints = Hints(take_keep(settings), log)
        events = take_event_settings(settings)
        self._config = config = pool_config(settings, PLACE)
        namespace = tier_identity(offloading_spec, row_bytes, model_id)
        replica = offloading_spec.config.parallel.data_parallel_index
        self._publisher = open_publisher(
            events, medium=self.medium.value, rank=replica, data_parallel_rank=replica, log=log
        )
        self._link = link_pool(config, namespace, self._publisher)
        self._queue: bk.Queue | None = None
        self._queue_ns: bk.Namespace | None = None
        self._jobs: dict[int, _Job] = {}
        self._finished: list[JobResult] = []
        self._failed: dict[str, set[OffloadKey]] = {}
        """For each running request, the keys that it failed to load: misses, so that it cannot
        try for ever."""
        self._events: list[OffloadingEvent] | None = None
        if enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events:
            self._events = []

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        self._failed[req_context.req_id] = set()
        req_context.set_state(self._hints.of(_versions.kv_hints(req_context)))
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._failed.pop(req_context.req_id, None)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        ns = self._link.ns()
        if ns is None or key in self._failed.get(req_context.req_id, ()):
            return LookupResult.MISS
        try:
            return LookupResult.HIT if ns.exists([key])[0] else LookupResult.MISS
        except bk.Error as error:
            self._fault(error, ns)
            return LookupResult.MISS

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        ns = self._link.ns()
        if ns is None:
            return
        try:
            ns.touch(list(keys))
        except bk.Error as error:
            self._fault(error, ns)

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, is_load=False)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, is_load=True)

    def _submit(self, job: TransferJob, *, is_load: bool) -> None:
        keys = list(job.keys)
        entry = _Job(job, keys, is_load, time.monotonic())
        ns = self._link.ns()
        if ns is None or not keys:
            self._finish(entry, [])
            return
        rows = [self._rows[chunk] for chunk in job.chunk_ids]
        try:
            queue = self._open_queue(ns)
            if is_load:
                number = queue.submit_get(ns, keys, rows, priority=LOAD_PRIORITY)
            else:
                keep = job.req_context.get_state(Keep) or self._hints.default
                number = queue.submit_put(
                    ns,
                    keys,
                    rows,
                    user_metadata=[self._describe(key) for key in keys],
                    attributes=keep.attributes(),
                )
        except bk.Error as error:
            self._finish(entry, [])
            self._fault(error, ns)
            return
        self._jobs[number] = entry

    def _describe(self, key: OffloadKey) -> bytes:
        """The user metadata of a row. vLLM does not tell a tier the tokens."""
        return block_metadata(
            hash_bytes=len(get_offload_block_hash(key)), group=get_offload_group_idx(key)
        )

    def _open_queue(self, ns: bk.Namespace) -> bk.Queue:
        if self._queue is None or self._queue_ns is not ns:
            self._forget_queue()
            self._queue = ns.pool.queue(threads=self._config.threads, jobs_max=self._jobs_max)
            self._queue_ns = ns
        return self._queue

    def _forget_queue(self) -> None:
        """Fails the jobs of a queue that is closed."""
        self._queue = self._queue_ns = None
        jobs, self._jobs = self._jobs, {}
        for entry in jobs.values():
            self._finish(entry, [])

    def _fault(self, error: bk.Error, ns: bk.Namespace) -> None:
        if self._link.fault(error, ns):
            self._forget_queue()  # closed with its pool

    def _finish(self, entry: _Job, good: list[OffloadKey]) -> None:
        success = len(good) == len(entry.keys)
        if entry.is_load and not success:
            failed = self._failed.get(entry.job.req_context.req_id)
            if failed is not None:  # the request has not finished meanwhile
                failed.update(set(entry.keys).difference(good))
        if good and not entry.is_load and self._events is not None:
            self._events.append(OffloadingEvent(good, self.medium, False, self.locality))
        self._finished.append(
            _versions.job_result(
                job_id=entry.job.job_id,
                success=success,
                successful_keys=tuple(good) if entry.is_load and good and not success else None,
                transfer_time=time.monotonic() - entry.start_s,
                transfer_bytes=len(good) * self._row_bytes,
            )
        )

    def get_finished_jobs(self) -> Iterable[JobResult]:
        while self._queue is not None:
            ns = self._queue_ns
            assert ns is not None
            try:
                completions = self._queue.poll()
            except bk.Error:
                self._forget_queue()  # the link closed its pool
                break
            if not completions:
                break
            for completion in completions:
                self._complete(completion, ns)
        finished, self._finished = self._finished, []
        return finished

    def _complete(self, completion: bk.Completion, ns: bk.Namespace) -> None:
        entry = self._jobs.pop(completion.job)
        if entry.is_load:
            results = zip(completion.statuses, completion.lengths, strict=True)
            good = loaded(self._link, ns, entry.keys, results, self._row_bytes)
        else:
            good = stored(self._link, ns, completion.statuses)
        self._finish(entry, list(compress(entry.keys, good)))

    def take_events(self) -> Iterable[OffloadingEvent]:
        if not self._events:
            return ()
        events, self._events = self._events, []
        return events

    def drain_jobs(self) -> None:
        while self._queue is not None and not self._queue.drain(60):
            log.warning("still waiting for %d jobs of the pool's queue", len(self._jobs))

    def shutdown(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
        self._link.close()  # and with it the queue
        self._forget_queue()
