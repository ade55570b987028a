# SPDX-License-Identifier: Apache-2.0
"""All that depends on the version of vLLM; every other module is independent of it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.kv_offload.tiering.base import JobResult

SUPPORTED = ("0.30", "0.31", "0.32", "0.33")
"""The releases whose interfaces this package was written for and is tested with. Older ones do not
tell a connector which blocks a running request has."""


def release() -> str:
    """The release of the installed vLLM, such as 0.32."""
    import vllm

    return ".".join(vllm.__version__.split(".")[:2])


def check() -> None:
    """Raises ImportError if the installed vLLM is not supported."""
    import vllm

    if release() not in SUPPORTED:
        raise ImportError(
            f"bowhead_kv.vllm does not support vLLM {vllm.__version__}: its interfaces for "
            f"connectors change between releases. Install vLLM {', '.join(SUPPORTED[:-1])} or "
            f"{SUPPORTED[-1]}, or a version of bowhead_kv that names yours"
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


def kv_hints(asker: Any) -> Any:
    """The hints of a request. asker: vLLM's Request or ReqContext, which 0.30 gives no hints."""
    return getattr(asker, "kv_hints", None)


def tier_arguments(backpressure_detector: Any) -> dict[str, Any]:
    """Further arguments of SecondaryTierManager; 0.30 has no backpressure."""
    if backpressure_detector is None:
        return {}
    return {"backpressure_detector": backpressure_detector}


def job_result(*, transfer_bytes: int, **rest: Any) -> "JobResult":
    """What a tier reports of a job; 0.30 does not ask for the bytes."""
    from vllm.v1.kv_offload.tiering.base import JobResult

    if "transfer_bytes" in JobResult.__dataclass_fields__:
        rest["transfer_bytes"] = transfer_bytes
    return JobResult(**rest)
