// SPDX-License-Identifier: Apache-2.0
// How a process sends mailbox commands to a device: typed calls on any transport.
//
// Which way for which device:
//   - Devices of pools (firmware-sim/device.h): everything goes through MailboxClient.
//   - CXL devices of this host, through Linux: sysfs says what a device is (inventory.h), libcxl
//     asks for its health (health.h, with sentences for people), and the kernel reports poison and
//     events as trace events (media_errors.h, watch.h). Programs use those. KernelMailbox is for
//     the rest: the effects log, labels, alerts, and the commands of a Bowhead device, which are
//     the vendor's. It refuses commands about poison and events.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "driver-shim/host_files.h"
#include "firmware-sim/cxl_mailbox.h"

namespace bowhead::device {
class Mailbox;
}

namespace bowhead::driver {

class MailboxTransport {
 public:
  virtual ~MailboxTransport() = default;
  /// Sends a command and waits for its reply. Errors are those of the way there and back; what the
  /// device answers is the return code of the reply.
  virtual Result<cxl::Reply> send(uint16_t opcode, std::span<const std::byte> input) = 0;
  /// The longest input and output, in bytes: 256 or more.
  virtual size_t payload_bytes_max() const = 0;
};

/// Calls a mailbox of this process.
class DirectMailbox final : public MailboxTransport {
 public:
  /// The mailbox must outlive it.
  explicit DirectMailbox(device::Mailbox& mailbox) : mailbox_(mailbox) {}
  Result<cxl::Reply> send(uint16_t opcode, std::span<const std::byte> input) override;
  size_t payload_bytes_max() const override { return cxl::kPayloadBytesMax; }

 private:
  device::Mailbox& mailbox_;
};

/// A device of this host, through /dev/cxl/memN and the ioctls of linux/cxl_mem.h. Commands that
/// the kernel knows are sent as such. Identify, Background Operation Status, Get Timestamp and
/// those of the vendor's range are sent as raw commands, which kernels allow only if they are built
/// with CONFIG_CXL_MEM_RAW_COMMANDS; they log a warning and mark themselves as tainted.
/// Thread-safe.
class KernelMailbox final : public MailboxTransport {
 public:
  /// An ioctl of the device: 0, or a negative errno.
  using Control = std::function<int(unsigned long request, void* argument)>;

  /// Returns SYSTEM: no such device, no permission, a driver without these ioctls.
  static Result<std::unique_ptr<KernelMailbox>> open(
      const std::string& memory_device, const shim::HostFiles& files = shim::HostFiles());
  /// The same with any device behind `control`.
  static Result<std::unique_ptr<KernelMailbox>> make(std::string memory_device,
                                                     size_t payload_bytes_max, Control control);

  /// Returns NOT_SUPPORTED (the kernel does not offer it, or does it itself), BUSY (the kernel
  /// holds what the command changes), SYSTEM.
  Result<cxl::Reply> send(uint16_t opcode, std::span<const std::byte> input) override;
  size_t payload_bytes_max() const override { return payload_bytes_max_; }

 private:
  KernelMailbox(std::string name, size_t payload_bytes_max, Control control)
      : name_(std::move(name)),
        payload_bytes_max_(payload_bytes_max),
        control_(std::move(control)) {}
  Result<void> query();

  const std::string name_;
  const size_t payload_bytes_max_;
  const Control control_;
  std::vector<uint32_t> offered_;  // numbers of the kernel's commands
};

struct DeviceIdentity {
  std::string firmware;
  uint64_t total_bytes = 0;  ///< in multiples of 256 MiB, as the next two
  uint64_t volatile_bytes = 0;
  uint64_t persistent_bytes = 0;
  uint32_t label_bytes = 0;         ///< of the label storage area
  uint32_t poison_records_max = 0;  ///< of the poison list
  uint16_t injected_max = 0;        ///< lines that can be poisoned; 0: no limit
};

struct DeviceHealth {
  bool maintenance_needed = false;
  bool performance_degraded = false;
  bool replacement_needed = false;
  bool capacity_degraded = false;
  uint8_t media_status = 0;       ///< cxl::MediaStatus, or another value of Table 8-148
  uint8_t additional_status = 0;  ///< bits of Table 8-148
  std::optional<int> life_used_percent;
  std::optional<int> temperature_celsius;
  uint32_t dirty_shutdowns = 0;
  uint32_t corrected_volatile = 0;  ///< errors
  uint32_t corrected_persistent = 0;
};

struct PoisonRecord {
  uint64_t offset = 0;  ///< in the device's memory
  uint64_t bytes = 0;
  cxl::PoisonSource source = cxl::PoisonSource::UNKNOWN;

  bool operator==(const PoisonRecord&) const = default;
};
struct PoisonList {
  std::vector<PoisonRecord> records;
  bool overflowed = false;  ///< there is more poison than the device lists: scan
  bool scanning = false;
};

struct DeviceEvent {
  uint16_t handle = 0;
  uint64_t timestamp_ns = 0;  ///< since 1970; 0: the host has set no timestamp
  bool is_media = false;      ///< a General Media Event; of others the rest is not set
  uint64_t offset = 0;        ///< in the device's memory
  uint8_t descriptor = 0;     ///< cxl::EventDescriptor
  cxl::EventTransaction transaction = cxl::EventTransaction::UNKNOWN;
};
struct DeviceEvents {
  std::vector<DeviceEvent> records;  ///< from the oldest
  bool more = false;                 ///< which can be read when these are cleared
  uint16_t dropped = 0;              ///< for which the log had no room
};

struct BackgroundOperation {
  bool running = false;
  uint8_t percent = 0;
  uint16_t opcode = 0;                              ///< 0: there was none
  cxl::ReturnCode code = cxl::ReturnCode::SUCCESS;  ///< when it is over
};

struct ScanResults {
  std::vector<PoisonRecord> records;
  /// What the scan did not reach: to be scanned again.
  std::optional<std::pair<uint64_t, uint64_t>> rest;  ///< offset, bytes
};

struct HotListEntry {
  uint64_t offset = 0;  ///< of the unit
  uint64_t count = 0;   ///< sampled accesses
};
struct HotList {
  std::vector<HotListEntry> entries;  ///< of one epoch from the hottest; epochs in their order
  uint16_t next_head = 0;             ///< where to read on
  bool more = false;
  bool overflow = false;
  uint64_t unit_bytes = 0;
  uint8_t sampling_log2 = 0;  ///< an entry of n stands for about n * 2^sampling_log2 lines
  uint64_t epochs = 0;        ///< that have ended
};

/// What a return code is to a caller: OK, INVALID_ARGUMENT, NOT_SUPPORTED, BUSY, LIMIT_REACHED,
/// MEDIA_ERROR, CANCELLED, SYSTEM.
Status status_of(cxl::ReturnCode code);

/// Every call returns the statuses of the transport and of status_of(), with a sentence that names
/// the command; and DEVICE_LOST: the reply is not one of this command. Offsets and lengths of
/// memory are multiples of 64. Thread-safe if the transport is; but while poison_list() or
/// scan_results() takes several commands, no other thread or process may read the same list.
class MailboxClient {
 public:
  /// The transport must outlive it.
  explicit MailboxClient(MailboxTransport& transport) : transport_(transport) {}

  Result<DeviceIdentity> identify();
  Result<uint64_t> serial_number();
  Result<DeviceHealth> health();
  /// Opcode to bits of cxl::Effect, of all commands that the device has.
  Result<std::map<uint16_t, uint16_t>> effects();

  Result<uint64_t> timestamp_ns();
  Result<void> set_timestamp_ns(uint64_t since_1970_ns);

  Result<std::vector<std::byte>> read_labels(uint32_t offset, uint32_t bytes);
  Result<void> write_labels(uint32_t offset, std::span<const std::byte> bytes);

  /// The whole list, however many replies it takes.
  Result<PoisonList> poison_list(uint64_t offset, uint64_t bytes);
  Result<void> inject_poison(uint64_t offset);
  /// Stores `line` there.
  Result<void> clear_poison(uint64_t offset, std::span<const std::byte, cxl::kLineBytes> line);

  Result<DeviceEvents> events(cxl::EventLogId log);
  /// The handles of the oldest records, in their order.
  Result<void> clear_events(cxl::EventLogId log, std::span<const uint16_t> handles);
  /// Sets the number of corrected errors at which the device warns; nullopt: never.
  Result<void> warn_at_corrected(bool persistent, std::optional<uint16_t> errors);

  Result<uint32_t> estimated_scan_ms(uint64_t offset, uint64_t bytes);
  /// It goes on in the background.
  Result<void> start_scan(uint64_t offset, uint64_t bytes, bool with_events);
  Result<BackgroundOperation> background();
  Result<void> abort_background();
  Result<ScanResults> scan_results();

  Result<cxl::NdpCapabilities> capabilities();
  Result<cxl::Counters> counters();
  Result<cxl::HotnessInfo> hotness();
  Result<void> configure_hotness(const cxl::HotnessSetting& setting);
  /// `head`: the first entry that the caller has not read; those before it are given up. It begins
  /// with that of hotness(), and goes on with next_head.
  Result<HotList> read_hot_list(uint16_t head, bool clear_overflow);

 private:
  using Bytes = std::vector<std::byte>;
  /// The output, of this many bytes or more.
  Result<Bytes> send(cxl::Opcode opcode, std::span<const std::byte> input, size_t output_least);
  template <class T>
  Result<T> get(cxl::Opcode opcode, std::span<const std::byte> input = {});
  Result<void> set(cxl::Opcode opcode, std::span<const std::byte> input);

  MailboxTransport& transport_;
};

}  // namespace bowhead::driver
