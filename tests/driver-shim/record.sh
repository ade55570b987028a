#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints what driver-shim reads of this host, as a file of tests/driver-shim/hosts: a path, then its
# content, each line after two spaces; `path -> target` for a symbolic link; `path/` for a folder.
# A device node in /dev is an empty file there.
#
#   cd tests/driver-shim
#   ../../qemu/run one-volatile --copy record.sh -- sh record.sh >hosts/devdax
#
# hosts/unused is of `switch --no-setup`, hosts/node of one-volatile after `cxl-setup node`, and
# hosts/no-driver of `one-volatile --no-setup` after `cxl create-region -m -t ram`.

link() {
  [ ! -L "$1" ] || echo "$1 -> $(readlink "$1")"
}

file() {
  content=$(cat "$1" 2>/dev/null) || return 0
  echo "$1"
  [ -z "$content" ] || echo "$content" | sed 's/^/  /'
}

# filtered FILE PATTERN: only these lines.
filtered() {
  echo "$1"
  grep -E "$2" "$1" | sort -u | sed 's/^/  /'
}

# In a folder of sysfs: the links and the attributes that driver-shim reads.
folder() {
  for name in "$1"/driver "$1"/uport "$1"/dport[0-9]*; do link "$name"; done
  for name in devtype serial firmware_version numa_node start size ways interleave_ways \
    interleave_granularity region mode dpa_size cap_ram cap_pmem create_ram_region resource commit \
    target_list target0 target1 target2 target3 align target_node; do
    [ ! -f "$1/$name" ] || file "$1/$name"
  done
}

for device in /sys/bus/cxl/devices/* /sys/bus/dax/devices/*; do
  [ -e "$device" ] || continue
  link "$device"
  device=$(readlink -f "$device")
  case $device in
    */nvdimm-bridge[0-9]) continue ;;
    */mem[0-9]*) for part in ram/size pmem/size security/state; do file "$device/$part"; done ;;
    */dax[0-9]*) file "$device/dev" ;;
  esac
  folder "$device"
done
for bus in cxl dax pci platform; do
  for driver in "/sys/bus/$bus/drivers"/*; do
    case ${driver##*/} in
      cxl* | *dax* | kmem | nvidia) echo "$driver/" ;;
    esac
  done
done
for node in /dev/dax*; do
  [ ! -e "$node" ] || echo "$node"
done
for function in /sys/bus/pci/devices/*; do
  case $(cat "$function/class") in
    0x0502* | 0x03*)
      link "$function"
      device=$(readlink -f "$function")
      link "$device/driver"
      file "$device/class"
      file "$device/vendor"
      ;;
  esac
done
for node in /sys/devices/system/node/node*; do
  file "$node/cpulist"
  filtered "$node/meminfo" 'MemTotal|MemFree'
  for block in "$node"/memory*; do
    [ -e "$block/state" ] || continue
    link "$block"
    block=$(readlink -f "$block")
    file "$block/state"
    file "$block/valid_zones"
    link "$block/${node##*/}"
  done
done
for path in /sys/devices/system/memory/auto_online_blocks \
  /sys/devices/system/memory/block_size_bytes /sys/bus/dax/drivers_autoprobe \
  /sys/kernel/mm/transparent_hugepage/shmem_enabled \
  /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages \
  /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages \
  /sys/devices/system/clocksource/clocksource0/current_clocksource \
  /sys/devices/system/clocksource/clocksource0/available_clocksource \
  /proc/sys/kernel/osrelease /proc/sys/kernel/numa_balancing /proc/driver/nvidia/version; do
  [ ! -r $path ] || file $path
done
filtered /proc/meminfo 'MemTotal|HugePages_Total|Hugepagesize'
filtered /proc/self/mounts '/dev/shm|hugetlbfs'
filtered /proc/self/status 'Mems_allowed_list'
filtered /proc/cpuinfo 'vendor_id'
