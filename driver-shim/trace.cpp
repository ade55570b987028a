// SPDX-License-Identifier: Apache-2.0
#include "driver-shim/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace bowhead::shim {
namespace {

constexpr const char* kTracing = "/sys/kernel/tracing";
constexpr std::string_view kInstance = "bowhead-";
constexpr const char* kBufferKib = "1024";  // of each processor: some 5,000 entries of poison

bool is_key(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

/// The end of the word at `begin`: a space outside quotes.
size_t word_end(std::string_view text, size_t begin) {
  bool quoted = false;
  for (size_t at = begin; at < text.size(); ++at) {
    if (text[at] == '\'') quoted = !quoted;
    if (text[at] == ' ' && !quoted) return at;
  }
  return text.size();
}

std::string unquoted(std::string_view text) {
  if (text.size() >= 2 && text.front() == '\'' && text.back() == '\'')
    text = text.substr(1, text.size() - 2);
  return std::string(text);
}

/// A process that was killed leaves its instance behind, and this one may have its number.
void remove_instances_of_dead_processes(const HostFiles& files) {
  const std::string folder = std::string(kTracing) + "/instances";
  for (const std::string& name : files.names(folder, kInstance)) {
    const auto process = parse_number(name.substr(kInstance.size()));
    const auto pid = static_cast<pid_t>(process.value_or(0));
    if (process && (pid == getpid() || (kill(pid, 0) != 0 && errno == ESRCH)))
      rmdir(files.at(folder + "/" + name).c_str());  // refused while it is in use
  }
}

}  // namespace

std::string TraceEvent::field(std::string_view key) const {
  for (const auto& [label, value] : fields) {
    if (label == key) return value;
  }
  return "";
}

std::optional<TraceEvent> parse_trace_line(std::string_view line) {
  // "  process-12  [000] .....  6.934245: cxl_poison: memdev=mem0 ... flags='A B' comp_id=03 01"
  const size_t at = line.find(": cxl_");
  if (at == std::string_view::npos) return std::nullopt;
  line.remove_prefix(at + 2);
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  TraceEvent event{.name = std::string(line.substr(0, colon))};
  for (size_t begin = colon + 1; begin < line.size();) {
    const size_t end = word_end(line, begin);
    const std::string_view word = line.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = word.find('=');
    if (equals != std::string_view::npos && is_key(word.substr(0, equals)))
      event.fields.emplace_back(word.substr(0, equals), unquoted(word.substr(equals + 1)));
    else if (!word.empty() && word != ":" && !event.fields.empty())
      event.fields.back().second += " " + std::string(word);  // bytes in hexadecimal
  }
  return event;
}

uint64_t lost_events(std::string_view line) {
  constexpr std::string_view kLost = "[LOST ";
  const size_t at = line.find(kLost);
  if (!line.starts_with("CPU:") || at == std::string_view::npos) return 0;
  return parse_number(std::string(line.substr(at + kLost.size()))).value_or(0);
}

Result<std::unique_ptr<Tracing>> Tracing::start(const HostFiles& files) {
  if (!files.exists(std::string(kTracing) + "/instances"))
    return Error{Status::NOT_SUPPORTED,
                 fmt::format("{} cannot be read: it needs root, and `mount -t tracefs tracefs {}` "
                             "if it is not mounted",
                             kTracing, kTracing)};
  if (!files.exists(std::string(kTracing) + "/events/cxl"))
    return Error{Status::NOT_SUPPORTED,
                 "the kernel has no trace events of CXL: no CXL driver is loaded, or it is older "
                 "than Linux 6.4"};
  remove_instances_of_dead_processes(files);
  const std::string folder = fmt::format("{}/instances/{}{}", kTracing, kInstance, getpid());
  if (mkdir(files.at(folder).c_str(), 0700) != 0)
    return Error{Status::SYSTEM, fmt::format("cannot make {}: {}", folder, std::strerror(errno))};
  std::unique_ptr<Tracing> tracing(new Tracing(files.at(folder)));
  if (auto set = files.write(folder + "/buffer_size_kb", kBufferKib); !set) return set.error();
  if (auto set = files.write(folder + "/events/cxl/enable", "1"); !set) return set.error();
  tracing->pipe_ = open_file(tracing->folder_ + "/trace_pipe", O_RDONLY | O_NONBLOCK);
  if (tracing->pipe_.get() < 0)
    return Error{Status::SYSTEM,
                 fmt::format("cannot open {}/trace_pipe: {}", folder, std::strerror(errno))};
  return tracing;
}

Tracing::~Tracing() {
  pipe_ = UniqueFd();  // an instance in use cannot be removed
  rmdir(folder_.c_str());
}

Tracing::Drained Tracing::drain() {
  Drained drained;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t got = read(pipe_.get(), buffer.data(), buffer.size());
    if (got <= 0) break;  // EAGAIN: no more
    partial_.append(buffer.data(), static_cast<size_t>(got));
    size_t end;
    while ((end = partial_.find('\n')) != std::string::npos) {
      const std::string_view line = std::string_view(partial_).substr(0, end);
      drained.lost += lost_events(line);
      if (auto event = parse_trace_line(line)) drained.events.push_back(std::move(*event));
      partial_.erase(0, end + 1);
    }
  }
  return drained;
}

}  // namespace bowhead::shim
