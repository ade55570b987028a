// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/vfio_user.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace bowhead::device {
namespace {

enum Command : uint16_t {
  VERSION = 1,
  DMA_MAP = 2,
  DMA_UNMAP = 3,
  GET_INFO = 4,
  GET_REGION_INFO = 5,
  GET_IRQ_INFO = 7,
  SET_IRQS = 8,
  REGION_READ = 9,
  REGION_WRITE = 10,
  RESET = 13
};

// Of the flags of a header.
constexpr uint32_t kTypeMask = 0xF, kReply = 1, kNoReply = 1 << 4, kError = 1 << 5;

struct Header {
  uint16_t id, command;
  uint32_t bytes, flags, error;
};
static_assert(sizeof(Header) == VfioUser::kHeaderBytes);

// Payloads. The first word of some is the room that the peer has for the answer.
struct Version {
  uint16_t major, minor;
};
struct Map {
  uint32_t room, flags;
  uint64_t offset, address, bytes;
};
struct Unmap {
  uint32_t room, flags;
  uint64_t address, bytes;
};
struct Info {
  uint32_t room, flags, regions, interrupts;
};
struct RegionInfo {
  uint32_t room, flags, region, capabilities;
  uint64_t bytes, offset;
};
struct InterruptInfo {
  uint32_t room, flags, index, count;
};
struct InterruptSet {
  uint32_t room, flags, index, start, count;
};
struct Access {
  uint64_t offset;
  uint32_t region, bytes;
};

constexpr uint32_t kReadable = 1, kWritable = 2;  // mappings and regions
constexpr uint32_t kUnmapAll = 2;
constexpr uint32_t kCanReset = 1, kIsPci = 2;
constexpr uint32_t kInterruptKinds = 5, kMsix = 2;  // of PCI functions
constexpr uint32_t kSignalsEvents = 1;
constexpr uint32_t kNoData = 1, kEventData = 4, kTrigger = 32;

// The server takes no capability of the peer, sends no descriptor, and begins no command.
constexpr std::string_view kCapabilities =
    R"({"capabilities":{"max_msg_fds":8,"max_data_xfer_size":65536,"max_dma_maps":16384}})";
static_assert(VfioUser::kTransferBytesMax == 65536 && VfioUser::kDescriptorsMax == 8 &&
              DmaMappings::kMost == 16384);

template <class T>
void append(std::vector<std::byte>& to, const T& value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof value);
}

/// The last byte of a range that has some and does not wrap around; nullopt otherwise.
std::optional<uint64_t> last_of(uint64_t first, uint64_t bytes) {
  if (bytes == 0 || bytes - 1 > UINT64_MAX - first) return std::nullopt;
  return first + (bytes - 1);
}

bool is_eventfd(int fd) {
  char kind[32] = {};
  const std::string link = fmt::format("/proc/self/fd/{}", fd);
  return readlink(link.c_str(), kind, sizeof kind - 1) > 0 &&
         std::string_view(kind) == "anon_inode:[eventfd]";
}

}  // namespace

std::map<uint64_t, DmaMapping>::const_iterator DmaMappings::from(uint64_t address) const {
  auto next = all_.upper_bound(address);
  if (next != all_.begin() && std::prev(next)->second.last() >= address) --next;
  return next;
}

int DmaMappings::add(DmaMapping mapping, UniqueFd file) {
  const auto last = last_of(mapping.address, mapping.bytes);
  if (!last) return EINVAL;
  const auto next = from(mapping.address);
  if (next != all_.end() && next->first <= *last) return EEXIST;
  struct stat info {};
  if (file.get() >= 0) {
    if (fstat(file.get(), &info) != 0) return errno;
    const auto size = static_cast<uint64_t>(info.st_size);
    // Other files, such as devices, have no size that says anything.
    if (S_ISREG(info.st_mode) && (mapping.offset > size || mapping.bytes > size - mapping.offset))
      return EINVAL;
  }
  if (all_.size() >= kMost) return ENOSPC;
  if (file.get() >= 0) mapping.file = shared(std::move(file), info.st_dev, info.st_ino);
  all_.emplace(mapping.address, std::move(mapping));
  return 0;
}

std::shared_ptr<const UniqueFd> DmaMappings::shared(UniqueFd file, uint64_t device,
                                                    uint64_t inode) {
  std::erase_if(files_, [](const auto& one) { return one.second.expired(); });
  auto& known = files_[{device, inode, fcntl(file.get(), F_GETFL) & O_ACCMODE}];
  auto one = known.lock();
  if (!one) known = one = std::make_shared<const UniqueFd>(std::move(file));
  return one;
}

std::optional<DmaMapping> DmaMappings::find(uint64_t address, uint64_t bytes) const {
  const auto last = last_of(address, bytes);
  auto one = from(address);
  if (!last || one == all_.end() || one->first > address) return std::nullopt;
  DmaMapping whole = one->second;
  while (whole.last() < *last) {
    const uint64_t next = whole.last() + 1;
    ++one;
    if (one == all_.end() || one->first != next || one->second.file != whole.file ||
        one->second.offset != whole.offset + whole.bytes)
      return std::nullopt;
    whole.bytes += one->second.bytes;
    whole.writable = whole.writable && one->second.writable;
  }
  return whole;
}

std::vector<DmaMapping> DmaMappings::all() const {
  std::vector<DmaMapping> some;
  for (const auto& [address, mapping] : all_) some.push_back(mapping);
  return some;
}

std::optional<std::vector<DmaMapping>> DmaMappings::within(uint64_t address, uint64_t bytes) const {
  std::vector<DmaMapping> some;
  const auto last = last_of(address, bytes);
  if (!last) return std::nullopt;
  for (auto one = from(address); one != all_.end() && one->first <= *last; ++one) {
    if (one->first < address || one->second.last() > *last) return std::nullopt;
    some.push_back(one->second);
  }
  return some;
}

/// A message that was received.
struct VfioUser::Request {
  Header header;
  std::span<const std::byte> payload;
  std::vector<UniqueFd> descriptors;

  /// The payload is this, and nothing more.
  template <class T>
  std::optional<T> exactly() const {
    return payload.size() == sizeof(T) ? begin<T>() : std::nullopt;
  }
  /// It begins with this.
  template <class T>
  std::optional<T> begin() const {
    if (payload.size() < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, payload.data(), sizeof value);
    return value;
  }
};

VfioUser::~VfioUser() {
  function_.reset();
  function_.set_interrupt(UniqueFd());
  mappings_.clear();
}

std::optional<size_t> VfioUser::message_bytes(std::span<const std::byte, kHeaderBytes> bytes) {
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.bytes < kHeaderBytes || header.bytes > kMessageBytesMax) return std::nullopt;
  return header.bytes;
}

VfioUser::Outcome VfioUser::handle(std::span<const std::byte> message,
                                   std::vector<UniqueFd> descriptors) {
  Request request{{}, message.subspan(kHeaderBytes), std::move(descriptors)};
  std::memcpy(&request.header, message.data(), kHeaderBytes);
  if ((request.header.flags & kTypeMask) != 0) return {.ends = true};  // no command
  Outcome outcome;
  std::vector<std::byte> payload;
  const int error = carry_out(request, payload);
  outcome.ends = !has_version_;  // the peer must begin with one that is taken
  if ((request.header.flags & kNoReply) != 0) return outcome;
  if (error != 0) payload.clear();
  append(outcome.reply,
         Header{request.header.id, request.header.command,
                static_cast<uint32_t>(kHeaderBytes + payload.size()),
                error == 0 ? kReply : kReply | kError, static_cast<uint32_t>(error)});
  outcome.reply.insert(outcome.reply.end(), payload.begin(), payload.end());
  return outcome;
}

/// 0 and the payload of the reply, or an error number.
int VfioUser::carry_out(Request& request, std::vector<std::byte>& reply) {
  if (!has_version_ && request.header.command != VERSION) return EPROTO;
  switch (request.header.command) {
    case VERSION:
      return version(request, reply);
    case DMA_MAP:
      return map(request);
    case DMA_UNMAP:
      return unmap(request, reply);
    case GET_INFO: {
      const auto asked = request.exactly<Info>();
      if (!asked || asked->room < sizeof(Info)) return EINVAL;
      append(reply, Info{sizeof(Info), kCanReset | kIsPci, kRegions, kInterruptKinds});
      return 0;
    }
    case GET_REGION_INFO: {
      const auto asked = request.exactly<RegionInfo>();
      if (!asked || asked->room < sizeof(RegionInfo) || asked->region >= kRegions) return EINVAL;
      const uint64_t bytes = function_.region_bytes(asked->region);
      append(reply, RegionInfo{sizeof(RegionInfo), bytes == 0 ? 0 : kReadable | kWritable,
                               asked->region, 0, bytes, 0});
      return 0;
    }
    case GET_IRQ_INFO: {
      const auto asked = request.exactly<InterruptInfo>();
      if (!asked || asked->room < sizeof(InterruptInfo) || asked->index >= kInterruptKinds)
        return EINVAL;
      const bool has_one = asked->index == kMsix && function_.has_interrupt();
      append(reply, InterruptInfo{sizeof(InterruptInfo), has_one ? kSignalsEvents : 0, asked->index,
                                  has_one});
      return 0;
    }
    case SET_IRQS:
      return set_interrupts(request);
    case REGION_READ:
      return access(request, /*writes=*/false, reply);
    case REGION_WRITE:
      return access(request, /*writes=*/true, reply);
    case RESET:
      if (!request.payload.empty()) return EINVAL;
      function_.reset();
      return 0;
    default:
      return ENOTSUP;
  }
}

int VfioUser::version(const Request& request, std::vector<std::byte>& reply) {
  const auto proposed = request.begin<Version>();
  if (has_version_ || !proposed || proposed->major != 0) return EINVAL;
  const auto text = request.payload.subspan(sizeof(Version));
  if (!text.empty() && text.back() != std::byte{0}) return EINVAL;
  has_version_ = true;
  append(reply, Version{0, 0});
  const auto* capabilities = reinterpret_cast<const std::byte*>(kCapabilities.data());
  reply.insert(reply.end(), capabilities, capabilities + kCapabilities.size());
  reply.push_back(std::byte{0});
  return 0;
}

int VfioUser::map(Request& request) {
  const auto asked = request.exactly<Map>();
  if (!asked || asked->room < sizeof(Map) || (asked->flags & ~(kReadable | kWritable)) != 0 ||
      request.descriptors.size() > 1)
    return EINVAL;
  DmaMapping mapping{
      asked->address, asked->bytes, asked->offset, asked->flags == (kReadable | kWritable), {}};
  UniqueFd file;
  if (!request.descriptors.empty()) file = std::move(request.descriptors.front());
  return mappings_.add(std::move(mapping), std::move(file));
}

int VfioUser::unmap(const Request& request, std::vector<std::byte>& reply) {
  const auto asked = request.exactly<Unmap>();
  if (!asked || asked->room < sizeof(Unmap) || (asked->flags & ~kUnmapAll) != 0) return EINVAL;
  const bool all = asked->flags == kUnmapAll;
  if (all && (asked->address != 0 || asked->bytes != 0)) return EINVAL;
  const auto some = all ? mappings_.all() : mappings_.within(asked->address, asked->bytes);
  if (!some) return EINVAL;
  for (const DmaMapping& mapping : *some) {
    function_.release(mapping);
    mappings_.remove(mapping);
  }
  append(reply, *asked);
  return 0;
}

int VfioUser::set_interrupts(Request& request) {
  const auto asked = request.exactly<InterruptSet>();
  if (!asked || asked->room < sizeof(InterruptSet) || asked->index >= kInterruptKinds)
    return EINVAL;
  const uint32_t most = asked->index == kMsix && function_.has_interrupt() ? 1 : 0;
  if (asked->start > most || asked->count > most - asked->start) return EINVAL;
  if (asked->flags == (kNoData | kTrigger)) {
    if (asked->count != 0) function_.interrupt();
    if (asked->count == 0 && most != 0) function_.set_interrupt(UniqueFd());
    return 0;
  }
  auto& descriptors = request.descriptors;
  if (asked->flags != (kEventData | kTrigger) || asked->count == 0 || descriptors.size() > 1)
    return EINVAL;
  if (descriptors.empty()) {
    function_.set_interrupt(UniqueFd());
    return 0;
  }
  // To signal it must not wait, whatever the peer does with it.
  const int fd = descriptors.front().get();
  if (!is_eventfd(fd) || fcntl(fd, F_SETFL, O_NONBLOCK) != 0) return EINVAL;
  function_.set_interrupt(std::move(descriptors.front()));
  return 0;
}

int VfioUser::access(const Request& request, bool writes, std::vector<std::byte>& reply) {
  const auto asked = writes ? request.begin<Access>() : request.exactly<Access>();
  if (!asked || asked->region >= kRegions || asked->bytes > kTransferBytesMax) return EINVAL;
  const uint64_t size = function_.region_bytes(asked->region);
  if (asked->offset > size || asked->bytes > size - asked->offset) return EINVAL;
  const auto data = request.payload.subspan(sizeof(Access));
  if (writes && data.size() != asked->bytes) return EINVAL;
  append(reply, *asked);
  if (writes) {
    function_.write(asked->region, asked->offset, data);
  } else {
    reply.resize(sizeof(Access) + asked->bytes);
    function_.read(asked->region, asked->offset, std::span(reply).subspan(sizeof(Access)));
  }
  return 0;
}

}  // namespace bowhead::device
