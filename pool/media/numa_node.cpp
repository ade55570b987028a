// SPDX-License-Identifier: Apache-2.0
#include "pool/media/numa_node.h"

#include <fmt/format.h>
#include <numa.h>
#include <numaif.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <memory>
#include <vector>

#include "pool/media/backing_file.h"

namespace bowhead {
namespace {

constexpr uint64_t kStepBytes = 64 << 20;

std::string folder_of(int node) { return fmt::format("/sys/devices/system/node/node{}", node); }

/// The nodes with memory, for messages: "0, 2".
std::string nodes_with_memory() {
  std::string text;
  for (int node = 0; node <= numa_max_node(); ++node) {
    if (numa_node_size64(node, nullptr) > 0)
      text += fmt::format("{}{}", text.empty() ? "" : ", ", node);
  }
  return text;
}

struct FreeMask {
  void operator()(bitmask* mask) const { numa_bitmask_free(mask); }
};

}  // namespace

Result<int> parse_node(const std::string& text) {
  if (numa_available() < 0)
    return Error{Status::NOT_SUPPORTED, "this kernel has no NUMA policies; use shm:NAME"};
  int node = -1;
  const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), node);
  if (bad != std::errc{} || end != text.data() + text.size() || node < 0)
    return Error{
        Status::BAD_LOCATOR,
        fmt::format("'{}' is not the number of a NUMA node; a locator is numa:NODE/NAME", text)};
  if (node > numa_max_node() || numa_node_size64(node, nullptr) <= 0)
    return Error{
        Status::BAD_LOCATOR,
        fmt::format("NUMA node {} {}; nodes with memory: {}", node,
                    access(folder_of(node).c_str(), F_OK) == 0 ? "has no memory" : "does not exist",
                    nodes_with_memory())};
  if (!numa_bitmask_isbitset(numa_all_nodes_ptr, static_cast<unsigned>(node)))
    return Error{
        Status::SYSTEM,
        fmt::format("this process may not use memory of NUMA node {}: its cpuset has other "
                    "nodes (cpuset.mems)",
                    node)};
  return node;
}

Result<uint64_t> free_bytes_of_node(int node) {
  const std::string path = folder_of(node) + "/meminfo";
  std::ifstream meminfo(path);
  uint64_t kib = 0;
  bool found = false;
  for (std::string line; std::getline(meminfo, line);) {  // "Node 2 MemFree:    123 kB"
    for (const std::string_view name : {" MemFree:", " Active(file):", " Inactive(file):"}) {
      const size_t at = line.find(name);
      if (at == std::string::npos) continue;
      kib += std::strtoull(line.c_str() + at + name.size(), nullptr, 10);
      found = true;
    }
  }
  if (!found) return Error{Status::SYSTEM, path + " does not say how much memory is free"};
  return kib * 1024;
}

Result<void> bind_to_node(std::byte* base, uint64_t bytes, int node) {
  const std::unique_ptr<bitmask, FreeMask> mask(numa_allocate_nodemask());
  numa_bitmask_setbit(mask.get(), static_cast<unsigned>(node));
  if (mbind(base, bytes, MPOL_BIND, mask->maskp, mask->size + 1, 0) == 0) return {};
  return system_error(fmt::format("cannot bind memory to NUMA node {}", node), errno);
}

Result<void> check_is_on_node(std::byte* base, uint64_t bytes, int node) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::vector<void*> pages;
  std::vector<int> nodes;
  for (uint64_t at = 0; at < bytes; at += kStepBytes) {
    pages.clear();
    for (uint64_t p = at; p < std::min(bytes, at + kStepBytes); p += page) {
      // The kernel reports pages that this process has mapped, and a load maps one.
      (void)*reinterpret_cast<const volatile std::byte*>(base + p);
      pages.push_back(base + p);
    }
    nodes.assign(pages.size(), -1);
    if (numa_move_pages(0, pages.size(), pages.data(), nullptr, nodes.data(), 0) != 0)
      return system_error("cannot learn on which NUMA node memory lies", errno);
    const auto other = std::find_if(nodes.begin(), nodes.end(), [&](int n) { return n != node; });
    if (other == nodes.end()) continue;
    const uint64_t offset = at + static_cast<uint64_t>(other - nodes.begin()) * page;
    if (*other < 0)
      return system_error(fmt::format("cannot learn where the page at {} lies", offset), -*other);
    return Error{Status::SYSTEM,
                 fmt::format("the kernel put the page at {} on NUMA node {}, not on node {}: the "
                             "node has too little memory",
                             offset, *other, node)};
  }
  return {};
}

}  // namespace bowhead
