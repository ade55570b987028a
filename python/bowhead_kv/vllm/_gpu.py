# SPDX-License-Identifier: Apache-2.0
"""A worker's KV cache in GPU memory: what of it a block is, and transfers to and from a pool."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import bowhead_kv as bk
from bowhead_kv import _native, gpu
from bowhead_kv._types import NumberFormat

_FORMATS = {
    "torch.bfloat16": (NumberFormat.BF16, 2),
    "torch.float16": (NumberFormat.FP16, 2),
    "torch.float32": (NumberFormat.FP32, 4),
}


def layout_of(kv_cache_config: Any) -> bk.Layout:
    """The layout of a value: layer after layer, all heads of a token, then the next token. A row is
    what vLLM keeps of a token in a head, K and V; where the rows lie in GPU memory does not
    matter. Raises NotImplementedError for a cache without such rows."""
    (group,) = kv_cache_config.kv_cache_groups
    spec = group.kv_cache_spec
    content_bytes = getattr(spec, "state_content_size_bytes", None)
    if content_bytes is None or not hasattr(spec, "num_heads"):
        raise NotImplementedError(
            f"BowheadConnector cannot move a KV cache of {type(spec).__name__} in GPU memory: it "
            "needs the same heads in all layers. Use BowheadTier for this model"
        )
    number_format, element_bytes = _FORMATS.get(str(spec.dtype), (NumberFormat.INT8, 1))
    return bk.Layout(
        number_format=number_format,
        order=bk.Order.TOKENS_FIRST,
        parts=1,
        layers=len(group.layer_names),
        heads=spec.num_heads,
        key_channels=content_bytes // element_bytes,
        block_tokens=spec.block_size,
    )


class GpuPages:
    """The KV cache of a worker: each block is some pages in each layer."""

    def __init__(
        self,
        caches: Mapping[str, Any],
        layers: Sequence[str],
        blocks: int,
        layout: bk.Layout,
        device: gpu.Device,
        stream: Callable[[], int],
    ) -> None:
        """caches: for each layer a tensor whose axes are page, head, token, content, as vLLM
        registers it. blocks: number of blocks. stream: returns the stream of the forward pass."""
        self._layers = {name: number for number, name in enumerate(layers)}
        self._layout = layout
        self._device = device
        self.stream = stream
        parts, pages, page_tokens = [], 0, 0
        for name in layers:
            part, pages, page_tokens = self._part(name, caches[name])
            parts.append(part)
        if len(set(parts)) != layout.layers:
            raise NotImplementedError(
                f"{layout.layers} layers have {len(set(parts))} KV caches: layers that share one "
                "cannot be moved in GPU memory. Use BowheadTier for this model"
            )
        self._pages_in_block, self._tokens = pages // blocks, pages // blocks * page_tokens
        self.cache = gpu.Cache(
            layout=layout, page_tokens=page_tokens, pages=pages, parts=parts,
            tensors=[caches[name] for name in layers],
        )
        self.block_bytes = (
            layout.layers * layout.heads * self._tokens * layout.key_channels
            * _element_bytes(layout)
        )
        self._transfers: gpu.Transfers | None = None
        self._pool: bk.Pool | None = None

    def _part(self, name: str, cache: Any) -> tuple[gpu.Part, int, int]:
        """Where a layer's rows are, its number of pages, and the tokens in a page."""
        address, shape, strides, element_bytes, *_ = _native.describe_tensor(cache)
        row_bytes = self._layout.key_channels * _element_bytes(self._layout)
        if (
            len(shape) != 4
            or shape[1] != self._layout.heads
            or shape[3] * element_bytes != row_bytes
            or strides[3] != element_bytes
        ):
            raise NotImplementedError(
                f"the KV cache of layer {name}, shape {shape} and strides of {strides} bytes, does "
                f"not have pages of {self._layout.heads} heads with rows of {row_bytes} bytes; "
                "choose another attention backend"
            )
        return gpu.Part(address, strides[0], strides[2], strides[1]), shape[0], shape[2]

    def layer(self, name: str) -> int | None:
        """The number of a layer; None: it is not moved."""
        return self._layers.get(name)

    @property
    def last_layer(self) -> int:
        return len(self._layers) - 1

    def block(
        self, key: bytes, block_id: int, user_metadata: bytes = b"",
        attributes: bk.Attributes | None = None,
    ) -> gpu.Block:
        first = block_id * self._pages_in_block
        table = range(first, first + self._pages_in_block)
        return gpu.Block(key, table, 0, self._tokens, user_metadata, attributes)

    def transfers(self, ns: bk.Namespace) -> gpu.Transfers:
        """Transfers of the namespace's pool, which may be another one than before."""
        if self._transfers is None or self._transfers.closed or self._pool is not ns.pool:
            memory = self._device.register_pool(ns.pool)
            memory.register_rest()
            self._transfers = gpu.Transfers(ns.pool, self._device, memory, self.cache)
            self._pool = ns.pool
        return self._transfers

    def forget_done_jobs(self) -> None:
        """Transfers keep a job until it was reported."""
        if self._transfers is not None and not self._transfers.closed:
            self._transfers.poll()


def _element_bytes(layout: bk.Layout) -> int:
    sizes = {int(number_format): size for number_format, size in _FORMATS.values()}
    return sizes.get(layout.number_format, 1)
