# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Shared by tools/run and tools/test: install missing packages, configure, build. To be sourced from
# the root of the repository; does nothing by itself.

say() { printf '== %s\n' "$*"; }

# Packages of tools/packages.txt that are not installed.
missing_packages() {
  local name
  while read -r name; do
    [[ -z $name || $name == '#'* ]] && continue
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null) == installed ]] || echo "$name"
  done <tools/packages.txt
}

apt_install() {
  "$@" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    -o DPkg::Lock::Timeout=300 "${missing[@]}" </dev/null
}

# Installs missing packages; without the right to, prints the command and returns 3.
install_missing() {
  local missing as_root=()
  if ! command -v dpkg-query >/dev/null; then
    say "not Debian: packages are not checked; tools/packages.txt lists them"
    return 0
  fi
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    if sudo -n true 2>/dev/null; then
      as_root=(sudo)
    else
      echo "Packages are missing. Install them, then run this again:" >&2
      echo "  sudo apt-get update && sudo apt-get install -y ${missing[*]}" >&2
      return 3
    fi
  fi
  say "installing ${missing[*]}"
  # The lists of a fresh system are empty, those of an old one stale: update only then.
  if ! apt_install "${as_root[@]}" >/dev/null 2>&1; then
    "${as_root[@]}" apt-get update </dev/null || true
    apt_install "${as_root[@]}" || {
      echo "apt-get could not install: ${missing[*]}" >&2
      return 3
    }
  fi
}

# For this build and for that of the Python package: files that both compile are compiled once.
use_ccache() {
  command -v ccache >/dev/null || return 0
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_NOHASHDIR=1
  # Without a home it would end every compilation.
  [[ -w ${HOME:-} ]] || export CCACHE_DIR=${CCACHE_DIR:-$PWD/build/ccache}
}

# build PRESET [TARGET]
build() {
  local log
  mkdir -p "build/$1"
  log=build/$1/configure.log
  use_ccache
  say "configuring and building preset $1 in build/$1"
  cmake --preset "$1" >"$log" || { cat "$log"; return 1; }
  cmake --build --preset "$1" ${2:+--target "$2"}
}
