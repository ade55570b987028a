#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows that LMCache's cache survives a restart of its server: vLLM fills a pool through LMCache,
# the server is restarted, and another vLLM process is served from the pool.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

[[ $# == 2 ]] || { echo "Usage: restart.sh MODEL PROMPTS (see generate.py --help)" >&2; exit 2; }

locator=shm:bowhead-example-$$
log=$(mktemp)
export PORT=${PORT:-5555} HTTP_PORT=${HTTP_PORT:-8080}
python -c "import bowhead_kv; bowhead_kv.create('$locator', 256 << 20)"
server=
stop() {
  [[ -n $server ]] || return 0
  kill "$server" 2>/dev/null || true
  wait "$server" || true
  server=
}
clean() {
  stop
  python -c "import bowhead_kv; bowhead_kv.destroy('$locator')"
  rm -f "$log"
}
trap clean EXIT

for run in first second; do
  "$here/server.sh" "$locator" >"$log" 2>&1 &
  server=$!
  for _ in {1..90}; do
    kill -0 "$server" 2>/dev/null || { cat "$log" >&2; exit 1; }
    ! curl -sf "http://127.0.0.1:$HTTP_PORT/healthcheck" >/dev/null || break
    sleep 1
  done
  echo "$run engine:"
  python "$here/generate.py" "$@" --lmcache-port "$PORT" | tail -1
  sleep 2 # the server stores in the background
  stop
done
