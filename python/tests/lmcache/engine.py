# SPDX-License-Identifier: Apache-2.0
"""A vLLM process for the tests: generates for some prompts and prints JSON.

Usage: engine.py MODEL PROMPTS [LMCACHE_PORT]

PROMPTS is a file of little-endian 16-bit token ids. The output's last line has, for each prompt,
the tokens and the number of prompt tokens that were not computed. Without a port vLLM runs without
LMCache.
"""

import json
import os
import sys
from array import array

PROMPTS = 3
PROMPT_TOKENS = 100
OUTPUT_TOKENS = 24
BLOCK_TOKENS = 32

if __name__ == "__main__":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"

    import llvmlite.binding.ffi
    from vllm import LLM, SamplingParams

    # vLLM's CPU platform reads the __dict__ of every module attribute that seems to have one.
    # llvmlite (which LMCache imports) answers with a wrapped function; let it answer with a dict.
    llvmlite.binding.ffi.lib._fntab["__dict__"] = {}

    model, prompts_path = sys.argv[1:3]
    tokens = array("H")
    with open(prompts_path, "rb") as file:
        tokens.frombytes(file.read(2 * PROMPTS * PROMPT_TOKENS))
    prompts = [
        {"prompt_token_ids": list(tokens[i * PROMPT_TOKENS : (i + 1) * PROMPT_TOKENS])}
        for i in range(PROMPTS)
    ]

    settings = {}
    if len(sys.argv) > 3:
        settings["kv_transfer_config"] = {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://127.0.0.1",
                "lmcache.mp.port": int(sys.argv[3]),
            },
        }
    llm = LLM(
        model=model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=BLOCK_TOKENS,
        max_model_len=512,
        **settings,
    )
    sampling = SamplingParams(
        temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True, detokenize=False
    )
    answers = [
        {"tokens": list(out.outputs[0].token_ids), "cached": out.num_cached_tokens}
        for out in llm.generate(prompts, sampling, use_tqdm=False)
    ]
    llm.llm_engine.engine_core.shutdown()
    print(json.dumps(answers), flush=True)
