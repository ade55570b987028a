#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Serves a model with vLLM's OpenAI API on a pool.
#
#   bowhead pool create shm:kv --size 1G
#   examples/vllm/serve.sh MODEL [LOCATOR [vLLM's further arguments]]
#
# vLLM's answers say how many prompt tokens were cached (usage.prompt_tokens_details). Stop the
# server, start it again, ask the same: they come from the pool.
set -euo pipefail
model=${1:?usage: serve.sh MODEL [LOCATOR [ARGUMENT...]]}
locator=${2:-shm:kv}

exec python3 -m vllm.entrypoints.openai.api_server --model "$model" --block-size 32 \
  --enable-prompt-tokens-details --kv-transfer-config '{
    "kv_connector": "BowheadConnector",
    "kv_connector_module_path": "bowhead_kv.vllm.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"locator": "'"$locator"'"}
  }' "${@:3}"
