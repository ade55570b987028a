// SPDX-License-Identifier: Apache-2.0
// The cases of the contract. Each object is small: media allocate all their space.
#include "tests/media/contract.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "tests/media/child.h"

namespace bowhead {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kSize = 8 * kMiB;
// Of the bytes that tests store to. A device is known by those before: the copies of a superblock.
constexpr uint64_t kFirst = 128 << 10;

void store(Media& media, uint64_t offset, uint8_t value) {
  *reinterpret_cast<volatile uint8_t*>(media.base() + offset) = value;
}

uint8_t load(const Media& media, uint64_t offset) {
  return *reinterpret_cast<volatile uint8_t*>(media.base() + offset);
}

bool lock_byte(int fd, off_t offset) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = offset;
  lock.l_len = 1;
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

TEST_P(MediaContract, CreatedIsZeroAlignedAndOfTheAskedSize) {
  const std::unique_ptr<Media> media = create(kSize);
  ASSERT_NE(media, nullptr);
  EXPECT_EQ(media->size_bytes(), kSize);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(media->base()) % kMediaGrainBytes, 0u);
  EXPECT_TRUE(is_new(*media));
}

TEST_P(MediaContract, SmallestSize) {
  const std::unique_ptr<Media> media = create(GetParam().least_bytes);
  ASSERT_NE(media, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(media->base()) % kMediaGrainBytes, 0u);
  store(*media, GetParam().least_bytes - 1, 7);
}

TEST_P(MediaContract, TraitsDescribeTheMedium) {
  const std::unique_ptr<Media> media = create(kSize);
  ASSERT_NE(media, nullptr);
  EXPECT_TRUE(locator().starts_with(media->traits().kind + ":"));
  EXPECT_FALSE(media->traits().description.empty());
  EXPECT_EQ(kMediaGrainBytes % media->traits().page_bytes, 0u);
  EXPECT_TRUE(media->traits().survives_reboot || !media->traits().survives_power_loss);

  const std::unique_ptr<Media> again = open();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->traits().kind, media->traits().kind);
  EXPECT_EQ(again->traits().description, media->traits().description);
  EXPECT_EQ(again->traits().page_bytes, media->traits().page_bytes);
  EXPECT_EQ(again->traits().survives_reboot, media->traits().survives_reboot);
  EXPECT_EQ(again->traits().survives_power_loss, media->traits().survives_power_loss);
}

TEST_P(MediaContract, BytesSurviveClosing) {
  {
    const std::unique_ptr<Media> media = create(kSize);
    ASSERT_NE(media, nullptr);
    for (uint64_t at = kFirst; at < kSize; at += 4093) store(*media, at, static_cast<uint8_t>(at));
    EXPECT_TRUE(media->sync(0, kSize));
  }
  const std::unique_ptr<Media> media = open();
  ASSERT_NE(media, nullptr);
  EXPECT_EQ(media->size_bytes(), opened_size(kSize));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(media->base()) % kMediaGrainBytes, 0u);
  for (uint64_t at = kFirst; at < kSize; at += 4093) {
    ASSERT_EQ(load(*media, at), static_cast<uint8_t>(at)) << at;
  }
}

TEST_P(MediaContract, TwoMappingsAreOneMemory) {
  const std::unique_ptr<Media> first = create(kSize);
  const std::unique_ptr<Media> second = open();
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->base(), second->base());
  store(*first, 12345, 1);
  EXPECT_EQ(load(*second, 12345), 1);
  store(*second, kSize - 1, 2);
  EXPECT_EQ(load(*first, kSize - 1), 2);
}

TEST_P(MediaContract, AnotherProcessSeesAndIsSeen) {
  const std::unique_ptr<Media> media = create(kSize);
  ASSERT_NE(media, nullptr);
  store(*media, 100, 42);
  EXPECT_EQ(run_child([&] {
              const std::unique_ptr<Media> mine = open();
              if (mine == nullptr || load(*mine, 100) != 42) return 1;
              store(*mine, 3 * kMiB, 43);
              return 0;
            }),
            0);
  EXPECT_EQ(load(*media, 3 * kMiB), 43);
}

TEST_P(MediaContract, RemovedIsGoneButMappingsLive) {
  const std::unique_ptr<Media> media = create(kSize);
  ASSERT_NE(media, nullptr);
  store(*media, kFirst, 5);
  EXPECT_TRUE(remove_media(locator()));
  EXPECT_EQ(load(*media, kFirst), 5);
  store(*media, kSize - 1, 6);
  EXPECT_EQ(open_media(locator()).status(), Status::NO_SUCH_POOL);
  EXPECT_EQ(remove_media(locator()).status(), Status::NO_SUCH_POOL);
  const std::unique_ptr<Media> next = create(kSize);
  ASSERT_NE(next, nullptr);
  EXPECT_TRUE(is_new(*next));
}

/// A name that another object has taken meanwhile.
TEST_P(MediaContract, OneObjectIsNotTakenForAnother) {
  const std::unique_ptr<Media> first = create(kSize);
  ASSERT_NE(first, nullptr);
  const auto first_ids = first->ids();
  EXPECT_TRUE(remove_media(locator(), first_ids));
  const std::unique_ptr<Media> second = create(kSize);
  ASSERT_NE(second, nullptr);
  ASSERT_NE(first_ids, second->ids());
  EXPECT_EQ(remove_media(locator(), first_ids).status(), Status::CLOSED);
  const auto replaced =
      create_media(locator(), {.size_bytes = kSize, .replace = true, .old = first_ids[0]});
  EXPECT_EQ(replaced.status(), Status::POOL_EXISTS);
  const std::unique_ptr<Media> there = open();
  ASSERT_NE(there, nullptr);
  EXPECT_EQ(there->ids(), second->ids());
}

TEST_P(MediaContract, MissingIsRefused) {
  const Result<std::unique_ptr<Media>> media = open_media(locator());
  ASSERT_EQ(media.status(), Status::NO_SUCH_POOL);
  EXPECT_NE(media.error().message().find(is_device() ? "holds no pool" : "does not exist"),
            std::string::npos);
  EXPECT_EQ(remove_media(locator()).status(), Status::NO_SUCH_POOL);
}

TEST_P(MediaContract, ExistingIsRefusedAndKept) {
  const std::unique_ptr<Media> media = create(kSize);
  ASSERT_NE(media, nullptr);
  store(*media, kFirst, 9);
  const auto again = create_media(locator(), {.size_bytes = kSize});
  EXPECT_EQ(again.status(), Status::POOL_EXISTS);
  const std::unique_ptr<Media> opened = open();
  ASSERT_NE(opened, nullptr);
  EXPECT_EQ(load(*opened, kFirst), 9);
}

TEST_P(MediaContract, ReplacedIsZeroAndOfTheNewSize) {
  for (const uint64_t size : {kSize, 3 * kSize, GetParam().least_bytes}) {
    const std::unique_ptr<Media> media = create(size, true);
    ASSERT_NE(media, nullptr);
    EXPECT_EQ(media->size_bytes(), size);
    EXPECT_TRUE(is_new(*media));
    std::memset(media->base() + kFirst, 0xFF, size - kFirst);
    const std::unique_ptr<Media> opened = open();
    ASSERT_NE(opened, nullptr);
    EXPECT_EQ(opened->size_bytes(), opened_size(size));
  }
}

TEST_P(MediaContract, WrongSizesAreRefused) {
  const auto status_of = [&](uint64_t size) {
    return create_media(locator(), {.size_bytes = size}).status();
  };
  EXPECT_EQ(status_of(0), Status::TOO_SMALL);
  EXPECT_EQ(status_of(kMediaGrainBytes - 4096), Status::TOO_SMALL);
  EXPECT_EQ(status_of(GetParam().least_bytes - kMediaGrainBytes), Status::TOO_SMALL);
  EXPECT_EQ(status_of(kMediaGrainBytes + 1), Status::MISALIGNED);
  EXPECT_EQ(status_of(3 * kMiB), Status::MISALIGNED);
  EXPECT_EQ(open_media(locator()).status(), Status::NO_SUCH_POOL);
}

TEST_P(MediaContract, MoreThanIsFreeLeavesNothing) {
  for (const uint64_t size : {uint64_t{1} << 50, uint64_t{1} << 62, -kMediaGrainBytes}) {
    const auto media = create_media(locator(), {.size_bytes = size});
    ASSERT_EQ(media.status(), Status::MEDIUM_FULL) << size;
    EXPECT_NE(media.error().message().find(is_device() ? "ask for less" : "free"),
              std::string::npos);
    EXPECT_EQ(open_media(locator()).status(), Status::NO_SUCH_POOL);
  }
}

TEST_P(MediaContract, ASizeBeyondTheFreeSpaceKeepsTheOldObject) {
  store(*create(kSize), kFirst, 11);
  const auto media = create_media(locator(), {.size_bytes = uint64_t{1} << 50, .replace = true});
  EXPECT_EQ(media.status(), Status::MEDIUM_FULL);
  const std::unique_ptr<Media> opened = open();
  ASSERT_NE(opened, nullptr);
  EXPECT_EQ(load(*opened, kFirst), 11);
}

TEST_P(MediaContract, AFaultOfTheSystemLeavesNothing) {
  if (is_device()) GTEST_SKIP() << "the space of a device is there already";
  EXPECT_EQ(run_child([&] {
              const rlimit limit = {kMediaGrainBytes, kMediaGrainBytes};
              if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
              const auto media = create_media(locator(), {.size_bytes = kSize});
              return media.status() == Status::SYSTEM ? 0 : 2;
            }),
            0);
  EXPECT_EQ(open_media(locator()).status(), Status::NO_SUCH_POOL);
}

TEST_P(MediaContract, ProgressEndsAtTheWhole) {
  struct Seen {
    uint64_t last = 0, all = 0;
    bool rises = true;
  } seen;
  MediaCreateOptions options{.size_bytes = 3 * kSize};
  options.progress = [&](uint64_t done, uint64_t total) {
    seen.rises &= (done > seen.last || done == total) && (seen.all == 0 || seen.all == total);
    seen.all = total;
    seen.last = done;
    return true;
  };
  EXPECT_TRUE(create_media(locator(), options));
  EXPECT_TRUE(seen.rises);
  EXPECT_EQ(seen.last, seen.all);
  EXPECT_GE(seen.last, 3 * kSize);
}

TEST_P(MediaContract, ProtectedRangeFaultsOnStoreAndNoOther) {
  const std::unique_ptr<Media> media = create(kSize);
  ASSERT_NE(media, nullptr);
  const uint64_t page = media->traits().page_bytes;
  store(*media, page, 77);
  ASSERT_TRUE(media->protect(page, page, false));
  EXPECT_EQ(load(*media, page), 77);
  store(*media, page - 1, 1);
  if (2 * page < kSize) store(*media, 2 * page, 1);
  for (const uint64_t at : {page, 2 * page - 1}) {
    EXPECT_EQ(run_child([&] {
                store(*media, at, 1);
                return 0;
              }),
              -SIGSEGV);
  }
  // Another mapping is not affected, and the range can be written again afterwards.
  EXPECT_EQ(run_child([&] {
              const std::unique_ptr<Media> mine = open();
              if (mine == nullptr) return 1;
              store(*mine, page, 78);
              return 0;
            }),
            0);
  EXPECT_EQ(load(*media, page), 78);
  ASSERT_TRUE(media->protect(page, page, true));
  store(*media, page, 79);
  EXPECT_EQ(load(*media, page), 79);
}

TEST_P(MediaContract, MappedAgainIsWritableAsAWholeAndNotForChildren) {
  std::unique_ptr<Media> media = create(kSize);
  ASSERT_NE(media, nullptr);
  ASSERT_TRUE(media->protect(0, kSize, false));
  auto mapped = media->map_again();
  ASSERT_TRUE(mapped) << mapped.error().message();
  const MediaMapping again = std::move(*mapped);
  EXPECT_EQ(again.size_bytes(), kSize);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(again.base()) % kMediaGrainBytes, 0u);
  volatile uint8_t* const bytes = reinterpret_cast<volatile uint8_t*>(again.base());
  bytes[kSize - 1] = 81;
  EXPECT_EQ(load(*media, kSize - 1), 81);
#if !defined(__SANITIZE_THREAD__)  // which maps memory of its own in a child, where there is none
  EXPECT_EQ(run_child([&] { return bytes[0] + 1; }), -SIGSEGV);
#endif
  ASSERT_TRUE(lock_byte(media->lock_fd(), 3));
  media.reset();
  const std::unique_ptr<Media> other = open();
  ASSERT_NE(other, nullptr);
  EXPECT_TRUE(lock_byte(other->lock_fd(), 3)) << "the mapping holds on to locks";
  bytes[0] = 82;
  EXPECT_EQ(load(*other, 0), 82);
}

TEST_P(MediaContract, ProtectRefusesBadRanges) {
  const std::unique_ptr<Media> media = create(kSize);
  ASSERT_NE(media, nullptr);
  const uint64_t page = media->traits().page_bytes;
  EXPECT_EQ(media->protect(1, page, false).status(), Status::MISALIGNED);
  EXPECT_EQ(media->protect(0, page - 1, false).status(), Status::MISALIGNED);
  EXPECT_EQ(media->protect(kSize, page, false).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(media->protect(0, kSize + page, false).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(media->protect(page, -page, false).status(), Status::INVALID_ARGUMENT);
  store(*media, 0, 1);
}

TEST_P(MediaContract, SyncTakesAnyRangeInside) {
  const std::unique_ptr<Media> media = create(kSize);
  ASSERT_NE(media, nullptr);
  store(*media, 5001, 1);
  EXPECT_TRUE(media->sync(5001, 1));
  EXPECT_TRUE(media->sync(0, kSize));
  EXPECT_TRUE(media->sync(kSize, 0));
}

TEST_P(MediaContract, ByteLocksHoldBetweenProcessesAndEndWithTheirs) {
  const std::unique_ptr<Media> media = create(kSize);
  ASSERT_NE(media, nullptr);
  ASSERT_TRUE(lock_byte(media->lock_fd(), 4));
  EXPECT_EQ(run_child([&] {
              const std::unique_ptr<Media> mine = open();
              if (mine == nullptr) return 1;
              if (lock_byte(mine->lock_fd(), 4)) return 2;   // the parent's
              if (!lock_byte(mine->lock_fd(), 5)) return 3;  // free
              return 0;                                      // and dies with it
            }),
            0);
  EXPECT_TRUE(lock_byte(media->lock_fd(), 5));
  // Also far past the end: lock bytes need no space.
  EXPECT_TRUE(lock_byte(media->lock_fd(), static_cast<off_t>(1) << 60));
}

TEST_P(MediaContract, DescriptorsAreClosedOnExec) {
  const std::unique_ptr<Media> media = create(kSize);
  ASSERT_NE(media, nullptr);
  EXPECT_NE(fcntl(media->lock_fd(), F_GETFD) & FD_CLOEXEC, 0);
}

/// A daemon may run without standard streams. What it prints must not land in the medium.
TEST_P(MediaContract, NoDescriptorIsAStandardStream) {
  create(kSize);
  for (int missing = 1; missing < 8; ++missing) {
    const auto in_child = [&] {
      for (const int fd : {0, 1, 2}) {
        if ((missing >> fd & 1) != 0) close(fd);
      }
      const auto print = [&] {
        bool written = false;
        for (const int fd : {0, 1, 2}) {
          written |= (missing >> fd & 1) != 0 && (write(fd, "x", 1) == 1 || errno != EBADF);
        }
        return written;
      };
      bool written = false;
      MediaCreateOptions options{.size_bytes = kSize, .replace = true};
      options.progress = [&](uint64_t, uint64_t) { return written |= print(), true; };
      const auto made = create_media(locator(), options);
      if (!made) return 2;
      if (is_device()) start_like_a_pool(**made);
      const auto opened = open_media(locator());
      if (!opened) return 3;
      const auto again = (*opened)->map_again();
      written |= print();
      return again && !written && is_new(**opened, kSize) ? 0 : 4;
    };
    EXPECT_EQ(run_child(in_child), 0) << "without the streams of mask " << missing;
  }
}

TEST_P(MediaContract, ClosingLeavesNoMappingAndNoDescriptor) {
  ASSERT_NE(create(kSize), nullptr);
  const auto count_descriptors = [] {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) != -1;
    return count;
  };
  const auto count_mappings = [&] {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) {
      count += line.find(is_device() ? "/dev/dax" : "bowhead-test-") != std::string::npos;
    }
    return count;
  };
  ASSERT_EQ(count_mappings(), 0);
  const int descriptors = count_descriptors();
  {
    const std::unique_ptr<Media> media = open();
    ASSERT_NE(media, nullptr);
    EXPECT_GT(count_mappings(), 0);
    EXPECT_TRUE(media->map_again());
    EXPECT_GT(count_descriptors(), descriptors);
  }
  EXPECT_EQ(count_mappings(), 0);
  EXPECT_EQ(count_descriptors(), descriptors);
}

}  // namespace
}  // namespace bowhead
