// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "firmware-sim/mailbox.h"

namespace bowhead::driver {
namespace {

using cxl::kLineBytes;
using cxl::Opcode;
using cxl::ReturnCode;
using Bytes = std::vector<std::byte>;

/// More media errors than any device lists: one that says again and again that there are more.
constexpr size_t kRecordsMax = 1 << 20;
/// A log of more than this is not a list of commands.
constexpr uint32_t kEffectsLogBytesMax = 0x10000 * sizeof(cxl::CommandEffect);

Error bad_reply(Opcode opcode, const std::string& why) {
  return {Status::DEVICE_LOST, fmt::format("{}: the device's reply {}",
                                           cxl::describe(static_cast<uint16_t>(opcode)), why)};
}

template <class T>
Bytes bytes_of(const T& value) {
  Bytes bytes;
  cxl::append(bytes, value);
  return bytes;
}

Result<void> check_range(uint64_t offset, uint64_t bytes) {
  if (offset % kLineBytes == 0 && bytes % kLineBytes == 0 && bytes > 0) return {};
  return Error{Status::INVALID_ARGUMENT,
               fmt::format("{} bytes at offset {} of the device's memory: both have to be "
                           "multiples of 64, and not empty",
                           bytes, offset)};
}

/// Appends the media errors behind the head of a reply; false: there are not so many.
bool take_media_errors(std::span<const std::byte> bytes, uint16_t count,
                       std::vector<PoisonRecord>& to) {
  if (bytes.size() / sizeof(cxl::MediaError) < count) return false;
  for (size_t i = 0; i < count; ++i) {
    const auto error = cxl::copy_from<cxl::MediaError>(bytes.subspan(i * sizeof(cxl::MediaError)));
    to.push_back({error.address & ~(kLineBytes - 1), error.lines * kLineBytes,
                  static_cast<cxl::PoisonSource>(error.address & cxl::kPoisonSourceMask)});
  }
  return true;
}

}  // namespace

Status status_of(ReturnCode code) {
  switch (code) {
    case ReturnCode::SUCCESS:
    case ReturnCode::BACKGROUND_STARTED:
      return Status::OK;
    case ReturnCode::INVALID_INPUT:
    case ReturnCode::INVALID_HANDLE:
    case ReturnCode::INVALID_PHYSICAL_ADDRESS:
    case ReturnCode::INVALID_PAYLOAD_LENGTH:
    case ReturnCode::INVALID_LOG:
      return Status::INVALID_ARGUMENT;
    case ReturnCode::UNSUPPORTED:
    case ReturnCode::UNSUPPORTED_MAILBOX:
      return Status::NOT_SUPPORTED;
    case ReturnCode::RETRY_REQUIRED:
    case ReturnCode::BUSY:
      return Status::BUSY;
    case ReturnCode::INJECT_POISON_LIMIT:
      return Status::LIMIT_REACHED;
    case ReturnCode::MEDIA_DISABLED:
    case ReturnCode::PERMANENT_MEDIA_FAILURE:
      return Status::MEDIA_ERROR;
    case ReturnCode::ABORTED:
      return Status::CANCELLED;
    case ReturnCode::INTERNAL_ERROR:
    case ReturnCode::INVALID_SECURITY_STATE:
      break;
  }
  return Status::SYSTEM;
}

Result<cxl::Reply> DirectMailbox::send(uint16_t opcode, std::span<const std::byte> input) {
  return mailbox_.carry_out(opcode, input);
}

Result<Bytes> MailboxClient::send(Opcode opcode, std::span<const std::byte> input,
                                  size_t output_least) {
  auto reply = transport_.send(static_cast<uint16_t>(opcode), input);
  if (!reply) return reply.error();
  if (const Status status = status_of(reply->code); status != Status::OK)
    return Error{status, fmt::format("{}: {} (return code {:02x}h)",
                                     cxl::describe(static_cast<uint16_t>(opcode)),
                                     cxl::text_of(reply->code), static_cast<int>(reply->code))};
  if (reply->output.size() < output_least)
    return bad_reply(opcode, fmt::format("has {} bytes, and should have {}", reply->output.size(),
                                         output_least));
  return std::move(reply->output);
}

template <class T>
Result<T> MailboxClient::get(Opcode opcode, std::span<const std::byte> input) {
  // Later revisions may append members.
  const auto output = send(opcode, input, sizeof(T));
  if (!output) return output.error();
  return cxl::copy_from<T>(*output);
}

Result<void> MailboxClient::set(Opcode opcode, std::span<const std::byte> input) {
  const auto output = send(opcode, input, 0);
  if (!output) return output.error();
  return {};
}

Result<DeviceIdentity> MailboxClient::identify() {
  const auto out = get<cxl::MemoryDevice>(Opcode::IDENTIFY_MEMORY_DEVICE);
  if (!out) return out.error();
  const auto& revision = out->firmware_revision;
  const auto* const end = std::find(std::begin(revision), std::end(revision), '\0');
  return DeviceIdentity{.firmware = std::string(std::begin(revision), end),
                        .total_bytes = out->total_capacity * cxl::kCapacityUnit,
                        .volatile_bytes = out->volatile_only_capacity * cxl::kCapacityUnit,
                        .persistent_bytes = out->persistent_only_capacity * cxl::kCapacityUnit,
                        .label_bytes = out->lsa_bytes,
                        .poison_records_max = out->poison_records[0] |
                                              uint32_t{out->poison_records[1]} << 8 |
                                              uint32_t{out->poison_records[2]} << 16,
                        .injected_max = out->inject_poison_limit};
}

Result<uint64_t> MailboxClient::serial_number() {
  const auto out = get<cxl::Identity>(Opcode::IDENTIFY);
  if (!out) return out.error();
  return uint64_t{out->serial_number};
}

Result<DeviceHealth> MailboxClient::health() {
  const auto out = get<cxl::HealthInfo>(Opcode::GET_HEALTH_INFO);
  if (!out) return out.error();
  DeviceHealth health;
  health.maintenance_needed = (out->health_status & cxl::MAINTENANCE_NEEDED) != 0;
  health.performance_degraded = (out->health_status & cxl::PERFORMANCE_DEGRADED) != 0;
  health.replacement_needed = (out->health_status & cxl::REPLACEMENT_NEEDED) != 0;
  health.capacity_degraded = (out->health_status & cxl::CAPACITY_DEGRADED) != 0;
  health.media_status = out->media_status;
  health.additional_status = out->additional_status;
  if (out->life_used_percent != cxl::kNoLifeUsed) health.life_used_percent = out->life_used_percent;
  if (out->temperature_celsius != cxl::kNoTemperature)
    health.temperature_celsius = out->temperature_celsius;
  health.dirty_shutdowns = out->dirty_shutdowns;
  health.corrected_volatile = out->corrected_volatile;
  health.corrected_persistent = out->corrected_persistent;
  return health;
}

Result<std::map<uint16_t, uint16_t>> MailboxClient::effects() {
  const auto logs = send(Opcode::GET_SUPPORTED_LOGS, {}, sizeof(cxl::SupportedLogsHead));
  if (!logs) return logs.error();
  const auto head = cxl::copy_from<cxl::SupportedLogsHead>(*logs);
  const auto entries = std::span(*logs).subspan(sizeof head);
  if (entries.size() / sizeof(cxl::SupportedLog) < head.count)
    return bad_reply(Opcode::GET_SUPPORTED_LOGS,
                     fmt::format("has no room for the {} logs that it counts", int{head.count}));
  uint32_t bytes = 0;
  for (size_t i = 0; i < head.count; ++i) {
    const auto log =
        cxl::copy_from<cxl::SupportedLog>(entries.subspan(i * sizeof(cxl::SupportedLog)));
    if (log.id == cxl::kCommandEffectsLog) bytes = log.size_bytes;
  }
  if (bytes > kEffectsLogBytesMax || bytes % sizeof(cxl::CommandEffect) != 0)
    return bad_reply(Opcode::GET_SUPPORTED_LOGS,
                     fmt::format("says that the effects log has {} bytes", bytes));
  Bytes log;
  while (log.size() < bytes) {
    const auto piece =
        static_cast<uint32_t>(std::min<size_t>(bytes - log.size(), transport_.payload_bytes_max()));
    const auto part = send(
        Opcode::GET_LOG,
        bytes_of(cxl::GetLog{cxl::kCommandEffectsLog, static_cast<uint32_t>(log.size()), piece}),
        piece);
    if (!part) return part.error();
    log.insert(log.end(), part->begin(), part->begin() + piece);
  }
  std::map<uint16_t, uint16_t> effects;
  for (size_t at = 0; at < log.size(); at += sizeof(cxl::CommandEffect)) {
    const auto effect = cxl::copy_from<cxl::CommandEffect>(std::span(log).subspan(at));
    effects[uint16_t{effect.opcode}] = effect.effects;
  }
  return effects;
}

Result<uint64_t> MailboxClient::timestamp_ns() { return get<uint64_t>(Opcode::GET_TIMESTAMP); }

Result<void> MailboxClient::set_timestamp_ns(uint64_t since_1970_ns) {
  return set(Opcode::SET_TIMESTAMP, bytes_of(since_1970_ns));
}

Result<Bytes> MailboxClient::read_labels(uint32_t offset, uint32_t bytes) {
  Bytes labels;
  while (labels.size() < bytes) {
    const auto piece = static_cast<uint32_t>(
        std::min<size_t>(bytes - labels.size(), transport_.payload_bytes_max()));
    const auto part =
        send(Opcode::GET_LSA,
             bytes_of(cxl::GetLsa{static_cast<uint32_t>(offset + labels.size()), piece}), piece);
    if (!part) return part.error();
    labels.insert(labels.end(), part->begin(), part->begin() + piece);
  }
  return labels;
}

Result<void> MailboxClient::write_labels(uint32_t offset, std::span<const std::byte> bytes) {
  const size_t room = transport_.payload_bytes_max() - sizeof(cxl::SetLsa);
  for (size_t at = 0; at < bytes.size(); at += room) {
    Bytes input = bytes_of(cxl::SetLsa{static_cast<uint32_t>(offset + at), 0});
    const auto piece = bytes.subspan(at, std::min(room, bytes.size() - at));
    input.insert(input.end(), piece.begin(), piece.end());
    if (auto good = set(Opcode::SET_LSA, input); !good) return good;
  }
  return {};
}

Result<PoisonList> MailboxClient::poison_list(uint64_t offset, uint64_t bytes) {
  if (auto good = check_range(offset, bytes); !good) return good.error();
  PoisonList list;
  cxl::PoisonListHead head{};
  uint64_t restart = cxl::kRestartPoisonList;
  do {
    const auto output =
        send(Opcode::GET_POISON_LIST,
             bytes_of(cxl::MemoryRange{offset | restart, bytes / kLineBytes}), sizeof head);
    if (!output) return output.error();
    restart = 0;
    head = cxl::copy_from<cxl::PoisonListHead>(*output);
    if (!take_media_errors(std::span(*output).subspan(sizeof head), head.count, list.records))
      return bad_reply(
          Opcode::GET_POISON_LIST,
          fmt::format("has no room for the {} records that it counts", int{head.count}));
    list.overflowed |= (head.flags & cxl::POISON_OVERFLOWED) != 0;
    list.scanning |= (head.flags & cxl::POISON_SCANNING) != 0;
    if ((head.flags & cxl::POISON_MORE) != 0 &&
        (head.count == 0 || list.records.size() > kRecordsMax))
      return bad_reply(Opcode::GET_POISON_LIST, "says again and again that there is more");
  } while ((head.flags & cxl::POISON_MORE) != 0);
  return list;
}

Result<void> MailboxClient::inject_poison(uint64_t offset) {
  return set(Opcode::INJECT_POISON, bytes_of(cxl::InjectPoison{offset}));
}

Result<void> MailboxClient::clear_poison(uint64_t offset,
                                         std::span<const std::byte, kLineBytes> line) {
  cxl::ClearPoison in{.address = offset, .data = {}};
  std::memcpy(in.data, line.data(), sizeof in.data);
  return set(Opcode::CLEAR_POISON, bytes_of(in));
}

Result<DeviceEvents> MailboxClient::events(cxl::EventLogId log) {
  const auto output = send(Opcode::GET_EVENTS, bytes_of(log), sizeof(cxl::EventsHead));
  if (!output) return output.error();
  const auto head = cxl::copy_from<cxl::EventsHead>(*output);
  const auto records = std::span(*output).subspan(sizeof head);
  if (records.size() / sizeof(cxl::GeneralMediaEvent) < head.count)
    return bad_reply(Opcode::GET_EVENTS,
                     fmt::format("has no room for the {} records that it counts", int{head.count}));
  DeviceEvents events;
  events.more = (head.flags & cxl::EVENTS_MORE) != 0;
  events.dropped = head.dropped;
  for (size_t i = 0; i < head.count; ++i) {
    const auto record =
        cxl::copy_from<cxl::GeneralMediaEvent>(records.subspan(i * sizeof(cxl::GeneralMediaEvent)));
    DeviceEvent& event = events.records.emplace_back();
    event.handle = record.handle;
    event.timestamp_ns = record.timestamp;
    event.is_media = record.id == cxl::kGeneralMediaEvent;
    if (!event.is_media) continue;
    event.offset = record.physical_address & ~(kLineBytes - 1);
    event.descriptor = record.descriptor;
    event.transaction = static_cast<cxl::EventTransaction>(record.transaction);
  }
  return events;
}

Result<void> MailboxClient::clear_events(cxl::EventLogId log, std::span<const uint16_t> handles) {
  const size_t most = std::min<size_t>(
      255, (transport_.payload_bytes_max() - sizeof(cxl::ClearEvents)) / sizeof(uint16_t));
  for (size_t at = 0; at < handles.size(); at += most) {
    const auto some = handles.subspan(at, std::min(most, handles.size() - at));
    Bytes input = bytes_of(cxl::ClearEvents{.log = static_cast<uint8_t>(log),
                                            .flags = 0,
                                            .count = static_cast<uint8_t>(some.size()),
                                            .reserved = {}});
    for (const uint16_t handle : some) cxl::append(input, handle);
    if (auto good = set(Opcode::CLEAR_EVENTS, input); !good) return good;
  }
  return {};
}

Result<void> MailboxClient::warn_at_corrected(bool persistent, std::optional<uint16_t> errors) {
  cxl::SetAlertConfig in{};
  in.valid = persistent ? cxl::CORRECTED_PERSISTENT_ALERT : cxl::CORRECTED_VOLATILE_ALERT;
  if (errors) in.enable = in.valid;
  (persistent ? in.corrected_persistent_warning : in.corrected_volatile_warning) =
      errors.value_or(0);
  return set(Opcode::SET_ALERT_CONFIG, bytes_of(in));
}

Result<uint32_t> MailboxClient::estimated_scan_ms(uint64_t offset, uint64_t bytes) {
  if (auto good = check_range(offset, bytes); !good) return good.error();
  const auto out = get<cxl::ScanMediaCaps>(Opcode::GET_SCAN_MEDIA_CAPS,
                                           bytes_of(cxl::MemoryRange{offset, bytes / kLineBytes}));
  if (!out) return out.error();
  return uint32_t{out->estimated_ms};
}

Result<void> MailboxClient::start_scan(uint64_t offset, uint64_t bytes, bool with_events) {
  if (auto good = check_range(offset, bytes); !good) return good;
  const auto flags = with_events ? uint8_t{0} : cxl::kScanWithoutEvents;
  return set(Opcode::SCAN_MEDIA, bytes_of(cxl::ScanMedia{offset, bytes / kLineBytes, flags}));
}

Result<BackgroundOperation> MailboxClient::background() {
  const auto out = get<cxl::BackgroundStatus>(Opcode::BACKGROUND_STATUS);
  if (!out) return out.error();
  return BackgroundOperation{.running = (out->status & 1) != 0,
                             .percent = static_cast<uint8_t>(out->status >> 1),
                             .opcode = out->opcode,
                             .code = ReturnCode{uint16_t{out->return_code}}};
}

Result<void> MailboxClient::abort_background() { return set(Opcode::ABORT_BACKGROUND, {}); }

Result<ScanResults> MailboxClient::scan_results() {
  ScanResults results;
  cxl::ScanResultsHead head{};
  do {
    const auto output = send(Opcode::GET_SCAN_MEDIA_RESULTS, {}, sizeof head);
    if (!output) return output.error();
    head = cxl::copy_from<cxl::ScanResultsHead>(*output);
    if (!take_media_errors(std::span(*output).subspan(sizeof head), head.count, results.records))
      return bad_reply(
          Opcode::GET_SCAN_MEDIA_RESULTS,
          fmt::format("has no room for the {} records that it counts", int{head.count}));
    if ((head.flags & cxl::SCAN_MORE) != 0 &&
        (head.count == 0 || results.records.size() > kRecordsMax))
      return bad_reply(Opcode::GET_SCAN_MEDIA_RESULTS, "says again and again that there is more");
  } while ((head.flags & cxl::SCAN_MORE) != 0);
  if ((head.flags & cxl::SCAN_STOPPED) != 0)
    results.rest = {uint64_t{head.restart_address}, head.restart_lines * kLineBytes};
  return results;
}

Result<cxl::NdpCapabilities> MailboxClient::capabilities() {
  return get<cxl::NdpCapabilities>(Opcode::GET_NDP_CAPABILITIES);
}

Result<cxl::Counters> MailboxClient::counters() { return get<cxl::Counters>(Opcode::GET_COUNTERS); }

Result<cxl::HotnessInfo> MailboxClient::hotness() {
  return get<cxl::HotnessInfo>(Opcode::GET_HOTNESS);
}

Result<void> MailboxClient::configure_hotness(const cxl::HotnessSetting& setting) {
  return set(Opcode::CONFIGURE_HOTNESS, bytes_of(setting));
}

Result<HotList> MailboxClient::read_hot_list(uint16_t head, bool clear_overflow) {
  const size_t room =
      (transport_.payload_bytes_max() - sizeof(cxl::HotListHead)) / sizeof(uint64_t);
  const cxl::ReadHotList in{.head = head,
                            .count_max = static_cast<uint16_t>(std::min<size_t>(room, 0xffff)),
                            .clear_overflow = clear_overflow,
                            .reserved = {}};
  const auto output = send(Opcode::READ_HOT_LIST, bytes_of(in), sizeof(cxl::HotListHead));
  if (!output) return output.error();
  const auto out = cxl::copy_from<cxl::HotListHead>(*output);
  const auto entries = std::span(*output).subspan(sizeof out);
  if (entries.size() / sizeof(uint64_t) < out.count || out.counter_bits == 0 ||
      out.counter_bits > 63 || out.unit_log2 > 63 || out.places == 0 || out.count >= out.places ||
      out.head >= out.places || out.tail >= out.places)
    return bad_reply(Opcode::READ_HOT_LIST, "is malformed");
  HotList list;
  for (size_t i = 0; i < out.count; ++i) {
    const auto entry = cxl::copy_from<uint64_t>(entries.subspan(i * sizeof(uint64_t)));
    list.entries.push_back({entry >> out.counter_bits << out.unit_log2,
                            entry & ((uint64_t{1} << out.counter_bits) - 1)});
  }
  list.next_head = static_cast<uint16_t>((out.head + out.count) % out.places);
  list.more = list.next_head != out.tail;
  list.overflow = (out.flags & cxl::HOT_LIST_OVERFLOW) != 0;
  list.unit_bytes = uint64_t{1} << out.unit_log2;
  list.sampling_log2 = out.sampling_log2;
  list.epochs = out.epochs;
  return list;
}

}  // namespace bowhead::driver
