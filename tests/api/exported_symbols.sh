#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# exported_symbols.sh LIBRARY HEADER...: the library exports exactly the functions that the headers
# declare; and it stays loaded, like its signal handler.
set -eu

library=$1
shift

if ! command -v nm >/dev/null; then
  echo "skipped: nm (binutils) is not installed"
  exit 77
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# "A" is the version node itself.
nm --dynamic --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' |
  sort -u >"$work/exported"
for header in "$@"; do
  grep -oE '\<bh_[a-z_]+\(' "$header" | tr -d '(' | sort -u >"$work/of_header"
  if [ "$(wc -l <"$work/of_header")" -lt 5 ]; then
    echo "fewer than 5 functions found in $header: this test no longer reads it"
    exit 1
  fi
  cat "$work/of_header" >>"$work/all"
done
sort -u "$work/all" >"$work/declared"

if ! diff -u "$work/declared" "$work/exported"; then
  echo "$library does not export what its headers declare (- declared, + exported)"
  exit 1
fi
if ! readelf --dynamic "$library" | grep -q NODELETE; then
  echo "$library can be unloaded under its signal handler: link it with -z nodelete"
  exit 1
fi
echo "$(wc -l <"$work/exported") symbols, all declared"
