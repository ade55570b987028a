// SPDX-License-Identifier: Apache-2.0
// Typed mailbox calls: against a mailbox of this process, against the same behind a kernel that a
// test plays, and against devices that answer nonsense.
#include "driver-shim/mailbox.h"

#include <gtest/gtest.h>
#include <linux/cxl_mem.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>
#include <deque>

#include "tests/device/mailbox_device.h"

namespace bowhead::test {
namespace {

using cxl::Opcode;
using cxl::ReturnCode;
using driver::DirectMailbox;
using driver::KernelMailbox;
using driver::MailboxClient;
using driver::PoisonRecord;

/// Replies that a test gives.
class ScriptedTransport final : public driver::MailboxTransport {
 public:
  Result<cxl::Reply> send(uint16_t, std::span<const std::byte>) override {
    ++sent;
    cxl::Reply reply = replies.front();
    if (replies.size() > 1) replies.pop_front();  // the last one stays
    return reply;
  }
  size_t payload_bytes_max() const override { return 256; }

  std::deque<cxl::Reply> replies;
  int sent = 0;
};

template <class... T>
cxl::Reply reply_of(const T&... values) {
  cxl::Reply reply;
  (cxl::append(reply.output, values), ...);
  return reply;
}

class ClientTest : public testing::Test, protected MailboxUnderTest {
 protected:
  ClientTest() : transport(mailbox), client(transport) {}
  DirectMailbox transport;
  MailboxClient client;
};

TEST_F(ClientTest, DeviceIsIdentified) {
  const auto identity = client.identify().value();
  EXPECT_EQ(identity.firmware, "bowhead test");
  EXPECT_EQ(identity.total_bytes, kCapacity);
  EXPECT_EQ(identity.volatile_bytes, kCapacity);
  EXPECT_EQ(identity.persistent_bytes, 0u);
  EXPECT_EQ(identity.poison_records_max, 1024u);
  EXPECT_EQ(identity.injected_max, 256);
  EXPECT_EQ(identity.label_bytes, device::Mailbox::kLsaBytes);
  EXPECT_EQ(client.serial_number().value(), facts.serial_number);
  EXPECT_EQ(client.capabilities().value().operations, facts.operations);
  const auto effects = client.effects().value();
  EXPECT_EQ(effects.size(), 27u);
  EXPECT_EQ(effects.at(0x4302), cxl::DATA_CHANGE);
}

TEST_F(ClientTest, PoisonIsListedInjectedAndCleared) {
  for (uint64_t i = 0; i < 256; ++i) ASSERT_TRUE(client.inject_poison(i * 128));
  const auto list = client.poison_list(0, kCapacity).value();
  ASSERT_EQ(list.records.size(), 256u) << "two replies";
  EXPECT_EQ(list.records[255], (PoisonRecord{255 * 128, 64, cxl::PoisonSource::INJECTED}));
  EXPECT_FALSE(list.overflowed);
  const auto limit = client.inject_poison(64);
  EXPECT_EQ(limit.status(), Status::LIMIT_REACHED);
  EXPECT_NE(limit.error().detail.find("Inject Poison (4301h)"), std::string::npos)
      << limit.error().detail;
  EXPECT_TRUE(client.health().value().maintenance_needed);
  const std::vector<std::byte> line(64, std::byte{7});
  for (uint64_t i = 0; i < 256; ++i) {
    ASSERT_TRUE(client.clear_poison(i * 128, std::span<const std::byte, 64>(line)));
  }
  EXPECT_EQ(device.memory[128], std::byte{7});
  EXPECT_TRUE(client.poison_list(0, kCapacity).value().records.empty());
  EXPECT_FALSE(client.health().value().maintenance_needed);
  EXPECT_EQ(client.inject_poison(kCapacity).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(client.poison_list(1, 64).status(), Status::INVALID_ARGUMENT);
  EXPECT_EQ(client.poison_list(0, 0).status(), Status::INVALID_ARGUMENT);
  device.failed = true;
  EXPECT_EQ(client.inject_poison(0).status(), Status::MEDIA_ERROR);
}

TEST_F(ClientTest, EventsAreReadAndCleared) {
  ASSERT_TRUE(client.set_timestamp_ns(1'000'000));
  device.clock_ns += 5;
  EXPECT_EQ(client.timestamp_ns().value(), 1'000'005u);
  for (uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(client.inject_poison(i * 64));
  const auto id = cxl::EventLogId::INFORMATIONAL;
  size_t taken = 0;
  for (bool more = true; more;) {
    const auto events = client.events(id).value();
    more = events.more;
    std::vector<uint16_t> handles;
    for (const auto& event : events.records) {
      EXPECT_TRUE(event.is_media);
      EXPECT_EQ(event.offset, taken++ * 64);
      EXPECT_EQ(event.timestamp_ns, 1'000'005u);
      EXPECT_EQ(event.transaction, cxl::EventTransaction::INJECT_POISON);
      EXPECT_EQ(event.descriptor, cxl::UNCORRECTABLE);
      handles.push_back(event.handle);
    }
    ASSERT_TRUE(client.clear_events(id, handles));
    EXPECT_EQ(client.clear_events(id, handles).status(), Status::INVALID_ARGUMENT);
  }
  EXPECT_EQ(taken, 40u);
  EXPECT_TRUE(client.events(id).value().records.empty());
}

TEST_F(ClientTest, LabelsAreWrittenInPieces) {
  std::vector<std::byte> labels(10'000);
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::byte>(i * 7);
  ASSERT_TRUE(client.write_labels(100, labels));
  EXPECT_EQ(client.read_labels(100, 10'000).value(), labels);
  EXPECT_EQ(client.read_labels(device::Mailbox::kLsaBytes - 4, 8).status(),
            Status::INVALID_ARGUMENT);
}

TEST_F(ClientTest, CorrectedErrorsWarn) {
  ASSERT_TRUE(client.warn_at_corrected(false, 2));
  mailbox.report_corrected(0);
  EXPECT_EQ(client.health().value().additional_status, 0);
  mailbox.report_corrected(0);
  EXPECT_EQ(client.health().value().additional_status, cxl::CORRECTED_VOLATILE_STATUS);
  EXPECT_EQ(client.health().value().corrected_volatile, 2u);
  EXPECT_EQ(client.health().value().dirty_shutdowns, 3u);
  EXPECT_FALSE(client.health().value().temperature_celsius);
  EXPECT_FALSE(client.health().value().life_used_percent);
  ASSERT_TRUE(client.warn_at_corrected(false, std::nullopt));
  EXPECT_EQ(client.health().value().additional_status, 0);
  EXPECT_EQ(client.warn_at_corrected(true, 2).status(), Status::INVALID_ARGUMENT);
}

TEST_F(ClientTest, ScansRunInTheBackground) {
  EXPECT_EQ(client.scan_results().status(), Status::NOT_SUPPORTED);
  EXPECT_EQ(client.background().value().opcode, 0);
  device.look_ns = 1'000'000;
  EXPECT_EQ(client.estimated_scan_ms(0, 64 << 20).value(), 16u);
  device.lost = {{5 << 20, 64}, {900 << 20, 64}};
  ASSERT_TRUE(client.start_scan(0, kCapacity, false));
  EXPECT_EQ(client.start_scan(0, 64, false).status(), Status::BUSY);
  EXPECT_EQ(client.scan_results().status(), Status::BUSY);
  for (int i = 0; i < 64; ++i) mailbox.step();
  const auto running = client.background().value();
  EXPECT_TRUE(running.running);
  EXPECT_EQ(running.percent, 25);
  EXPECT_EQ(running.opcode, 0x4304);
  ASSERT_TRUE(client.abort_background());
  EXPECT_EQ(client.background().value().code, ReturnCode::ABORTED);
  const auto part = client.scan_results().value();
  EXPECT_EQ(part.records.size(), 1u);
  ASSERT_TRUE(part.rest);
  EXPECT_EQ(*part.rest, (std::pair<uint64_t, uint64_t>{256 << 20, 768 << 20}));
  ASSERT_TRUE(client.start_scan(part.rest->first, part.rest->second, true));
  finish();
  EXPECT_EQ(client.scan_results().value().records,
            (std::vector<PoisonRecord>{{900 << 20, 4096, cxl::PoisonSource::INTERNAL}}));
  EXPECT_FALSE(client.scan_results().value().rest);
  EXPECT_EQ(client.events(cxl::EventLogId::FAILURE).value().records.size(), 1u);
}

TEST_F(ClientTest, TheHotListIsReadToItsEnd) {
  cxl::HotnessSetting setting{};
  setting.enabled = 1;
  setting.unit_log2 = 20;
  setting.epoch_ms = 1000;
  ASSERT_TRUE(client.configure_hotness(setting));
  for (uint64_t unit = 0; unit < 1024; ++unit) hotness.note(unit << 20, (1 + unit) * 64);
  hotness.end_epoch();
  auto list = client.read_hot_list(client.hotness().value().head, true).value();
  EXPECT_TRUE(list.overflow);
  EXPECT_TRUE(list.more);
  EXPECT_EQ(list.unit_bytes, 1u << 20);
  std::vector<driver::HotListEntry> all = list.entries;
  uint16_t head = 0;
  while (list.more) {
    head = list.next_head;
    list = client.read_hot_list(head, false).value();
    EXPECT_FALSE(list.overflow) << "cleared";
    all.insert(all.end(), list.entries.begin(), list.entries.end());
  }
  ASSERT_EQ(all.size(), 1023u);
  for (uint64_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].offset, (1023 - i) << 20);
    EXPECT_EQ(all[i].count, 1024 - i);
  }
  EXPECT_EQ(client.read_hot_list(head, false).value().entries.size(), list.entries.size())
      << "again, as after a reply that was lost";
  EXPECT_EQ(client.read_hot_list(list.next_head, false).value().entries.size(), 0u);
  EXPECT_EQ(client.read_hot_list(head, false).status(), Status::INVALID_ARGUMENT);
  setting.epoch_ms = 0;
  EXPECT_EQ(client.configure_hotness(setting).status(), Status::INVALID_ARGUMENT);
}

TEST(MailboxClientTest, RepliesThatAreNoneAreRefused) {
  ScriptedTransport transport;
  MailboxClient client(transport);
  const auto with = [&](cxl::Reply reply) { transport.replies = {std::move(reply)}; };
  with({});
  EXPECT_EQ(client.identify().status(), Status::DEVICE_LOST);
  EXPECT_EQ(client.health().status(), Status::DEVICE_LOST);
  EXPECT_EQ(client.events(cxl::EventLogId::FATAL).status(), Status::DEVICE_LOST);
  EXPECT_EQ(client.poison_list(0, 64).status(), Status::DEVICE_LOST);
  EXPECT_EQ(client.read_labels(0, 8).status(), Status::DEVICE_LOST);
  cxl::PoisonListHead poison{};
  poison.count = 2;
  with(reply_of(poison, cxl::MediaError{}));
  EXPECT_EQ(client.poison_list(0, 64).status(), Status::DEVICE_LOST);
  poison.count = 0;
  poison.flags = cxl::POISON_MORE;
  with(reply_of(poison));
  EXPECT_EQ(client.poison_list(0, 64).status(), Status::DEVICE_LOST) << "more of nothing";
  poison.count = 1;
  with(reply_of(poison, cxl::MediaError{64, 1, 0}));
  transport.sent = 0;
  EXPECT_EQ(client.poison_list(0, 64).status(), Status::DEVICE_LOST) << "more for ever";
  EXPECT_GT(transport.sent, 1000);
  cxl::SupportedLogsHead logs{};
  logs.count = 1;
  with(reply_of(logs, cxl::SupportedLog{cxl::kCommandEffectsLog, 0xffff'fffc}));
  EXPECT_EQ(client.effects().status(), Status::DEVICE_LOST);
  cxl::HotListHead hot{};
  hot.places = 4;
  hot.counter_bits = 32;
  hot.count = 1;
  with(reply_of(hot, uint64_t{5} << 32 | 7));
  EXPECT_EQ(client.read_hot_list(0, false).value().entries.at(0).count, 7u);
  for (const auto change : {+[](cxl::HotListHead& head) { head.counter_bits = 64; },
                            +[](cxl::HotListHead& head) { head.counter_bits = 0; },
                            +[](cxl::HotListHead& head) { head.unit_log2 = 64; },
                            +[](cxl::HotListHead& head) { head.places = 0; },
                            +[](cxl::HotListHead& head) { head.count = 2; },
                            +[](cxl::HotListHead& head) { head.head = 4; }}) {
    cxl::HotListHead bad = hot;
    change(bad);
    with(reply_of(bad, uint64_t{0}));
    EXPECT_EQ(client.read_hot_list(0, false).status(), Status::DEVICE_LOST);
  }
}

TEST(MailboxClientTest, ReturnCodesAreStatuses) {
  ScriptedTransport transport;
  MailboxClient client(transport);
  const auto status = [&](ReturnCode code) {
    transport.replies = {{.code = code}};
    return client.abort_background().status();
  };
  EXPECT_EQ(status(ReturnCode::SUCCESS), Status::OK);
  EXPECT_EQ(status(ReturnCode::INVALID_LOG), Status::INVALID_ARGUMENT);
  EXPECT_EQ(status(ReturnCode::UNSUPPORTED_MAILBOX), Status::NOT_SUPPORTED);
  EXPECT_EQ(status(ReturnCode::RETRY_REQUIRED), Status::BUSY);
  EXPECT_EQ(status(ReturnCode::ABORTED), Status::CANCELLED);
  EXPECT_EQ(status(ReturnCode::INTERNAL_ERROR), Status::SYSTEM);
  EXPECT_EQ(status(ReturnCode{0x1e}), Status::SYSTEM) << "a code of a later revision";
}

/// The ioctls of a kernel, in front of a mailbox.
class PlayedKernel {
 public:
  PlayedKernel(device::Mailbox& mailbox, std::map<uint32_t, Opcode> commands)
      : mailbox_(mailbox), commands_(std::move(commands)) {}

  KernelMailbox::Control control() {
    return [this](unsigned long request, void* argument) {
      if (request == CXL_MEM_QUERY_COMMANDS) return query(argument);
      return request == CXL_MEM_SEND_COMMAND ? send(argument) : -ENOTTY;
    };
  }

  int send_error = 0;
  int raw_commands = 0;

 private:
  int query(void* argument) {
    cxl_mem_query_commands head;
    std::memcpy(&head, argument, sizeof head);
    const auto room = head.n_commands;
    head.n_commands = static_cast<uint32_t>(commands_.size());
    if (room > 0) head.n_commands = std::min(head.n_commands, room);
    std::memcpy(argument, &head, sizeof head);
    auto* to = static_cast<std::byte*>(argument) + sizeof head;
    uint32_t i = 0;
    for (const auto& [id, opcode] : commands_) {
      if (i++ >= room) break;
      const cxl_command_info info{.id = id, .flags = 0, .size_in = ~0u, .size_out = ~0u};
      std::memcpy(to, &info, sizeof info);
      to += sizeof info;
    }
    return 0;
  }
  int send(void* argument) {
    if (send_error != 0) return send_error;
    auto& command = *static_cast<cxl_send_command*>(argument);
    const auto found = commands_.find(command.id);
    if (found == commands_.end()) return -ENOTTY;
    const bool raw = command.id == CXL_MEM_COMMAND_ID_RAW;
    raw_commands += raw;
    const std::span in(reinterpret_cast<const std::byte*>(command.in.payload), command.in.size);
    const auto reply =
        mailbox_.carry_out(raw ? command.raw.opcode : static_cast<uint16_t>(found->second), in);
    const size_t stored = std::min<size_t>(reply.output.size(), command.out.size);
    if (stored > 0)
      std::memcpy(reinterpret_cast<void*>(command.out.payload), reply.output.data(), stored);
    command.out.size = static_cast<uint32_t>(reply.output.size());
    command.retval = static_cast<uint32_t>(reply.code);
    return 0;
  }

  device::Mailbox& mailbox_;
  std::map<uint32_t, Opcode> commands_;
};

const std::map<uint32_t, Opcode> kKernelCommands = {
    {CXL_MEM_COMMAND_ID_IDENTIFY, Opcode::IDENTIFY_MEMORY_DEVICE},
    {CXL_MEM_COMMAND_ID_GET_SUPPORTED_LOGS, Opcode::GET_SUPPORTED_LOGS},
    {CXL_MEM_COMMAND_ID_GET_LOG, Opcode::GET_LOG},
    {CXL_MEM_COMMAND_ID_GET_LSA, Opcode::GET_LSA},
    {CXL_MEM_COMMAND_ID_SET_LSA, Opcode::SET_LSA}};

TEST(KernelMailboxTest, SendsWhatTheKernelKnowsAsThat) {
  MailboxUnderTest under;
  PlayedKernel kernel(under.mailbox, kKernelCommands);
  auto mailbox = KernelMailbox::make("mem0", 512, kernel.control()).value();
  MailboxClient client(*mailbox);
  EXPECT_EQ(client.identify().value().total_bytes, MailboxUnderTest::kCapacity);
  EXPECT_EQ(client.effects().value().size(), 27u);
  std::vector<std::byte> labels(2000, std::byte{3});
  ASSERT_TRUE(client.write_labels(0, labels));
  EXPECT_EQ(client.read_labels(0, 2000).value(), labels);
  EXPECT_EQ(client.read_labels(device::Mailbox::kLsaBytes, 8).status(), Status::INVALID_ARGUMENT)
      << "the device's own code comes through";
  EXPECT_EQ(kernel.raw_commands, 0);
  const auto raw = client.counters();
  EXPECT_EQ(raw.status(), Status::NOT_SUPPORTED);
  EXPECT_NE(raw.error().detail.find("CONFIG_CXL_MEM_RAW_COMMANDS"), std::string::npos);
  EXPECT_EQ(client.health().status(), Status::NOT_SUPPORTED) << "this kernel has no such command";
}

TEST(KernelMailboxTest, VendorCommandsAreRaw) {
  MailboxUnderTest under;
  auto commands = kKernelCommands;
  commands[CXL_MEM_COMMAND_ID_RAW] = {};
  PlayedKernel kernel(under.mailbox, commands);
  auto mailbox = KernelMailbox::make("mem0", 4096, kernel.control()).value();
  MailboxClient client(*mailbox);
  under.device.work.commands = 77;
  EXPECT_EQ(client.counters().value().commands, 77u);
  EXPECT_EQ(client.serial_number().value(), under.facts.serial_number);
  EXPECT_EQ(kernel.raw_commands, 2);
  EXPECT_EQ(client.poison_list(0, 64).status(), Status::NOT_SUPPORTED);
  EXPECT_EQ(client.inject_poison(0).status(), Status::NOT_SUPPORTED);
  EXPECT_EQ(client.events(cxl::EventLogId::FATAL).status(), Status::NOT_SUPPORTED);
  EXPECT_EQ(client.set_timestamp_ns(1).status(), Status::NOT_SUPPORTED);
  EXPECT_EQ(kernel.raw_commands, 2) << "those are the kernel's";
}

TEST(KernelMailboxTest, ErrorsOfTheKernelAreStatuses) {
  MailboxUnderTest under;
  PlayedKernel kernel(under.mailbox, kKernelCommands);
  auto mailbox = KernelMailbox::make("mem0", 0, kernel.control()).value();
  EXPECT_EQ(mailbox->payload_bytes_max(), 256u);
  MailboxClient client(*mailbox);
  for (const auto& [error, status] : std::map<int, Status>{
           {-ENOTTY, Status::NOT_SUPPORTED}, {-EBUSY, Status::BUSY}, {-EPERM, Status::SYSTEM}}) {
    kernel.send_error = error;
    EXPECT_EQ(client.identify().status(), status) << error;
  }
  EXPECT_EQ(KernelMailbox::make("mem0", 256, [](unsigned long, void*) { return -ENOTTY; }).status(),
            Status::SYSTEM);
  EXPECT_EQ(KernelMailbox::open("mem-that-is-not-there").status(), Status::SYSTEM);
}

}  // namespace
}  // namespace bowhead::test
