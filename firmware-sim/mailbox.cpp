// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/mailbox.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "firmware-sim/event_log.h"
#include "firmware-sim/poison.h"

namespace bowhead::device {
namespace {

using cxl::EventLogId;
using cxl::EventTransaction;
using cxl::kLineBytes;
using cxl::Opcode;
using cxl::PoisonSource;
using cxl::Reply;
using cxl::ReturnCode;
using Input = std::span<const std::byte>;

constexpr uint64_t kScanStepBytes = 4 << 20;
/// Media fail in pages: a scan looks no closer.
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kNsPerMs = 1'000'000;
constexpr size_t kMediaErrorsMax =
    (cxl::kPayloadBytesMax - sizeof(cxl::PoisonListHead)) / sizeof(cxl::MediaError);

Reply fail(ReturnCode code) { return {.code = code}; }

template <class T>
Reply reply_with(const T& value) {
  Reply reply;
  cxl::append(reply.output, value);
  return reply;
}

/// Larger values stay at the largest that there is.
void store_24_bits(uint8_t (&to)[3], uint64_t value) {
  for (int i = 0; i < 3; ++i)
    to[i] = static_cast<uint8_t>(std::min<uint64_t>(value, 0xffffff) >> 8 * i);
}

}  // namespace

class Mailbox::Impl {
 public:
  Impl(DeviceFacts facts, MailboxDevice& device, HotnessMonitor& hotness)
      : facts_(std::move(facts)), device_(device), hotness_(hotness), lsa_(kLsaBytes) {
    BOWHEAD_ASSERT(facts_.capacity_bytes > 0 && facts_.capacity_bytes % kLineBytes == 0);
  }

  Reply carry_out(uint16_t opcode, Input input);
  bool step();
  bool is_poisoned(uint64_t offset, uint64_t bytes) const;
  void report_met(uint64_t offset, uint64_t bytes);
  void report_lost(uint64_t offset, uint64_t bytes);
  void report_corrected(uint64_t offset);

 private:
  struct Command {
    Opcode opcode;
    size_t input_least, input_most;  // bytes
    uint16_t effects;
    bool needs_media;
    Reply (Impl::*handler)(Input);
  };
  static const Command kCommands[];

  Reply identify(Input);
  Reply background_status(Input);
  Reply abort_background(Input);
  Reply get_events(Input);
  Reply clear_events(Input);
  Reply get_timestamp(Input);
  Reply set_timestamp(Input);
  Reply get_supported_logs(Input);
  Reply get_log(Input);
  Reply identify_memory_device(Input);
  Reply get_partition_info(Input);
  Reply get_lsa(Input);
  Reply set_lsa(Input);
  Reply get_health_info(Input);
  Reply get_alert_config(Input);
  Reply set_alert_config(Input);
  Reply get_poison_list(Input);
  Reply inject_poison(Input);
  Reply clear_poison(Input);
  Reply get_scan_media_caps(Input);
  Reply scan_media(Input);
  Reply get_scan_media_results(Input);
  Reply get_ndp_capabilities(Input);
  Reply get_counters(Input);
  Reply get_hotness(Input);
  Reply configure_hotness(Input);
  Reply read_hot_list(Input);

  struct Scan {
    uint64_t begin = 0, end = 0, at = 0;  // at: what is before it has been scanned
    uint64_t results_from = 0;            // records before it have been returned
    bool running = false, with_events = true;
    ReturnCode code = ReturnCode::SUCCESS;  // when it is over
  };
  /// What Get Poison List goes on with if it is sent again.
  struct ListRead {
    uint64_t address = 0, lines = 0, from = 0;
  };

  ReturnCode check_range(uint64_t address, uint64_t lines) const;
  uint64_t timestamp() const;
  std::vector<std::byte> effects_log() const;
  EventLog& log(EventLogId id) { return logs_[static_cast<size_t>(id)]; }
  cxl::GeneralMediaEvent event_at(uint64_t offset, EventTransaction transaction) const;
  void poison(uint64_t offset, uint64_t bytes, PoisonSource source, EventTransaction transaction,
              bool with_event);
  void poison_changed();
  bool is_alert() const;
  void alert_if_reached(uint64_t offset);
  void find_lost(uint64_t offset, uint64_t bytes);
  uint16_t append_media_errors(std::vector<std::byte>& to, uint64_t offset, uint64_t bytes,
                               uint64_t& from, bool all) const;

  const DeviceFacts facts_;
  MailboxDevice& device_;
  HotnessMonitor& hotness_;

  mutable std::mutex mutex_;
  std::atomic<size_t> poisoned_ranges_{0};
  PoisonMap poison_;
  std::array<EventLog, cxl::kEventLogs> logs_ = {
      EventLog(EventLogId::INFORMATIONAL), EventLog(EventLogId::WARNING),
      EventLog(EventLogId::FAILURE), EventLog(EventLogId::FATAL)};
  std::vector<std::byte> lsa_;
  std::optional<uint64_t> host_timestamp_;  // as it was set
  uint64_t timestamp_set_ns_ = 0;           // by the device's clock
  uint64_t overflow_timestamp_ = 0;         // of the poison list
  std::optional<ListRead> list_read_;
  std::optional<Scan> scan_;
  uint32_t corrected_ = 0;  // errors
  bool alert_enabled_ = false;
  uint16_t alert_threshold_ = 0;
  uint64_t commands_ = 0, refused_ = 0, poison_met_ = 0;
};

const Mailbox::Impl::Command Mailbox::Impl::kCommands[] = {
    {Opcode::IDENTIFY, 0, 0, 0, false, &Impl::identify},
    {Opcode::BACKGROUND_STATUS, 0, 0, 0, false, &Impl::background_status},
    {Opcode::ABORT_BACKGROUND, 0, 0, 0, false, &Impl::abort_background},
    {Opcode::GET_EVENTS, 1, 1, 0, false, &Impl::get_events},
    {Opcode::CLEAR_EVENTS, sizeof(cxl::ClearEvents), sizeof(cxl::ClearEvents) + 255 * 2,
     cxl::LOG_CHANGE, false, &Impl::clear_events},
    {Opcode::GET_TIMESTAMP, 0, 0, 0, false, &Impl::get_timestamp},
    {Opcode::SET_TIMESTAMP, 8, 8, cxl::POLICY_CHANGE, false, &Impl::set_timestamp},
    {Opcode::GET_SUPPORTED_LOGS, 0, 0, 0, false, &Impl::get_supported_logs},
    {Opcode::GET_LOG, sizeof(cxl::GetLog), sizeof(cxl::GetLog), 0, false, &Impl::get_log},
    {Opcode::IDENTIFY_MEMORY_DEVICE, 0, 0, 0, false, &Impl::identify_memory_device},
    {Opcode::GET_PARTITION_INFO, 0, 0, 0, false, &Impl::get_partition_info},
    {Opcode::GET_LSA, sizeof(cxl::GetLsa), sizeof(cxl::GetLsa), 0, false, &Impl::get_lsa},
    {Opcode::SET_LSA, sizeof(cxl::SetLsa), cxl::kPayloadBytesMax,
     cxl::CONFIG_CHANGE | cxl::DATA_CHANGE, false, &Impl::set_lsa},
    {Opcode::GET_HEALTH_INFO, 0, 0, 0, false, &Impl::get_health_info},
    {Opcode::GET_ALERT_CONFIG, 0, 0, 0, false, &Impl::get_alert_config},
    {Opcode::SET_ALERT_CONFIG, sizeof(cxl::SetAlertConfig), sizeof(cxl::SetAlertConfig),
     cxl::POLICY_CHANGE, false, &Impl::set_alert_config},
    {Opcode::GET_POISON_LIST, sizeof(cxl::MemoryRange), sizeof(cxl::MemoryRange), 0, true,
     &Impl::get_poison_list},
    {Opcode::INJECT_POISON, sizeof(cxl::InjectPoison), sizeof(cxl::InjectPoison), cxl::DATA_CHANGE,
     true, &Impl::inject_poison},
    {Opcode::CLEAR_POISON, sizeof(cxl::ClearPoison), sizeof(cxl::ClearPoison), cxl::DATA_CHANGE,
     true, &Impl::clear_poison},
    {Opcode::GET_SCAN_MEDIA_CAPS, sizeof(cxl::MemoryRange), sizeof(cxl::MemoryRange), 0, true,
     &Impl::get_scan_media_caps},
    {Opcode::SCAN_MEDIA, sizeof(cxl::ScanMedia), sizeof(cxl::ScanMedia),
     cxl::BACKGROUND | cxl::ABORTABLE, true, &Impl::scan_media},
    {Opcode::GET_SCAN_MEDIA_RESULTS, 0, 0, 0, true, &Impl::get_scan_media_results},
    {Opcode::GET_NDP_CAPABILITIES, 0, 0, 0, false, &Impl::get_ndp_capabilities},
    {Opcode::GET_COUNTERS, 0, 0, 0, false, &Impl::get_counters},
    {Opcode::GET_HOTNESS, 0, 0, 0, false, &Impl::get_hotness},
    {Opcode::CONFIGURE_HOTNESS, sizeof(cxl::HotnessSetting), sizeof(cxl::HotnessSetting),
     cxl::POLICY_CHANGE | cxl::LOG_CHANGE, false, &Impl::configure_hotness},
    {Opcode::READ_HOT_LIST, sizeof(cxl::ReadHotList), sizeof(cxl::ReadHotList), cxl::LOG_CHANGE,
     false, &Impl::read_hot_list},
};

Reply Mailbox::Impl::carry_out(uint16_t opcode, Input input) {
  const std::lock_guard lock(mutex_);
  ++commands_;
  const auto check_and_handle = [&]() -> Reply {
    const auto* const command = std::find_if(
        std::begin(kCommands), std::end(kCommands),
        [&](const Command& one) { return static_cast<uint16_t>(one.opcode) == opcode; });
    if (command == std::end(kCommands)) return fail(ReturnCode::UNSUPPORTED);
    if (input.size() < command->input_least || input.size() > command->input_most)
      return fail(ReturnCode::INVALID_PAYLOAD_LENGTH);
    if (command->needs_media && device_.media_failed()) return fail(ReturnCode::MEDIA_DISABLED);
    if ((command->effects & cxl::BACKGROUND) != 0 && scan_ && scan_->running)
      return fail(ReturnCode::BUSY);
    return (this->*command->handler)(input);
  };
  Reply reply = check_and_handle();
  if (reply.code != ReturnCode::SUCCESS && reply.code != ReturnCode::BACKGROUND_STARTED) ++refused_;
  BOWHEAD_ASSERT(reply.output.size() <= cxl::kPayloadBytesMax);
  return reply;
}

/// SUCCESS if it is a range of the device's memory.
ReturnCode Mailbox::Impl::check_range(uint64_t address, uint64_t lines) const {
  if (lines == 0) return ReturnCode::INVALID_INPUT;
  if (address % kLineBytes != 0 || address >= facts_.capacity_bytes ||
      lines > (facts_.capacity_bytes - address) / kLineBytes)
    return ReturnCode::INVALID_PHYSICAL_ADDRESS;
  return ReturnCode::SUCCESS;
}

// ---- Information and status ---------------------------------------------------------------------

Reply Mailbox::Impl::identify(Input) {
  // It is no PCI function, so it has none of their numbers.
  cxl::Identity out{};
  out.serial_number = facts_.serial_number;
  out.message_bytes_log2 = cxl::kPayloadBytesLog2;
  out.component_type = cxl::kMemoryDevice;
  return reply_with(out);
}

Reply Mailbox::Impl::background_status(Input) {
  cxl::BackgroundStatus out{};
  if (scan_) {
    const auto percent = static_cast<uint8_t>(static_cast<double>(scan_->at - scan_->begin) /
                                              static_cast<double>(scan_->end - scan_->begin) * 100);
    out.status = static_cast<uint8_t>(percent << 1 | (scan_->running ? 1 : 0));
    out.opcode = static_cast<uint16_t>(Opcode::SCAN_MEDIA);
    out.return_code = static_cast<uint16_t>(scan_->code);
  }
  return reply_with(out);
}

Reply Mailbox::Impl::abort_background(Input) {
  if (scan_ && scan_->running) {
    scan_->running = false;
    scan_->code = ReturnCode::ABORTED;
  }
  return {};
}

// ---- Events and timestamp -----------------------------------------------------------------------

uint64_t Mailbox::Impl::timestamp() const {
  return host_timestamp_ ? *host_timestamp_ + (device_.now_ns() - timestamp_set_ns_) : 0;
}

Reply Mailbox::Impl::get_timestamp(Input) { return reply_with(timestamp()); }

Reply Mailbox::Impl::set_timestamp(Input input) {
  host_timestamp_ = cxl::copy_from<uint64_t>(input);
  timestamp_set_ns_ = device_.now_ns();
  return {};
}

Reply Mailbox::Impl::get_events(Input input) {
  const auto id = cxl::copy_from<uint8_t>(input);
  if (id >= cxl::kEventLogs) return fail(ReturnCode::INVALID_INPUT);
  return {.output = logs_[id].output()};
}

Reply Mailbox::Impl::clear_events(Input input) {
  const auto head = cxl::copy_from<cxl::ClearEvents>(input);
  std::vector<uint16_t> handles((input.size() - sizeof head) / sizeof(uint16_t));
  const bool all = (head.flags & 1) != 0;
  // Without handles, some hosts send room for one: the table of commands has 8 bytes at least.
  if ((input.size() - sizeof head) % sizeof(uint16_t) != 0 ||
      (handles.size() != head.count && !(head.count == 0 && handles.size() == 1)))
    return fail(ReturnCode::INVALID_PAYLOAD_LENGTH);
  if (head.log >= cxl::kEventLogs || all != (head.count == 0))
    return fail(ReturnCode::INVALID_INPUT);
  if (all) return fail(logs_[head.log].clear_all());
  std::memcpy(handles.data(), input.data() + sizeof head, handles.size() * sizeof(uint16_t));
  return fail(logs_[head.log].clear(handles));
}

cxl::GeneralMediaEvent Mailbox::Impl::event_at(uint64_t offset,
                                               EventTransaction transaction) const {
  cxl::GeneralMediaEvent event{};
  event.timestamp = timestamp();
  event.physical_address = offset / kLineBytes * kLineBytes | (facts_.persistent ? 0 : 1);
  event.transaction = static_cast<uint8_t>(transaction);
  return event;
}

// ---- Logs ---------------------------------------------------------------------------------------

std::vector<std::byte> Mailbox::Impl::effects_log() const {
  std::vector<std::byte> log;
  for (const Command& command : kCommands)
    cxl::append(log, cxl::CommandEffect{static_cast<uint16_t>(command.opcode), command.effects});
  return log;
}

Reply Mailbox::Impl::get_supported_logs(Input) {
  Reply reply = reply_with(cxl::SupportedLogsHead{.count = 1, .reserved = {}});
  cxl::append(reply.output, cxl::SupportedLog{cxl::kCommandEffectsLog,
                                              static_cast<uint32_t>(effects_log().size())});
  return reply;
}

Reply Mailbox::Impl::get_log(Input input) {
  const auto in = cxl::copy_from<cxl::GetLog>(input);
  if (in.id != cxl::kCommandEffectsLog) return fail(ReturnCode::INVALID_LOG);
  const auto log = effects_log();
  if (in.offset > log.size() || in.length > log.size() - in.offset ||
      in.length > cxl::kPayloadBytesMax)
    return fail(ReturnCode::INVALID_INPUT);
  const auto part = Input(log).subspan(in.offset, in.length);
  return {.output = {part.begin(), part.end()}};
}

// ---- The memory device --------------------------------------------------------------------------

Reply Mailbox::Impl::identify_memory_device(Input) {
  cxl::MemoryDevice out{};
  std::memcpy(out.firmware_revision, facts_.firmware_revision.data(),
              std::min(facts_.firmware_revision.size(), sizeof out.firmware_revision));
  out.total_capacity = facts_.capacity_bytes / cxl::kCapacityUnit;
  (facts_.persistent ? out.persistent_only_capacity : out.volatile_only_capacity) =
      out.total_capacity;
  out.informational_events = out.warning_events = EventLog::kRecordsMax;
  out.failure_events = out.fatal_events = EventLog::kRecordsMax;
  out.lsa_bytes = kLsaBytes;
  store_24_bits(out.poison_records, PoisonMap::kRecordsMax);
  out.inject_poison_limit = kInjectedLinesMax;
  return reply_with(out);
}

Reply Mailbox::Impl::get_partition_info(Input) {
  const uint64_t capacity = facts_.capacity_bytes / cxl::kCapacityUnit;
  cxl::PartitionInfo out{};
  (facts_.persistent ? out.active_persistent : out.active_volatile) = capacity;
  return reply_with(out);
}

Reply Mailbox::Impl::get_lsa(Input input) {
  const auto in = cxl::copy_from<cxl::GetLsa>(input);
  if (in.offset > lsa_.size() || in.length > lsa_.size() - in.offset ||
      in.length > cxl::kPayloadBytesMax)
    return fail(ReturnCode::INVALID_INPUT);
  const auto part = Input(lsa_).subspan(in.offset, in.length);
  return {.output = {part.begin(), part.end()}};
}

Reply Mailbox::Impl::set_lsa(Input input) {
  const auto in = cxl::copy_from<cxl::SetLsa>(input);
  const Input data = input.subspan(sizeof in);
  if (in.offset > lsa_.size() || data.size() > lsa_.size() - in.offset)
    return fail(ReturnCode::INVALID_INPUT);
  std::copy(data.begin(), data.end(), lsa_.begin() + in.offset);
  return {};
}

Reply Mailbox::Impl::get_health_info(Input) {
  cxl::HealthInfo out{};
  if (poison_.ranges() > 0) out.health_status |= cxl::MAINTENANCE_NEEDED;
  if (poison_.lines_of(PoisonSource::INTERNAL) > 0) out.health_status |= cxl::CAPACITY_DEGRADED;
  if (device_.media_failed()) {
    out.health_status |= cxl::REPLACEMENT_NEEDED;
    out.media_status = static_cast<uint8_t>(cxl::MediaStatus::ALL_DATA_LOST);
  }
  if (is_alert())
    out.additional_status =
        facts_.persistent ? cxl::CORRECTED_PERSISTENT_STATUS : cxl::CORRECTED_VOLATILE_STATUS;
  out.life_used_percent = cxl::kNoLifeUsed;
  out.temperature_celsius = cxl::kNoTemperature;
  out.dirty_shutdowns = facts_.dirty_shutdowns;
  (facts_.persistent ? out.corrected_persistent : out.corrected_volatile) = corrected_;
  return reply_with(out);
}

// ---- Alerts -------------------------------------------------------------------------------------

bool Mailbox::Impl::is_alert() const { return alert_enabled_ && corrected_ >= alert_threshold_; }

Reply Mailbox::Impl::get_alert_config(Input) {
  cxl::AlertConfig out{};
  out.programmable =
      facts_.persistent ? cxl::CORRECTED_PERSISTENT_ALERT : cxl::CORRECTED_VOLATILE_ALERT;
  if (alert_enabled_) out.valid = out.programmable;
  // Never reached: it knows neither its life nor its temperature.
  out.life_used_critical_percent = 100;
  out.over_temperature_critical = std::numeric_limits<int16_t>::max();
  out.under_temperature_critical = std::numeric_limits<int16_t>::min();
  (facts_.persistent ? out.corrected_persistent_warning : out.corrected_volatile_warning) =
      alert_threshold_;
  return reply_with(out);
}

Reply Mailbox::Impl::set_alert_config(Input input) {
  const auto in = cxl::copy_from<cxl::SetAlertConfig>(input);
  const uint8_t alert =
      facts_.persistent ? cxl::CORRECTED_PERSISTENT_ALERT : cxl::CORRECTED_VOLATILE_ALERT;
  if ((in.valid & ~alert) != 0 || (in.enable & ~in.valid) != 0)
    return fail(ReturnCode::INVALID_INPUT);
  if (in.valid == 0) return {};
  alert_enabled_ = (in.enable & alert) != 0;
  alert_threshold_ =
      facts_.persistent ? in.corrected_persistent_warning : in.corrected_volatile_warning;
  if (is_alert()) alert_if_reached(0);
  return {};
}

void Mailbox::Impl::alert_if_reached(uint64_t offset) {
  if (!is_alert()) return;
  auto event = event_at(offset, EventTransaction::MEDIA_MANAGEMENT);
  event.descriptor = cxl::THRESHOLD;
  event.corrected_flags = 2;
  store_24_bits(event.corrected_count, corrected_);
  log(EventLogId::WARNING).add(event);
}

void Mailbox::Impl::report_corrected(uint64_t offset) {
  const std::lock_guard lock(mutex_);
  const bool was_alert = is_alert();
  if (corrected_ < std::numeric_limits<uint32_t>::max()) ++corrected_;
  if (!was_alert) alert_if_reached(offset);
}

// ---- Poison -------------------------------------------------------------------------------------

bool Mailbox::Impl::is_poisoned(uint64_t offset, uint64_t bytes) const {
  if (poisoned_ranges_.load(std::memory_order_acquire) == 0) return false;
  const std::lock_guard lock(mutex_);
  return poison_.is_poisoned(offset, bytes);
}

void Mailbox::Impl::poison_changed() {
  poisoned_ranges_.store(poison_.ranges(), std::memory_order_release);
}

void Mailbox::Impl::poison(uint64_t offset, uint64_t bytes, PoisonSource source,
                           EventTransaction transaction, bool with_event) {
  const bool had_overflowed = poison_.overflowed();
  const auto added = poison_.add(offset, bytes, source);
  poison_changed();
  if (with_event) {
    for (const PoisonedRange& range : added) {
      auto event = event_at(range.offset, transaction);
      event.descriptor = cxl::UNCORRECTABLE;
      log(source == PoisonSource::INJECTED ? EventLogId::INFORMATIONAL : EventLogId::FAILURE)
          .add(event);
    }
  }
  if (had_overflowed || !poison_.overflowed()) return;
  overflow_timestamp_ = timestamp();
  auto event = event_at(offset, transaction);
  event.descriptor = cxl::POISON_OVERFLOW;
  log(EventLogId::WARNING).add(event);
}

void Mailbox::Impl::report_met(uint64_t offset, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const uint64_t most = std::numeric_limits<uint64_t>::max() - offset;
  const auto first = poison_.all(offset, std::min(bytes, most), offset, 1);
  if (first.empty()) return;
  ++poison_met_;
  auto event = event_at(first[0].offset, EventTransaction::HOST_READ);
  event.descriptor = cxl::UNCORRECTABLE;
  // Reads that are repeated must not fill the log.
  if (!log(EventLogId::FAILURE).has(event)) log(EventLogId::FAILURE).add(event);
}

void Mailbox::Impl::report_lost(uint64_t offset, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (offset >= facts_.capacity_bytes) return;
  poison(offset, std::min(bytes, facts_.capacity_bytes - offset), PoisonSource::INTERNAL,
         EventTransaction::UNKNOWN, true);
}

/// Appends records of poison in a range, from `from`, which it moves behind them, and returns how
/// many.
uint16_t Mailbox::Impl::append_media_errors(std::vector<std::byte>& to, uint64_t offset,
                                            uint64_t bytes, uint64_t& from, bool all) const {
  constexpr uint64_t kBytesMax = std::numeric_limits<uint32_t>::max() * kLineBytes;
  uint16_t count = 0;
  for (; count < kMediaErrorsMax; ++count) {
    const auto next =
        all ? poison_.all(offset, bytes, from, 1) : poison_.listed(offset, bytes, from, 1);
    if (next.empty()) break;
    const uint64_t taken = std::min(next[0].bytes, kBytesMax);
    cxl::append(to, cxl::MediaError{next[0].offset | static_cast<uint64_t>(next[0].source),
                                    static_cast<uint32_t>(taken / kLineBytes), 0});
    from = next[0].offset + taken;
  }
  return count;
}

Reply Mailbox::Impl::get_poison_list(Input input) {
  const auto in = cxl::copy_from<cxl::MemoryRange>(input);
  const bool restart = (in.address & cxl::kRestartPoisonList) != 0;
  const uint64_t address = in.address & ~cxl::kRestartPoisonList;
  if (const ReturnCode code = check_range(address, in.lines); code != ReturnCode::SUCCESS)
    return fail(code);
  ListRead read{.address = address, .lines = in.lines, .from = address};
  if (!restart && list_read_ && list_read_->address == address && list_read_->lines == in.lines)
    read = *list_read_;
  cxl::PoisonListHead head{};
  Reply reply = reply_with(head);
  const uint64_t bytes = in.lines * kLineBytes;
  head.count = append_media_errors(reply.output, address, bytes, read.from, false);
  const bool more = !poison_.listed(address, bytes, read.from, 1).empty();
  list_read_ = more ? std::optional(read) : std::nullopt;
  if (more) head.flags |= cxl::POISON_MORE;
  if (poison_.overflowed()) {
    head.flags |= cxl::POISON_OVERFLOWED;
    head.overflow_timestamp = overflow_timestamp_;
  }
  if (scan_ && scan_->running) head.flags |= cxl::POISON_SCANNING;
  if (restart) head.flags |= cxl::POISON_RESTARTED;
  std::memcpy(reply.output.data(), &head, sizeof head);
  return reply;
}

Reply Mailbox::Impl::inject_poison(Input input) {
  const auto in = cxl::copy_from<cxl::InjectPoison>(input);
  if (const ReturnCode code = check_range(in.address, 1); code != ReturnCode::SUCCESS)
    return fail(code);
  if (poison_.is_poisoned(in.address, kLineBytes)) return {};
  if (poison_.lines_of(PoisonSource::INJECTED) >= kInjectedLinesMax)
    return fail(ReturnCode::INJECT_POISON_LIMIT);
  poison(in.address, kLineBytes, PoisonSource::INJECTED, EventTransaction::INJECT_POISON, true);
  return {};
}

Reply Mailbox::Impl::clear_poison(Input input) {
  const auto in = cxl::copy_from<cxl::ClearPoison>(input);
  if (const ReturnCode code = check_range(in.address, 1); code != ReturnCode::SUCCESS)
    return fail(code);
  if (device_.is_lost(in.address, kLineBytes) ||
      !device_.write_line(in.address, std::span<const std::byte, kLineBytes>(in.data)))
    return fail(ReturnCode::PERMANENT_MEDIA_FAILURE);
  poison_.clear(in.address);
  poison_changed();
  return {};
}

// ---- Scan media ---------------------------------------------------------------------------------

Reply Mailbox::Impl::get_scan_media_caps(Input input) {
  const auto in = cxl::copy_from<cxl::MemoryRange>(input);
  if (const ReturnCode code = check_range(in.address, in.lines); code != ReturnCode::SUCCESS)
    return fail(code);
  // As long as the first step takes, for each step.
  const uint64_t bytes = in.lines * kLineBytes, first = std::min(bytes, kScanStepBytes);
  const uint64_t from_ns = device_.now_ns();
  (void)device_.is_lost(in.address, first);
  const auto step_ns = static_cast<double>(device_.now_ns() - from_ns);
  const double ms = step_ns * static_cast<double>(bytes) / static_cast<double>(first) / kNsPerMs;
  const double most = std::numeric_limits<uint32_t>::max();
  return reply_with(cxl::ScanMediaCaps{static_cast<uint32_t>(std::clamp(ms, 1.0, most))});
}

Reply Mailbox::Impl::scan_media(Input input) {
  const auto in = cxl::copy_from<cxl::ScanMedia>(input);
  if (const ReturnCode code = check_range(in.address, in.lines); code != ReturnCode::SUCCESS)
    return fail(code);
  scan_ = Scan{.begin = in.address,
               .end = in.address + in.lines * kLineBytes,
               .at = in.address,
               .results_from = in.address,
               .running = true,
               .with_events = (in.flags & cxl::kScanWithoutEvents) == 0};
  return fail(ReturnCode::BACKGROUND_STARTED);
}

bool Mailbox::Impl::step() {
  const std::lock_guard lock(mutex_);
  if (!scan_ || !scan_->running) return false;
  if (device_.media_failed()) {
    scan_->running = false;
    scan_->code = ReturnCode::MEDIA_DISABLED;
    return false;
  }
  const uint64_t bytes = std::min(kScanStepBytes, scan_->end - scan_->at);
  find_lost(scan_->at, bytes);
  scan_->at += bytes;
  if (scan_->at < scan_->end) return true;
  poison_.relist(scan_->begin, scan_->end - scan_->begin);
  scan_->running = false;
  return false;
}

void Mailbox::Impl::find_lost(uint64_t offset, uint64_t bytes) {
  if (!device_.is_lost(offset, bytes)) return;
  const uint64_t end = offset + bytes;
  if (offset / kPageBytes == (end - 1) / kPageBytes) {
    poison(offset, bytes, PoisonSource::INTERNAL, EventTransaction::SCAN_MEDIA, scan_->with_events);
    return;
  }
  const uint64_t first_page_end = offset / kPageBytes * kPageBytes + kPageBytes;
  const uint64_t middle = std::max(first_page_end, (offset + bytes / 2) / kPageBytes * kPageBytes);
  find_lost(offset, middle - offset);
  find_lost(middle, end - middle);
}

Reply Mailbox::Impl::get_scan_media_results(Input) {
  if (!scan_) return fail(ReturnCode::UNSUPPORTED);
  if (scan_->running) return fail(ReturnCode::BUSY);
  cxl::ScanResultsHead head{};
  Reply reply = reply_with(head);
  const uint64_t bytes = scan_->at - scan_->begin;
  head.count = append_media_errors(reply.output, scan_->begin, bytes, scan_->results_from, true);
  if (poison_.all(scan_->begin, bytes, scan_->results_from, 1).empty()) {
    scan_->results_from = scan_->begin;  // the next command begins again
  } else {
    head.flags |= cxl::SCAN_MORE;
  }
  if (scan_->at < scan_->end) {
    head.flags |= cxl::SCAN_STOPPED;
    head.restart_address = scan_->at;
    head.restart_lines = (scan_->end - scan_->at) / kLineBytes;
  }
  std::memcpy(reply.output.data(), &head, sizeof head);
  return reply;
}

// ---- Bowhead's own ------------------------------------------------------------------------------

Reply Mailbox::Impl::get_ndp_capabilities(Input) {
  return reply_with(cxl::NdpCapabilities{.version = 1,
                                         .reserved = 0,
                                         .capacity_bytes = facts_.capacity_bytes,
                                         .operations = facts_.operations,
                                         .request_bytes_max = facts_.request_bytes_max});
}

Reply Mailbox::Impl::get_counters(Input) {
  const WorkCounters work = device_.counters();
  cxl::Counters out{};
  out.commands = work.commands;
  out.refused = work.refused;
  out.read_bytes = work.read_bytes;
  out.pairs = work.pairs;
  out.mailbox_commands = commands_;
  out.mailbox_refused = refused_;
  out.poisoned_lines = poison_.lines();
  out.poison_met = poison_met_;
  uint32_t event_status = 0;
  for (uint32_t id = 0; id < cxl::kEventLogs; ++id)
    event_status |= uint32_t{!logs_[id].empty()} << id;
  out.event_status = event_status;
  return reply_with(out);
}

Reply Mailbox::Impl::get_hotness(Input) {
  const HotnessConfig config = hotness_.config();
  const HotListState state = hotness_.state();
  cxl::HotnessInfo out{};
  out.setting.enabled = config.enabled;
  out.setting.unit_log2 = config.unit_log2;
  out.setting.sampling_log2 = config.sampling_log2;
  out.setting.threshold = config.threshold;
  out.setting.epoch_ms = config.epoch_ms;
  out.unit_sizes = hotness_.unit_sizes();
  out.places = HotnessMonitor::kPlaces;
  out.counter_bits = HotnessMonitor::kCounterBits;
  out.flags = state.overflow ? cxl::HOT_LIST_OVERFLOW : 0;
  out.head = state.head;
  out.tail = state.tail;
  out.epochs = state.epochs;
  return reply_with(out);
}

Reply Mailbox::Impl::configure_hotness(Input input) {
  const auto in = cxl::copy_from<cxl::HotnessSetting>(input);
  if (in.enabled > 1 || in.reserved != 0) return fail(ReturnCode::INVALID_INPUT);
  const auto configured = hotness_.configure({.enabled = in.enabled == 1,
                                              .unit_log2 = in.unit_log2,
                                              .sampling_log2 = in.sampling_log2,
                                              .threshold = in.threshold,
                                              .epoch_ms = in.epoch_ms});
  return fail(configured ? ReturnCode::SUCCESS : ReturnCode::INVALID_INPUT);
}

Reply Mailbox::Impl::read_hot_list(Input input) {
  constexpr size_t kEntriesMax =
      (cxl::kPayloadBytesMax - sizeof(cxl::HotListHead)) / sizeof(uint64_t);
  const auto in = cxl::copy_from<cxl::ReadHotList>(input);
  if (in.clear_overflow > 1) return fail(ReturnCode::INVALID_INPUT);
  const auto list =
      hotness_.read(in.head, std::min<size_t>(in.count_max, kEntriesMax), in.clear_overflow == 1);
  if (!list) return fail(ReturnCode::INVALID_INPUT);
  cxl::HotListHead head{};
  head.head = list->state.head;
  head.tail = list->state.tail;
  head.count = static_cast<uint16_t>(list->entries.size());
  head.places = HotnessMonitor::kPlaces;
  head.counter_bits = HotnessMonitor::kCounterBits;
  head.unit_log2 = list->config.unit_log2;
  head.sampling_log2 = list->config.sampling_log2;
  head.flags = list->state.overflow ? cxl::HOT_LIST_OVERFLOW : 0;
  head.epochs = list->state.epochs;
  Reply reply = reply_with(head);
  for (const uint64_t entry : list->entries) cxl::append(reply.output, entry);
  return reply;
}

// -------------------------------------------------------------------------------------------------

Mailbox::Mailbox(DeviceFacts facts, MailboxDevice& device, HotnessMonitor& hotness)
    : impl_(std::make_unique<Impl>(std::move(facts), device, hotness)) {}
Mailbox::~Mailbox() = default;

Reply Mailbox::carry_out(uint16_t opcode, Input input) { return impl_->carry_out(opcode, input); }
bool Mailbox::step() { return impl_->step(); }
bool Mailbox::is_poisoned(uint64_t offset, uint64_t bytes) const {
  return impl_->is_poisoned(offset, bytes);
}
void Mailbox::report_met(uint64_t offset, uint64_t bytes) { impl_->report_met(offset, bytes); }
void Mailbox::report_lost(uint64_t offset, uint64_t bytes) { impl_->report_lost(offset, bytes); }
void Mailbox::report_corrected(uint64_t offset) { impl_->report_corrected(offset); }

}  // namespace bowhead::device
