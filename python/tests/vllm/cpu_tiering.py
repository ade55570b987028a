# SPDX-License-Identifier: Apache-2.0
"""vLLM's tiered offloading on a CPU, for tests of BowheadTier under a real engine.

vLLM's own worker copies between a GPU and the primary tier, and refuses a CPU. The one here copies
between the KV cache in CPU memory and the primary tier; all else is vLLM's.
"""

from typing import Any

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CpuWorker(OffloadingWorker):
    def __init__(self, caches: Any, region: SharedOffloadRegion) -> None:
        self._region = region
        self._pairs = []
        """For each layer: its pages in the KV cache, and in the primary tier."""
        for cache in caches.tensors:
            pages = cache.tensor
            self._pairs.append((pages, region.create_next_worker_view(pages.shape[1])))
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        for block, chunk in zip(src_spec.block_ids, dst_spec.block_ids, strict=True):
            for pages, rows in self._pairs:
                rows[chunk] = pages[block]
        self._finished.append(TransferResult(job_id, True))
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        for chunk, block in zip(src_spec.block_ids, dst_spec.block_ids, strict=True):
            for pages, rows in self._pairs:
                pages[block] = rows[chunk]
        self._finished.append(TransferResult(job_id, True))
        return True

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Every job has ended when it was submitted."""

    def shutdown(self) -> None:
        self._region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        region = SharedOffloadRegion(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return CpuWorker(kv_caches, region)
