// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <string>

#include "base/checksum.h"

namespace bowhead::device {
namespace {

/// Tokens times queries times heads: a few microseconds.
constexpr uint64_t kSmallWork = 2048;
constexpr uint64_t kLongBytes = 16384;    // of a request
constexpr uint64_t kSmallAnswer = 65536;  // bytes

}  // namespace

Task::Task(const Surroundings& around, const core::Message& command, std::shared_ptr<Area> area)
    : around_(around), window_(around.window), command_(command), area_(std::move(area)) {
  begun_ns_ = window_.access().recency_ns();
  constexpr uint64_t kMostMs = uint64_t{1} << 40;
  if (const uint64_t ms = command[BH_COMMAND_DEADLINE_MS]; ms != 0)
    deadline_ns_ = begun_ns_ + std::min(ms, kMostMs) * 1'000'000;
}

bool Task::is_area_good() const {
  const uint64_t at = command_[BH_COMMAND_ANSWER], room = command_[BH_COMMAND_ROOM];
  return area_ && at % BH_LINE_BYTES == 0 && at <= area_->bytes() && room <= area_->bytes() - at;
}

std::span<std::byte> Task::room() const {
  return {area_->data() + command_[BH_COMMAND_ANSWER], command_[BH_COMMAND_ROOM]};
}

void Task::read() {
  if (!is_area_good()) {
    complete(area_ ? Status::INVALID_ARGUMENT : Status::CLOSED, 0, 0);
    return;
  }
  try {
    auto good =
        command_[BH_COMMAND_OPCODE] == BH_DEVICE_MAILBOX ? carry_out_mail() : read_request();
    if (good && !done_) good = find_room();
    if (!good) end(good.error());
  } catch (const std::bad_alloc&) {
    end(Error{Status::LIMIT_REACHED, {}});
  }
}

/// A private copy: its process may change it meanwhile.
Result<std::vector<std::byte>> Task::read_input() const {
  const uint64_t at = command_[BH_COMMAND_INPUT], bytes = command_[BH_COMMAND_INPUT_BYTES];
  if (bytes > kRequestBytesMax || !window_.is_payload(at, bytes))
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("an input of {} bytes at offset {} of the pool: it has to lie in the "
                             "payload",
                             bytes, at)};
  window_.access().acquire(at, bytes);
  const std::byte* from = window_.access().payload(at);
  std::vector<std::byte> input(from, from + bytes);
  if (is_lost(at, bytes) || around_.mailbox.is_poisoned(at, bytes))
    return Error{Status::MEDIA_ERROR, "the memory of the request failed"};
  return input;
}

Result<void> Task::carry_out_mail() {
  const auto input = read_input();
  if (!input) return input.error();
  bh_device_mail head;
  if (input->size() < sizeof head)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("a mailbox command of {} bytes: it has {} and its payload",
                             input->size(), sizeof head)};
  std::memcpy(&head, input->data(), sizeof head);
  const auto reply = around_.mailbox.carry_out(head.code, std::span(*input).subspan(sizeof head));
  if (room().size() < sizeof head + reply.output.size())
    return Error{Status::BUFFER_TOO_SMALL,
                 fmt::format("the reply takes {} bytes and has room of {}",
                             sizeof head + reply.output.size(), room().size())};
  head = {static_cast<uint16_t>(reply.code), {}};
  std::memcpy(room().data(), &head, sizeof head);
  if (!reply.output.empty())
    std::memcpy(room().data() + sizeof head, reply.output.data(), reply.output.size());
  complete(Status::OK, 0, sizeof head + reply.output.size());
  return {};
}

Result<void> Task::read_request() {
  const uint64_t opcode = command_[BH_COMMAND_OPCODE];
  if (opcode > BH_DEVICE_DIGEST || opcode == 0)
    return Error{Status::NOT_SUPPORTED,
                 fmt::format("opcode {}: this device does not have it", opcode)};
  const auto input = read_input();
  if (!input) return input.error();
  auto decoded = DecodedRequest::decode(*input);
  if (!decoded) return decoded.error();
  request_.emplace(std::move(*decoded));
  input_bytes_ = input->size();
  const auto operation = static_cast<uint64_t>(request_->request().operation);
  if (operation != opcode)
    return Error{
        Status::INVALID_ARGUMENT,
        fmt::format("a command of opcode {} with a request of operation {}", opcode, operation)};
  if (auto good = check_blocks(); !good) return good;
  for (size_t i = 0; i < request_->blocks().size(); ++i)
    request_->set_bytes(i, reinterpret_cast<const uint8_t*>(
                               window_.access().payload(request_->blocks()[i].offset)));
  return {};
}

Result<void> Task::find_room() {
  const auto bytes = ndp::answer_bytes(request_->request());
  if (!bytes) return bytes.error();
  places_ = AnswerPlaces(*bytes);
  const uint64_t left_out_max = request_->blocks().size() * sizeof(uint32_t);
  if (places_.left_out > room().size() || room().size() - places_.left_out < left_out_max)
    return Error{Status::BUFFER_TOO_SMALL,
                 fmt::format("the answer takes {} bytes and has room of {}",
                             places_.left_out + left_out_max, room().size())};
  job_.emplace(
      ndp::Job{request_->request(),
               {room().first(bytes->first), room().subspan(places_.second, bytes->second)}});
  return {};
}

bool Task::is_long() const { return command_[BH_COMMAND_INPUT_BYTES] > kLongBytes; }

bool Task::is_small() const {
  if (job_->room.first.size() + job_->room.second.size() > kSmallAnswer) return false;
  uint64_t tokens = 0;
  for (const ndp::StoredBlock& block : job_->request.heads.blocks)
    tokens += tokens_of(block).value_or(0);
  const uint64_t queries = std::max<uint64_t>(job_->request.queries.count, 1);
  return tokens * queries * job_->request.heads.heads <= kSmallWork;
}

void Task::begin(ndp::Engine& engine, const ndp::Checkpoint& checkpoint) {
  begun_ns_ = window_.access().recency_ns();
  if (!job_) read();
  if (done_) return;
  try {
    mark_lost();
    for (const bh_device_block& block : request_->blocks())
      window_.access().acquire(block.offset, block.stored_bytes);
    job_->checkpoint = checkpoint;
    engine.submit(*job_);
    (void)poll(engine);
  } catch (const std::bad_alloc&) {
    end(Error{Status::LIMIT_REACHED, {}});
  }
}

/// Blocks that cannot be read, as far as that is known: the operation leaves them out, or refuses.
void Task::mark_lost() {
  for (size_t i = 0; i < request_->blocks().size(); ++i) {
    const bh_device_block& block = request_->blocks()[i];
    if (!is_readable(block.offset, block.stored_bytes)) request_->set_lost(i);
  }
}

bool Task::is_readable(uint64_t offset, uint64_t bytes) {
  if (around_.mailbox.is_poisoned(offset, bytes)) {
    around_.mailbox.report_met(offset, bytes);
    return false;
  }
  if (!window_.access().payload_lost(offset, bytes)) return true;
  constexpr uint64_t kPageBytes = 4096;  // in which memory fails
  for (uint64_t page = offset / kPageBytes * kPageBytes; page < offset + bytes;
       page += kPageBytes) {
    if (window_.access().payload_lost(page, kPageBytes))
      around_.mailbox.report_lost(page, kPageBytes);
  }
  return false;
}

bool Task::poll(ndp::Engine& engine) {
  if (done_) return true;
  if (is_cancelled() || is_late()) engine.cancel(*job_);
  if (engine.poll(*job_)) conclude();
  return done_;
}

void Task::refuse(Status status) {
  is_area_good() ? end(Error{status, {}}) : complete(status, 0, 0);
}

void Task::conclude() {
  if (!*job_->answer && job_->answer->status() == Status::DEVICE_LOST) {
    done_ = true;
    return;
  }
  auto good = take_answer();
  if (good) return;
  const bool was_late = good.status() == Status::CANCELLED && !is_cancelled() && is_late();
  end(was_late ? Error{Status::TIMED_OUT, {}} : good.error());
}

Result<void> Task::take_answer() {
  // Whatever went wrong, a block that did not stay, or whose memory failed, may be why. The fence
  // has headers loaded after all that was read of the blocks: where they are unchanged, so were
  // the blocks.
  window_.access().fence();
  if (auto good = check_blocks(); !good) return good;
  for (size_t i = 0; i < request_->blocks().size(); ++i) {
    const bh_device_block& block = request_->blocks()[i];
    if (!request_->is_lost(i) && is_lost(block.offset, block.stored_bytes)) {
      (void)is_readable(block.offset, block.stored_bytes);  // reports it
      return Error{Status::DAMAGED, fmt::format("block {}: its memory failed", i)};
    }
  }
  const Result<ndp::BlocksRead>& read = *job_->answer;
  if (!read) return read.error();
  completion_[BH_COMPLETION_READ_BYTES] = read->bytes;
  if (around_.profile != nullptr) model(*read);
  note_reads(read->bytes);
  for (size_t i = 0; i < read->left_out.size(); ++i) {
    const auto block = static_cast<uint32_t>(read->left_out[i]);
    std::memcpy(&room()[places_.left_out + i * sizeof block], &block, sizeof block);
  }
  complete(Status::OK, static_cast<uint32_t>(read->left_out.size()),
           places_.left_out + read->left_out.size() * sizeof(uint32_t));
  return {};
}

/// Alone on an idle device: what else this process does is no matter of the modelled one.
void Task::model(const ndp::BlocksRead& read) {
  const auto work = work_of(job_->request, read, input_bytes_);
  if (!work) return;
  completion_[BH_COMPLETION_MODELLED_NS] = static_cast<uint64_t>(
      std::llround(modelled_ns(*around_.profile, *work, place_of(*around_.profile, *work))));
}

/// Which lines of a block were read is not known: each block counts with its share of the bytes.
void Task::note_reads(uint64_t read_bytes) {
  uint64_t all = 0;
  for (const bh_device_block& block : request_->blocks()) all += block.stored_bytes;
  const double share = std::min(1.0, static_cast<double>(read_bytes) / static_cast<double>(all));
  for (const bh_device_block& block : request_->blocks())
    around_.hotness.note(block.offset, static_cast<uint64_t>(share * block.stored_bytes));
}

/// Memory failed there: what was read may be zeros.
bool Task::is_lost(uint64_t offset, uint64_t bytes) const {
  return window_.access().media_failed() || window_.access().payload_lost(offset, bytes);
}

Result<void> Task::check_blocks() const {
  for (size_t i = 0; i < request_->blocks().size(); ++i) {
    if (!window_.is_block(request_->blocks()[i]))
      return Error{Status::LAPSED,
                   fmt::format("block {}: there is no such block at offset {} any more", i,
                               request_->blocks()[i].offset)};
  }
  return {};
}

/// As much of the sentence as has room; none, if there is no memory for it.
void Task::end(const Error& error) {
  uint64_t bytes = 0;
  try {
    const std::string why = error.message();
    bytes = std::min<uint64_t>(why.size(), room().size());
    std::memcpy(room().data(), why.data(), bytes);
  } catch (const std::bad_alloc&) {
  }
  completion_[BH_COMPLETION_READ_BYTES] = completion_[BH_COMPLETION_MODELLED_NS] = 0;
  complete(error.status, 0, bytes);
}

/// With so much of the room as the answer.
void Task::complete(Status status, uint32_t left_out, uint64_t bytes) {
  if (bytes > 0) {
    const uint64_t at = area_->offset() + command_[BH_COMMAND_ANSWER];
    completion_[BH_COMPLETION_SUM] = hash64(room().data(), bytes);
    window_.access().publish(at, bytes);
    // Stores to memory that failed have reached no reader.
    if (is_lost(at, bytes) || around_.mailbox.is_poisoned(at, bytes)) {
      status = Status::MEDIA_ERROR;
      left_out = 0;
      bytes = 0;
      completion_[BH_COMPLETION_READ_BYTES] = completion_[BH_COMPLETION_MODELLED_NS] = 0;
    }
  }
  if (bytes == 0) completion_[BH_COMPLETION_SUM] = hash64(nullptr, 0);
  completion_[BH_COMPLETION_ID] = id();
  completion_[BH_COMPLETION_STATUS] = static_cast<uint32_t>(status) | uint64_t{left_out} << 32;
  completion_[BH_COMPLETION_BYTES] = bytes;
  completion_[BH_COMPLETION_TIME_NS] = window_.access().recency_ns() - begun_ns_;
  job_.reset();
  request_.reset();
  done_ = has_completion_ = true;
}

}  // namespace bowhead::device
