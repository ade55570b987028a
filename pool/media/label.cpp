// SPDX-License-Identifier: Apache-2.0
#include "pool/media/label.h"

#include <bowhead/format/superblock.h>
#include <fmt/format.h>

#include <cstring>

#include "base/checksum.h"
#include "base/coherence.h"
#include "pool/media/media.h"

namespace bowhead {
namespace {

constexpr uint64_t kCopies[] = {0, BH_SUPERBLOCK_COPY_OFFSET};

/// The start of a medium, where a label is.
struct LabelPage {
  MediaMapping mapping;
  FaultGuard guard;

  static Result<LabelPage> of(const Medium& medium) {
    LabelPage page;
    auto mapping = MediaMapping::map(medium, medium.fd(), BH_LABEL_BYTES);
    if (!mapping) return mapping.error();
    page.mapping = std::move(*mapping);
    page.guard = FaultGuard(page.mapping.base(), BH_LABEL_BYTES, medium.traits().page_bytes);
    return page;
  }
  std::byte* copy(uint32_t i) const { return mapping.base() + kCopies[i]; }
  Result<void> check(const Medium& medium) const {
    if (!guard.failed()) return {};
    return Error{Status::MEDIA_ERROR,
                 medium.traits().description + ": its first 2 MiB cannot be read or stored"};
  }
};

}  // namespace

Result<bh_medium_label> parse_label(std::span<const std::byte> first,
                                    std::span<const std::byte> second) {
  const std::span<const std::byte> copies[] = {first, second};
  uint32_t newer_version = 0;
  bool looks_like_label = false;
  for (uint32_t i = 0; i < std::size(copies); ++i) {
    bh_medium_label label;
    if (copies[i].size() < sizeof label) continue;
    std::memcpy(&label, copies[i].data(), sizeof label);
    if (label.magic != BH_MEDIUM_MAGIC) continue;
    looks_like_label = true;
    if (label.magic_end != BH_MEDIUM_MAGIC || label.copy != i || label.medium == 0 ||
        label.medium >= BH_MEDIA_MAX ||
        label.checksum != hash64(&label, offsetof(bh_medium_label, checksum)))
      continue;
    if (label.version == BH_FORMAT_VERSION) return label;
    newer_version = label.version;
  }
  if (newer_version != 0)
    return Error{Status::VERSION_UNKNOWN,
                 fmt::format("this is a medium of a pool of format version {}, and this build "
                             "knows version {}: upgrade Bowhead",
                             newer_version, BH_FORMAT_VERSION)};
  if (looks_like_label)
    return Error{Status::DAMAGED,
                 "this is a medium of a pool, but both copies of its label are damaged: restore it "
                 "from a copy"};
  return Error{Status::NOT_A_POOL,
               "it has no label of a pool: it is no further medium of any; give the locators in "
               "the order of `pool create`"};
}

Result<bh_medium_label> read_label(const Medium& medium, const std::string& locator) {
  const auto page = LabelPage::of(medium);
  if (!page) return page.error();
  auto label = parse_label({page->copy(0), sizeof(bh_medium_label)},
                           {page->copy(1), sizeof(bh_medium_label)});
  if (auto read = page->check(medium); !read) return read.error();
  if (!label) return Error{label.status(), locator + ": " + label.error().message()};
  return label;
}

Result<void> write_label(const Medium& medium, const bh_medium_label& label) {
  const auto page = LabelPage::of(medium);
  if (!page) return page.error();
  for (uint32_t i = 0; i < std::size(kCopies); ++i) {
    bh_medium_label copy = label;
    copy.magic = copy.magic_end = BH_MEDIUM_MAGIC;
    copy.version = BH_FORMAT_VERSION;
    copy.copy = i;
    copy.checksum = hash64(&copy, offsetof(bh_medium_label, checksum));
    std::memcpy(page->copy(i), &copy, sizeof copy);
    flush_lines(choose_flush_kind(true), page->copy(i), sizeof copy);
  }
  full_fence();
  return page->check(medium);
}

}  // namespace bowhead
