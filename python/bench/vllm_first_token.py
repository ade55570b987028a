#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to the first token of vLLM: a prompt computed, against one loaded from the pool.

    python/bench/vllm_first_token.py MODEL

Each prompt is measured twice in one run, computed first, then loaded, with vLLM's own cache emptied
in between. Both medians include all of vLLM; "connector" is the part of a request's time that is
spent in BowheadConnector.
"""

import argparse
import functools
import os
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any

BLOCK_TOKENS = 32
METHODS = (
    "on_new_request get_num_new_matched_tokens update_state_after_alloc build_connector_meta "
    "start_load_kv wait_for_save get_block_ids_with_load_errors build_connector_worker_meta "
    "update_connector_output request_finished take_events"
).split()


class Clock:
    """The time spent in some methods of a class, in seconds."""

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = {}

    def watch(self, cls: type, name: str) -> None:
        method: Callable[..., Any] = getattr(cls, name)

        @functools.wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start_s = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                passed_s = time.perf_counter() - start_s
                self.spent_s[name] = self.spent_s.get(name, 0.0) + passed_s

        setattr(cls, name, timed)

    def take(self) -> dict[str, float]:
        spent_s, self.spent_s = self.spent_s, {}
        return spent_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="its folder")
    parser.add_argument("--tokens", type=int, default=1000, help="of a prompt (%(default)s)")
    parser.add_argument("--prompts", type=int, default=20, help="(%(default)s)")
    arguments = parser.parse_args()

    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
    }
    import bowhead_kv as bk
    import numpy as np
    from bowhead_kv.vllm.connector import BowheadConnector
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    clock = Clock()
    for name in METHODS:
        clock.watch(BowheadConnector, name)
    locator = f"shm:bench-vllm-{uuid.uuid4().hex[:12]}"
    bk.create(locator, 1 << 30)
    try:
        llm = LLM(
            arguments.model,
            skip_tokenizer_init=True,
            enforce_eager=True,
            block_size=BLOCK_TOKENS,
            max_model_len=arguments.tokens + BLOCK_TOKENS,
            kv_transfer_config=KVTransferConfig(
                kv_connector="BowheadConnector",
                kv_connector_module_path="bowhead_kv.vllm.connector",
                kv_role="kv_both",
                kv_load_failure_policy="recompute",
                kv_connector_extra_config={"locator": locator},
            ),
        )
        sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
        random = np.random.default_rng(1)
        prompts = random.integers(0, 1000, (arguments.prompts + 1, arguments.tokens)).tolist()

        def first_token(prompt: list[int]) -> tuple[float, dict[str, float], int]:
            llm.reset_prefix_cache()
            clock.take()
            start_s = time.perf_counter()
            (output,) = llm.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)
            return time.perf_counter() - start_s, clock.take(), output.num_cached_tokens

        first_token(prompts[0])  # warms up
        first_token(prompts[0])
        computed = [first_token(prompt) for prompt in prompts[1:]]
        loaded = [first_token(prompt) for prompt in prompts[1:]]
        full = (arguments.tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        assert all(cached == 0 for _, _, cached in computed)
        assert all(cached == full for _, _, cached in loaded), "not all blocks were in the pool"
        report("computed, and stored", computed)
        report("loaded from the pool", loaded)
        ratio = statistics.median(t for t, _, _ in computed) / statistics.median(
            t for t, _, _ in loaded
        )
        with bk.Pool(locator) as pool:
            (found,) = pool.namespaces()
            block_bytes = found.value_bytes // found.blocks
        print(f"{ratio:.2f} times as fast; a block has {block_bytes:,} bytes")
    finally:
        bk.destroy(locator, force=True)


def report(name: str, runs: list[tuple[float, dict[str, float], int]]) -> None:
    total_ms = statistics.median(t for t, _, _ in runs) * 1e3
    ours_ms = statistics.median(sum(spent.values()) for _, spent, _ in runs) * 1e3
    print(
        f"{name}: {total_ms:.2f} ms to the first token, median of {len(runs)}; in the connector "
        f"{ours_ms:.2f} ms, {100 * ours_ms / total_ms:.1f} %"
    )
    parts = {
        method: statistics.median(spent.get(method, 0.0) for _, spent, _ in runs) * 1e3
        for method in METHODS
    }
    for method, part_ms in sorted(parts.items(), key=lambda item: -item[1])[:3]:
        print(f"  {method} {part_ms:.3f} ms")


if __name__ == "__main__":
    main()
