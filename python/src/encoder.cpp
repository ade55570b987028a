// SPDX-License-Identifier: Apache-2.0
// Events as the messages that bowhead_kv/events.py publishes, made without the GIL: an engine's
// threads need that meanwhile.
#include <nanobind/stl/string.h>

#include <chrono>
#include <optional>
#include <string_view>

#include "python/src/arguments.h"
#include "python/src/blocks.h"
#include "python/src/events.h"
#include "python/src/metadata.h"
#include "python/src/msgpack.h"

namespace bowhead::python {
namespace {

std::string_view text(const void* data, size_t size_bytes) {
  return {static_cast<const char*>(data), size_bytes};
}

/// The events of one message. Form and order of the keys: docs/engines/events.md.
class Message {
 public:
  Message(const std::string& medium, bool int_hashes, uint64_t rank)
      : medium_(medium), int_hashes_(int_hashes), rank_(rank) {}

  void add_stored(std::string_view hash, const BlockMetadata& block) {
    end_removed();
    ++count_;
    events_.map(block.group ? 9 : 8);
    events_.text("type");
    events_.text("BlockStored");
    events_.text("block_hashes");
    events_.array(1);
    add_hash(events_, hash);
    events_.text("parent_block_hash");
    block.parent.empty() ? events_.nil() : add_hash(events_, block.parent);
    events_.text("token_ids");
    events_.array(block.tokens);
    for (size_t i = 0; i < block.tokens; ++i) events_.number(block.token(i));
    events_.text("block_size");
    events_.number(block.tokens);
    events_.text("lora_id");
    events_.nil();
    events_.text("medium");
    events_.text(medium_);
    events_.text("lora_name");
    block.lora.empty() ? events_.nil() : events_.text(block.lora);
    add_group(block.group);
  }

  /// One event for all that follow each other in a group.
  void add_removed(std::string_view hash, std::optional<uint16_t> group) {
    if (group != removed_group_) end_removed();
    removed_group_ = group;
    ++removed_count_;
    add_hash(removed_, hash);
  }

  void add_cleared() {
    end_removed();
    ++count_;
    events_.map(1);
    events_.text("type");
    events_.text("AllBlocksCleared");
  }

  /// The payload; empty if there are no events.
  std::string end() {
    end_removed();
    if (count_ == 0) return {};
    Msgpack payload;
    payload.array(3);
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    payload.real(now.count());
    payload.array(count_);
    payload.append(events_);
    payload.number(rank_);
    return payload.bytes();
  }

 private:
  /// As bytes, or as an integer: their last eight, big-endian.
  void add_hash(Msgpack& to, std::string_view hash) const {
    if (!int_hashes_) return to.binary(hash);
    uint64_t number = 0;
    for (const char byte : hash) number = number << 8 | static_cast<uint8_t>(byte);
    to.number(number);
  }

  void add_group(std::optional<uint16_t> group) {
    if (!group) return;
    events_.text("group_idx");
    events_.number(*group);
  }

  void end_removed() {
    if (removed_count_ == 0) return;
    ++count_;
    events_.map(removed_group_ ? 4 : 3);
    events_.text("type");
    events_.text("BlockRemoved");
    events_.text("block_hashes");
    events_.array(removed_count_);
    events_.append(removed_);
    events_.text("medium");
    events_.text(medium_);
    add_group(removed_group_);
    removed_.clear();
    removed_count_ = 0;
  }

  const std::string& medium_;
  const bool int_hashes_;
  const uint64_t rank_;
  Msgpack events_;
  size_t count_ = 0;
  Msgpack removed_;  // hashes of the last event, which is not in events_ yet
  size_t removed_count_ = 0;
  std::optional<uint16_t> removed_group_;
};

/// One thread at a time uses an encoder and what it reads from.
class EventEncoder {
 public:
  EventEncoder(bh_namespace_id ns, std::string medium, bool int_hashes, uint64_t rank)
      : ns_(ns), medium_(std::move(medium)), int_hashes_(int_hashes), rank_(rank) {}

  uint64_t foreign() const { return foreign_; }

  nb::bytes cleared() const {
    Message message = begin();
    message.add_cleared();
    return bytes(message.end());
  }

  nb::object read(Events& events, size_t limit) {
    Message message = begin();
    size_t count = 0;
    uint64_t foreign = 0;
    const uint64_t lost = events.visit(limit, [&](const bh_event& event) {
      ++count;
      if (event.namespace_id == ns_ && !add(message, event)) ++foreign;
    });
    if (lost > 0) message.add_cleared();
    foreign_ += foreign;
    return nb::make_tuple(bytes(message.end()), count, lost);
  }

  nb::bytes stored(Blocks& blocks, size_t limit) {
    const std::string payload = without_gil([&] {
      Message message = begin();
      blocks.sort_by_parent();
      for (size_t i = 0; i < limit && blocks.left() > 0; ++i) {
        const bh_block_info& block = blocks.next();
        const auto metadata = BlockMetadata::parse(text(block.user_metadata, block.user_bytes));
        if (!metadata || metadata->tokens == 0) continue;
        const std::string_view key = text(block.key.data, block.key.size_bytes);
        message.add_stored(key.substr(0, metadata->hash_bytes), *metadata);
      }
      return message.end();
    });
    return bytes(payload);
  }

 private:
  Message begin() const { return {medium_, int_hashes_, rank_}; }
  static nb::bytes bytes(const std::string& from) { return nb::bytes(from.data(), from.size()); }

  /// False: the block does not carry the metadata of bowhead_kv.events.
  static bool add(Message& message, const bh_event& event) {
    const auto metadata = BlockMetadata::parse(text(event.user_metadata, event.user_bytes));
    if (!metadata) return false;
    const std::string_view key = text(event.key.data, event.key.size_bytes);
    const std::string_view hash = key.substr(0, metadata->hash_bytes);
    if (event.kind != BH_EVENT_STORED)
      message.add_removed(hash, metadata->group);
    else if (metadata->tokens > 0)
      message.add_stored(hash, *metadata);
    return true;
  }

  const bh_namespace_id ns_;
  const std::string medium_;
  const bool int_hashes_;
  const uint64_t rank_;
  uint64_t foreign_ = 0;
};

nb::object parse_metadata(const nb::bytes& user_metadata) {
  const auto parsed = BlockMetadata::parse({user_metadata.c_str(), user_metadata.size()});
  if (!parsed) return nb::none();
  const auto or_none = [](std::string_view part, auto made) {
    return part.empty() ? nb::object(nb::none()) : nb::object(made);
  };
  nb::list token_ids;
  for (size_t i = 0; i < parsed->tokens; ++i) token_ids.append(parsed->token(i));
  nb::dict fields;
  fields["hash_bytes"] = parsed->hash_bytes;
  fields["group"] = parsed->group ? nb::object(nb::int_(*parsed->group)) : nb::none();
  fields["parent"] =
      or_none(parsed->parent, nb::bytes(parsed->parent.data(), parsed->parent.size()));
  fields["token_ids"] = token_ids;
  fields["lora_name"] = or_none(parsed->lora, nb::str(parsed->lora.data(), parsed->lora.size()));
  return make("BlockMetadata", fields);
}

}  // namespace

void bind_encoder(nb::module_& module) {
  nb::class_<EventEncoder>(module, "EventEncoder")
      .def(
          "__init__",
          [](EventEncoder* self, const Namespace& ns, const std::string& medium, bool int_hashes,
             nb::handle rank) {
            new (self) EventEncoder(ns.id, medium, int_hashes, number<uint64_t>("rank", rank));
          },
          nb::arg("ns"), nb::kw_only(), nb::arg("medium"), nb::arg("int_hashes"), any("rank"))
      .def(
          "read",
          [](EventEncoder& self, Events& events, nb::handle limit) {
            return self.read(events, number<size_t>("limit", limit));
          },
          nb::arg("events"), any("limit"))
      .def(
          "stored",
          [](EventEncoder& self, Blocks& blocks, nb::handle limit) {
            return self.stored(blocks, number<size_t>("limit", limit));
          },
          nb::arg("blocks"), any("limit"))
      .def("cleared", &EventEncoder::cleared)
      .def_prop_ro("foreign", &EventEncoder::foreign);
  module.def("parse_metadata", &parse_metadata, nb::arg("user_metadata"));
}

}  // namespace bowhead::python
