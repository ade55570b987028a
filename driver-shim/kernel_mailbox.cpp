// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/cxl_mem.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/unique_fd.h"
#include "driver-shim/inventory.h"
#include "driver-shim/mailbox.h"

namespace bowhead::driver {
namespace {

using cxl::Opcode;

/// What every mailbox has at least.
constexpr size_t kPayloadBytesLeast = 256;
constexpr size_t kPayloadBytesMost = 1 << 20;

/// How a command reaches the device.
struct Route {
  uint32_t kernel_command = CXL_MEM_COMMAND_ID_INVALID;
  const char* refusal = nullptr;  // why it does not
};

Route route_of(uint16_t opcode) {
  switch (Opcode{opcode}) {
    case Opcode::IDENTIFY_MEMORY_DEVICE:
      return {CXL_MEM_COMMAND_ID_IDENTIFY};
    case Opcode::GET_SUPPORTED_LOGS:
      return {CXL_MEM_COMMAND_ID_GET_SUPPORTED_LOGS};
    case Opcode::GET_LOG:
      return {CXL_MEM_COMMAND_ID_GET_LOG};
    case Opcode::GET_PARTITION_INFO:
      return {CXL_MEM_COMMAND_ID_GET_PARTITION_INFO};
    case Opcode::GET_LSA:
      return {CXL_MEM_COMMAND_ID_GET_LSA};
    case Opcode::SET_LSA:
      return {CXL_MEM_COMMAND_ID_SET_LSA};
    case Opcode::GET_HEALTH_INFO:
      return {CXL_MEM_COMMAND_ID_GET_HEALTH_INFO};
    case Opcode::GET_ALERT_CONFIG:
      return {CXL_MEM_COMMAND_ID_GET_ALERT_CONFIG};
    case Opcode::SET_ALERT_CONFIG:
      return {CXL_MEM_COMMAND_ID_SET_ALERT_CONFIG};
    case Opcode::IDENTIFY:
    case Opcode::BACKGROUND_STATUS:
    case Opcode::GET_TIMESTAMP:
      return {CXL_MEM_COMMAND_ID_RAW};
    case Opcode::GET_EVENTS:
    case Opcode::CLEAR_EVENTS:
      return {.refusal = "the kernel reads and clears events, and reports them as trace events"};
    case Opcode::GET_POISON_LIST:
    case Opcode::INJECT_POISON:
    case Opcode::CLEAR_POISON:
    case Opcode::GET_SCAN_MEDIA_CAPS:
    case Opcode::SCAN_MEDIA:
    case Opcode::GET_SCAN_MEDIA_RESULTS:
    case Opcode::ABORT_BACKGROUND:
      return {.refusal =
                  "the kernel keeps poison and scans to itself; trigger_poison_list in "
                  "sysfs reports the poison list as trace events"};
    case Opcode::SET_TIMESTAMP:
      return {.refusal = "the kernel sets the timestamp"};
    default:
      break;
  }
  if (opcode >= cxl::kVendorOpcodes) return {CXL_MEM_COMMAND_ID_RAW};
  return {.refusal = "this version does not send it through the kernel"};
}

}  // namespace

Result<std::unique_ptr<KernelMailbox>> KernelMailbox::open(const std::string& memory_device,
                                                           const shim::HostFiles& files) {
  const std::string path = "/dev/cxl/" + memory_device;
  auto fd = std::make_shared<UniqueFd>(open_file(files.at(path), O_RDWR));
  if (fd->get() < 0)
    return Error{Status::SYSTEM, fmt::format("cannot open {}: {}", path, std::strerror(errno))};
  const auto payload = files.number(shim::cxl(memory_device) + "/payload_max");
  return make(memory_device, payload.value_or(kPayloadBytesLeast),
              [fd](unsigned long request, void* argument) {
                return ioctl(fd->get(), request, argument) == 0 ? 0 : -errno;
              });
}

Result<std::unique_ptr<KernelMailbox>> KernelMailbox::make(std::string memory_device,
                                                           size_t payload_bytes_max,
                                                           Control control) {
  std::unique_ptr<KernelMailbox> mailbox(new KernelMailbox(
      std::move(memory_device),
      std::clamp(payload_bytes_max, kPayloadBytesLeast, kPayloadBytesMost), std::move(control)));
  if (auto good = mailbox->query(); !good) return good.error();
  return mailbox;
}

Result<void> KernelMailbox::query() {
  cxl_mem_query_commands count{};
  int error = control_(CXL_MEM_QUERY_COMMANDS, &count);
  std::vector<std::byte> buffer;
  cxl_mem_query_commands head{};
  if (error == 0) {
    head.n_commands = std::min<uint32_t>(count.n_commands, 1024);
    buffer.resize(sizeof head + head.n_commands * sizeof(cxl_command_info));
    std::memcpy(buffer.data(), &head, sizeof head);
    // With no commands at all it would only count again.
    if (head.n_commands > 0) error = control_(CXL_MEM_QUERY_COMMANDS, buffer.data());
  }
  if (error != 0)
    return Error{Status::SYSTEM, fmt::format("cannot ask the kernel for the commands of {}: {}",
                                             name_, std::strerror(-error))};
  for (uint32_t i = 0; i < head.n_commands; ++i) {
    cxl_command_info info;
    std::memcpy(&info, buffer.data() + sizeof head + i * sizeof info, sizeof info);
    offered_.push_back(info.id);
  }
  return {};
}

Result<cxl::Reply> KernelMailbox::send(uint16_t opcode, std::span<const std::byte> input) {
  const Route route = route_of(opcode);
  if (route.refusal != nullptr)
    return Error{Status::NOT_SUPPORTED,
                 fmt::format("{} to {}: {}", cxl::describe(opcode), name_, route.refusal)};
  const bool raw = route.kernel_command == CXL_MEM_COMMAND_ID_RAW;
  if (std::find(offered_.begin(), offered_.end(), route.kernel_command) == offered_.end())
    return Error{Status::NOT_SUPPORTED,
                 fmt::format("{} to {}: the kernel does not offer {}", cxl::describe(opcode), name_,
                             raw ? "raw commands; it has to be built with "
                                   "CONFIG_CXL_MEM_RAW_COMMANDS"
                                 : "this command")};
  cxl::Reply reply;
  reply.output.resize(payload_bytes_max_);
  cxl_send_command command{};
  command.id = route.kernel_command;
  if (raw) command.raw.opcode = opcode;
  command.in.size = static_cast<uint32_t>(input.size());
  command.in.payload = reinterpret_cast<uintptr_t>(input.data());
  command.out.size = static_cast<uint32_t>(reply.output.size());
  command.out.payload = reinterpret_cast<uintptr_t>(reply.output.data());
  if (const int error = control_(CXL_MEM_SEND_COMMAND, &command); error != 0) {
    const Status status = error == -ENOTTY  ? Status::NOT_SUPPORTED
                          : error == -EBUSY ? Status::BUSY
                                            : Status::SYSTEM;
    return Error{status, fmt::format("{} to {}: the kernel says: {}", cxl::describe(opcode), name_,
                                     std::strerror(-error))};
  }
  // What is longer was not stored.
  reply.output.resize(std::min<size_t>(command.out.size, payload_bytes_max_));
  reply.code = cxl::ReturnCode{static_cast<uint16_t>(command.retval)};
  return reply;
}

}  // namespace bowhead::driver
