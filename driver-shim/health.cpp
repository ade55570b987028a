// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/health.h"

#include <cxl/libcxl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace bowhead::shim {
namespace {

struct FreeContext {
  void operator()(cxl_ctx* context) const { cxl_unref(context); }
};
struct FreeCommand {
  void operator()(cxl_cmd* command) const { cxl_cmd_unref(command); }
};

struct Warning {
  int (*is_set)(cxl_cmd*);
  const char* text;
};

constexpr Warning kWarnings[] = {
    {cxl_cmd_health_info_get_maintenance_needed, "maintenance is needed"},
    {cxl_cmd_health_info_get_performance_degraded, "performance is degraded"},
    {cxl_cmd_health_info_get_hw_replacement_needed, "the device must be replaced"},
    {cxl_cmd_health_info_get_media_not_ready, "the media is not ready"},
    {cxl_cmd_health_info_get_media_persistence_lost, "the media has lost persistence"},
    {cxl_cmd_health_info_get_media_data_lost, "the media has lost data"},
    {cxl_cmd_health_info_get_media_powerloss_persistence_loss,
     "a power loss will lose persistence"},
    {cxl_cmd_health_info_get_media_shutdown_persistence_loss, "a shutdown will lose persistence"},
    {cxl_cmd_health_info_get_media_persistence_loss_imminent, "persistence will be lost soon"},
    {cxl_cmd_health_info_get_media_powerloss_data_loss, "a power loss will lose data"},
    {cxl_cmd_health_info_get_media_shutdown_data_loss, "a shutdown will lose data"},
    {cxl_cmd_health_info_get_media_data_loss_imminent, "data will be lost soon"},
    {cxl_cmd_health_info_get_ext_life_used_warning, "much of its life is used"},
    {cxl_cmd_health_info_get_ext_life_used_critical, "nearly all of its life is used"},
    {cxl_cmd_health_info_get_ext_temperature_warning, "the temperature is high"},
    {cxl_cmd_health_info_get_ext_temperature_critical, "the temperature is critical"},
    {cxl_cmd_health_info_get_ext_corrected_volatile_warning,
     "many errors of volatile memory were corrected"},
    {cxl_cmd_health_info_get_ext_corrected_persistent_warning,
     "many errors of persistent memory were corrected"},
};

cxl_memdev* find_device(cxl_ctx* context, const std::string& name) {
  cxl_memdev* device = nullptr;
  cxl_memdev_foreach(context, device) {
    if (name == cxl_memdev_get_devname(device)) return device;
  }
  return nullptr;
}

/// What a device does not implement is 0xff; errors of libcxl are negative.
std::optional<int> life_used(int value) {
  return value < 0 || value >= 0xff ? std::nullopt : std::optional<int>(value);
}

/// libcxl returns the 16 bits of a signed number; 0x7fff, and 0xffff in libcxl, mean that the
/// device has no thermometer.
std::optional<int> temperature(int value) {
  if (value < 0 || value == 0x7fff || value >= 0xffff) return std::nullopt;
  return static_cast<int16_t>(value);
}

Error cannot_ask(const std::string& name, int error_number) {
  if (error_number == ENOTTY || error_number == EOPNOTSUPP)
    return Error{Status::NOT_SUPPORTED, name + " does not report its health"};
  return Error{Status::SYSTEM, fmt::format("cannot ask {} for its health through /dev/cxl/{}: {}",
                                           name, name, std::strerror(error_number))};
}

}  // namespace

Result<Health> read_health(const std::string& memory_device) {
  cxl_ctx* opened = nullptr;
  if (const int error = cxl_new(&opened); error != 0) return cannot_ask(memory_device, -error);
  const std::unique_ptr<cxl_ctx, FreeContext> context(opened);
  cxl_set_log_priority(context.get(), -1);  // it logs to standard error
  cxl_memdev* device = find_device(context.get(), memory_device);
  if (device == nullptr) return cannot_ask(memory_device, ENODEV);
  const std::unique_ptr<cxl_cmd, FreeCommand> command(cxl_cmd_new_get_health_info(device));
  if (!command) return cannot_ask(memory_device, errno);
  if (const int error = cxl_cmd_submit(command.get()); error < 0)
    return cannot_ask(memory_device, -error);
  if (cxl_cmd_get_mbox_status(command.get()) != 0)
    return Error{Status::NOT_SUPPORTED,
                 fmt::format("{} refused to report its health (mailbox status {})", memory_device,
                             cxl_cmd_get_mbox_status(command.get()))};
  Health health;
  for (const Warning& warning : kWarnings) {
    if (warning.is_set(command.get()) == 1) health.warnings.emplace_back(warning.text);
  }
  health.life_used_percent = life_used(cxl_cmd_health_info_get_life_used(command.get()));
  health.temperature_celsius = temperature(cxl_cmd_health_info_get_temperature(command.get()));
  health.dirty_shutdowns = cxl_cmd_health_info_get_dirty_shutdowns(command.get());
  health.volatile_errors = cxl_cmd_health_info_get_volatile_errors(command.get());
  health.persistent_errors = cxl_cmd_health_info_get_pmem_errors(command.get());
  return health;
}

}  // namespace bowhead::shim
