#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts LMCache's server with a Bowhead pool as its L2 storage, and stays in the foreground.
set -euo pipefail

usage() {
  cat <<END
Usage: server.sh LOCATOR [FAR]

LOCATOR   the pool, such as shm:kv; it must exist
FAR       the far tier, LMCache's specification of an L2 adapter, such as
            {"type": "resp", "host": "127.0.0.1", "port": 6379}
          What it delivers is put into the pool too.

Environment: PORT (default 5555) for vLLM, HTTP_PORT (default 8080) for /healthcheck, /status and
/metrics, CHUNK_TOKENS (default 32), L1_GB (default 1).
END
}
[[ $# == 1 || $# == 2 ]] || { usage >&2; exit 2; }

pool=$(printf '"locator": "%s", "threads": 2' "$1")
adapters=(--l2-adapter '{"type": "native_plugin", "module_path": "bowhead_kv.lmcache",
  "class_name": "BowheadConnector", "adapter_params": {'"$pool"'}}')
# LMCache asks the adapters in this order: the pool before the far tier.
[[ $# == 1 ]] || adapters+=(--l2-adapter '{"type": "plugin", "module_path": "bowhead_kv.lmcache",
  "class_name": "BowheadReadThrough", "adapter_params": {'"$pool"', "far": '"$2"'}}')

# engine_driven: vLLM copies its pages itself, as it must where there is no GPU.
exec lmcache server --host 127.0.0.1 --port "${PORT:-5555}" \
  --http-host 127.0.0.1 --http-port "${HTTP_PORT:-8080}" \
  --chunk-size "${CHUNK_TOKENS:-32}" --l1-size-gb "${L1_GB:-1}" --eviction-policy LRU \
  --supported-transfer-mode engine_driven "${adapters[@]}"
