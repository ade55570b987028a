// SPDX-License-Identifier: Apache-2.0
// What CXL defines about mailbox commands of memory devices, and what Bowhead adds in the vendor's
// range: opcodes, return codes, effects, payloads. Section and table numbers are those of the CXL
// Specification, revision 3.2. Payloads are copied in and out of these structs.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace bowhead::cxl {

enum class Opcode : uint16_t {
  IDENTIFY = 0x0001,
  BACKGROUND_STATUS = 0x0002,
  ABORT_BACKGROUND = 0x0005,
  GET_EVENTS = 0x0100,
  CLEAR_EVENTS = 0x0101,
  GET_TIMESTAMP = 0x0300,
  SET_TIMESTAMP = 0x0301,
  GET_SUPPORTED_LOGS = 0x0400,
  GET_LOG = 0x0401,
  IDENTIFY_MEMORY_DEVICE = 0x4000,
  GET_PARTITION_INFO = 0x4100,
  GET_LSA = 0x4102,
  SET_LSA = 0x4103,
  GET_HEALTH_INFO = 0x4200,
  GET_ALERT_CONFIG = 0x4201,
  SET_ALERT_CONFIG = 0x4202,
  GET_POISON_LIST = 0x4300,
  INJECT_POISON = 0x4301,
  CLEAR_POISON = 0x4302,
  GET_SCAN_MEDIA_CAPS = 0x4303,
  SCAN_MEDIA = 0x4304,
  GET_SCAN_MEDIA_RESULTS = 0x4305,
  GET_NDP_CAPABILITIES = 0xC000,  // from here on: the vendor's
  GET_COUNTERS = 0xC001,
  GET_HOTNESS = 0xC010,
  CONFIGURE_HOTNESS = 0xC011,
  READ_HOT_LIST = 0xC012,
};
constexpr uint16_t kVendorOpcodes = 0xC000;  ///< these and all above

/// 8.2.9.4.5.1, Table 8-46
enum class ReturnCode : uint16_t {
  SUCCESS = 0x00,
  BACKGROUND_STARTED = 0x01,
  INVALID_INPUT = 0x02,
  UNSUPPORTED = 0x03,
  INTERNAL_ERROR = 0x04,
  RETRY_REQUIRED = 0x05,
  BUSY = 0x06,
  MEDIA_DISABLED = 0x07,
  INVALID_HANDLE = 0x0E,
  INVALID_PHYSICAL_ADDRESS = 0x0F,
  INJECT_POISON_LIMIT = 0x10,
  PERMANENT_MEDIA_FAILURE = 0x11,
  ABORTED = 0x12,
  INVALID_SECURITY_STATE = 0x13,
  UNSUPPORTED_MAILBOX = 0x15,
  INVALID_PAYLOAD_LENGTH = 0x16,
  INVALID_LOG = 0x17,
};

/// The answer to a command. There is output only after SUCCESS.
struct Reply {
  ReturnCode code = ReturnCode::SUCCESS;
  std::vector<std::byte> output = {};
};

/// 8.2.10.5.2.1, Table 8-87
enum Effect : uint16_t {
  CONFIG_CHANGE = 1u << 1,  // immediate, as the next three
  DATA_CHANGE = 1u << 2,
  POLICY_CHANGE = 1u << 3,
  LOG_CHANGE = 1u << 4,
  BACKGROUND = 1u << 6,
  ABORTABLE = 1u << 8,  // by ABORT_BACKGROUND
};

constexpr uint64_t kCapacityUnit = uint64_t{256} << 20;
constexpr uint64_t kLineBytes = 64;  ///< of poison, and of lengths of ranges
constexpr uint32_t kPayloadBytesLog2 = 12;
constexpr uint32_t kPayloadBytesMax = 1u << kPayloadBytesLog2;  ///< of an input, and of an output

/// A little-endian integer at any address.
template <class T>
class Le {
 public:
  Le() = default;
  Le(T value) { std::memcpy(bytes_, &value, sizeof value); }  // NOLINT(google-explicit-constructor)
  operator T() const {                                        // NOLINT(google-explicit-constructor)
    T value;
    std::memcpy(&value, bytes_, sizeof value);
    return value;
  }

 private:
  static_assert(std::endian::native == std::endian::little);
  std::byte bytes_[sizeof(T)];
};

using Uuid = std::array<uint8_t, 16>;
/// 8.2.10.5.1, Table 8-83
constexpr Uuid kCommandEffectsLog = {0x0d, 0xa9, 0xc0, 0xb5, 0xbf, 0x41, 0x4b, 0x78,
                                     0x8f, 0x79, 0x96, 0xb1, 0x62, 0x3b, 0x3f, 0x17};
/// 8.2.10.2.1.1, Table 8-57
constexpr Uuid kGeneralMediaEvent = {0xfb, 0xcd, 0x0a, 0x77, 0xc2, 0x60, 0x41, 0x7f,
                                     0x85, 0xa9, 0x08, 0x8b, 0x16, 0x21, 0xeb, 0xa6};

/// Identify (0001h): 8.2.10.1.1, Table 8-50
struct Identity {
  Le<uint16_t> pcie_vendor_id;
  Le<uint16_t> pcie_device_id;
  Le<uint16_t> pcie_subsystem_vendor_id;
  Le<uint16_t> pcie_subsystem_id;
  Le<uint64_t> serial_number;
  uint8_t message_bytes_log2;  // of the largest message
  uint8_t component_type;      // kMemoryDevice
};
constexpr uint8_t kMemoryDevice = 3;

/// Background Operation Status (0002h): 8.2.10.1.2, Table 8-51
struct BackgroundStatus {
  uint8_t status;  // bit 0: running; bits 7:1: per cent done
  uint8_t reserved;
  Le<uint16_t> opcode;
  Le<uint16_t> return_code;
  Le<uint16_t> vendor_status;
};

/// Logs of events, from the least severe: 8.2.10.2.2, Table 8-64
enum class EventLogId : uint8_t { INFORMATIONAL = 0, WARNING = 1, FAILURE = 2, FATAL = 3 };
constexpr uint8_t kEventLogs = 4;

/// 8.2.10.2.1.1, Table 8-57. Its first 48 bytes are common to all events: 8.2.10.2.1, Table 8-55.
struct GeneralMediaEvent {
  Uuid id;  // kGeneralMediaEvent
  uint8_t length;
  uint8_t flags[3];  // bits 1:0: severity, as EventLogId
  Le<uint16_t> handle;
  Le<uint16_t> related_handle;
  Le<uint64_t> timestamp;  // ns since 1970; 0: the host has set no timestamp
  uint8_t maintenance_class;
  uint8_t maintenance_subclass;
  Le<uint16_t> logical_device;
  uint8_t head;
  uint8_t reserved0[11];
  Le<uint64_t> physical_address;  // bit 0: volatile; bits 63:6: address
  uint8_t descriptor;             // EventDescriptor
  uint8_t type;                   // 0: ECC error
  uint8_t transaction;            // EventTransaction
  Le<uint16_t> validity;          // of the next four
  uint8_t channel;
  uint8_t rank;
  uint8_t device[3];
  uint8_t component[16];
  uint8_t corrected_flags;     // bit 1: the programmed threshold was reached
  uint8_t corrected_count[3];  // of corrected errors
  uint8_t sub_type;
  uint8_t reserved1[41];
};
enum EventDescriptor : uint8_t { UNCORRECTABLE = 1, THRESHOLD = 2, POISON_OVERFLOW = 4 };
enum class EventTransaction : uint8_t {
  UNKNOWN = 0,
  HOST_READ = 1,
  HOST_WRITE = 2,
  SCAN_MEDIA = 3,
  INJECT_POISON = 4,
  MEDIA_SCRUB = 5,
  MEDIA_MANAGEMENT = 6,
};

/// Output of Get Event Records (0100h): 8.2.10.2.2, Table 8-65. Records follow. The input is the
/// number of a log, a byte.
struct EventsHead {
  uint8_t flags;  // bit 0: records were dropped; bit 1: there are more
  uint8_t reserved0;
  Le<uint16_t> dropped;
  Le<uint64_t> first_dropped;  // timestamps
  Le<uint64_t> last_dropped;
  Le<uint16_t> count;
  uint8_t reserved1[10];
};
enum EventsFlag : uint8_t { EVENTS_DROPPED = 1, EVENTS_MORE = 2 };

/// Input of Clear Event Records (0101h): 8.2.10.2.3, Table 8-66. Handles follow, uint16_t.
struct ClearEvents {
  uint8_t log;
  uint8_t flags;  // bit 0: all
  uint8_t count;
  uint8_t reserved[3];
};

/// Output of Get Supported Logs (0400h): 8.2.10.5.1, Tables 8-82 and 8-83. SupportedLog follow.
struct SupportedLogsHead {
  Le<uint16_t> count;
  uint8_t reserved[6];
};
struct SupportedLog {
  Uuid id;
  Le<uint32_t> size_bytes;
};

/// Input of Get Log (0401h): 8.2.10.5.2, Table 8-84. The output is so many bytes of it.
struct GetLog {
  Uuid id;
  Le<uint32_t> offset;
  Le<uint32_t> length;
};

/// An entry of the Command Effects Log: 8.2.10.5.2.1, Table 8-87
struct CommandEffect {
  Le<uint16_t> opcode;
  Le<uint16_t> effects;  // Effect
};

/// Identify Memory Device (4000h): 8.2.10.9.1.1, Table 8-142, as of revision 2.0. Revision 3.0
/// added two bytes, the size of the log of dynamic capacity, which Linux does not ask for.
struct MemoryDevice {
  char firmware_revision[16];
  Le<uint64_t> total_capacity;  // in kCapacityUnit, as the next three
  Le<uint64_t> volatile_only_capacity;
  Le<uint64_t> persistent_only_capacity;
  Le<uint64_t> partition_alignment;
  Le<uint16_t> informational_events;  // that the logs hold
  Le<uint16_t> warning_events;
  Le<uint16_t> failure_events;
  Le<uint16_t> fatal_events;
  Le<uint32_t> lsa_bytes;
  uint8_t poison_records[3];  // of the poison list
  Le<uint16_t> inject_poison_limit;
  uint8_t poison_capabilities;
  uint8_t qos_capabilities;
};

/// Get Partition Info (4100h): 8.2.10.9.2.1, Table 8-143; in kCapacityUnit
struct PartitionInfo {
  Le<uint64_t> active_volatile;
  Le<uint64_t> active_persistent;
  Le<uint64_t> next_volatile;
  Le<uint64_t> next_persistent;
};

/// Input of Get LSA (4102h): 8.2.10.9.2.3, Table 8-145
struct GetLsa {
  Le<uint32_t> offset;
  Le<uint32_t> length;
};
/// Input of Set LSA (4103h): 8.2.10.9.2.4, Table 8-147. The bytes follow.
struct SetLsa {
  Le<uint32_t> offset;
  Le<uint32_t> reserved;
};

/// Get Health Info (4200h): 8.2.10.9.3.1, Table 8-148
struct HealthInfo {
  uint8_t health_status;  // HealthStatus
  uint8_t media_status;   // MediaStatus
  uint8_t additional_status;
  uint8_t life_used_percent;        // kNoLifeUsed: not known
  Le<int16_t> temperature_celsius;  // kNoTemperature: not known
  Le<uint32_t> dirty_shutdowns;
  Le<uint32_t> corrected_volatile;  // errors
  Le<uint32_t> corrected_persistent;
};
enum HealthStatus : uint8_t {
  MAINTENANCE_NEEDED = 1,
  PERFORMANCE_DEGRADED = 2,
  REPLACEMENT_NEEDED = 4,
  CAPACITY_DEGRADED = 8
};
enum class MediaStatus : uint8_t { NORMAL = 0, NOT_READY = 1, ALL_DATA_LOST = 3 };
/// Of additional_status, and of the bits of alerts: many errors were corrected.
enum : uint8_t { CORRECTED_VOLATILE_STATUS = 1u << 4, CORRECTED_PERSISTENT_STATUS = 1u << 5 };
constexpr uint8_t kNoLifeUsed = 0xff;
constexpr int16_t kNoTemperature = 0x7fff;

/// Get Alert Configuration (4201h): 8.2.10.9.3.2, Table 8-149
struct AlertConfig {
  uint8_t valid;  // Alert, as the next one
  uint8_t programmable;
  uint8_t life_used_critical_percent;
  uint8_t life_used_warning_percent;
  Le<int16_t> over_temperature_critical;
  Le<int16_t> under_temperature_critical;
  Le<int16_t> over_temperature_warning;
  Le<int16_t> under_temperature_warning;
  Le<uint16_t> corrected_volatile_warning;  // errors
  Le<uint16_t> corrected_persistent_warning;
};
/// Input of Set Alert Configuration (4202h): 8.2.10.9.3.3, Table 8-150
struct SetAlertConfig {
  uint8_t valid;   // Alert: these are set, to the next one and their thresholds
  uint8_t enable;  // Alert
  uint8_t life_used_warning_percent;
  uint8_t reserved;
  Le<int16_t> over_temperature_warning;
  Le<int16_t> under_temperature_warning;
  Le<uint16_t> corrected_volatile_warning;
  Le<uint16_t> corrected_persistent_warning;
};
enum Alert : uint8_t { CORRECTED_VOLATILE_ALERT = 1u << 3, CORRECTED_PERSISTENT_ALERT = 1u << 4 };

/// A range of memory: input of Get Poison List (4300h, 8.2.10.9.4.1, Table 8-153) and of Get Scan
/// Media Capabilities (4303h, 8.2.10.9.4.4, Table 8-158)
struct MemoryRange {
  Le<uint64_t>
      address;  // of the first line. Of Get Poison List, bit 0: begin with the first record
  Le<uint64_t> lines;
};
constexpr uint64_t kRestartPoisonList = 1;

/// Output of Get Poison List (4300h): Table 8-154. MediaError follow.
struct PoisonListHead {
  uint8_t flags;  // PoisonListFlag
  uint8_t reserved0;
  Le<uint64_t> overflow_timestamp;
  Le<uint16_t> count;
  uint8_t reserved1[20];
};
enum PoisonListFlag : uint8_t {
  POISON_MORE = 1,
  POISON_OVERFLOWED = 2,
  POISON_SCANNING = 4,
  POISON_RESTARTED = 8
};

/// Table 8-155
struct MediaError {
  Le<uint64_t> address;  // bits 2:0: PoisonSource; bits 63:6: address
  Le<uint32_t> lines;
  Le<uint32_t> reserved;
};
enum class PoisonSource : uint8_t {
  UNKNOWN = 0,
  EXTERNAL = 1,
  INTERNAL = 2,
  INJECTED = 3,
  VENDOR = 7
};
constexpr uint64_t kPoisonSourceMask = 7;

/// Input of Inject Poison (4301h): 8.2.10.9.4.2, Table 8-156
struct InjectPoison {
  Le<uint64_t> address;
};
/// Input of Clear Poison (4302h): 8.2.10.9.4.3, Table 8-157
struct ClearPoison {
  Le<uint64_t> address;
  std::byte data[kLineBytes];  // what is written there
};

/// Output of Get Scan Media Capabilities (4303h): 8.2.10.9.4.4, Table 8-159
struct ScanMediaCaps {
  Le<uint32_t> estimated_ms;
};
/// Input of Scan Media (4304h): 8.2.10.9.4.5, Table 8-160
struct ScanMedia {
  Le<uint64_t> address;
  Le<uint64_t> lines;
  uint8_t flags;  // bit 0: no events
};
constexpr uint8_t kScanWithoutEvents = 1;
/// Output of Get Scan Media Results (4305h): 8.2.10.9.4.6, Table 8-161. MediaError follow.
struct ScanResultsHead {
  Le<uint64_t> restart_address;  // what an aborted scan did not reach
  Le<uint64_t> restart_lines;
  uint8_t flags;  // ScanResultsFlag
  uint8_t reserved0;
  Le<uint16_t> count;
  uint8_t reserved1[12];
};
enum ScanResultsFlag : uint8_t { SCAN_MORE = 1, SCAN_STOPPED = 2 };

/// Get NDP Capabilities (C000h)
struct NdpCapabilities {
  Le<uint32_t> version;  // 1
  Le<uint32_t> reserved;
  Le<uint64_t> capacity_bytes;     // of memory
  Le<uint64_t> operations;         // bit n: the operation of opcode n (bowhead/format/device.h)
  Le<uint64_t> request_bytes_max;  // of one operation
};

/// Get Counters (C001h): since the device began
struct Counters {
  Le<uint64_t> commands;          // of queue pairs
  Le<uint64_t> refused;           // of them
  Le<uint64_t> read_bytes;        // of blocks
  Le<uint64_t> pairs;             // that have an area for answers now
  Le<uint64_t> mailbox_commands;  // this one too
  Le<uint64_t> mailbox_refused;   // of them
  Le<uint64_t> poisoned_lines;    // now
  Le<uint64_t> poison_met;        // accesses that met poison
  Le<uint32_t> event_status;      // bit n: EventLogId n has records (8.2.9.3.1)
  Le<uint32_t> reserved;
};

/// Input of Configure Hotness (C011h), and part of the output of Get Hotness
struct HotnessSetting {
  uint8_t enabled;  // 0 or 1
  uint8_t unit_log2;
  uint8_t sampling_log2;
  uint8_t reserved;
  Le<uint32_t> threshold;
  Le<uint32_t> epoch_ms;
};
/// Get Hotness (C010h)
struct HotnessInfo {
  HotnessSetting setting;
  Le<uint32_t> unit_sizes;  // bit n: units of 2^n bytes are possible
  Le<uint16_t> places;      // of the hot list, which holds one entry less
  uint8_t counter_bits;
  uint8_t flags;  // HotListFlag
  Le<uint16_t> head;
  Le<uint16_t> tail;
  Le<uint64_t> epochs;  // that have ended
};
enum HotListFlag : uint8_t { HOT_LIST_OVERFLOW = 1 };

/// Input of Read Hot List (C012h): the first entry that the reader has not read, which becomes the
/// head. Repeating a command whose reply was lost loses no entry.
struct ReadHotList {
  Le<uint16_t> head;
  Le<uint16_t> count_max;
  uint8_t clear_overflow;  // 0 or 1
  uint8_t reserved[3];
};
/// Its output. uint64_t follow: the number of a unit above counter_bits of its count (8.2.8.8).
struct HotListHead {
  Le<uint16_t> head;
  Le<uint16_t> tail;
  Le<uint16_t> count;
  Le<uint16_t> places;
  uint8_t counter_bits;
  uint8_t unit_log2;
  uint8_t sampling_log2;
  uint8_t flags;  // HotListFlag, before it was cleared
  Le<uint32_t> reserved;
  Le<uint64_t> epochs;
};

static_assert(sizeof(Identity) == 0x12 && offsetof(Identity, serial_number) == 8 &&
              offsetof(Identity, component_type) == 0x11);
static_assert(sizeof(BackgroundStatus) == 8 && offsetof(BackgroundStatus, return_code) == 4);
static_assert(sizeof(GeneralMediaEvent) == 0x80 && offsetof(GeneralMediaEvent, handle) == 0x14 &&
              offsetof(GeneralMediaEvent, timestamp) == 0x18 &&
              offsetof(GeneralMediaEvent, physical_address) == 0x30 &&
              offsetof(GeneralMediaEvent, transaction) == 0x3A &&
              offsetof(GeneralMediaEvent, component) == 0x42 &&
              offsetof(GeneralMediaEvent, corrected_count) == 0x53);
static_assert(sizeof(EventsHead) == 0x20 && offsetof(EventsHead, first_dropped) == 4 &&
              offsetof(EventsHead, count) == 0x14);
static_assert(sizeof(ClearEvents) == 6);
static_assert(sizeof(SupportedLogsHead) == 8 && sizeof(SupportedLog) == 0x14);
static_assert(sizeof(GetLog) == 0x18 && offsetof(GetLog, offset) == 0x10);
static_assert(sizeof(CommandEffect) == 4);
static_assert(sizeof(MemoryDevice) == 0x43 && offsetof(MemoryDevice, total_capacity) == 0x10 &&
              offsetof(MemoryDevice, informational_events) == 0x30 &&
              offsetof(MemoryDevice, lsa_bytes) == 0x38 &&
              offsetof(MemoryDevice, poison_records) == 0x3C &&
              offsetof(MemoryDevice, inject_poison_limit) == 0x3F &&
              offsetof(MemoryDevice, qos_capabilities) == 0x42);
static_assert(sizeof(PartitionInfo) == 0x20);
static_assert(sizeof(GetLsa) == 8 && sizeof(SetLsa) == 8);
static_assert(sizeof(HealthInfo) == 0x12 && offsetof(HealthInfo, temperature_celsius) == 4 &&
              offsetof(HealthInfo, corrected_volatile) == 0x0A);
static_assert(sizeof(AlertConfig) == 0x10 &&
              offsetof(AlertConfig, corrected_volatile_warning) == 12);
static_assert(sizeof(SetAlertConfig) == 0x0C &&
              offsetof(SetAlertConfig, corrected_volatile_warning) == 8);
static_assert(sizeof(MemoryRange) == 0x10);
static_assert(sizeof(PoisonListHead) == 0x20 && offsetof(PoisonListHead, overflow_timestamp) == 2 &&
              offsetof(PoisonListHead, count) == 0x0A);
static_assert(sizeof(MediaError) == 0x10 && offsetof(MediaError, lines) == 8);
static_assert(sizeof(InjectPoison) == 8);
static_assert(sizeof(ClearPoison) == 0x48 && offsetof(ClearPoison, data) == 8);
static_assert(sizeof(ScanMediaCaps) == 4 && sizeof(ScanMedia) == 0x11);
static_assert(sizeof(ScanResultsHead) == 0x20 && offsetof(ScanResultsHead, flags) == 0x10 &&
              offsetof(ScanResultsHead, count) == 0x12);
static_assert(sizeof(NdpCapabilities) == 32 && sizeof(Counters) == 72);
static_assert(sizeof(HotnessSetting) == 12 && sizeof(HotnessInfo) == 32 &&
              offsetof(HotnessInfo, epochs) == 24);
static_assert(sizeof(ReadHotList) == 8 && sizeof(HotListHead) == 24 &&
              offsetof(HotListHead, epochs) == 16);

/// Copies a struct from the beginning of bytes, which are long enough.
template <class T>
T copy_from(std::span<const std::byte> bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

template <class T>
void append(std::vector<std::byte>& to, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t at = to.size();
  to.resize(at + sizeof value);
  std::memcpy(to.data() + at, &value, sizeof value);
}

/// The name of a command in the specification; "" for opcodes that this header does not have.
const char* name_of(Opcode opcode);
/// For messages: "Get LSA (4102h)".
std::string describe(uint16_t opcode);
/// A sentence without its full stop.
const char* text_of(ReturnCode code);

}  // namespace bowhead::cxl
