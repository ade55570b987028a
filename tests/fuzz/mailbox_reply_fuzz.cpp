// SPDX-License-Identifier: Apache-2.0
// Gives any bytes as the replies of a device, and of a kernel, to each typed mailbox call.
#include <linux/cxl_mem.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "driver-shim/mailbox.h"
#include "tests/fuzz/input.h"

namespace bowhead {
namespace {

cxl::Reply take_reply(fuzz::Input& input) {
  cxl::Reply reply{.code = cxl::ReturnCode{input.take<uint8_t>()}};
  const auto bytes = input.take_bytes(input.take<uint16_t>());
  reply.output.resize(bytes.size());
  if (!bytes.empty()) std::memcpy(reply.output.data(), bytes.data(), bytes.size());
  return reply;
}

class AnyDevice final : public driver::MailboxTransport {
 public:
  explicit AnyDevice(fuzz::Input& input) : input_(input) {}
  Result<cxl::Reply> send(uint16_t, std::span<const std::byte> in) override {
    if (in.size() > payload_bytes_max()) std::abort();
    return take_reply(input_);
  }
  size_t payload_bytes_max() const override { return 256; }

 private:
  fuzz::Input& input_;
};

/// Stores what the kernel may store: the bytes for which there is room.
driver::KernelMailbox::Control any_kernel(fuzz::Input& input) {
  return [&input](unsigned long request, void* argument) {
    if (input.take<uint8_t>() == 1) return -5;
    if (request == CXL_MEM_QUERY_COMMANDS) {
      cxl_mem_query_commands head;
      std::memcpy(&head, argument, sizeof head);
      const auto room = head.n_commands * sizeof(cxl_command_info);
      head.n_commands = input.take<uint32_t>();
      std::memcpy(argument, &head, sizeof head);
      const auto bytes = input.take_bytes(room);
      std::memcpy(static_cast<std::byte*>(argument) + sizeof head, bytes.data(), bytes.size());
      return 0;
    }
    cxl_send_command& command = *static_cast<cxl_send_command*>(argument);
    const cxl::Reply reply = take_reply(input);
    const auto stored = std::min<size_t>(reply.output.size(), command.out.size);
    if (stored > 0)
      std::memcpy(reinterpret_cast<void*>(command.out.payload), reply.output.data(), stored);
    command.out.size = input.take<uint32_t>();
    command.retval = static_cast<uint32_t>(reply.code);
    return 0;
  };
}

void call(driver::MailboxClient& client, uint8_t which) {
  const std::vector<uint16_t> handles(300, 7);
  const std::byte line[cxl::kLineBytes] = {};
  switch (which % 26) {
    case 0:
      return (void)client.identify();
    case 1:
      return (void)client.serial_number();
    case 2:
      return (void)client.health();
    case 3:
      return (void)client.effects();
    case 4:
      return (void)client.timestamp_ns();
    case 5:
      return (void)client.set_timestamp_ns(5);
    case 6:
      return (void)client.read_labels(0, 1000);
    case 7:
      return (void)client.write_labels(0, std::vector<std::byte>(1000));
    case 8:
      return (void)client.poison_list(0, 1 << 20);
    case 9:
      return (void)client.inject_poison(64);
    case 10:
      return (void)client.clear_poison(64, line);
    case 11:
      return (void)client.events(cxl::EventLogId::FAILURE);
    case 12:
      return (void)client.clear_events(cxl::EventLogId::FAILURE, handles);
    case 13:
      return (void)client.warn_at_corrected(true, 3);
    case 14:
      return (void)client.estimated_scan_ms(0, 64);
    case 15:
      return (void)client.start_scan(0, 64, true);
    case 16:
      return (void)client.background();
    case 17:
      return (void)client.abort_background();
    case 18:
      return (void)client.scan_results();
    case 19:
      return (void)client.capabilities();
    case 20:
      return (void)client.counters();
    case 21:
      return (void)client.hotness();
    case 22:
      return (void)client.configure_hotness({});
    case 23:
      return (void)client.read_hot_list(0, true);
    case 24:
      return (void)client.read_hot_list(1023, false);
    default:
      return (void)client.poison_list(64, 64);
  }
}

}  // namespace
}  // namespace bowhead

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bowhead;  // NOLINT
  fuzz::Input input(data, size);
  if (input.take<uint8_t>() % 4 != 0) {
    AnyDevice device(input);
    driver::MailboxClient client(device);
    while (!input.empty()) call(client, input.take<uint8_t>());
    return 0;
  }
  auto mailbox = driver::KernelMailbox::make("mem0", 256, any_kernel(input));
  if (!mailbox) return 0;
  driver::MailboxClient client(**mailbox);
  while (!input.empty()) call(client, input.take<uint8_t>());
  return 0;
}
