// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/device_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "driver-shim/mailbox.h"
#include "driver-shim/queue_pair.h"
#include "pool/window.h"

namespace bowhead::shim {
namespace {

using Findings = std::vector<Finding>;

/// A longer time is waiting for a core or for other work, not the path to the device.
constexpr double kSlowUs = 200;

Result<double> median_ping_us(driver::QueuePair& pair) {
  std::array<double, 101> times_us{};
  for (double& time_us : times_us) {
    const auto start = std::chrono::steady_clock::now();
    if (auto answered = pair.ping(); !answered) return answered.error();
    time_us =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }
  std::nth_element(times_us.begin(), times_us.begin() + times_us.size() / 2, times_us.end());
  return times_us[times_us.size() / 2];
}

void examine_health(const driver::DeviceHealth& health, const std::string& subject,
                    Findings& findings) {
  const auto trouble = [&](bool there, const char* what) {
    if (there)
      findings.push_back({Level::PROBLEM, subject, fmt::format("its device reports: {}", what),
                          "answers may stop, or become slow", ""});
  };
  trouble(health.replacement_needed, "replacement needed");
  trouble(health.maintenance_needed, "maintenance needed");
  trouble(health.capacity_degraded, "capacity degraded");
  trouble(health.performance_degraded, "performance degraded");
}

Result<void> examine(driver::QueuePair& pair, const std::string& locator,
                     const std::string& subject, Findings& findings) {
  const auto ping_us = median_ping_us(pair);
  if (!ping_us) return ping_us.error();
  driver::MailboxClient mailbox(pair);
  const auto identity = mailbox.identify();
  if (!identity) return identity.error();
  const auto health = mailbox.health();
  if (!health) return health.error();
  const auto counters = mailbox.counters();
  if (!counters) return counters.error();

  examine_health(*health, subject, findings);
  if (const uint64_t lines = counters->poisoned_lines; lines > 0)
    findings.push_back({Level::HINT, subject,
                        fmt::format("its device has poison on {} lines of 64 bytes", lines),
                        "requests that read these lines fail, or leave the block out",
                        fmt::format("bowhead device poison {}  # lists them", locator)});
  const std::string answers =
      fmt::format("its device answers in {:.1f} us (firmware {})", *ping_us, identity->firmware);
  if (*ping_us <= kSlowUs)
    findings.push_back({Level::OK, subject, answers, "", ""});
  else
    findings.push_back({Level::HINT, subject, answers,
                        "less than 10 us is usual: it waits for a core, or does other work",
                        "give it cores of its own, with taskset or numactl, or more --threads"});
  return {};
}

bool is_served(Pool& pool) {
  auto window = Window::open(pool);
  return window && window->has_device();
}

}  // namespace

std::vector<Finding> examine_device(Pool& pool, const std::string& locator) {
  const std::string subject = "pool " + locator;
  Findings findings;
  const auto pair = driver::QueuePair::open(pool, driver::kSmallQueuePair);
  const auto asked = pair ? examine(**pair, locator, subject, findings) : pair.error();
  if (asked) return findings;
  if (asked.status() != Status::DEVICE_LOST)
    findings.push_back({Level::UNKNOWN, subject,
                        "its device cannot be asked: " + asked.error().message(),
                        "nothing is known of its health", ""});
  else if (is_served(pool))
    findings.push_back({Level::PROBLEM, subject, "its device does not answer",
                        "each computation waits for it, and then fails or takes place in the "
                        "process that asks",
                        "end the process `bowhead device serve " + locator +
                            "`, which hangs or is stopped, and start it anew"});
  else
    findings.push_back({Level::HINT, subject, "it has no device",
                        "computations take place in the processes that ask for them; requests that "
                        "require a device fail",
                        "bowhead device serve " + locator});
  return findings;
}

}  // namespace bowhead::shim
