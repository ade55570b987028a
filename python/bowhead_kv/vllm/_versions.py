# SPDX-License-Identifier: Apache-2.0
"""All that depends on the version of vLLM; every other module is independent of it."""

from typing import Any

SUPPORTED = ("0.32",)
"""The releases whose interfaces this package was written for and is tested with."""


def check() -> None:
    """Raises ImportError if the installed vLLM is not supported."""
    import vllm

    release = ".".join(vllm.__version__.split(".")[:2])
    if release not in SUPPORTED:
        raise ImportError(
            f"bowhead_kv.vllm does not support vLLM {vllm.__version__}: its interfaces for "
            f"connectors change between releases. Install vLLM {' or '.join(SUPPORTED)}, or a "
            "version of bowhead_kv that names yours"
        )


def is_cpu() -> bool:
    """Whether vLLM computes on CPUs: its KV cache is in their memory then."""
    from vllm.platforms import current_platform

    return current_platform.device_type == "cpu"


def stream() -> int:
    """The CUDA stream of the forward pass."""
    import torch

    return torch.cuda.current_stream().cuda_stream


def page_layout(cache: Any, kv_cache_layout: str | None, dtype: Any, head_size: int | None) -> str:
    """What determines the order of the bytes in a page of CPU memory, beyond its shape: attention
    kernels pack pages in an order that depends on the processor.

    cache: vLLM's CacheConfig. dtype: of the model, a torch.dtype."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    isa = _get_attn_isa(dtype, cache.block_size, head_size, cache.cache_dtype)
    return f"cpu {isa} {kv_cache_layout}"


def row_layout(config: Any, heads: int, channels: int) -> str:
    """What determines the order of the bytes in a row of GPU memory, beyond its length: how the
    attention backend has K and V in it.

    config: vLLM's VllmConfig."""
    from vllm.platforms import current_platform

    backend = getattr(getattr(config, "attention_config", None), "backend", None)
    kind = f"{current_platform.device_type} {current_platform.get_device_capability()}"
    return f"{kind} {backend} rows {heads} x {channels}"


def tier_page_layout(config: Any) -> str:
    """page_layout() for a tier. config: vLLM's OffloadingConfig."""
    from vllm.platforms import current_platform

    form = "canonical" if config.canonical_layout else "direct"
    return f"{current_platform.device_type} {form} {config.kv_cache_layout}"


def block_ids(scheduler_output: Any, request_id: str) -> list[int]:
    """The ids of all blocks of a request that is scheduled in this step."""
    (ids,) = scheduler_output.kv_connector_block_state.resolve_block_ids(request_id)
    return ids
