// SPDX-License-Identifier: Apache-2.0
#include "pool/media/media.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <limits>
#include <utility>

#include "pool/media/backing_file.h"
#include "pool/media/label.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace bowhead {
namespace {

const MediumDriver* const kDrivers[] = {&kShmDriver, &kNumaDriver, &kDaxDriver, &kFileDriver,
                                        &kDescriptorDriver};

struct ParsedLocator {
  const MediumDriver* driver;
  std::string rest;
  std::string text;
};

Result<ParsedLocator> parse_one(const std::string& locator) {
  std::string usages;
  for (const MediumDriver* driver : kDrivers) {
    const size_t length = driver->scheme.size();
    if (locator.size() > length && locator.starts_with(driver->scheme) && locator[length] == ':') {
      return ParsedLocator{driver, locator.substr(length + 1), locator};
    }
    if (!driver->usage.empty())
      usages += fmt::format("{}{}", usages.empty() ? "" : " or ", driver->usage);
  }
  return Error{Status::BAD_LOCATOR,
               fmt::format("'{}' names no medium: a locator is {}, or several of these joined by +",
                           locator, usages)};
}

/// The next `+` that joins: a path may contain others.
size_t find_join(const std::string& locator, size_t from) {
  size_t found = std::string::npos;
  for (const MediumDriver* driver : kDrivers)
    found = std::min(found, locator.find(fmt::format("+{}:", driver->scheme), from));
  return found;
}

Result<std::vector<ParsedLocator>> parse(const std::string& locator) {
  std::vector<ParsedLocator> media;
  for (size_t at = 0; at <= locator.size();) {
    const size_t end = std::min(find_join(locator, at), locator.size());
    auto one = parse_one(locator.substr(at, end - at));
    if (!one) return one.error();
    for (const ParsedLocator& other : media) {
      if (other.text == one->text)
        return Error{Status::BAD_LOCATOR, fmt::format("'{}' names {} twice", locator, one->text)};
    }
    media.push_back(*std::move(one));
    at = end + 1;
  }
  if (media.size() <= BH_MEDIA_MAX) return media;
  return Error{Status::BAD_LOCATOR,
               fmt::format("{} media are joined: {} are possible", media.size(), BH_MEDIA_MAX)};
}

Result<void> check_size(const std::string& locator, uint64_t size_bytes) {
  if (size_bytes < kMediaGrainBytes) {
    return Error{
        Status::TOO_SMALL,
        fmt::format("{}: {} bytes are too few; a medium has 2 MiB or more", locator, size_bytes)};
  }
  if (size_bytes % kMediaGrainBytes != 0) {
    return Error{Status::MISALIGNED,
                 fmt::format("{}: {} bytes are no multiple of 2 MiB; {} would be", locator,
                             size_bytes, size_bytes / kMediaGrainBytes * kMediaGrainBytes)};
  }
  return {};
}

/// What joined media promise together.
MediaTraits traits_of(const std::vector<std::unique_ptr<Medium>>& media, uint64_t stripe_bytes) {
  MediaTraits all = media.front()->traits();
  for (size_t i = 1; i < media.size(); ++i) {
    const MediaTraits& one = media[i]->traits();
    if (one.kind != all.kind) all.kind = "mixed";
    all.description += " + " + one.description;
    all.page_bytes = std::max(all.page_bytes, one.page_bytes);
    all.locks_by_node |= one.locks_by_node;
    all.survives_reboot &= one.survives_reboot;
    all.survives_power_loss &= one.survives_power_loss;
  }
  if (media.size() > 1)
    all.description += fmt::format("; in stripes of {} MiB", stripe_bytes >> 20);
  return all;
}

/// Takes or releases all locks of a medium but that of its maker (backing_file.cpp), so all that a
/// pool has there.
bool lock_whole(int lock_fd, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_len = std::numeric_limits<off_t>::max() - 1;
  return fcntl(lock_fd, F_OFD_SETLK, &lock) == 0;
}

/// Processes that have a pool open hold locks on each of its media.
Result<void> check_unused(const ParsedLocator& locator) {
  const auto old = locator.driver->open(locator.rest, MediaUse::REMOVE);
  if (!old || !is_locked_by_any((*old)->lock_fd())) return {};
  return Error{Status::IN_USE,
               fmt::format("{}: processes have the pool there open; end them first", locator.text)};
}

/// The bytes of a pool for which each medium has room; none if it can be made in any size.
/// `labelled`: the first medium has a label too.
Result<std::vector<std::optional<uint64_t>>> rooms_of(const std::vector<ParsedLocator>& parsed,
                                                      bool labelled) {
  std::vector<std::optional<uint64_t>> rooms;
  for (const ParsedLocator& one : parsed) {
    rooms.emplace_back();
    if (one.driver->capacity == nullptr) continue;
    const Result<uint64_t> capacity = one.driver->capacity(one.rest);
    if (!capacity) return capacity.error();
    const uint64_t label_bytes = rooms.size() == 1 && !labelled ? 0 : BH_LABEL_BYTES;
    rooms.back() = *capacity - std::min(*capacity, label_bytes);
  }
  return rooms;
}

Result<Stripes> plan_stripes(const std::string& locator, const std::vector<ParsedLocator>& parsed,
                             uint64_t size_bytes, bool labelled) {
  if (parsed.size() == 1) return Stripes(size_bytes);
  const auto rooms = rooms_of(parsed, labelled);
  if (!rooms) return rooms.error();
  if (size_bytes < kMediaGrainBytes * parsed.size())
    return Error{Status::TOO_SMALL,
                 fmt::format("{}: {} bytes are too few: 2 MiB for each of {} media are the least",
                             locator, size_bytes, parsed.size())};
  auto stripes = Stripes::spread(size_bytes, *rooms);
  if (stripes) return *std::move(stripes);
  std::string text;
  for (size_t i = 0; i < parsed.size(); ++i) {
    if ((*rooms)[i]) text += fmt::format(", {} has {} MiB", parsed[i].text, *(*rooms)[i] >> 20);
  }
  return Error{Status::MEDIUM_FULL,
               fmt::format("{}: {} MiB are wanted in stripes of {} MiB{}: ask for less", locator,
                           size_bytes >> 20, Stripes::stripe_bytes_for(size_bytes) >> 20, text)};
}

/// Writes the labels: of a further set of a pool, all media have one.
Result<void> write_labels(const std::vector<std::unique_ptr<Medium>>& media, const Stripes& stripes,
                          const std::array<uint64_t, 2>& pool_id,
                          const std::optional<SetName>& set) {
  const uint32_t labelled_first = set ? 1 : 0;
  for (uint32_t i = 1 - labelled_first; i < media.size(); ++i) {
    bh_medium_label label{};
    label.medium = i + labelled_first;
    label.set = set ? 1 : 0;
    label.set_id = set ? set->id : 0;
    label.pool_id[0] = pool_id[0];
    label.pool_id[1] = pool_id[1];
    label.bytes = stripes.bytes_on(i);
    label.stripe_bytes = stripes.stripe_bytes();
    label.set_bytes = stripes.bytes();
    label.set_media = static_cast<uint32_t>(media.size());
    if (auto written = write_label(*media[i], label); !written) return written;
  }
  return {};
}

struct Joined {
  Stripes stripes;
  std::array<uint64_t, 2> pool_id{};
};

/// How opened media lie, by their labels.
Result<Joined> read_labels(const std::vector<ParsedLocator>& parsed,
                           const std::vector<std::unique_ptr<Medium>>& media,
                           const std::optional<SetName>& set) {
  if (media.size() == 1 && !set) return Joined{Stripes(media.front()->size_bytes())};
  const size_t unlabelled = set ? 0 : 1;
  std::vector<uint64_t> counts(media.size());
  std::optional<bh_medium_label> first;
  uint64_t further_bytes = 0;
  for (size_t i = unlabelled; i < media.size(); ++i) {
    const Result<bh_medium_label> label = read_label(*media[i], parsed[i].text);
    if (!label) return label.error();
    if (set && (label->pool_id[0] != set->pool_id[0] || label->pool_id[1] != set->pool_id[1] ||
                label->set == 0 || label->set_id != set->id))
      return Error{
          Status::NOT_A_POOL,
          fmt::format("{} is by its label a medium of pool {:016x}{:016x}, but not the one "
                      "by which this pool was grown",
                      parsed[i].text, label->pool_id[0], label->pool_id[1])};
    if (!first) first = *label;
    const bool same_pool =
        label->pool_id[0] == first->pool_id[0] && label->pool_id[1] == first->pool_id[1] &&
        label->stripe_bytes == first->stripe_bytes && label->set_bytes == first->set_bytes &&
        label->set == first->set && (set || label->set == 0);
    if (!same_pool || label->medium != i + 1 - unlabelled || label->set_media != media.size())
      return Error{
          Status::NOT_A_POOL,
          fmt::format("{} is medium {} of {} of pool {:016x}{:016x} (counted from 0), and here it "
                      "is given as medium {} of {} of pool {:016x}{:016x}: give the media in the "
                      "order of `pool create`",
                      parsed[i].text, label->medium, label->set_media, label->pool_id[0],
                      label->pool_id[1], i, media.size(), first->pool_id[0], first->pool_id[1])};
    const bool in_stripes = std::has_single_bit(label->stripe_bytes) || media.size() == 1;
    if (!in_stripes || label->stripe_bytes < kMediaGrainBytes ||
        label->stripe_bytes % kMediaGrainBytes != 0 || label->bytes % label->stripe_bytes != 0 ||
        label->bytes == 0 || label->bytes > media[i]->size_bytes() - BH_LABEL_BYTES ||
        label->bytes > label->set_bytes - further_bytes)
      return Error{Status::DAMAGED,
                   fmt::format("{} has {} bytes, and {} of the pool lie there by its label: it was "
                               "cut short, or its label was not written by this program",
                               parsed[i].text, media[i]->size_bytes(), label->bytes)};
    counts[i] = label->bytes / label->stripe_bytes;
    further_bytes += label->bytes;
  }
  if (set) return Joined{Stripes(first->stripe_bytes, std::move(counts)), set->pool_id};
  const uint64_t rest = first->set_bytes - further_bytes;
  if (rest == 0 || rest % first->stripe_bytes != 0 || rest > media.front()->size_bytes())
    return Error{Status::DAMAGED,
                 fmt::format("{} has {} bytes, and {} of the pool lie there by the labels of the "
                             "other media: it was cut short",
                             parsed.front().text, media.front()->size_bytes(), rest)};
  counts.front() = rest / first->stripe_bytes;
  return Joined{Stripes(first->stripe_bytes, std::move(counts)),
                {first->pool_id[0], first->pool_id[1]}};
}

/// Medium i of a further set, by whatever name this machine has for it, which goes into `locator`.
Result<std::unique_ptr<Medium>> open_of_set(ParsedLocator& locator, MediaUse use,
                                            const SetName& set, size_t i) {
  const auto belongs = [&](const Medium& medium) {
    const auto label = read_label(medium, locator.text);
    return label && label->pool_id[0] == set.pool_id[0] && label->pool_id[1] == set.pool_id[1] &&
           label->set != 0 && label->set_id == set.id && label->medium == i + 1;
  };
  auto named = locator.driver->open(locator.rest, use);
  if (named && belongs(**named)) return named;
  const auto all =
      locator.driver->all == nullptr ? std::vector<std::string>{} : locator.driver->all();
  for (const std::string& rest : all) {
    auto other = locator.driver->open(rest, use);
    if (!other || !belongs(**other)) continue;
    locator.rest = rest;
    locator.text = fmt::format("{}:{}", locator.driver->scheme, rest);
    return other;
  }
  if (named.status() != Status::NO_SUCH_POOL) return named;
  return Error{Status::NO_SUCH_POOL, locator.text + " is not there"};
}

}  // namespace

std::optional<MediaId> Medium::id() const {
  struct stat info;
  if (fstat(lock_fd(), &info) != 0) return std::nullopt;
  return MediaId{info.st_dev, info.st_ino};
}

bool Medium::has_name() const {
  struct stat info;
  return fstat(lock_fd(), &info) != 0 || info.st_nlink > 0;
}

Result<void> Medium::open_locks() {
  const std::string self = fmt::format("/proc/self/fd/{}", fd());
  lock_fd_ = open_file(self, writable_ ? O_RDWR : O_RDONLY);
  if (lock_fd() < 0) return system_error("cannot open again " + traits_.description, errno);
  return {};
}

Result<MediaMapping> MediaMapping::map(const std::vector<Part>& parts, uint64_t size_bytes) {
  const size_t reserved_bytes = size_bytes + kMediaGrainBytes;
  void* reserved =
      mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED)
    return system_error("no addresses to map " + parts.front().medium->traits().description, errno);
  auto* first = static_cast<std::byte*>(reserved);
  const size_t gap = -reinterpret_cast<uintptr_t>(first) % kMediaGrainBytes;
  if (gap > 0) munmap(first, gap);
  munmap(first + gap + size_bytes, kMediaGrainBytes - gap);
  MediaMapping mapping;
  mapping.base_ = first + gap;
  mapping.size_bytes_ = size_bytes;
  uint64_t mapped_bytes = 0;
  for (const Part& part : parts) mapped_bytes += part.bytes;
  if (mapped_bytes < size_bytes) {
    if (auto zeros = mapping.remove({{0, size_bytes}}); !zeros) return zeros.error();
  }
  for (const Part& part : parts) {
    if (auto mapped = mapping.map_one(part); !mapped) return mapped.error();
  }
  return mapping;
}

Result<void> MediaMapping::map_one(const Part& part) {
  const int protection = part.medium->writable() ? PROT_READ | PROT_WRITE : PROT_READ;
  std::byte* const at = base_ + part.place;
  if (mmap(at, part.bytes, protection, part.medium->mmap_flags() | MAP_FIXED, part.fd,
           static_cast<off_t>(part.offset)) == MAP_FAILED)
    return system_error("cannot map " + part.medium->traits().description, errno);
  // A hint, for tmpfs: no harm if it is refused.
  (void)madvise(at, part.bytes, MADV_HUGEPAGE);
  return {};
}

Result<void> MediaMapping::add(const std::vector<Part>& parts) {
  for (const Part& part : parts) {
    const auto mapped = map_one(part);
    if (mapped) continue;
    for (const Part& done : parts) (void)remove({{done.place, done.bytes}});
    return mapped;
  }
  return {};
}

Result<void> MediaMapping::remove(const std::vector<Range>& ranges) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  for (const Range& range : ranges) {
    std::byte* const at = base_ + range.offset;
    if (mmap(at, range.bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0) == MAP_FAILED)
      return system_error("cannot keep addresses of a pool free", errno);
    (void)madvise(at, range.bytes, MADV_DONTDUMP);
  }
  return {};
}

MediaMapping::MediaMapping(MediaMapping&& other) noexcept { *this = std::move(other); }

MediaMapping& MediaMapping::operator=(MediaMapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MediaMapping::~MediaMapping() {
  if (base_ != nullptr) munmap(base_, size_bytes_);
}

Result<std::unique_ptr<Media>> Media::map(std::vector<std::unique_ptr<Medium>> media,
                                          Stripes stripes, bool labelled) {
  std::unique_ptr<Media> all(new Media);
  all->traits_ = traits_of(media, stripes.stripe_bytes());
  all->media_ = std::move(media);
  all->labelled_ = labelled;
  all->ranges_ = {{0, stripes.bytes()}};
  all->stripes_ = std::move(stripes);
  auto mapping = MediaMapping::map(all->parts(all->fds()), all->stripes_.bytes());
  if (!mapping) return mapping.error();
  all->mapping_ = std::move(*mapping);
  all->guard_ = FaultGuard(all->base(), all->size_bytes(), all->traits().page_bytes);
  return all;
}

std::vector<int> Media::fds() const {
  std::vector<int> fds;
  for (const auto& medium : media_) fds.push_back(medium->fd());
  return fds;
}

/// The ranges lie on the media one after the other: each is cut where a stripe ends.
std::vector<MediaMapping::Part> Media::parts(const std::vector<int>& fds) const {
  std::vector<MediaMapping::Part> parts;
  auto range = ranges_.begin();
  uint64_t done_bytes = 0;  // of the range
  stripes_.for_each([&](Piece piece) {
    while (piece.bytes > 0 && range != ranges_.end()) {
      const uint64_t bytes = std::min(piece.bytes, range->bytes - done_bytes);
      parts.push_back({media_[piece.medium].get(), fds[piece.medium],
                       label_bytes(piece.medium) + piece.at, range->offset + done_bytes, bytes});
      piece.at += bytes;
      piece.bytes -= bytes;
      done_bytes += bytes;
      if (done_bytes < range->bytes) continue;
      ++range;
      done_bytes = 0;
    }
  });
  return parts;
}

Result<void> Media::spread(const std::vector<Range>& ranges, uint64_t size_bytes) {
  ranges_ = ranges;
  auto mapping = MediaMapping::map(parts(fds()), size_bytes);
  if (!mapping) return mapping.error();
  guard_.reset();
  mapping_ = std::move(*mapping);
  guard_ = FaultGuard(base(), this->size_bytes(), traits().page_bytes);
  return {};
}

Result<void> Media::add_set(std::unique_ptr<Media> set, const std::vector<Range>& ranges) {
  const MediaTraits& theirs = set->traits();
  if (theirs.page_bytes > traits_.page_bytes)
    return Error{
        Status::MISALIGNED,
        fmt::format("{} maps in pages of {} KiB, and the pool was made for pages of {} "
                    "KiB: grow it by media of the kind that it was made on",
                    theirs.description, theirs.page_bytes >> 10, traits_.page_bytes >> 10)};
  if ((traits_.survives_reboot && !theirs.survives_reboot) ||
      (traits_.survives_power_loss && !theirs.survives_power_loss))
    return Error{Status::NOT_SUPPORTED,
                 fmt::format("{} survives less than the pool does ({}): a pool would come back "
                             "without a part of it",
                             theirs.description, traits_.description)};
  set->guard_.reset();
  set->mapping_ = {};
  set->ranges_ = ranges;
  if (auto mapped = mapping_.add(set->parts(set->fds())); !mapped) return mapped;
  for (const Range& range : ranges) guard_.forget_losses(range.offset, range.bytes);
  const std::lock_guard lock(further_mutex_);
  further_.push_back({std::move(set), ranges});
  return {};
}

Result<void> Media::remove_set(const std::vector<Range>& ranges) {
  if (auto removed = mapping_.remove(ranges); !removed) return removed;
  const std::lock_guard lock(further_mutex_);
  std::erase_if(further_, [&](const Further& one) { return one.ranges == ranges; });
  return {};
}

void Media::leave_change() {
  const std::unique_lock lock(further_mutex_, std::try_to_lock);
  if (!lock) (void)new std::vector<Further>(std::move(further_));
}

std::vector<Range> Media::ranges() const {
  std::vector<Range> all = ranges_;
  const std::lock_guard lock(further_mutex_);
  for (const Further& one : further_) all.insert(all.end(), one.ranges.begin(), one.ranges.end());
  std::sort(all.begin(), all.end(),
            [](const Range& a, const Range& b) { return a.offset < b.offset; });
  return all;
}

std::pair<const Media*, uint64_t> Media::place_of(uint64_t offset) const {
  const auto find = [&](const std::vector<Range>& ranges) -> std::optional<uint64_t> {
    uint64_t before = 0;
    for (const Range& range : ranges) {
      if (offset - range.offset < range.bytes) return before + (offset - range.offset);
      before += range.bytes;
    }
    return std::nullopt;
  };
  if (const auto at = find(ranges_)) return {this, *at};
  const std::lock_guard lock(further_mutex_);
  for (const Further& one : further_) {
    if (const auto at = find(one.ranges)) return {one.media.get(), *at};
  }
  return {this, 0};
}

bool Media::writable() const {
  return std::all_of(media_.begin(), media_.end(), [](const auto& m) { return m->writable(); });
}

Media::~Media() = default;

std::optional<Error> Media::failure() const {
  const auto fault = guard_.fault();
  if (!fault) return std::nullopt;
  const auto [media, at] = place_of(fault->offset);
  const Piece piece = media->stripes_.piece_at(at);
  const Medium& medium = *media->media_[piece.medium];
  const uint64_t first = piece.at + media->label_bytes(piece.medium);
  struct stat now {};
  const bool cut = !fault->memory_error && fstat(medium.lock_fd(), &now) == 0 &&
                   S_ISREG(now.st_mode) &&
                   static_cast<uint64_t>(now.st_size) < first + fault->bytes;
  return Error{
      Status::MEDIA_ERROR,
      fmt::format(
          "{}: bytes {} to {} cannot be read or stored ({}); nothing is stored through this handle "
          "any more: close it, {}, and open the pool again",
          medium.traits().description, first, first + fault->bytes - 1,
          fault->memory_error ? "the hardware reports an uncorrectable memory error"
          : cut               ? fmt::format("the file was cut short to {} bytes", now.st_size)
                              : "its filesystem is full, or its device returned an error",
          cut ? "restore the file" : "mend the medium")};
}

Result<void> Media::protect(uint64_t offset, uint64_t size, bool writable) {
  if (offset % traits().page_bytes != 0 || size % traits().page_bytes != 0)
    return Status::MISALIGNED;
  if (offset > size_bytes() || size > size_bytes() - offset) return Status::INVALID_ARGUMENT;
  if (mprotect(base() + offset, size, writable ? PROT_READ | PROT_WRITE : PROT_READ) != 0)
    return system_error("cannot change the protection of " + traits().description, errno);
  return {};
}

bool touch_pages(std::span<std::byte> pages) {
  // Read faults of shared memory make pages, and need no permission to store. Behind a page whose
  // memory failed, the others can be touched.
  return madvise(pages.data(), pages.size(), MADV_POPULATE_READ) == 0 || errno == EHWPOISON;
}

Result<void> Media::sync(uint64_t offset, uint64_t size) {
  if (offset > size_bytes() || size > size_bytes() - offset) return Status::INVALID_ARGUMENT;
  const bool needed = std::any_of(media_.begin(), media_.end(), [](const auto& medium) {
    return medium->traits().survives_reboot && !medium->traits().survives_power_loss;
  });
  if (!needed) return {};
  // msync() and not libpmem2's persist function, which cannot report a failure of the disk.
  const uint64_t before = offset % traits().page_bytes;
  if (msync(base() + offset - before, before + size, MS_SYNC) != 0)
    return system_error("cannot write back " + traits_.description, errno);
  return {};
}

Result<MediaMapping> Media::map_again(const Range& range) const {
  // Through open files of its own: one that a mapping holds on to keeps its locks.
  std::vector<UniqueFd> owners;
  std::vector<int> fds;
  for (const auto& medium : media_) {
    const std::string self = fmt::format("/proc/self/fd/{}", medium->lock_fd());
    owners.push_back(open_file(self, writable() ? O_RDWR : O_RDONLY));
    if (owners.back().get() < 0)
      return system_error("cannot open again " + medium->traits().description, errno);
    fds.push_back(owners.back().get());
  }
  std::vector<MediaMapping::Part> inside;
  for (MediaMapping::Part part : parts(fds)) {
    const uint64_t begin = std::max(part.place, range.offset);
    const uint64_t end = std::min(part.place + part.bytes, range.end());
    if (begin >= end) continue;
    part.offset += begin - part.place;
    part.place = begin - range.offset;
    part.bytes = end - begin;
    inside.push_back(part);
  }
  auto mapping = MediaMapping::map(inside, range.bytes);
  if (!mapping) return mapping;
  if (madvise(mapping->base(), range.bytes, MADV_DONTFORK) != 0)
    return system_error("cannot keep from children " + traits_.description, errno);
  return mapping;
}

std::vector<std::optional<MediaId>> Media::ids() const {
  std::vector<std::optional<MediaId>> ids;
  for (const auto& medium : media_) ids.push_back(medium->id());
  return ids;
}

mode_t Media::mode() const {
  struct stat info {};
  return fstat(lock_fd(), &info) == 0 && S_ISREG(info.st_mode) ? info.st_mode & 0777 : 0600;
}

bool Media::has_name() const {
  return std::all_of(media_.begin(), media_.end(),
                     [](const auto& medium) { return medium->has_name(); });
}

Result<std::unique_ptr<Media>> create_media(const std::string& locator,
                                            const MediaCreateOptions& options) {
  const auto parsed = parse(locator);
  if (!parsed) return parsed.error();
  if (const Result<void> size = check_size(locator, options.size_bytes); !size) return size.error();
  const bool labelled = options.set.has_value();
  auto stripes = plan_stripes(locator, *parsed, options.size_bytes, labelled);
  if (!stripes) return stripes.error();
  for (size_t i = 0; options.replace && i < parsed->size(); ++i) {
    if (i == 0 && options.old) continue;
    if (auto unused = check_unused((*parsed)[i]); !unused) return unused.error();
  }

  const uint64_t label_bytes = (parsed->size() - (labelled ? 0 : 1)) * BH_LABEL_BYTES;
  const uint64_t total_bytes = stripes->bytes() + label_bytes;
  uint64_t made_bytes = 0;
  std::vector<MediaCreateOptions> each(parsed->size(), options);
  std::vector<std::unique_ptr<Medium>> media;
  for (size_t i = 0; i < parsed->size(); ++i) {
    each[i].size_bytes = stripes->bytes_on(i) + (i == 0 && !labelled ? 0 : BH_LABEL_BYTES);
    if (i > 0) {
      each[i].old.reset();
      each[i].replaced = {};
    }
    if (options.progress)
      each[i].progress = [&, made_bytes](uint64_t done_bytes, uint64_t) {
        return options.progress(made_bytes + done_bytes, total_bytes);
      };
    auto medium = (*parsed)[i].driver->make((*parsed)[i].rest, each[i]);
    if (!medium) return medium.error();
    media.push_back(*std::move(medium));
    made_bytes += each[i].size_bytes;
    // What comes after it is made. Once the first has its name, it is too late to stop.
    each[i].progress = {};
    if (options.progress && i == 0)
      each[i].progress = [&](uint64_t, uint64_t) {
        return options.progress(total_bytes, total_bytes);
      };
  }
  if (auto written = write_labels(media, *stripes, options.pool_id, options.set); !written)
    return written.error();
  auto mapped = Media::map(std::move(media), *std::move(stripes), labelled);
  if (!mapped) return mapped;
  Media& all = **mapped;
  all.pool_id_ = options.pool_id;
  all.locator_ = locator;
  if (options.fill) {
    if (Result<void> filled = options.fill(all); !filled) return filled.error();
  }
  // The first medium stays locked until all have their names, so that no other process replaces or
  // uses it before. Of two that create at one locator, one fails at its name.
  const bool several = parsed->size() > 1;
  if (several && !lock_whole(all.lock_fd(), F_WRLCK))
    return system_error("cannot lock " + all.media_.front()->traits().description, errno);
  for (size_t i = 0; i < parsed->size(); ++i) {
    Result<void> kept = all.media_[i]->keep(each[i]);
    if (kept) continue;
    for (size_t k = 0; k < i; ++k)
      (void)(*parsed)[k].driver->remove((*parsed)[k].rest, all.media_[k]->id());
    return kept.error();
  }
  if (several) (void)lock_whole(all.lock_fd(), F_UNLCK);
  return mapped;
}

Result<std::unique_ptr<Media>> open_media(const std::string& locator, MediaUse use,
                                          const std::optional<SetName>& set) {
  auto parsed = parse(locator);
  if (!parsed) return parsed.error();
  std::vector<std::unique_ptr<Medium>> media;
  for (size_t i = 0; i < parsed->size(); ++i) {
    auto medium = set ? open_of_set((*parsed)[i], use, *set, i)
                      : (*parsed)[i].driver->open((*parsed)[i].rest, use);
    if (!medium) return medium.error();
    media.push_back(*std::move(medium));
  }
  auto joined = read_labels(*parsed, media, set);
  if (!joined) return joined.error();
  auto mapped = Media::map(std::move(media), std::move(joined->stripes), set.has_value());
  if (!mapped) return mapped;
  (*mapped)->pool_id_ = joined->pool_id;
  for (const ParsedLocator& one : *parsed)
    (*mapped)->locator_ += ((*mapped)->locator_.empty() ? "" : "+") + one.text;
  return mapped;
}

Result<std::optional<uint64_t>> media_capacity(const std::string& locator, bool labelled) {
  const auto parsed = parse(locator);
  if (!parsed) return parsed.error();
  const auto rooms = rooms_of(*parsed, labelled);
  if (!rooms) return rooms.error();
  uint64_t bytes = 0;
  for (const auto& room : *rooms) {
    if (!room) return std::optional<uint64_t>();
    bytes += *room;
  }
  if (rooms->size() == 1) return std::optional(bytes);
  const uint64_t stripe_bytes = Stripes::stripe_bytes_for(bytes);
  for (const auto& room : *rooms) bytes -= *room % stripe_bytes;
  return std::optional(bytes);
}

Result<void> remove_media(const std::string& locator,
                          const std::vector<std::optional<MediaId>>& only) {
  const auto parsed = parse(locator);
  if (!parsed) return parsed.error();
  Result<void> result;
  for (size_t i = 0; i < parsed->size(); ++i) {
    const ParsedLocator& one = (*parsed)[i];
    auto removed = one.driver->remove(one.rest, i < only.size() ? only[i] : std::nullopt);
    if (!removed && i == 0) return removed;
    const bool gone =
        removed.status() == Status::NO_SUCH_POOL || removed.status() == Status::CLOSED;
    if (!removed && !gone) result = removed;
  }
  return result;
}

}  // namespace bowhead
