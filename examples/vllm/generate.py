#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generates tokens with vLLM on a pool, and says how many prompt tokens came from it.

    bowhead pool create shm:kv --size 1G
    examples/vllm/generate.py MODEL
    examples/vllm/generate.py MODEL

The second engine computes only what the pool cannot have: the last tokens of each prompt.
"""

import argparse
import os

BLOCK_TOKENS = 32
PROMPT_TOKENS = 10 * BLOCK_TOKENS + 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="its name at Hugging Face, or its folder")
    parser.add_argument("--locator", default="shm:kv", help="of the pool (default: %(default)s)")
    arguments = parser.parse_args()

    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process is enough here
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    llm = LLM(
        arguments.model,
        skip_tokenizer_init=True,  # the prompts below are token ids
        enforce_eager=True,
        block_size=BLOCK_TOKENS,
        max_model_len=1024,
        kv_transfer_config=KVTransferConfig(
            kv_connector="BowheadConnector",
            kv_connector_module_path="bowhead_kv.vllm.connector",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"locator": arguments.locator},
        ),
    )
    prompts = [
        {"prompt_token_ids": [(start + 7 * i) % 1000 for i in range(PROMPT_TOKENS)]}
        for start in (1, 2, 3)
    ]
    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False)
    for output in llm.generate(prompts, sampling, use_tqdm=False):
        cached, length = output.num_cached_tokens, len(output.prompt_token_ids)
        print(f"{cached} of {length} prompt tokens cached, then {output.outputs[0].token_ids}")


if __name__ == "__main__":
    main()
