# SPDX-License-Identifier: Apache-2.0
"""The bytes of vLLM's blocks in CPU memory, as buffers that the pool can read and write."""

import numpy as np
import torch


def _rows(name: str, cache: torch.Tensor, blocks: int) -> np.ndarray:
    """A layer's cache as bytes, one row for each block, in the cache's own memory."""
    if cache.device.type != "cpu":
        raise NotImplementedError(
            f"the KV cache of layer {name} is on {cache.device}, and vLLM says that it computes on "
            "CPUs"
        )
    kernel_blocks, remainder = divmod(cache.shape[0], blocks)
    inner = zip(cache.shape[1:], cache.stride()[1:], strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in inner)
    if kernel_blocks > 1:
        extent += (kernel_blocks - 1) * cache.stride(0)
    elements = cache[0].numel() * kernel_blocks
    if remainder or extent != elements:
        raise NotImplementedError(
            f"the KV cache of layer {name}, shape {tuple(cache.shape)} and strides "
            f"{cache.stride()}, does not have each of its {blocks} blocks in one piece; choose "
            "another attention backend"
        )
    itemsize = cache.element_size()
    rows = torch.empty(0, dtype=torch.uint8).set_(
        cache.untyped_storage(),
        cache.storage_offset() * itemsize,
        (blocks, elements * itemsize),
        (cache.stride(0) * kernel_blocks * itemsize, 1),
    )
    return rows.numpy()


class Pages:
    """The KV cache of a worker: each block is a page in each layer."""

    def __init__(self, caches: dict[str, torch.Tensor], layers: list[str], blocks: int) -> None:
        """caches: for each layer, as vLLM registers them. layers: those to move, in the order of
        their pages in a value. blocks: number of blocks."""
        self._layers: list[np.ndarray] = []
        seen: set[int] = set()
        for name in layers:
            rows = _rows(name, caches[name], blocks)
            # Layers that share their cache have one copy of it.
            if rows.ctypes.data not in seen:
                seen.add(rows.ctypes.data)
                self._layers.append(rows)
        self.block_bytes = sum(rows.shape[1] for rows in self._layers)

    def buffers(self, block_id: int) -> list[np.ndarray]:
        """The pages of a block, one for each layer."""
        return [rows[block_id] for rows in self._layers]
