// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/cxl_mailbox.h"

#include <fmt/format.h>

namespace bowhead::cxl {

const char* name_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::IDENTIFY:
      return "Identify";
    case Opcode::BACKGROUND_STATUS:
      return "Background Operation Status";
    case Opcode::ABORT_BACKGROUND:
      return "Request Abort Background Operation";
    case Opcode::GET_EVENTS:
      return "Get Event Records";
    case Opcode::CLEAR_EVENTS:
      return "Clear Event Records";
    case Opcode::GET_TIMESTAMP:
      return "Get Timestamp";
    case Opcode::SET_TIMESTAMP:
      return "Set Timestamp";
    case Opcode::GET_SUPPORTED_LOGS:
      return "Get Supported Logs";
    case Opcode::GET_LOG:
      return "Get Log";
    case Opcode::IDENTIFY_MEMORY_DEVICE:
      return "Identify Memory Device";
    case Opcode::GET_PARTITION_INFO:
      return "Get Partition Info";
    case Opcode::GET_LSA:
      return "Get LSA";
    case Opcode::SET_LSA:
      return "Set LSA";
    case Opcode::GET_HEALTH_INFO:
      return "Get Health Info";
    case Opcode::GET_ALERT_CONFIG:
      return "Get Alert Configuration";
    case Opcode::SET_ALERT_CONFIG:
      return "Set Alert Configuration";
    case Opcode::GET_POISON_LIST:
      return "Get Poison List";
    case Opcode::INJECT_POISON:
      return "Inject Poison";
    case Opcode::CLEAR_POISON:
      return "Clear Poison";
    case Opcode::GET_SCAN_MEDIA_CAPS:
      return "Get Scan Media Capabilities";
    case Opcode::SCAN_MEDIA:
      return "Scan Media";
    case Opcode::GET_SCAN_MEDIA_RESULTS:
      return "Get Scan Media Results";
    case Opcode::GET_NDP_CAPABILITIES:
      return "Get NDP Capabilities";
    case Opcode::GET_COUNTERS:
      return "Get Counters";
    case Opcode::GET_HOTNESS:
      return "Get Hotness";
    case Opcode::CONFIGURE_HOTNESS:
      return "Configure Hotness";
    case Opcode::READ_HOT_LIST:
      return "Read Hot List";
  }
  return "";
}

std::string describe(uint16_t opcode) {
  const char* name = name_of(Opcode{opcode});
  return *name != 0 ? fmt::format("{} ({:04x}h)", name, opcode)
                    : fmt::format("command {:04x}h", opcode);
}

const char* text_of(ReturnCode code) {
  switch (code) {
    case ReturnCode::SUCCESS:
      return "it is done";
    case ReturnCode::BACKGROUND_STARTED:
      return "it has begun in the background";
    case ReturnCode::INVALID_INPUT:
      return "an argument is outside its allowed range";
    case ReturnCode::UNSUPPORTED:
      return "the device does not have this command, or not in its present state";
    case ReturnCode::INTERNAL_ERROR:
      return "the device failed within";
    case ReturnCode::RETRY_REQUIRED:
      return "a fault that passes; send it again";
    case ReturnCode::BUSY:
      return "a background operation is running; wait for it or abort it";
    case ReturnCode::MEDIA_DISABLED:
      return "the medium of the device has failed";
    case ReturnCode::INVALID_HANDLE:
      return "these are not the handles of the oldest records; read the log again";
    case ReturnCode::INVALID_PHYSICAL_ADDRESS:
      return "the address is not one of the device's memory, or not a multiple of 64";
    case ReturnCode::INJECT_POISON_LIMIT:
      return "as many lines are poisoned as the device allows; clear some";
    case ReturnCode::PERMANENT_MEDIA_FAILURE:
      return "the medium cannot store there";
    case ReturnCode::ABORTED:
      return "it was aborted";
    case ReturnCode::INVALID_SECURITY_STATE:
      return "the security state of the device does not allow it";
    case ReturnCode::UNSUPPORTED_MAILBOX:
      return "not through this mailbox";
    case ReturnCode::INVALID_PAYLOAD_LENGTH:
      return "the input has another length than this command takes";
    case ReturnCode::INVALID_LOG:
      return "the device has no such log";
  }
  return "a return code that this version does not know";
}

}  // namespace bowhead::cxl
