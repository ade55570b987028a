// SPDX-License-Identifier: Apache-2.0
// Commands of the mailbox as bytes: lengths, return codes, and that the effect of each command is
// seen through another one.
#include "firmware-sim/mailbox.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

#include "base/random.h"
#include "firmware-sim/event_log.h"
#include "firmware-sim/poison.h"
#include "tests/device/mailbox_device.h"

namespace bowhead::test {
namespace {

using cxl::Opcode;
using cxl::ReturnCode;
using device::EventLog;
using device::Mailbox;
using device::PoisonMap;

constexpr uint64_t kLine = cxl::kLineBytes;
using Bytes = std::vector<std::byte>;

template <class... T>
Bytes bytes_of(const T&... values) {
  Bytes bytes;
  (cxl::append(bytes, values), ...);
  return bytes;
}

class MailboxTest : public testing::Test, protected MailboxUnderTest {
 protected:
  ReturnCode send(Opcode opcode, const Bytes& input = {}) {
    return mailbox.carry_out(static_cast<uint16_t>(opcode), input).code;
  }
  Bytes output(Opcode opcode, const Bytes& input = {}) {
    auto reply = mailbox.carry_out(static_cast<uint16_t>(opcode), input);
    EXPECT_EQ(reply.code, ReturnCode::SUCCESS) << cxl::name_of(opcode);
    return std::move(reply.output);
  }
  /// The output, which must be one such struct.
  template <class T>
  T get(Opcode opcode, const Bytes& input = {}) {
    const Bytes bytes = output(opcode, input);
    EXPECT_EQ(bytes.size(), sizeof(T)) << cxl::name_of(opcode);
    return bytes.size() == sizeof(T) ? cxl::copy_from<T>(bytes) : T{};
  }
  ReturnCode inject(uint64_t offset) {
    return send(Opcode::INJECT_POISON, bytes_of(cxl::InjectPoison{offset}));
  }
  ReturnCode clear(uint64_t offset, std::byte fill = {}) {
    cxl::ClearPoison in{.address = offset, .data = {}};
    std::fill(std::begin(in.data), std::end(in.data), fill);
    return send(Opcode::CLEAR_POISON, bytes_of(in));
  }

  struct Poison {
    cxl::PoisonListHead head{};
    std::vector<std::tuple<uint64_t, uint64_t, int>> records;  // offset, bytes, source
  };
  static auto records_of(const Bytes& bytes, size_t at) {
    std::vector<std::tuple<uint64_t, uint64_t, int>> records;
    for (; at < bytes.size(); at += sizeof(cxl::MediaError)) {
      const auto error = cxl::copy_from<cxl::MediaError>(std::span(bytes).subspan(at));
      records.emplace_back(error.address & ~uint64_t{63}, error.lines * kLine,
                           static_cast<int>(error.address & 7));
    }
    return records;
  }
  Poison poison_list(uint64_t offset = 0, uint64_t bytes = kCapacity, bool restart = true) {
    const Bytes out =
        output(Opcode::GET_POISON_LIST,
               bytes_of(cxl::MemoryRange{offset | (restart ? 1u : 0u), bytes / kLine}));
    Poison list{cxl::copy_from<cxl::PoisonListHead>(out), records_of(out, sizeof list.head)};
    EXPECT_EQ(list.records.size(), list.head.count);
    return list;
  }

  struct Events {
    cxl::EventsHead head{};
    std::vector<cxl::GeneralMediaEvent> records;
  };
  Events events(cxl::EventLogId id) {
    const Bytes out = output(Opcode::GET_EVENTS, bytes_of(static_cast<uint8_t>(id)));
    Events events{cxl::copy_from<cxl::EventsHead>(out), {}};
    for (size_t at = sizeof events.head; at < out.size(); at += sizeof(cxl::GeneralMediaEvent))
      events.records.push_back(cxl::copy_from<cxl::GeneralMediaEvent>(std::span(out).subspan(at)));
    EXPECT_EQ(events.records.size(), events.head.count);
    return events;
  }
  ReturnCode clear_events(cxl::EventLogId id, std::vector<uint16_t> handles, bool all = false) {
    Bytes in = bytes_of(cxl::ClearEvents{
        static_cast<uint8_t>(id), uint8_t{all}, static_cast<uint8_t>(handles.size()), {}});
    for (const uint16_t handle : handles) cxl::append(in, handle);
    return send(Opcode::CLEAR_EVENTS, in);
  }
  ReturnCode scan(uint64_t offset, uint64_t bytes, uint8_t flags = 0) {
    return send(Opcode::SCAN_MEDIA, bytes_of(cxl::ScanMedia{offset, bytes / kLine, flags}));
  }
  cxl::Counters counters() { return get<cxl::Counters>(Opcode::GET_COUNTERS); }
  cxl::HealthInfo health() { return get<cxl::HealthInfo>(Opcode::GET_HEALTH_INFO); }
  cxl::BackgroundStatus background() {
    return get<cxl::BackgroundStatus>(Opcode::BACKGROUND_STATUS);
  }
  std::vector<cxl::CommandEffect> effects() {
    const Bytes supported = output(Opcode::GET_SUPPORTED_LOGS);
    const auto log = cxl::copy_from<cxl::SupportedLog>(std::span(supported).subspan(8));
    const Bytes bytes = output(Opcode::GET_LOG, bytes_of(cxl::GetLog{log.id, 0, log.size_bytes}));
    std::vector<cxl::CommandEffect> all;
    for (size_t at = 0; at < bytes.size(); at += 4)
      all.push_back(cxl::copy_from<cxl::CommandEffect>(std::span(bytes).subspan(at)));
    return all;
  }
};

/// Every opcode is tried: those of the effects log answer, all others are UNSUPPORTED.
TEST_F(MailboxTest, TheEffectsLogHasAllCommandsThatThereAre) {
  std::map<uint16_t, uint16_t> listed;
  for (const cxl::CommandEffect effect : effects())
    EXPECT_TRUE(listed.emplace(effect.opcode, effect.effects).second) << effect.opcode;
  EXPECT_EQ(listed.size(), 27u);
  const Bytes long_input(cxl::kPayloadBytesMax + 1);
  for (uint32_t opcode = 0; opcode <= 0xffff; ++opcode) {
    const auto code = mailbox.carry_out(static_cast<uint16_t>(opcode), long_input).code;
    EXPECT_EQ(code, listed.contains(static_cast<uint16_t>(opcode))
                        ? ReturnCode::INVALID_PAYLOAD_LENGTH
                        : ReturnCode::UNSUPPORTED)
        << opcode;
  }
  const auto effect = [&](Opcode opcode) { return listed[static_cast<uint16_t>(opcode)]; };
  EXPECT_EQ(effect(Opcode::GET_HEALTH_INFO), 0);
  EXPECT_EQ(effect(Opcode::SET_LSA), 0x06);
  EXPECT_EQ(effect(Opcode::INJECT_POISON), 0x04);
  EXPECT_EQ(effect(Opcode::CLEAR_EVENTS), 0x10);
  EXPECT_EQ(effect(Opcode::SCAN_MEDIA), 0x140);
}

/// One byte less, and one more, than each command takes.
TEST_F(MailboxTest, WrongLengthsAreRefused) {
  const std::map<Opcode, std::pair<size_t, size_t>> lengths = {
      {Opcode::IDENTIFY, {0, 0}},
      {Opcode::BACKGROUND_STATUS, {0, 0}},
      {Opcode::ABORT_BACKGROUND, {0, 0}},
      {Opcode::GET_EVENTS, {1, 1}},
      {Opcode::CLEAR_EVENTS, {6, 516}},
      {Opcode::GET_TIMESTAMP, {0, 0}},
      {Opcode::SET_TIMESTAMP, {8, 8}},
      {Opcode::GET_SUPPORTED_LOGS, {0, 0}},
      {Opcode::GET_LOG, {0x18, 0x18}},
      {Opcode::IDENTIFY_MEMORY_DEVICE, {0, 0}},
      {Opcode::GET_PARTITION_INFO, {0, 0}},
      {Opcode::GET_LSA, {8, 8}},
      {Opcode::SET_LSA, {8, 4096}},
      {Opcode::GET_HEALTH_INFO, {0, 0}},
      {Opcode::GET_ALERT_CONFIG, {0, 0}},
      {Opcode::SET_ALERT_CONFIG, {0xc, 0xc}},
      {Opcode::GET_POISON_LIST, {0x10, 0x10}},
      {Opcode::INJECT_POISON, {8, 8}},
      {Opcode::CLEAR_POISON, {0x48, 0x48}},
      {Opcode::GET_SCAN_MEDIA_CAPS, {0x10, 0x10}},
      {Opcode::SCAN_MEDIA, {0x11, 0x11}},
      {Opcode::GET_SCAN_MEDIA_RESULTS, {0, 0}},
      {Opcode::GET_NDP_CAPABILITIES, {0, 0}},
      {Opcode::GET_COUNTERS, {0, 0}},
      {Opcode::GET_HOTNESS, {0, 0}},
      {Opcode::CONFIGURE_HOTNESS, {12, 12}},
      {Opcode::READ_HOT_LIST, {8, 8}},
  };
  EXPECT_EQ(lengths.size(), effects().size());
  for (const auto& [opcode, length] : lengths) {
    if (length.first > 0) {
      EXPECT_EQ(send(opcode, Bytes(length.first - 1)), ReturnCode::INVALID_PAYLOAD_LENGTH)
          << cxl::name_of(opcode);
    }
    EXPECT_EQ(send(opcode, Bytes(length.second + 1)), ReturnCode::INVALID_PAYLOAD_LENGTH)
        << cxl::name_of(opcode);
    EXPECT_NE(send(opcode, Bytes(length.first)), ReturnCode::INVALID_PAYLOAD_LENGTH)
        << cxl::name_of(opcode);
    EXPECT_STRNE(cxl::name_of(opcode), "");
  }
}

TEST_F(MailboxTest, TellsWhatTheDeviceIs) {
  const auto identity = get<cxl::Identity>(Opcode::IDENTIFY);
  EXPECT_EQ(identity.serial_number, facts.serial_number);
  EXPECT_EQ(identity.component_type, 3);
  EXPECT_EQ(identity.message_bytes_log2, 12);
  const auto found = get<cxl::MemoryDevice>(Opcode::IDENTIFY_MEMORY_DEVICE);
  EXPECT_STREQ(found.firmware_revision, "bowhead test");
  EXPECT_EQ(found.total_capacity, 4u);
  EXPECT_EQ(found.volatile_only_capacity, 4u);
  EXPECT_EQ(found.persistent_only_capacity, 0u);
  EXPECT_EQ(found.failure_events, EventLog::kRecordsMax);
  EXPECT_EQ(found.lsa_bytes, Mailbox::kLsaBytes);
  EXPECT_EQ(found.poison_records[0] | found.poison_records[1] << 8, int{PoisonMap::kRecordsMax});
  EXPECT_EQ(found.inject_poison_limit, Mailbox::kInjectedLinesMax);
  const auto partition = get<cxl::PartitionInfo>(Opcode::GET_PARTITION_INFO);
  EXPECT_EQ(partition.active_volatile, 4u);
  EXPECT_EQ(partition.active_persistent, 0u);
  const auto ndp = get<cxl::NdpCapabilities>(Opcode::GET_NDP_CAPABILITIES);
  EXPECT_EQ(ndp.capacity_bytes, kCapacity);
  EXPECT_EQ(ndp.operations, facts.operations);
  EXPECT_EQ(ndp.request_bytes_max, facts.request_bytes_max);
}

TEST(PersistentMailbox, SaysSo) {
  MailboxUnderTest persistent(true);
  const auto reply = persistent.mailbox.carry_out(0x4000, {});
  const auto found = cxl::copy_from<cxl::MemoryDevice>(reply.output);
  EXPECT_EQ(found.volatile_only_capacity, 0u);
  EXPECT_EQ(found.persistent_only_capacity, 4u);
  const auto partition =
      cxl::copy_from<cxl::PartitionInfo>(persistent.mailbox.carry_out(0x4100, {}).output);
  EXPECT_EQ(partition.active_volatile, 0u);
  EXPECT_EQ(partition.active_persistent, 4u);
  persistent.mailbox.report_corrected(0);
  const auto health =
      cxl::copy_from<cxl::HealthInfo>(persistent.mailbox.carry_out(0x4200, {}).output);
  EXPECT_EQ(health.corrected_persistent, 1u);
  EXPECT_EQ(health.corrected_volatile, 0u);
}

TEST_F(MailboxTest, LogsThatItDoesNotHaveAreRefused) {
  cxl::GetLog in{cxl::kCommandEffectsLog, 0, 4};
  EXPECT_EQ(output(Opcode::GET_LOG, bytes_of(in)).size(), 4u);
  const auto size = static_cast<uint32_t>(effects().size() * 4);
  in.offset = size - 4;
  EXPECT_EQ(send(Opcode::GET_LOG, bytes_of(in)), ReturnCode::SUCCESS);
  in.offset = size - 3;
  EXPECT_EQ(send(Opcode::GET_LOG, bytes_of(in)), ReturnCode::INVALID_INPUT);
  in = {cxl::kCommandEffectsLog, 0xffff'fffe, 4};
  EXPECT_EQ(send(Opcode::GET_LOG, bytes_of(in)), ReturnCode::INVALID_INPUT);
  in = {cxl::kGeneralMediaEvent, 0, 4};
  EXPECT_EQ(send(Opcode::GET_LOG, bytes_of(in)), ReturnCode::INVALID_LOG);
}

TEST_F(MailboxTest, WhatIsWrittenToTheLabelAreaIsRead) {
  Bytes in = bytes_of(cxl::SetLsa{1000, 0}, uint64_t{0x0123456789abcdef});
  EXPECT_EQ(send(Opcode::SET_LSA, in), ReturnCode::SUCCESS);
  EXPECT_EQ(output(Opcode::GET_LSA, bytes_of(cxl::GetLsa{1000, 8})),
            bytes_of(uint64_t{0x0123456789abcdef}));
  EXPECT_EQ(output(Opcode::GET_LSA, bytes_of(cxl::GetLsa{992, 8})), Bytes(8));
  const uint32_t end = Mailbox::kLsaBytes;
  EXPECT_EQ(send(Opcode::SET_LSA, bytes_of(cxl::SetLsa{end - 8, 0}, uint64_t{7})),
            ReturnCode::SUCCESS);
  EXPECT_EQ(send(Opcode::SET_LSA, bytes_of(cxl::SetLsa{end - 7, 0}, uint64_t{7})),
            ReturnCode::INVALID_INPUT);
  EXPECT_EQ(send(Opcode::SET_LSA, bytes_of(cxl::SetLsa{0xffff'ffff, 0}, uint64_t{7})),
            ReturnCode::INVALID_INPUT);
  EXPECT_EQ(send(Opcode::GET_LSA, bytes_of(cxl::GetLsa{end - 8, 9})), ReturnCode::INVALID_INPUT);
  EXPECT_EQ(send(Opcode::GET_LSA, bytes_of(cxl::GetLsa{0, 4097})), ReturnCode::INVALID_INPUT);
  EXPECT_EQ(send(Opcode::GET_LSA, bytes_of(cxl::GetLsa{0xffff'ffff, 0xffff'ffff})),
            ReturnCode::INVALID_INPUT);
}

TEST_F(MailboxTest, TimestampsGoOnAndAreThoseOfEvents) {
  EXPECT_EQ(get<uint64_t>(Opcode::GET_TIMESTAMP), 0u) << "the host has set none";
  inject(0);
  EXPECT_EQ(send(Opcode::SET_TIMESTAMP, bytes_of(uint64_t{1'700'000'000'000'000'000})),
            ReturnCode::SUCCESS);
  device.clock_ns += 123;
  EXPECT_EQ(get<uint64_t>(Opcode::GET_TIMESTAMP), 1'700'000'000'000'000'123u);
  inject(64);
  const auto found = events(cxl::EventLogId::INFORMATIONAL);
  ASSERT_EQ(found.records.size(), 2u);
  EXPECT_EQ(found.records[0].timestamp, 0u);
  EXPECT_EQ(found.records[1].timestamp, 1'700'000'000'000'000'123u);
}

TEST_F(MailboxTest, InjectedPoisonIsSeenEverywhereAndGoesWhenItIsCleared) {
  EXPECT_FALSE(mailbox.is_poisoned(0, kCapacity));
  EXPECT_EQ(health().health_status, 0);
  EXPECT_EQ(counters().event_status, 0u);
  EXPECT_EQ(inject(4096), ReturnCode::SUCCESS);
  EXPECT_EQ(inject(4096), ReturnCode::SUCCESS) << "again is no error";

  EXPECT_TRUE(mailbox.is_poisoned(4096, 1));
  EXPECT_TRUE(mailbox.is_poisoned(4000, 97));
  EXPECT_TRUE(mailbox.is_poisoned(4159, 1));
  EXPECT_FALSE(mailbox.is_poisoned(4000, 96));
  EXPECT_FALSE(mailbox.is_poisoned(4160, 1'000'000));
  EXPECT_FALSE(mailbox.is_poisoned(4096, 0));
  EXPECT_TRUE(mailbox.is_poisoned(0, ~uint64_t{0}));

  using Records = std::vector<std::tuple<uint64_t, uint64_t, int>>;
  EXPECT_EQ(poison_list().records, (Records{{4096, 64, 3}}));
  EXPECT_TRUE(poison_list(0, 4096).records.empty());
  EXPECT_EQ(health().health_status, cxl::MAINTENANCE_NEEDED);
  EXPECT_EQ(counters().poisoned_lines, 1u);
  const auto logged = events(cxl::EventLogId::INFORMATIONAL);
  ASSERT_EQ(logged.records.size(), 1u);
  const cxl::GeneralMediaEvent& event = logged.records[0];
  EXPECT_EQ(event.id, cxl::kGeneralMediaEvent);
  EXPECT_EQ(event.physical_address, 4096u | 1u) << "bit 0: volatile";
  EXPECT_EQ(event.descriptor, cxl::UNCORRECTABLE);
  EXPECT_EQ(event.transaction, static_cast<uint8_t>(cxl::EventTransaction::INJECT_POISON));
  EXPECT_EQ(event.length, 128);
  EXPECT_NE(event.handle, 0);
  EXPECT_EQ(counters().event_status, 1u);

  // Neighbours are one record.
  EXPECT_EQ(inject(4160), ReturnCode::SUCCESS);
  EXPECT_EQ(inject(4032), ReturnCode::SUCCESS);
  EXPECT_EQ(poison_list().records, (Records{{4032, 192, 3}}));
  EXPECT_EQ(poison_list(4096, 64).records, (Records{{4096, 64, 3}})) << "cut to the range";

  // Cleared in the middle: two records, and the data are stored.
  EXPECT_EQ(clear(4096, std::byte{0xab}), ReturnCode::SUCCESS);
  EXPECT_EQ(device.memory[4096], std::byte{0xab});
  EXPECT_EQ(device.memory[4159], std::byte{0xab});
  EXPECT_EQ(device.memory[4160], std::byte{0});
  EXPECT_EQ(poison_list().records, (Records{{4032, 64, 3}, {4160, 64, 3}}));
  EXPECT_FALSE(mailbox.is_poisoned(4096, 64));
  EXPECT_EQ(clear(4032), ReturnCode::SUCCESS);
  EXPECT_EQ(clear(4160), ReturnCode::SUCCESS);
  EXPECT_EQ(clear(0), ReturnCode::SUCCESS) << "there was none";
  EXPECT_TRUE(poison_list().records.empty());
  EXPECT_FALSE(mailbox.is_poisoned(0, kCapacity));
  EXPECT_EQ(health().health_status, 0);
  EXPECT_EQ(counters().poisoned_lines, 0u);
}

TEST_F(MailboxTest, AddressesThatAreNotThoseOfMemoryAreRefused) {
  const uint64_t last = kCapacity - 64;
  EXPECT_EQ(inject(last), ReturnCode::SUCCESS);
  for (const uint64_t bad : {uint64_t{1}, uint64_t{32}, kCapacity, kCapacity + 64, ~uint64_t{63}}) {
    EXPECT_EQ(inject(bad), ReturnCode::INVALID_PHYSICAL_ADDRESS) << bad;
    EXPECT_EQ(clear(bad), ReturnCode::INVALID_PHYSICAL_ADDRESS) << bad;
  }
  for (const Opcode opcode : {Opcode::GET_POISON_LIST, Opcode::GET_SCAN_MEDIA_CAPS}) {
    const auto code = [&](uint64_t address, uint64_t lines) {
      return send(opcode, bytes_of(cxl::MemoryRange{address, lines}));
    };
    EXPECT_EQ(code(last, 1), ReturnCode::SUCCESS);
    EXPECT_EQ(code(last, 2), ReturnCode::INVALID_PHYSICAL_ADDRESS);
    EXPECT_EQ(code(kCapacity, 1), ReturnCode::INVALID_PHYSICAL_ADDRESS);
    EXPECT_EQ(code(32, 1), ReturnCode::INVALID_PHYSICAL_ADDRESS);
    EXPECT_EQ(code(64, ~uint64_t{0}), ReturnCode::INVALID_PHYSICAL_ADDRESS);
    EXPECT_EQ(code(64, uint64_t{1} << 58), ReturnCode::INVALID_PHYSICAL_ADDRESS);
    EXPECT_EQ(code(0, 0), ReturnCode::INVALID_INPUT);
  }
  EXPECT_EQ(scan(last, 128), ReturnCode::INVALID_PHYSICAL_ADDRESS);
}

TEST_F(MailboxTest, PoisonThatCannotBeOverwrittenStays) {
  mailbox.report_lost(8192, 64);
  device.can_write = false;
  EXPECT_EQ(clear(8192), ReturnCode::PERMANENT_MEDIA_FAILURE);
  device.can_write = true;
  device.lost = {{8192, 64}};
  EXPECT_EQ(clear(8192, std::byte{1}), ReturnCode::PERMANENT_MEDIA_FAILURE);
  EXPECT_EQ(device.memory[8192], std::byte{0});
  EXPECT_TRUE(mailbox.is_poisoned(8192, 64));
  device.lost.clear();
  EXPECT_EQ(clear(8192), ReturnCode::SUCCESS);
  EXPECT_FALSE(mailbox.is_poisoned(8192, 64));
}

TEST_F(MailboxTest, OnlySoManyLinesCanBeInjected) {
  for (uint64_t i = 0; i < Mailbox::kInjectedLinesMax; ++i)
    ASSERT_EQ(inject(i * 128), ReturnCode::SUCCESS);
  EXPECT_EQ(inject(64), ReturnCode::INJECT_POISON_LIMIT);
  EXPECT_EQ(inject(128), ReturnCode::SUCCESS) << "it is poisoned already";
  EXPECT_EQ(clear(128), ReturnCode::SUCCESS);
  EXPECT_EQ(inject(64), ReturnCode::SUCCESS);
}

TEST_F(MailboxTest, AListThatIsLongerThanAReplyGoesOn) {
  for (uint64_t i = 0; i < 256; ++i) ASSERT_EQ(inject(i * 128), ReturnCode::SUCCESS);
  auto part = poison_list();
  EXPECT_EQ(part.head.count, 254);
  EXPECT_EQ(part.head.flags, cxl::POISON_MORE | cxl::POISON_RESTARTED);
  // Another range in between begins anew; and so does a restart.
  part = poison_list(0, kCapacity, false);
  EXPECT_EQ(part.head.count, 2);
  EXPECT_EQ(part.head.flags, 0);
  EXPECT_EQ(std::get<0>(part.records[0]), 254u * 128);
  EXPECT_EQ(poison_list(0, kCapacity, false).head.count, 254);
  EXPECT_EQ(poison_list(0, kCapacity, true).head.count, 254);
  EXPECT_EQ(poison_list(0, 1 << 20, false).head.count, 254);
  EXPECT_EQ(poison_list(0, 1 << 20, false).head.count, 2);
}

TEST_F(MailboxTest, PoisonThatIsMetIsCountedAndLoggedOnce) {
  mailbox.report_met(0, 1 << 20);
  EXPECT_EQ(counters().poison_met, 0u) << "there was none";
  inject(4096);
  mailbox.report_met(0, 1 << 20);
  mailbox.report_met(4096, 64);
  mailbox.report_met(4160, ~uint64_t{0});
  EXPECT_EQ(counters().poison_met, 2u);
  const auto found = events(cxl::EventLogId::FAILURE);
  ASSERT_EQ(found.records.size(), 1u);
  EXPECT_EQ(found.records[0].physical_address, 4097u);
  EXPECT_EQ(found.records[0].transaction, static_cast<uint8_t>(cxl::EventTransaction::HOST_READ));
  EXPECT_EQ(found.records[0].flags[0], 2) << "severity: failure";
  EXPECT_EQ(counters().event_status, 0b101u);
  EXPECT_EQ(clear_events(cxl::EventLogId::FAILURE, {found.records[0].handle}), ReturnCode::SUCCESS);
  mailbox.report_met(4096, 64);
  EXPECT_EQ(events(cxl::EventLogId::FAILURE).records.size(), 1u) << "the host cleared the first";
}

TEST_F(MailboxTest, LostMemoryIsPoisonFromWithin) {
  mailbox.report_lost(100, 50);  // two lines
  mailbox.report_lost(kCapacity - 64, 4096);
  mailbox.report_lost(kCapacity, 4096);
  using Records = std::vector<std::tuple<uint64_t, uint64_t, int>>;
  EXPECT_EQ(poison_list().records, (Records{{64, 128, 2}, {kCapacity - 64, 64, 2}}));
  EXPECT_EQ(health().health_status, cxl::MAINTENANCE_NEEDED | cxl::CAPACITY_DEGRADED);
  EXPECT_EQ(events(cxl::EventLogId::FAILURE).records.size(), 2u);
  mailbox.report_lost(64, 64);
  EXPECT_EQ(events(cxl::EventLogId::FAILURE).records.size(), 2u) << "nothing new";
}

TEST_F(MailboxTest, EventsAreClearedFromTheOldest) {
  for (uint64_t i = 0; i < 40; ++i) inject(i * 128);
  const auto id = cxl::EventLogId::INFORMATIONAL;
  auto found = events(id);
  EXPECT_EQ(found.head.flags, cxl::EVENTS_MORE);
  ASSERT_EQ(found.records.size(), 31u);
  EXPECT_EQ(events(id).records[0].handle, found.records[0].handle) << "reading clears nothing";
  const uint16_t first = found.records[0].handle, second = found.records[1].handle;
  EXPECT_EQ(clear_events(id, {second}), ReturnCode::INVALID_HANDLE);
  EXPECT_EQ(clear_events(id, {second, first}), ReturnCode::INVALID_HANDLE);
  EXPECT_EQ(clear_events(id, {first, 9999}), ReturnCode::INVALID_HANDLE);
  EXPECT_EQ(events(id).records[0].handle, first) << "a refused command clears nothing";
  EXPECT_EQ(clear_events(id, {first, second}), ReturnCode::SUCCESS);
  EXPECT_EQ(events(id).records[0].physical_address, (2 * 128) | 1u);
  EXPECT_EQ(clear_events(id, {first}), ReturnCode::INVALID_HANDLE);
  EXPECT_EQ(clear_events(cxl::EventLogId::WARNING, {second}), ReturnCode::INVALID_HANDLE);
  EXPECT_EQ(clear_events(id, {}), ReturnCode::INVALID_INPUT);
  EXPECT_EQ(clear_events(id, {}, true), ReturnCode::INVALID_INPUT) << "no record was dropped";
  EXPECT_EQ(send(Opcode::CLEAR_EVENTS, bytes_of(cxl::ClearEvents{0, 0, 2, {}}, first)),
            ReturnCode::INVALID_PAYLOAD_LENGTH);
  EXPECT_EQ(send(Opcode::CLEAR_EVENTS, bytes_of(cxl::ClearEvents{4, 0, 1, {}}, first)),
            ReturnCode::INVALID_INPUT);
  EXPECT_EQ(send(Opcode::GET_EVENTS, bytes_of(uint8_t{4})), ReturnCode::INVALID_INPUT);
  for (int i = 0; i < 38; ++i)
    EXPECT_EQ(clear_events(id, {events(id).records[0].handle}), ReturnCode::SUCCESS);
  EXPECT_TRUE(events(id).records.empty());
  EXPECT_EQ(counters().event_status, 0u);
}

TEST_F(MailboxTest, AFullLogCountsWhatItDrops) {
  send(Opcode::SET_TIMESTAMP, bytes_of(uint64_t{1000}));
  const auto id = cxl::EventLogId::INFORMATIONAL;
  for (uint64_t i = 0; i < EventLog::kRecordsMax + 5u; ++i) {
    device.clock_ns += 1;
    inject(i * 128);
  }
  auto found = events(id);
  EXPECT_EQ(found.head.flags, cxl::EVENTS_DROPPED | cxl::EVENTS_MORE);
  EXPECT_EQ(found.head.dropped, 5);
  EXPECT_EQ(found.head.first_dropped, 1000u + EventLog::kRecordsMax + 1);
  EXPECT_EQ(found.head.last_dropped, 1000u + EventLog::kRecordsMax + 5);
  EXPECT_EQ(clear_events(id, {}, true), ReturnCode::SUCCESS);
  found = events(id);
  EXPECT_EQ(found.head.flags, 0);
  EXPECT_EQ(found.head.dropped, 0);
  EXPECT_TRUE(found.records.empty());
}

TEST_F(MailboxTest, CorrectedErrorsReachTheAlert) {
  auto config = get<cxl::AlertConfig>(Opcode::GET_ALERT_CONFIG);
  EXPECT_EQ(config.valid, 0);
  EXPECT_EQ(config.programmable, cxl::CORRECTED_VOLATILE_ALERT);
  mailbox.report_corrected(64);
  EXPECT_EQ(health().corrected_volatile, 1u);
  EXPECT_EQ(health().dirty_shutdowns, 3u);
  cxl::SetAlertConfig set{};
  set.valid = set.enable = cxl::CORRECTED_VOLATILE_ALERT;
  set.corrected_volatile_warning = 3;
  EXPECT_EQ(send(Opcode::SET_ALERT_CONFIG, bytes_of(set)), ReturnCode::SUCCESS);
  config = get<cxl::AlertConfig>(Opcode::GET_ALERT_CONFIG);
  EXPECT_EQ(config.valid, cxl::CORRECTED_VOLATILE_ALERT);
  EXPECT_EQ(config.corrected_volatile_warning, 3);
  mailbox.report_corrected(128);
  EXPECT_EQ(health().additional_status, 0);
  EXPECT_TRUE(events(cxl::EventLogId::WARNING).records.empty());
  mailbox.report_corrected(200);
  mailbox.report_corrected(256);
  EXPECT_EQ(health().additional_status, cxl::CORRECTED_VOLATILE_STATUS);
  const auto found = events(cxl::EventLogId::WARNING);
  ASSERT_EQ(found.records.size(), 1u) << "once";
  EXPECT_EQ(found.records[0].descriptor, cxl::THRESHOLD);
  EXPECT_EQ(found.records[0].corrected_count[0], 3);
  EXPECT_EQ(found.records[0].physical_address, 193u);
  set.corrected_volatile_warning = 2;
  EXPECT_EQ(send(Opcode::SET_ALERT_CONFIG, bytes_of(set)), ReturnCode::SUCCESS);
  EXPECT_EQ(events(cxl::EventLogId::WARNING).records.size(), 2u) << "it was reached already";
  set.enable = 0;
  EXPECT_EQ(send(Opcode::SET_ALERT_CONFIG, bytes_of(set)), ReturnCode::SUCCESS);
  EXPECT_EQ(health().additional_status, 0);
  set.valid = cxl::CORRECTED_PERSISTENT_ALERT;
  EXPECT_EQ(send(Opcode::SET_ALERT_CONFIG, bytes_of(set)), ReturnCode::INVALID_INPUT);
  set.valid = 1;
  EXPECT_EQ(send(Opcode::SET_ALERT_CONFIG, bytes_of(set)), ReturnCode::INVALID_INPUT);
}

TEST_F(MailboxTest, AScanFindsLostMemoryInTheBackground) {
  EXPECT_EQ(send(Opcode::GET_SCAN_MEDIA_RESULTS), ReturnCode::UNSUPPORTED);
  EXPECT_EQ(background().opcode, 0);
  EXPECT_FALSE(mailbox.step());
  device.look_ns = 250'000;
  const auto caps = get<cxl::ScanMediaCaps>(Opcode::GET_SCAN_MEDIA_CAPS,
                                            bytes_of(cxl::MemoryRange{0, kCapacity / kLine}));
  EXPECT_EQ(caps.estimated_ms, 64u) << "256 steps of 4 MiB";
  inject(0);
  device.lost = {{(10 << 20) + 5000, 100}, {(20 << 20) + 4096, 8192}, {kCapacity - 1, 1}};
  EXPECT_EQ(scan(0, kCapacity), ReturnCode::BACKGROUND_STARTED);
  EXPECT_EQ(scan(0, kCapacity), ReturnCode::BUSY);
  EXPECT_EQ(send(Opcode::GET_SCAN_MEDIA_RESULTS), ReturnCode::BUSY);
  EXPECT_EQ(background().status, 1);
  EXPECT_EQ(background().opcode, 0x4304);
  EXPECT_TRUE(poison_list().head.flags & cxl::POISON_SCANNING);
  for (int i = 0; i < 128; ++i) EXPECT_TRUE(mailbox.step());
  EXPECT_EQ(background().status, 50 << 1 | 1);
  EXPECT_TRUE(mailbox.is_poisoned(10 << 20, 1 << 20));
  EXPECT_FALSE(mailbox.is_poisoned(kCapacity - 64, 64));
  finish();
  EXPECT_EQ(background().status, 100 << 1);
  EXPECT_EQ(background().return_code, 0);
  const auto pages = [](uint64_t at, uint64_t bytes, int source) {
    return std::tuple(at, bytes, source);
  };
  const std::vector<std::tuple<uint64_t, uint64_t, int>> expected = {
      {0, 64, 3},
      pages((10 << 20) + 4096, 4096, 2),
      pages((20 << 20) + 4096, 8192, 2),
      pages(kCapacity - 4096, 4096, 2)};
  EXPECT_EQ(poison_list().records, expected);
  EXPECT_FALSE(poison_list().head.flags & cxl::POISON_SCANNING);
  for (int i = 0; i < 2; ++i) {
    const Bytes results = output(Opcode::GET_SCAN_MEDIA_RESULTS);
    const auto head = cxl::copy_from<cxl::ScanResultsHead>(results);
    EXPECT_EQ(head.flags, 0);
    EXPECT_EQ(head.count, 4);
    EXPECT_EQ(records_of(results, sizeof head), expected);
  }
  const auto found = events(cxl::EventLogId::FAILURE);
  EXPECT_EQ(found.records.size(), 4u) << "one for each page";
  EXPECT_EQ(found.records[0].transaction, static_cast<uint8_t>(cxl::EventTransaction::SCAN_MEDIA));
}

TEST_F(MailboxTest, AScanThatBeginsWithinAPagePoisonsPages) {
  device.lost = {{8192, 4096}};
  scan(4096 + 64, 64 << 10);
  finish();
  using Records = std::vector<std::tuple<uint64_t, uint64_t, int>>;
  EXPECT_EQ(poison_list().records, (Records{{8192, 4096, 2}}));
  device.lost = {{4096, 4096}, {(64 << 10) + 4096, 4096}};
  scan(4096 + 64, 64 << 10);
  finish();
  EXPECT_EQ(poison_list().records, (Records{{4160, 8128, 2}, {69632, 64, 2}}));
}

TEST_F(MailboxTest, AScanWithoutEventsLogsNone) {
  device.lost = {{1 << 20, 64}};
  EXPECT_EQ(scan(1 << 20, 8 << 20, cxl::kScanWithoutEvents), ReturnCode::BACKGROUND_STARTED);
  finish();
  EXPECT_EQ(poison_list().records.size(), 1u);
  EXPECT_TRUE(events(cxl::EventLogId::FAILURE).records.empty());
}

TEST_F(MailboxTest, AnAbortedScanSaysWhereToGoOn) {
  EXPECT_EQ(send(Opcode::ABORT_BACKGROUND), ReturnCode::SUCCESS) << "nothing runs";
  device.lost = {{6 << 20, 64}, {20 << 20, 64}};
  scan(4 << 20, 64 << 20);
  mailbox.step();
  EXPECT_EQ(send(Opcode::ABORT_BACKGROUND), ReturnCode::SUCCESS);
  EXPECT_FALSE(mailbox.step());
  EXPECT_EQ(background().return_code, static_cast<uint16_t>(ReturnCode::ABORTED));
  EXPECT_EQ(background().status & 1, 0);
  const Bytes results = output(Opcode::GET_SCAN_MEDIA_RESULTS);
  const auto head = cxl::copy_from<cxl::ScanResultsHead>(results);
  EXPECT_EQ(head.flags, cxl::SCAN_STOPPED);
  EXPECT_EQ(head.count, 1);
  EXPECT_EQ(head.restart_address, uint64_t{8 << 20});
  EXPECT_EQ(head.restart_lines, uint64_t{60 << 20} / kLine);
}

/// Poison that the list has no room for is poison; a scan lists it once there is room.
TEST_F(MailboxTest, AFullPoisonListOverflowsUntilAScan) {
  send(Opcode::SET_TIMESTAMP, bytes_of(uint64_t{5000}));
  for (uint64_t i = 0; i < PoisonMap::kRecordsMax; ++i) mailbox.report_lost(i * 128, 64);
  EXPECT_FALSE(poison_list().head.flags & cxl::POISON_OVERFLOWED);
  device.clock_ns += 7;
  const uint64_t listed = (PoisonMap::kRecordsMax - 1) * 128, hidden = listed + 1280;
  mailbox.report_lost(hidden, 64);
  EXPECT_TRUE(mailbox.is_poisoned(hidden, 64));
  EXPECT_TRUE(poison_list(hidden, 64).records.empty());
  EXPECT_TRUE(poison_list().head.flags & cxl::POISON_OVERFLOWED);
  EXPECT_EQ(poison_list().head.overflow_timestamp, 5007u);
  const auto warned = events(cxl::EventLogId::WARNING);
  ASSERT_EQ(warned.records.size(), 1u);
  EXPECT_EQ(warned.records[0].descriptor, cxl::POISON_OVERFLOW);
  mailbox.report_lost(listed + 64, 64);
  EXPECT_EQ(std::get<1>(poison_list(listed, 128).records.at(0)), 128u)
      << "beside a record there is room";

  scan(0, kCapacity);
  finish();
  EXPECT_TRUE(poison_list().head.flags & cxl::POISON_OVERFLOWED) << "there is still no room";
  size_t results = 0;
  for (bool more = true; more;) {
    const auto head = cxl::copy_from<cxl::ScanResultsHead>(output(Opcode::GET_SCAN_MEDIA_RESULTS));
    results += head.count;
    more = (head.flags & cxl::SCAN_MORE) != 0;
  }
  EXPECT_EQ(results, PoisonMap::kRecordsMax + 1) << "results have what the list has no room for";
  EXPECT_EQ(clear(0), ReturnCode::SUCCESS);
  EXPECT_TRUE(poison_list().head.flags & cxl::POISON_OVERFLOWED) << "only a scan lists it";
  scan(0, kCapacity);
  finish();
  EXPECT_FALSE(poison_list().head.flags & cxl::POISON_OVERFLOWED);
  EXPECT_EQ(poison_list(hidden, 64).records.size(), 1u);
}

TEST_F(MailboxTest, FailedMediaAreDisabled) {
  device.failed = true;
  EXPECT_EQ(inject(0), ReturnCode::MEDIA_DISABLED);
  EXPECT_EQ(clear(0), ReturnCode::MEDIA_DISABLED);
  EXPECT_EQ(scan(0, 64), ReturnCode::MEDIA_DISABLED);
  EXPECT_EQ(health().media_status, 3);
  EXPECT_EQ(health().health_status, cxl::REPLACEMENT_NEEDED);
  device.failed = false;
  EXPECT_EQ(health().media_status, 0);
  scan(0, kCapacity);
  device.failed = true;
  EXPECT_FALSE(mailbox.step());
  EXPECT_EQ(background().return_code, static_cast<uint16_t>(ReturnCode::MEDIA_DISABLED));
}

TEST_F(MailboxTest, CountsItsCommandsAndThoseOfTheDevice) {
  device.work = {.commands = 10, .refused = 2, .read_bytes = 4096, .pairs = 3};
  EXPECT_EQ(send(Opcode::SET_TIMESTAMP), ReturnCode::INVALID_PAYLOAD_LENGTH);
  const auto found = counters();
  EXPECT_EQ(found.commands, 10u);
  EXPECT_EQ(found.refused, 2u);
  EXPECT_EQ(found.read_bytes, 4096u);
  EXPECT_EQ(found.pairs, 3u);
  EXPECT_EQ(found.mailbox_commands, 2u);
  EXPECT_EQ(found.mailbox_refused, 1u);
}

TEST_F(MailboxTest, TheHotListIsReadThroughCommands) {
  cxl::HotnessSetting setting{};
  setting.enabled = 1;
  setting.unit_log2 = 20;
  setting.sampling_log2 = 0;
  setting.threshold = 2;
  setting.epoch_ms = 5;
  EXPECT_EQ(send(Opcode::CONFIGURE_HOTNESS, bytes_of(setting)), ReturnCode::SUCCESS);
  hotness.note(5 << 20, 10 * kLine);
  hotness.note(9 << 20, 20 * kLine);
  hotness.note(3 << 20, 2 * kLine);
  hotness.end_epoch();
  const auto info = get<cxl::HotnessInfo>(Opcode::GET_HOTNESS);
  EXPECT_EQ(info.setting.enabled, 1);
  EXPECT_EQ(info.setting.unit_log2, 20);
  EXPECT_EQ(info.setting.threshold, 2u);
  EXPECT_EQ(info.setting.epoch_ms, 5u);
  EXPECT_EQ(info.unit_sizes, hotness.unit_sizes());
  EXPECT_EQ(info.epochs, 1u);
  EXPECT_EQ(info.tail, 2);
  Bytes list = output(Opcode::READ_HOT_LIST, bytes_of(cxl::ReadHotList{0, 1, 0, {}}));
  auto head = cxl::copy_from<cxl::HotListHead>(list);
  EXPECT_EQ(head.count, 1);
  EXPECT_EQ(head.tail, 2);
  EXPECT_EQ(cxl::copy_from<uint64_t>(std::span(list).subspan(sizeof head)), uint64_t{9} << 32 | 20);
  list = output(Opcode::READ_HOT_LIST, bytes_of(cxl::ReadHotList{1, 0xffff, 0, {}}));
  EXPECT_EQ(cxl::copy_from<uint64_t>(std::span(list).subspan(sizeof head)), uint64_t{5} << 32 | 10);
  EXPECT_EQ(get<cxl::HotnessInfo>(Opcode::GET_HOTNESS).head, 1);
  EXPECT_EQ(send(Opcode::READ_HOT_LIST, bytes_of(cxl::ReadHotList{0, 1, 0, {}})),
            ReturnCode::INVALID_INPUT);
  EXPECT_EQ(send(Opcode::READ_HOT_LIST, bytes_of(cxl::ReadHotList{1, 1, 2, {}})),
            ReturnCode::INVALID_INPUT);
  setting.unit_log2 = 3;
  EXPECT_EQ(send(Opcode::CONFIGURE_HOTNESS, bytes_of(setting)), ReturnCode::INVALID_INPUT);
  setting.unit_log2 = 20;
  setting.enabled = 2;
  EXPECT_EQ(send(Opcode::CONFIGURE_HOTNESS, bytes_of(setting)), ReturnCode::INVALID_INPUT);
}

TEST_F(MailboxTest, ThreadsMayShareIt) {
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (uint64_t i = 0; i < 300; ++i) {
        const uint64_t at = (t * 1000 + i) * 128;
        EXPECT_EQ(inject(at), ReturnCode::SUCCESS);
        EXPECT_TRUE(mailbox.is_poisoned(at, 64));
        EXPECT_EQ(clear(at), ReturnCode::SUCCESS);
        EXPECT_FALSE(mailbox.is_poisoned(at, 64));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counters().poisoned_lines, 0u);
}

/// Against a map of single lines: ranges stay whole, disjoint and joined.
TEST(PoisonMap, BehavesAsASetOfLines) {
  Random random(1);
  PoisonMap map;
  std::map<uint64_t, cxl::PoisonSource> lines;
  constexpr uint64_t kLines = 200;
  const cxl::PoisonSource sources[] = {cxl::PoisonSource::INTERNAL, cxl::PoisonSource::INJECTED};
  for (int round = 0; round < 20'000; ++round) {
    const uint64_t at = random.below(kLines);
    if (random.below(2) == 0) {
      map.clear(at * kLine);
      lines.erase(at);
    } else {
      const auto source = sources[random.below(2)];
      const uint64_t bytes = 1 + random.below(std::min<uint64_t>(5, kLines - at) * kLine);
      map.add(at * kLine, bytes, source);
      for (uint64_t line = at; line <= at + (bytes - 1) / kLine; ++line)
        lines.emplace(line, source);
    }
    ASSERT_EQ(map.lines(), lines.size());
    const uint64_t from = random.below(kLines * kLine), bytes = 1 + random.below(1000);
    const auto next = lines.lower_bound(from / kLine);
    ASSERT_EQ(map.is_poisoned(from, bytes),
              next != lines.end() && next->first * kLine < from + bytes);
    if (round % 100 != 0) continue;
    std::map<uint64_t, cxl::PoisonSource> found;
    uint64_t end = 0;
    cxl::PoisonSource last = cxl::PoisonSource::UNKNOWN;
    for (const auto& range : map.listed(0, kLines * kLine, 0, 1000)) {
      EXPECT_TRUE(range.offset > end || range.source != last || end == 0) << "not joined";
      for (uint64_t line = range.offset; line < range.offset + range.bytes; line += kLine)
        EXPECT_TRUE(found.emplace(line / kLine, range.source).second);
      end = range.offset + range.bytes, last = range.source;
    }
    ASSERT_EQ(found, lines);
  }
}

TEST(PoisonMap, ARangeThatIsSplitNeedsARecordMore) {
  PoisonMap map;
  map.add(0, 3 * kLine, cxl::PoisonSource::INTERNAL);
  for (uint64_t i = 1; i < PoisonMap::kRecordsMax; ++i)
    map.add(i * 1024, kLine, cxl::PoisonSource::INTERNAL);
  EXPECT_FALSE(map.overflowed());
  map.clear(kLine);
  EXPECT_TRUE(map.overflowed());
  EXPECT_TRUE(map.is_poisoned(2 * kLine, kLine));
  EXPECT_EQ(map.listed(0, 1 << 30, 0, 10'000).size(), size_t{PoisonMap::kRecordsMax});
  EXPECT_EQ(map.all(0, 1 << 30, 0, 10'000).size(), size_t{PoisonMap::kRecordsMax} + 1);
}

TEST(PoisonMap, ReadingARangeEndsAtItsEnd) {
  PoisonMap map;
  map.add(64, 1 << 20, cxl::PoisonSource::INTERNAL);
  ASSERT_EQ(map.all(0, 128, 0, 10).size(), 1u);
  EXPECT_EQ(map.all(0, 128, 0, 10)[0].bytes, 64u);
  EXPECT_TRUE(map.all(0, 128, 128, 10).empty());
}

}  // namespace
}  // namespace bowhead::test
