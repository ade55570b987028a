#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# neon_check.sh SOURCE...: builds a program for 64-bit Arm from the sources and runs it in an
# emulator.
set -eu

for tool in aarch64-linux-gnu-g++ qemu-aarch64-static; do
  if ! command -v "$tool" >/dev/null; then
    echo "skipped: $tool is not installed, so Neon is not tested"
    exit 77
  fi
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

aarch64-linux-gnu-g++ -std=c++20 -O1 -fno-strict-aliasing -static -DFMT_HEADER_ONLY \
  -I../.. -I../../include -o "$work/neon_check" "$@"
qemu-aarch64-static "$work/neon_check"
