// SPDX-License-Identifier: Apache-2.0
// An event simulation: sessions arrive at random, and each says after a request when its next one
// comes. The figures are medians of public descriptions of such services, not a fit to one of them.
#include "tools/bowhead/replay/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numbers>
#include <queue>
#include <random>
#include <vector>

namespace bowhead::replay {
namespace {

constexpr double kPi = std::numbers::pi;
constexpr uint64_t kContextTokensMax = 128 * 1024;

// Parameters of the workloads. Times in seconds, lengths in tokens.
constexpr double kChatSessionsPerSecond = 40.0;
constexpr double kAgentSessionsPerSecond = 6.0;
constexpr size_t kChatPrompts = 64;
constexpr size_t kAgentPrompts = 8;
constexpr size_t kAgentProjects = 200;
constexpr double kAnswerSecondsPerToken = 0.02;

// The distributions of <random> differ between libraries; these do not.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  double uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1p-53; }
  bool chance(double probability) { return uniform() < probability; }
  double exponential(double mean) { return -mean * std::log(uniform()); }
  double lognormal(double median, double sigma) {
    const double normal = std::sqrt(-2 * std::log(uniform())) * std::cos(2 * kPi * uniform());
    return median * std::exp(sigma * normal);
  }
  uint64_t tokens(double median, double sigma, uint64_t max) {
    return std::clamp<uint64_t>(static_cast<uint64_t>(lognormal(median, sigma)), 1, max);
  }
  /// At least 1, on average `mean`, never above `max`.
  uint64_t count(double mean, uint64_t max) {
    return std::clamp<uint64_t>(static_cast<uint64_t>(exponential(mean - 0.5) + 0.5), 1, max);
  }
  /// A number from 0 to n-1; i has a weight of 1 / (i + 1).
  size_t zipf(size_t n) {
    double total = 0;
    for (size_t i = 1; i <= n; ++i) total += 1.0 / static_cast<double>(i);
    double rest = uniform() * total;
    for (size_t i = 1; i < n; ++i) {
      rest -= 1.0 / static_cast<double>(i);
      if (rest < 0) return i - 1;
    }
    return n - 1;
  }

 private:
  std::mt19937_64 engine_;
};

// The tokens of a conversation: the ids of its full blocks and a count.
struct Text {
  std::vector<uint64_t> blocks;
  uint64_t tokens = 0;

  void append(uint64_t count, uint64_t& next_id) {
    tokens += count;
    while (blocks.size() < tokens / kBlockTokens) blocks.push_back(next_id++);
  }
  void truncate(uint64_t to_tokens) {
    tokens = to_tokens;
    blocks.resize(tokens / kBlockTokens);
  }
};

struct Session {
  bool agent = false;
  Text text;
  uint64_t steps_left = 0;          // in this task, or until the person leaves
  uint64_t step_start_tokens = 0;   // of the last step, to return to
  uint64_t branches_running = 0;    // the session waits for them
  uint64_t branch_tokens = 0;       // their results
  std::shared_ptr<Session> parent;  // of a branch
};

struct Event {
  double time_s;
  uint64_t order;  // breaks ties
  std::shared_ptr<Session> session;
  bool operator>(const Event& other) const {
    return time_s != other.time_s ? time_s > other.time_s : order > other.order;
  }
};

struct Arrivals {
  double per_second = 0;
  double next_s = std::numeric_limits<double>::infinity();
};

class Generator {
 public:
  Generator(Workload workload, uint64_t seed) : random_(seed) {
    for (size_t i = 0; i < kChatPrompts; ++i) {
      prompts_.emplace_back().append(random_.tokens(900, 0.9, 8192), next_id_);
    }
    for (size_t i = 0; i < kAgentPrompts; ++i) {
      Text tools;
      tools.append(random_.tokens(6000, 0.4, 16384), next_id_);
      for (size_t k = 0; k < kAgentProjects; ++k) {
        projects_.push_back(tools);
        projects_.back().append(random_.tokens(3000, 0.9, 24576), next_id_);
      }
    }
    const double share = workload == Workload::MIXED ? 0.5 : 1.0;
    if (workload != Workload::AGENT) plan(chats_, kChatSessionsPerSecond * share);
    if (workload != Workload::MULTITURN) plan(agents_, kAgentSessionsPerSecond * share);
  }

  Trace run(uint64_t requests) {
    while (trace_.requests.size() < requests) {
      const double event_s =
          events_.empty() ? std::numeric_limits<double>::infinity() : events_.top().time_s;
      if (std::min(chats_.next_s, agents_.next_s) < event_s) {
        arrive(agents_.next_s < chats_.next_s);
        continue;
      }
      const std::shared_ptr<Session> session = events_.top().session;
      events_.pop();
      now_s_ = event_s;
      session->agent ? agent_step(session) : chat_turn(session);
    }
    return std::move(trace_);
  }

 private:
  void plan(Arrivals& arrivals, double per_second) {
    arrivals.per_second = per_second;
    arrivals.next_s = now_s_ + random_.exponential(1 / per_second);
  }

  void arrive(bool agent) {
    Arrivals& arrivals = agent ? agents_ : chats_;
    now_s_ = arrivals.next_s;
    plan(arrivals, arrivals.per_second);
    auto session = std::make_shared<Session>();
    session->agent = agent;
    if (agent) {
      const size_t tools = random_.zipf(kAgentPrompts);
      session->text = projects_[tools * kAgentProjects + random_.zipf(kAgentProjects)];
      session->text.append(random_.tokens(300, 0.8, 4096), next_id_);
      session->steps_left = random_.count(14, 200);
    } else {
      session->text = prompts_[random_.zipf(kChatPrompts)];
      session->steps_left = random_.count(4, 60);
    }
    schedule(session, 0);
  }

  void schedule(std::shared_ptr<Session> session, double delay_s) {
    events_.push({now_s_ + delay_s, order_++, std::move(session)});
  }

  // Sends the session's text as a request, appends the answer; returns how long that took.
  double ask(Session& session, double answer_median) {
    Request request;
    request.timestamp_ms = static_cast<uint64_t>(now_s_ * 1000);
    request.input_tokens = session.text.tokens;
    request.output_tokens = random_.tokens(answer_median, 0.8, 4096);
    request.first_block = static_cast<uint32_t>(trace_.ids.size());
    for (const uint64_t id : session.text.blocks) add_block(id);
    // A block that is not full yet will have other content, hence another id, when it is.
    if (session.text.tokens % kBlockTokens != 0) add_block(next_id_++);
    request.block_count = static_cast<uint32_t>(trace_.ids.size()) - request.first_block;
    trace_.requests.push_back(request);
    session.text.append(request.output_tokens, next_id_);
    return static_cast<double>(request.output_tokens) * kAnswerSecondsPerToken;
  }

  void add_block(uint64_t id) {
    constexpr uint32_t kUnseen = std::numeric_limits<uint32_t>::max();
    if (id >= dense_.size()) dense_.resize(std::max<size_t>(2 * dense_.size(), id + 1), kUnseen);
    if (dense_[id] == kUnseen) dense_[id] = trace_.distinct_blocks++;
    trace_.ids.push_back(id);
    trace_.dense.push_back(dense_[id]);
  }

  void chat_turn(const std::shared_ptr<Session>& session) {
    const bool document = random_.chance(0.08);
    session->text.append(
        document ? random_.tokens(3000, 0.8, 32768) : random_.tokens(90, 1.0, 4096), next_id_);
    const double answer_s = ask(*session, 250);
    if (session->text.tokens > kContextTokensMax) return;
    if (--session->steps_left > 0) {
      schedule(session, answer_s + random_.lognormal(45, 1.2));
    } else if (random_.chance(0.25)) {  // taken up again after a break
      session->steps_left = random_.count(3, 60);
      schedule(session, answer_s + random_.lognormal(1800, 1.0));
    }
  }

  void agent_step(const std::shared_ptr<Session>& session) {
    const double answer_s = ask(*session, 180);
    if (session->text.tokens > kContextTokensMax || --session->steps_left == 0) {
      finish_task(session);
      return;
    }
    if (random_.chance(0.04)) session->text.truncate(session->step_start_tokens);  // try again
    session->step_start_tokens = session->text.tokens;
    if (!session->parent && random_.chance(0.08)) {
      branch(session, answer_s);
      return;
    }
    session->text.append(random_.tokens(500, 1.3, 16384), next_id_);  // the tool's output
    schedule(session, answer_s + random_.lognormal(3, 1.0));
  }

  // Sub-tasks that start from the session's whole text; it continues when the last has ended.
  void branch(const std::shared_ptr<Session>& session, double delay_s) {
    session->branches_running = 2 + static_cast<uint64_t>(random_.uniform() * 3);
    for (uint64_t i = 0; i < session->branches_running; ++i) {
      auto child = std::make_shared<Session>();
      child->agent = true;
      child->text = session->text;
      child->step_start_tokens = child->text.tokens;
      child->text.append(random_.tokens(100, 0.6, 1024), next_id_);
      child->steps_left = random_.count(4, 40);
      child->parent = session;
      schedule(child, delay_s);
    }
  }

  void finish_task(const std::shared_ptr<Session>& session) {
    if (const auto& parent = session->parent) {
      parent->branch_tokens += random_.tokens(300, 0.6, 2048);
      if (--parent->branches_running > 0) return;
      parent->text.append(parent->branch_tokens, next_id_);
      parent->branch_tokens = 0;
      schedule(parent, 1);
    } else if (session->text.tokens <= kContextTokensMax && random_.chance(0.5)) {
      session->text.append(random_.tokens(150, 1.0, 4096), next_id_);  // a person asks for more
      session->steps_left = random_.count(8, 100);
      schedule(session, random_.lognormal(120, 1.0));
    }
  }

  Random random_;
  uint64_t next_id_ = 0;
  uint64_t order_ = 0;
  double now_s_ = 0;
  std::vector<Text> prompts_;
  std::vector<Text> projects_;  // kAgentProjects for each of kAgentPrompts
  Arrivals chats_;
  Arrivals agents_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<uint32_t> dense_;  // by id
  Trace trace_;
};

const char* workload_name(Workload workload) {
  switch (workload) {
    case Workload::MULTITURN:
      return "multiturn";
    case Workload::AGENT:
      return "agent";
    case Workload::MIXED:
      return "mixed";
  }
  return "";
}

}  // namespace

Trace generate_trace(Workload workload, uint64_t seed, uint64_t requests) {
  Trace trace = Generator(workload, seed).run(requests);
  trace.source = fmt::format("generated: {}, seed {}", workload_name(workload), seed);
  return trace;
}

}  // namespace bowhead::replay
