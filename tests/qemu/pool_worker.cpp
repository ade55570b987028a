// SPDX-License-Identifier: Apache-2.0
// The work of one host in a guest: blocks whose bytes follow from their keys. tests/qemu/*.py run
// it; `pool_worker --help` lists what it does. Exit code 1: the last line says what is wrong.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/hosts/chaos_worker.h"

namespace bowhead::test {
namespace {

struct Arguments {
  std::string locator;
  uint32_t host = kAnyHost;
  uint64_t first = 0, count = 100;
  uint64_t progress_at = 0;
};

[[noreturn]] void fail(const std::string& what) {
  fmt::print("wrong: {}\n", what);
  std::fflush(stdout);
  std::exit(1);
}

Host open_host(const Arguments& arguments) {
  auto opened = Host::open(arguments.locator, arguments.host);
  if (!opened) fail(opened.error().message());
  return std::move(opened).value();
}

std::string key_of(uint64_t n) { return fmt::format("key-{}", n); }

/// From less than a page to more than an extent.
size_t size_of(uint64_t n) {
  constexpr size_t kSizes[] = {700, 16'384, 20'000, 65'536, 100'000, 300'000, 2'500'000};
  return kSizes[n % std::size(kSizes)];
}

/// A word of the device, behind the pool, where the test finds it after the guest was killed.
std::atomic_ref<uint64_t> progress(const Arguments& arguments) {
  static uint64_t unused = 0;
  if (arguments.progress_at == 0) return std::atomic_ref(unused);
  const int device = open(arguments.locator.substr(std::strlen("dax:")).c_str(), O_RDWR);
  void* page = mmap(nullptr, kMediaGrainBytes, PROT_READ | PROT_WRITE, MAP_SHARED, device,
                    static_cast<off_t>(arguments.progress_at));
  if (page == MAP_FAILED) fail("the device cannot be mapped at --progress-at");
  return std::atomic_ref(*static_cast<uint64_t*>(page));
}

void put(const Arguments& arguments) {
  Host host = open_host(arguments);
  const auto stored = progress(arguments);
  for (uint64_t n = arguments.first; n < arguments.first + arguments.count; ++n) {
    Status status = Status::OK;
    // A host that is short of space gets some from another within some heartbeats.
    (void)eventually([&] {
      status = host.put(key_of(n), size_of(n));
      return status != Status::NO_SPACE;
    });
    if (status != Status::OK) fail(fmt::format("put of {}: {}", n, status_name(status)));
    stored = n + 1;
  }
}

void get(const Arguments& arguments) {
  Host host = open_host(arguments);
  for (uint64_t n = arguments.first; n < arguments.first + arguments.count; ++n) {
    const Status status = host.get(key_of(n), size_of(n));
    if (status != Status::OK) fail(fmt::format("get of {}: {}", n, status_name(status)));
  }
  fmt::print("{} blocks are right\n", arguments.count);
}

/// Poisons a page of the payload of the first key's block in this process's mapping: the kernel
/// sends SIGBUS for it, as for an error that the hardware reports. That costs the blocks whose
/// memory is in the page, which `check` names; the others are served. Prints what `check` says, and
/// the number of blocks that were lost.
void poison(const Arguments& arguments) {
  Host host = open_host(arguments);
  const uint64_t first = arguments.first;
  auto lease = host.acquire(key_of(first));
  if (!lease) fail(fmt::format("acquire: {}", lease.error().message()));
  const auto address = reinterpret_cast<uintptr_t>(lease->data) / 4096 * 4096;
  if (madvise(reinterpret_cast<void*>(address), 4096, MADV_HWPOISON) != 0)
    fail(fmt::format("madvise: {}", std::strerror(errno)));
  const auto report = host.pool().check(/*payload=*/true);
  if (!report) fail(fmt::format("check: {}", report.error().message()));
  for (const auto& finding : report->findings) fmt::print("{}\n", finding.what);
  const auto expect = [](const char* what, Status status, Status wanted) {
    if (status != wanted) fail(fmt::format("{}: {}", what, status_name(status)));
  };
  expect("release", host.pool().release(*lease), Status::LAPSED);
  uint64_t lost = 0;
  for (uint64_t n = first; n < first + arguments.count; ++n) {
    const Status status = host.get(key_of(n), size_of(n));
    if (n == first) expect("get of the block", status, Status::NOT_FOUND);
    if (status == Status::OK) continue;
    expect("get of another block", status, Status::NOT_FOUND);
    ++lost;
    expect("put of a block that was lost", host.put(key_of(n), size_of(n)), Status::OK);
    expect("get of a block that was lost", host.get(key_of(n), size_of(n)), Status::OK);
  }
  if (lost != report->findings.size()) fail("check named other blocks than those that were lost");
  if (lost == arguments.count) fail("all blocks were lost");
  if (host.pool().media_failure()) fail("the medium is said to have failed");
  fmt::print("{} blocks lost\n", lost);
}

Board board;

/// Until SIGTERM. Prints what was done, and what was wrong.
void work(const Arguments& arguments) {
  board.alone = false;
  board.version = random_u64_from_os() >> 1;  // other guests' are others
  std::signal(SIGTERM, [](int) { board.stop = true; });
  ChaosWorker(arguments.locator, board, arguments.host, /*number=*/0, /*leads=*/true,
              random_u64_from_os())
      .run();
  nlohmann::json report = {{"opened", board.opened.load()},   {"stored", board.stored.load()},
                           {"read", board.read.load()},       {"removed", board.removed.load()},
                           {"leased", board.leased.load()},   {"lapsed", board.lapsed.load()},
                           {"refused", board.refused.load()}, {"copy_only", board.copy_only.load()},
                           {"busy", board.busy.load()},       {"fenced", board.fenced.load()},
                           {"faults", board.faults.load()},   {"fault", board.fault_text()}};
  fmt::print("{}\n", report.dump());
  if (board.faults > 0) std::exit(1);
}

/// The keys of work() that this host finds, all of them with right bytes.
void list(const Arguments& arguments) {
  board.alone = false;
  Host host = open_host(arguments);
  for (uint64_t n = 0; n < kKeys; ++n) {
    std::vector<std::byte> out(300'000);
    const Span to[] = {{out.data(), out.size()}};
    const auto length = host.pool().get(host.ns(), chaos_key(n), to);
    if (length.status() == Status::NOT_FOUND) continue;
    if (!length) fail(fmt::format("get of {}: {}", n, length.error().message()));
    const std::string fault = fault_of(n, out.data(), *length, board);
    if (!fault.empty()) fail(fmt::format("get of {}: {}", n, fault));
    fmt::print("{} ", n);
  }
  fmt::print("\n");
}

/// Removes the keys of work(), whichever host has them.
void clear(const Arguments& arguments) {
  Host host = open_host(arguments);
  for (uint64_t n = 0; n < kKeys; ++n) {
    Status status = Status::OK;
    (void)eventually([&] { return (status = host.remove(chaos_key(n))) != Status::BUSY; });
    if (status != Status::OK && status != Status::NOT_FOUND)
      fail(fmt::format("removal of {}: {}", n, status_name(status)));
  }
  if (!eventually([&] { return host.pool().info()->blocks == 0; }))
    fail(fmt::format("{} blocks are left", host.pool().info()->blocks));
}

/// How many blocks of some sizes fit, once this host has all extents.
void room(const Arguments& arguments) {
  Host host = open_host(arguments);
  const auto has_all = [&] {
    const PoolInfo info = *host.pool().info();
    const PoolInfo::Host& mine = info.hosts[arguments.host];
    return mine.extents_owned == info.extent_count && mine.extents_custody == 0;
  };
  for (int i = 0; i < 5 && !eventually(has_all); ++i) {
  }
  if (!has_all()) fail("not all extents came to this host");
  fmt::print("{}\n", fmt::join(measure_room(host), " "));
}

int run(int count, char** words) {
  CLI::App app("Works in a pool as one host; the bytes of a block follow from its key");
  app.require_subcommand(1);
  Arguments arguments;
  const auto add = [&](const char* name, const char* about, void (*work)(const Arguments&)) {
    CLI::App* command = app.add_subcommand(name, about);
    command->add_option("locator", arguments.locator)->required();
    command->add_option("--host", arguments.host, "Host slot (default: any)");
    command->add_option("--first", arguments.first, "Number of the first key")
        ->capture_default_str();
    command->add_option("--count", arguments.count, "Number of keys")->capture_default_str();
    command->callback([&arguments, work] { work(arguments); });
    return command;
  };
  add("put", "Put blocks", put)
      ->add_option("--progress-at", arguments.progress_at,
                   "After each put, store the next key's number at this byte of the device");
  add("get", "Get blocks, all of which must be there and right", get);
  add("poison", "Poison a page of the first key's block; all others must be served", poison);
  add("work", "Put, get, lease and remove at random until SIGTERM; --host is needed", work);
  add("list", "List the keys of `work`, with their bytes checked", list);
  add("clear", "Remove the keys of `work`", clear);
  add("room", "Take all extents, and print how many blocks of some sizes fit", room);
  CLI11_PARSE(app, count, words);
  return 0;
}

}  // namespace
}  // namespace bowhead::test

int main(int count, char** words) { return bowhead::test::run(count, words); }
