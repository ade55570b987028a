# SPDX-License-Identifier: Apache-2.0
"""KV blocks between an engine's paged cache in GPU memory and a pool; docs/python.md is the guide.

::

    device = gpu.Device(0)
    memory = device.register_pool(pool)
    cache = gpu.Cache.of_tensors(layout, tensors)
    transfers = gpu.Transfers(pool, device, memory, cache)
    job = transfers.restore(ns, [gpu.Block(key, pages, first_token, tokens)])
    job.wait(1)
    print(job.results())
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from bowhead_kv import _native
from bowhead_kv._native import Device, Job, Memory, Transfers
from bowhead_kv._types import (
    Attributes,
    BlockResult,
    DeviceInfo,
    Layout,
    NumberFormat,
    Path,
    Staging,
    TransfersInfo,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "Block",
    "BlockResult",
    "Cache",
    "Device",
    "DeviceInfo",
    "Job",
    "Memory",
    "Part",
    "Path",
    "Staging",
    "Transfers",
    "TransfersInfo",
]

_ELEMENT_BYTES = {
    NumberFormat.BF16: 2,
    NumberFormat.FP16: 2,
    NumberFormat.FP8_E4M3: 1,
    NumberFormat.FP8_E5M2: 1,
    NumberFormat.INT8: 1,
    NumberFormat.FP32: 4,
}


class Block(NamedTuple):
    """Tokens of a sequence, and the key of their value."""

    key: Buffer
    pages: Sequence[int]
    """The block table of the sequence, from token 0 on. A table that blocks share is read once if
    it is the same object."""
    first_token: int
    """Of the block, in the sequence."""
    tokens: int
    user_metadata: bytes = b""
    """Of a spill: stored with the value, as by :meth:`Namespace.put`; not for a restore."""
    attributes: Attributes | None = None
    """Of a spill."""


class Part(NamedTuple):
    """K or V of one layer of a paged cache, in bytes."""

    address: int
    """Of the first row of page 0."""
    page_stride_bytes: int
    token_stride_bytes: int
    head_stride_bytes: int


@dataclass(frozen=True, kw_only=True)
class Cache:
    """An engine's paged cache: token t of a sequence is in page ``pages[t // page_tokens]`` of its
    block table."""

    layout: Layout
    """Of a block: that of its namespace."""
    page_tokens: int
    pages: int
    parts: Sequence[Part]
    """[layer][part], one after the other; the memory stays where it is."""
    tensors: Sequence[Any] = field(default=(), repr=False)
    """Kept alive with the cache."""

    @classmethod
    def of_tensors(cls, layout: Layout, tensors: Iterable[Any]) -> Cache:
        """A cache in tensors with DLPack, on any device: for each layer its K, then its V. The axes
        of each are page, token, head, channel: permute them so. Nothing is copied."""
        kept = list(tensors)
        parts: list[Part] = []
        shape: tuple[int, ...] | None = None
        for number, tensor in enumerate(kept):
            address, axes, strides, element_bytes, *_ = _native.describe_tensor(tensor)
            if len(axes) != 4:
                raise ValueError(
                    f"tensors[{number}] has {len(axes)} axes; the axes are page, token, head, "
                    "channel"
                )
            if shape is not None and axes != shape:
                raise ValueError(f"tensors[{number}] has the shape {axes}, and others {shape}")
            if axes[3] > 1 and strides[3] != element_bytes:
                raise ValueError(
                    f"the channels of tensors[{number}] are {strides[3]} bytes apart, and an "
                    f"element has {element_bytes}; they must be contiguous"
                )
            shape = axes
            parts.append(Part(address, strides[0], strides[1], strides[2]))
        if shape is None:
            raise ValueError("tensors is empty")
        _check_shape(layout, shape, element_bytes)
        return cls(layout=layout, page_tokens=shape[1], pages=shape[0], parts=parts, tensors=kept)


def _check_shape(layout: Layout, shape: tuple[int, ...], element_bytes: int) -> None:
    """Heads and rows of the tensors are those of the layout."""
    wanted_bytes = layout.key_channels * _ELEMENT_BYTES.get(NumberFormat(layout.number_format), 0)
    if shape[2] != layout.heads or shape[3] * element_bytes != wanted_bytes:
        raise ValueError(
            f"the tensors have {shape[2]} heads with rows of {shape[3] * element_bytes} bytes, and "
            f"the layout {layout.heads} heads with rows of {wanted_bytes}"
        )
