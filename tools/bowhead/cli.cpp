// SPDX-License-Identifier: Apache-2.0
// Pools that commands open and create; the progress line; signals.
#include "tools/bowhead/cli.h"

#include <bowhead/format/common.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <ctime>

#include "tools/program/numbers.h"
#include "tools/program/signals.h"

namespace bowhead::cli {
namespace {

uint32_t host_option = kAnyHost;

}  // namespace

ExitCode fail(const Pool& pool, const Error& error, const std::string& about) {
  const auto failure = pool.media_failure();
  return failure ? fail(*failure) : fail(error, about);
}

void add_host_option(CLI::App& command) {
  add_number(command, "--host", host_option,
             "Host slot to act as, 0 to 63, in a pool of several hosts (default: the slot of this "
             "machine, or a free one)",
             {0, BH_HOSTS_MAX - 1});
}

uint32_t chosen_host() { return host_option; }

Result<Pool> open_pool(const std::string& locator, const Progress& progress, bool look,
                       bool prefault) {
  OpenOptions options;
  options.host = host_option;
  options.observe = look && host_option == kAnyHost;
  options.prefault = prefault;
  options.progress = progress;
  Result<Pool> pool = Pool::open(locator, options);
  if (!pool) return pool;
  const auto info = pool->info();
  if (info && info->second_superblock_used) {
    say(
        fmt::format("{}: the first copy of the superblock is damaged and the second is in use; "
                    "`bowhead pool repair {}` restores it",
                    locator, locator));
  }
  if (info) {
    for (const PoolInfo::MediaSet& set : info->sets) {
      if (set.why_missing.empty()) continue;
      say(fmt::format("{}: set {} of its media is missing, and all blocks there: {}", locator,
                      set.number, set.why_missing));
    }
  }
  return pool;
}

ProgressLine::ProgressLine()
    : terminal_(isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

Progress ProgressLine::callback() {
  if (!terminal_) return {};
  return [this](uint64_t done, uint64_t total, const char* what) { update(done, total, what); };
}

void ProgressLine::update(uint64_t done, uint64_t total, const char* what) {
  using namespace std::chrono_literals;
  const auto now = std::chrono::steady_clock::now();
  if (now - start_ < 1s || now - last_ < 100ms) return;
  last_ = now;
  shown_ = true;
  const std::string percent =
      total == 0
          ? ""
          : fmt::format("{:3.0f}%  ", 100 * static_cast<double>(done) / static_cast<double>(total));
  const std::string line = fmt::format("\r\033[K{}{}", percent, what);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void ProgressLine::clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

Interruption::Interruption() {
  const sigset_t set = ending_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

bool Interruption::came() {
  const sigset_t set = ending_signals();
  const timespec no_wait{0, 0};
  if (signal_ == 0) signal_ = std::max(0, sigtimedwait(&set, nullptr, &no_wait));
  return signal_ != 0;
}

Result<MadePool> MadePool::make(const std::string& locator, CreateOptions options,
                                Interruption& interruption) {
  ProgressLine progress;
  options.progress = progress.callback();
  options.cancelled = [&] { return interruption.came(); };
  auto created = Pool::create(locator, options);
  if (!created) return created.error();
  return MadePool(locator, std::move(created).value());
}

Result<void> MadePool::destroy() {
  const std::string locator = std::exchange(locator_, {});
  return locator.empty() ? Result<void>{} : Pool::destroy(locator, /*force=*/true, id_);
}

}  // namespace bowhead::cli
