#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install_test.sh BUILD_FOLDER: an installation works after the prefix was moved: a C program finds
# it by pkg-config and by find_package(), links and runs. The benchmarks are installed separately.
set -euo pipefail
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# tools/run builds only this target: it must reach every file that is built and installed.
reached=$(ninja -C "$build" -t graph bowhead_installed | sed -n 's/.*\[label="\([^"]*\)".*/\1/p')
missing=0
while read -r file; do
  file=${file#"$build"/}
  grep -qxF -e "$file" -e "$build/$file" <<<"$reached" ||
    { echo "bowhead_installed does not build $file"; missing=1; }
done < <(find "$build" -name cmake_install.cmake -exec grep -hoE "$build/[^\"]*" {} + |
  grep -E '/(lib)?bowhead(\.so)?$' | sort -u)
((missing == 0)) || exit 1
if grep -E '^bench/' <<<"$reached"; then
  echo "the command is built without the benchmarks, but the files above are built for it"
  exit 1
fi

cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/moved"

mkdir "$work/src"
cat >"$work/src/main.c" <<'END'
#include <bowhead/bowhead_gpu.h>
#include <stdio.h>
int main(void) {
  bh_gpu* gpu;
  bh_gpu_info info = {.struct_bytes = sizeof info};
  printf("%u %s\n", bh_abi_version(), bh_status_name(BH_NO_SPACE));
  if (bh_gpu_open_cpu(&gpu) != BH_OK || bh_gpu_get_info(gpu, &info) != BH_OK || !info.is_cpu)
    return 1;
  bh_gpu_close(gpu);
  return bh_abi_version() != BH_ABI_VERSION;
}
END
cat >"$work/src/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(bowhead 0.2 REQUIRED)
add_executable(user main.c)
target_link_libraries(user PRIVATE bowhead::bowhead)
END

# The command runs without the benchmarks, and with them when they are installed beside it.
bowhead=$work/moved/bin/bowhead
"$bowhead" --version
if PATH=/nowhere "$bowhead" bench --version; then
  echo "the benchmarks are installed with the command"
  exit 1
fi
cmake --install "$build" --prefix "$work/moved" --component bench >/dev/null
[[ $(PATH=/nowhere "$bowhead" bench --version) == "$("$bowhead" --version)" ]] ||
  { echo "bowhead bench does not run the bowhead-bench beside it"; exit 1; }

pc=$(find "$work/moved" -name bowhead.pc)
read -r -a flags < <(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --cflags --libs bowhead)
cc -std=c11 -Wall -Wextra -Werror "$work/src/main.c" "${flags[@]}" -o "$work/user"
LD_LIBRARY_PATH=$(dirname "$(find "$work/moved" -name libbowhead.so)") "$work/user"

cmake -S "$work/src" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/moved" >/dev/null
cmake --build "$work/build" >/dev/null
"$work/build/user"

if grep -rIl "$work/first" "$work/moved"; then
  echo "the files above hold the old prefix"
  exit 1
fi
