// SPDX-License-Identifier: Apache-2.0
#include "gpu/devices/path_costs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "gpu/devices/pinned_arena.h"
#include "gpu/kernels/check.h"
#include "gpu/kernels/kernels.h"

namespace bowhead::gpu {
namespace {

// ---- measuring ----

constexpr uint32_t kRowBytes = 2048;
constexpr size_t kBlockAt = sizeof(PagedPart);  // in the descriptors of kernels
constexpr int kRounds = 5;
constexpr uint64_t kMostRuns = 4096;  // of a batch: short ones take a microsecond each

/// Rows of 2 KiB, each a page of its own, in the device's memory; a payload in pinned memory; and
/// the descriptors of kernels for them.
class PathMeter {
 public:
  /// Of a job that is large, and of one whose bytes do not matter.
  explicit PathMeter(Device& device)
      : device_(device),
        arena_(device, UINT64_MAX),
        large_bytes_(device.info().is_cpu ? 64 << 10 : 32 << 20),
        small_bytes_(2 * kPieceBytes) {}
  ~PathMeter() {
    if (event_ != nullptr) device_.destroy_event(event_);
    if (stream_ != nullptr) device_.destroy_stream(stream_);
    device_.free(pages_);
    arena_.give_back(payload_);
    arena_.give_back(descriptors_);
  }

  Result<void> open();
  Result<PathCosts::Direction> measure(bool spills);

 private:
  /// The best of some rounds, in nanoseconds: disturbances only add.
  Result<double> time(const std::function<Result<void>()>& queue);
  Result<void> upload(size_t size_bytes);
  Result<void> launch(MoveKind kind, uint32_t unit_bytes, uint64_t bytes);
  Result<void> copies(bool spills, uint64_t run_bytes, uint64_t bytes);

  Device& device_;
  PinnedArena arena_;
  const uint64_t large_bytes_, small_bytes_;
  Stream stream_ = nullptr;
  Event event_ = nullptr;
  uint8_t* pages_ = nullptr;
  PinnedRoom payload_, descriptors_;
  size_t table_at_ = 0, sums_at_ = 0;
};

Result<void> PathMeter::open() {
  auto stream = device_.make_stream(0);
  if (!stream) return stream.error();
  stream_ = *stream;
  auto event = device_.make_event();
  if (!event) return event.error();
  event_ = *event;
  // Twice: runs of copies lie apart in it.
  auto pages = device_.allocate(2 * large_bytes_);
  if (!pages) return pages.error();
  pages_ = static_cast<uint8_t*>(*pages);
  auto payload = arena_.take(large_bytes_, false);
  if (!payload) return payload.error();
  payload_ = *payload;
  const size_t rows = large_bytes_ / kRowBytes;
  table_at_ = 256;  // behind the part and the block
  sums_at_ = table_at_ + rows * sizeof(uint32_t);
  auto descriptors = arena_.take(sums_at_ + large_bytes_ / kPieceBytes * sizeof(uint64_t), true);
  if (!descriptors) return descriptors.error();
  descriptors_ = *descriptors;
  auto* table = reinterpret_cast<uint32_t*>(descriptors_.pinned + table_at_);
  std::iota(table, table + rows, 0u);
  auto* part = reinterpret_cast<PagedPart*>(descriptors_.pinned);
  *part = {pages_, 2 * kRowBytes, kRowBytes, kRowBytes};
  auto done = upload(sizeof(PagedPart));
  if (done) done = device_.record(event_, stream_);
  if (done) done = device_.synchronize(event_);
  return done;
}

/// The descriptors of kernels, from the first byte on.
Result<void> PathMeter::upload(size_t size_bytes) {
  return device_.copy(descriptors_.device, descriptors_.pinned, size_bytes, stream_);
}

Result<double> PathMeter::time(const std::function<Result<void>()>& queue) {
  using Clock = std::chrono::steady_clock;
  double best_ns = INFINITY;
  for (int round = 0; round <= kRounds; ++round) {
    const auto begin = Clock::now();
    auto done = queue();
    if (done) done = device_.record(event_, stream_);
    // Also after a failure: queued work uses memory that is freed.
    const auto waited = device_.synchronize(event_);
    if (!done) return done.error();
    if (!waited) return waited.error();
    const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
    if (round != 0) best_ns = std::min(best_ns, took.count());  // the first loads the kernel
  }
  return best_ns;
}

/// As a job does it: few pages go with the kernel's arguments, and more are copied first.
Result<void> PathMeter::launch(MoveKind kind, uint32_t unit_bytes, uint64_t bytes) {
  const auto rows = static_cast<uint32_t>(bytes / kRowBytes);
  const bool is_few = rows <= MoveFewPieces::kMostPages;
  MoveFewPieces few;
  auto* block = is_few ? few.blocks : reinterpret_cast<MoveBlock*>(descriptors_.pinned + kBlockAt);
  auto* table = reinterpret_cast<uint32_t*>(descriptors_.pinned + table_at_);
  *block = {payload_.address, reinterpret_cast<uint64_t*>(descriptors_.address + sums_at_),
            is_few ? table : reinterpret_cast<const uint32_t*>(descriptors_.device + table_at_), 0,
            rows};
  MovePieces work;
  work.layers = work.layer_parts = work.heads = work.page_tokens = 1;
  work.row_bytes = kRowBytes;
  work.unit_bytes = unit_bytes;
  work.kind = kind;
  work.block_count = work.some_layers = 1;
  work.most_tokens = rows;
  work.parts = reinterpret_cast<const PagedPart*>(descriptors_.pinned);
  work.blocks = block;
  if (auto good = check(work); !good) return good;
  work.parts = reinterpret_cast<const PagedPart*>(descriptors_.device);
  work.blocks = reinterpret_cast<const MoveBlock*>(descriptors_.device + kBlockAt);
  if (is_few) {
    std::copy(table, table + rows, few.pages);
    few.pieces = work;
    return device_.launch(few, stream_);
  }
  if (auto copied = upload(sums_at_); !copied) return copied;
  return device_.launch(work, stream_);
}

/// As a job does it: summed by the kernel afterwards.
Result<void> PathMeter::copies(bool spills, uint64_t run_bytes, uint64_t bytes) {
  std::vector<CopyRun> runs;
  for (uint64_t at = 0; at < bytes; at += run_bytes) {
    uint8_t* const in_pages = pages_ + 2 * at;
    std::byte* const in_payload = payload_.pinned + at;
    runs.push_back(spills ? CopyRun{in_payload, in_pages, std::min(run_bytes, bytes - at)}
                          : CopyRun{in_pages, in_payload, std::min(run_bytes, bytes - at)});
  }
  if (auto copied = device_.copy_batch(runs, stream_); !copied) return copied;
  return launch(MoveKind::SUM_ONLY, 16, bytes);
}

Result<PathCosts::Direction> PathMeter::measure(bool spills) {
  PathCosts::Direction costs;
  const MoveKind kind = spills ? MoveKind::TO_PAYLOAD : MoveKind::FROM_PAYLOAD;
  const auto more_bytes = static_cast<double>(large_bytes_ - small_bytes_);
  const auto small = time([&] { return launch(kind, 16, small_bytes_); });
  if (!small) return small.error();
  for (size_t i = 0; i < costs.kernel_byte_ns.size(); ++i) {
    const auto large = time([&] { return launch(kind, 1u << i, large_bytes_); });
    if (!large) return large.error();
    costs.kernel_byte_ns[i] = std::max(0.0, *large - *small) / more_bytes;
  }
  costs.kernel_ns = *small;
  const auto few = time([&] { return copies(spills, small_bytes_, small_bytes_); });
  if (!few) return few.error();
  for (size_t i = 0; i < costs.copy_ns.size(); ++i) {
    const uint64_t run_bytes = PathCosts::kRunBytes[i];
    const uint64_t bytes = std::min(large_bytes_, run_bytes * kMostRuns);
    const auto large = time([&] { return copies(spills, run_bytes, bytes); });
    if (!large) return large.error();
    costs.copy_ns[i] = std::max(0.0, *large - *few) / static_cast<double>(bytes - small_bytes_) *
                       static_cast<double>(run_bytes);
  }
  costs.copies_ns = *few;
  return costs;
}

// ---- keeping ----

constexpr int kVersion = 1;
constexpr std::chrono::milliseconds kLockPollInterval{10};

nlohmann::json json_of(const PathCosts::Direction& costs) {
  return {{"kernel_ns", costs.kernel_ns},
          {"kernel_byte_ns", costs.kernel_byte_ns},
          {"copies_ns", costs.copies_ns},
          {"copy_ns", costs.copy_ns}};
}

PathCosts::Direction direction_of(const nlohmann::json& json) {
  PathCosts::Direction costs;
  json.at("kernel_ns").get_to(costs.kernel_ns);
  json.at("kernel_byte_ns").get_to(costs.kernel_byte_ns);
  json.at("copies_ns").get_to(costs.copies_ns);
  json.at("copy_ns").get_to(costs.copy_ns);
  return costs;
}

std::string host_name() {
  std::array<char, 256> name = {};  // the last byte stays 0
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

/// Costs that cannot be written are measured again later. Readers find all of the file or none.
void keep(const PathCosts& costs, const std::filesystem::path& at) {
  std::error_code failed;
  std::filesystem::create_directories(at.parent_path(), failed);
  std::filesystem::path written = at;
  written += fmt::format(".{}", getpid());
  bool is_written = false;
  {
    std::ofstream out(written);
    out << costs.to_json() << '\n';
    out.close();
    is_written = out.good();
  }
  if (is_written) std::filesystem::rename(written, at, failed);
  if (!is_written || failed) std::filesystem::remove(written, failed);
}

std::optional<PathCosts> kept(const std::filesystem::path& at) {
  std::ifstream in(at);
  if (!in) return std::nullopt;
  auto costs = PathCosts::from_json({std::istreambuf_iterator<char>(in), {}});
  if (!costs) return std::nullopt;
  return *costs;
}

/// The right to measure, of one process of a host at a time. The kernel ends it with the process.
class MeasuringLock {
 public:
  explicit MeasuringLock(const std::filesystem::path& file) {
    std::error_code failed;
    std::filesystem::create_directories(file.parent_path(), failed);
    fd_ = open_file(file, O_RDWR | O_CREAT, 0666);
  }

  /// False: another process has it. On a file system without locks every process measures.
  bool take() const {
    if (fd_.get() < 0) return true;
    for (;;) {
      if (flock(fd_.get(), LOCK_EX | LOCK_NB) == 0) return true;
      if (errno != EINTR) return errno != EWOULDBLOCK;
    }
  }

 private:
  UniqueFd fd_;
};

/// Measured costs, or assumed ones for a device that has no memory left.
Result<PathCosts> measured_or_assumed(Device& device) {
  auto measured = measure_path_costs(device);
  if (measured.status() != Status::NO_SPACE) return measured;
  return assumed_path_costs("measuring needs 64 MiB of GPU memory and 32 MiB of pinned memory: " +
                            std::string(measured.error().message()));
}

}  // namespace

Path PathCosts::faster(bool spills, uint32_t unit_bytes, uint64_t run_bytes, uint64_t bytes) const {
  const Direction& costs = spills ? spill : restore;
  const auto unit = static_cast<size_t>(std::countr_zero(unit_bytes));
  const double kernel_ns =
      costs.kernel_ns + static_cast<double>(bytes) * costs.kernel_byte_ns[unit];
  // Linear between two lengths, as from the first two and the last two on.
  const auto above = std::lower_bound(kRunBytes.begin() + 1, kRunBytes.end() - 1, run_bytes);
  const auto i = static_cast<size_t>(above - kRunBytes.begin());
  const auto length = [](uint64_t run) { return static_cast<double>(run); };
  const double slope =
      (costs.copy_ns[i] - costs.copy_ns[i - 1]) / (length(kRunBytes[i]) - length(kRunBytes[i - 1]));
  const double copy_ns = costs.copy_ns[i] + (length(run_bytes) - length(kRunBytes[i])) * slope;
  const double runs = static_cast<double>(bytes) / std::max(length(run_bytes), 1.0);
  const double copies_ns = costs.copies_ns + runs * copy_ns;
  return kernel_ns <= copies_ns ? Path::KERNEL : Path::COPIES;
}

std::string PathCosts::to_json() const {
  const nlohmann::json json = {{"version", kVersion},
                               {"run_bytes", kRunBytes},
                               {"spill", json_of(spill)},
                               {"restore", json_of(restore)}};
  return json.dump(2);
}

Result<PathCosts> PathCosts::from_json(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    PathCosts costs = {direction_of(json.at("spill")), direction_of(json.at("restore")), {}};
    const auto run_bytes = json.at("run_bytes").get<std::vector<uint64_t>>();
    if (json.at("version") == kVersion &&
        std::equal(run_bytes.begin(), run_bytes.end(), kRunBytes.begin(), kRunBytes.end()))
      return costs;
  } catch (const nlohmann::json::exception&) {
    // As below.
  }
  return Error{Status::DAMAGED,
               "the path costs were measured by another version, or the file is damaged"};
}

Result<PathCosts> measure_path_costs(Device& device) {
  PathMeter meter(device);
  if (auto opened = meter.open(); !opened) return opened.error();
  auto spill = meter.measure(true);
  if (!spill) return spill.error();
  auto restore = meter.measure(false);
  if (!restore) return restore.error();
  return PathCosts{*spill, *restore, {}};
}

PathCosts assumed_path_costs(std::string because) {
  PathCosts::Direction costs;
  costs.kernel_ns = 10'000;
  costs.kernel_byte_ns = {0.16, 0.08, 0.04, 0.02, 0.02};
  costs.copies_ns = 20'000;
  constexpr double kCopyNs = 1000, kCopyBytesPerNs = 55;
  for (size_t i = 0; i < costs.copy_ns.size(); ++i)
    costs.copy_ns[i] =
        std::max(kCopyNs, static_cast<double>(PathCosts::kRunBytes[i]) / kCopyBytesPerNs);
  return {costs, costs, std::move(because)};
}

PathCostsCache PathCostsCache::of_user() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return {std::filesystem::path(cache) / "bowhead"};
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return {std::filesystem::path(home) / ".cache" / "bowhead"};
  return {};
}

std::filesystem::path PathCostsCache::file_for(const DeviceInfo& info) const {
  std::string name = host_name() + "-" + info.name + "-" + info.link + "-" + info.driver;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.') c = '-';
  }
  return folder / ("gpu-paths-" + name + ".json");
}

Result<PathCosts> path_costs(Device& device, const PathCostsCache& cache) {
  if (cache.folder.empty()) return measured_or_assumed(device);
  const std::filesystem::path file = cache.file_for(device.info());
  if (auto costs = kept(file)) return *costs;
  std::filesystem::path lock_file = file;
  lock_file += ".lock";
  const MeasuringLock lock(lock_file);
  const auto deadline = std::chrono::steady_clock::now() + cache.wait;
  while (!lock.take()) {
    if (auto costs = kept(file)) return *costs;
    if (std::chrono::steady_clock::now() >= deadline)
      return assumed_path_costs(fmt::format("another process has been measuring for {} ms, by {}",
                                            cache.wait.count(), lock_file.string()));
    std::this_thread::sleep_for(kLockPollInterval);
  }
  if (auto costs = kept(file)) return *costs;  // by the process that had the lock
  auto costs = measured_or_assumed(device);
  if (costs && costs->assumed_because.empty()) keep(*costs, file);
  return costs;
}

Result<PathCosts> path_costs(Device& device) {
  static std::mutex mutex;  // also so that two do not measure at once, and slow each other down
  static std::map<std::string, PathCosts> known;
  const std::lock_guard lock(mutex);
  const PathCostsCache cache = device.info().is_cpu ? PathCostsCache{} : PathCostsCache::of_user();
  const std::string name = cache.file_for(device.info());
  if (const auto found = known.find(name); found != known.end()) return found->second;
  auto costs = path_costs(device, cache);
  // Assumed costs may be measured the next time.
  if (costs && costs->assumed_because.empty()) known[name] = *costs;
  return costs;
}

}  // namespace bowhead::gpu
