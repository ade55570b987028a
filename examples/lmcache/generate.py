# SPDX-License-Identifier: Apache-2.0
"""Generates with vLLM, with or without LMCache, and prints a line of JSON.

The line has an object for each of three prompts: the generated tokens, and how many tokens of the
prompt were cached instead of computed. The settings suit a machine without a GPU.
"""

import argparse
import json
import os
from array import array

PROMPTS = 3
PROMPT_TOKENS = 100
OUTPUT_TOKENS = 24
BLOCK_TOKENS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("prompts", help="file of 16-bit little-endian token ids, at least 300")
    parser.add_argument("--lmcache-port", type=int, help="of LMCache's server; without: no LMCache")
    arguments = parser.parse_args()

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

    import llvmlite.binding.ffi
    from vllm import LLM, SamplingParams

    # vLLM 0.32 on a CPU reads the __dict__ of every module attribute that seems to have one.
    # llvmlite, which LMCache imports, answers with a wrapped function; let it answer with a dict.
    llvmlite.binding.ffi.lib._fntab["__dict__"] = {}

    tokens = array("H")
    with open(arguments.prompts, "rb") as file:
        tokens.frombytes(file.read(2 * PROMPTS * PROMPT_TOKENS))
    prompts = [
        {"prompt_token_ids": list(tokens[i * PROMPT_TOKENS : (i + 1) * PROMPT_TOKENS])}
        for i in range(PROMPTS)
    ]
    settings = {}
    if arguments.lmcache_port is not None:
        settings["kv_transfer_config"] = {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://127.0.0.1",
                "lmcache.mp.port": arguments.lmcache_port,
            },
        }
    llm = LLM(
        model=arguments.model,
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
        {"tokens": list(answer.outputs[0].token_ids), "cached": answer.num_cached_tokens}
        for answer in llm.generate(prompts, sampling, use_tqdm=False)
    ]
    llm.llm_engine.engine_core.shutdown()
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
