// SPDX-License-Identifier: Apache-2.0
#include "pool/coded.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

namespace bowhead {

using compression::Bytes;
using compression::ConstBytes;
using compression::Shape;
using core::Content;
using core::Key;

namespace {

constexpr uint64_t kColdMsMost = uint64_t{1} << 40;  ///< longer than any machine runs

/// Memory that is kept from value to value.
class Scratch {
 public:
  Bytes room(size_t bytes) {
    if (bytes > bytes_) {
      data_ = std::make_unique_for_overwrite<uint8_t[]>(bytes);
      bytes_ = bytes;
    }
    return {data_.get(), bytes};
  }

 private:
  std::unique_ptr<uint8_t[]> data_;
  size_t bytes_ = 0;
};

compression::Profile codec_profile(CompressionProfile profile) {
  switch (profile) {
    case CompressionProfile::FAST:
      return compression::Profile::FAST;
    case CompressionProfile::BALANCED:
      return compression::Profile::BALANCED;
    default:
      return compression::Profile::DENSE;
  }
}

/// The shape of a value of this length; opaque bytes if it fits no number of tokens.
Shape shape_of(const Shape& token, uint64_t length_bytes) {
  if (length_bytes % token.size_bytes() != 0)
    return {NumberFormat::BYTES, 1, static_cast<uint32_t>(length_bytes), 1, {}};
  Shape shape = token;
  shape.tokens = static_cast<uint32_t>(length_bytes / token.size_bytes());
  return shape;
}

uint8_t* as_bytes(std::byte* data) { return reinterpret_cast<uint8_t*>(data); }
const uint8_t* as_bytes(const std::byte* data) { return reinterpret_cast<const uint8_t*>(data); }

}  // namespace

// ---- workspaces ----

/// What one thread needs to encode or decode.
struct CodedStore::Workspace {
  /// The frame of a value, or nothing if there is none or it is not smaller.
  std::optional<Content> encode(CompressionProfile profile, const Shape& shape,
                                const Content& raw) {
    const size_t bound = compression::frame_bound(shape);
    if (bound == 0) return std::nullopt;
    auto& encoder = encoders[static_cast<size_t>(profile) - 1];
    if (!encoder) encoder.emplace(codec_profile(profile));
    const auto size = encoder->encode(shape, contiguous(raw), frame.room(bound));
    if (!size || *size >= raw.length_bytes) return std::nullopt;
    coded = {reinterpret_cast<const std::byte*>(frame.room(bound).data()), *size};
    return Content{
        {&coded, 1},       raw.length_bytes, BH_CODEC_FRAME, static_cast<uint8_t>(profile),
        raw.user_metadata, raw.attributes,   raw.wipe};
  }

  ConstBytes contiguous(const Content& raw) {
    if (raw.stored.size() == 1) return {as_bytes(raw.stored[0].data), raw.stored[0].size};
    const Bytes all = values.room(raw.length_bytes);
    size_t at = 0;
    for (const ConstSpan& part : raw.stored) {
      if (part.size > 0) std::memcpy(all.data() + at, part.data, part.size);
      at += part.size;
    }
    return all;
  }

  std::array<std::optional<compression::Encoder>, 3> encoders;  ///< by profile, less 1
  compression::Decoder decoder;
  Scratch values, frame;
  ConstSpan coded;
};

/// A workspace from its first use to the end of a scope.
class CodedStore::Loan {
 public:
  explicit Loan(CodedStore& from) : from_(from) {}
  ~Loan() {
    if (!one_) return;
    const std::lock_guard lock(from_.idle_mutex_);
    from_.idle_.push_back(std::move(one_));
  }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  Workspace& operator*() {
    if (!one_) one_ = take();
    return *one_;
  }
  Workspace* operator->() { return &**this; }

 private:
  std::unique_ptr<Workspace> take() {
    const std::lock_guard lock(from_.idle_mutex_);
    if (from_.idle_.empty()) return std::make_unique<Workspace>();
    auto one = std::move(from_.idle_.back());
    from_.idle_.pop_back();
    return one;
  }

  CodedStore& from_;
  std::unique_ptr<Workspace> one_;
};

CodedStore::CodedStore(Core& core) : core_(core) {}

CodedStore::~CodedStore() {
  for (const std::atomic<Known*>& head : known_) {
    for (Known* one = head.load(std::memory_order_acquire); one != nullptr;) {
      Known* next = one->next;
      delete one;
      one = next;
    }
  }
}

// ---- namespaces ----

Result<NamespaceId> CodedStore::open_namespace(const NamespaceDescription& description) {
  if (auto good = check_format(description.values); !good) return good.error();
  const auto id = core_.namespaces.open_namespace(description);
  if (id) find(*id);
  return id;
}

std::optional<ValueFormat> CodedStore::format_of(NamespaceId id) {
  const Known* known = find(id);
  if (known == nullptr) return std::nullopt;
  return known->format;
}

/// The namespace found last comes first. A duplicate does no harm.
const CodedStore::Known* CodedStore::find(NamespaceId id) {
  // Acquire: the node's members were written before its pointer was released.
  Known* head = known(id).load(std::memory_order_acquire);
  for (const Known* one = head; one != nullptr; one = one->next) {
    if (one->id == id) return one;
  }
  const auto format = core_.namespaces.format_of(id);
  if (!format) return nullptr;
  auto* one = new Known{id, *format, {}, head};
  // A namespace of a newer Bowhead may have an unknown format: its values are stored as they are.
  if (format->profile != CompressionProfile::NONE && check_format(*format)) {
    const auto token = compression::shape_of(format->layout, payload_bytes(format->layout, 1));
    if (token) one->token = *token;
  }
  while (!known(id).compare_exchange_weak(one->next, one, std::memory_order_acq_rel,
                                          std::memory_order_acquire)) {
  }
  return one;
}

// ---- put and get ----

/// The content that a put stores: a frame, or the raw value if the frame takes no smaller block.
Content CodedStore::encode(const Known& ns, uint64_t key_bytes, const Content& raw, Loan& work) {
  const Shape shape = shape_of(*ns.token, raw.length_bytes);
  const auto coded = work->encode(ns.format.profile, shape, raw);
  const bool smaller =
      coded && core_.writing.room_for(*coded, key_bytes) < core_.writing.room_for(raw, key_bytes);
  return smaller ? *coded : raw;
}

Status CodedStore::put(const Key& key, std::span<const ConstSpan> value,
                       std::string_view user_metadata, const BlockAttributes& attributes) {
  const Known* ns = find(key.namespace_id);
  const Content raw =
      Content::raw(value, user_metadata, attributes, ns != nullptr && ns->format.wipe);
  if (ns == nullptr || !ns->token) return core_.writing.put(key, raw);
  Loan work(*this);
  return core_.writing.put_made(key, raw, [&] { return encode(*ns, key.bytes.size(), raw, work); });
}

void CodedStore::put_all(NamespaceId id, std::span<PutItem> items) {
  std::array<std::string_view, core::Lookup<core::NativeAccess>::kBatch> keys;
  for (size_t i = 0; i < items.size(); ++i) keys[i] = items[i].key;
  const Known* ns = find(id);
  const bool coded = ns != nullptr && ns->token, wipe = ns != nullptr && ns->format.wipe;
  Loan work(*this);
  core_.writing.put_all(
      id, std::span(keys).first(items.size()),
      [&](uint32_t i) {
        return Content::raw(items[i].value, items[i].user_metadata, items[i].attributes, wipe);
      },
      [&](uint32_t i, const Content& raw) {
        return coded ? encode(*ns, items[i].key.size(), raw, work) : raw;
      },
      [&](uint32_t i, Status status) { items[i].status = status; });
}

/// Plain values go to the caller's buffers at once, frames to a workspace first.
class CodedStore::ValueSink {
 public:
  /// `planes`: 0 for all of them.
  ValueSink(CodedStore& store, std::span<const Span> buffers, uint32_t planes = 0)
      : raw_{buffers}, planes_(planes), work_(store) {}

  Result<std::span<const Span>> room_for(const bh_block_header& header) {
    auto room = raw_.room_for(header);
    if (header.codec != BH_CODEC_FRAME || room.status() != Status::UNSUPPORTED_CODEC) return room;
    frame_ = work_->frame.room(header.stored_bytes);
    stored_ = {reinterpret_cast<std::byte*>(frame_.data()), frame_.size()};
    return std::span<const Span>(&stored_, 1);
  }

  Status take(const bh_block_header& header) {
    read_bytes_ = header.stored_bytes;
    return header.codec == BH_CODEC_FRAME ? take_values(header.length_bytes) : Status::OK;
  }

  /// Decodes the frame.
  Status take_values(uint64_t length_bytes) {
    const bool direct = !raw_.buffers.empty() && raw_.buffers.front().size >= length_bytes;
    const Bytes values = direct ? Bytes(as_bytes(raw_.buffers.front().data), length_bytes)
                                : work_->values.room(length_bytes);
    const Status decoded = decode(values);
    // The frame has another size than the header says: no encoder wrote it.
    if (decoded == Status::INVALID_ARGUMENT) return Status::DAMAGED;
    if (decoded == Status::OK && !direct) scatter(values);
    return decoded;
  }

  Bytes frame() const { return frame_; }
  uint64_t read_bytes() const { return read_bytes_; }

 private:
  Status decode(Bytes values) {
    if (planes_ == 0) return work_->decoder.decode(frame_, values);
    const auto info = compression::frame_info(frame_);
    if (!info) return info.status();
    if (planes_ > info->planes) return work_->decoder.decode(frame_, values);
    return work_->decoder.decode_prefix(frame_, planes_, values);
  }

  void scatter(ConstBytes values) const {
    for (const Span& buffer : raw_.buffers) {
      const size_t part = std::min(buffer.size, values.size());
      if (part > 0) std::memcpy(buffer.data, values.data(), part);
      values = values.subspan(part);
    }
  }

  core::RawSink raw_;
  uint32_t planes_;
  uint64_t read_bytes_ = 0;
  Loan work_;
  Bytes frame_;
  Span stored_;
};

Result<uint64_t> CodedStore::get(const Key& key, std::span<const Span> buffers,
                                 std::string* user_metadata) {
  ValueSink sink(*this, buffers);
  return core_.reading.get_stored(key, sink, user_metadata);
}

void CodedStore::get_all(NamespaceId id, std::span<GetItem> items) {
  std::array<std::string_view, core::Lookup<core::NativeAccess>::kBatch> keys;
  for (size_t i = 0; i < items.size(); ++i) keys[i] = items[i].key;
  core_.reading.get_all(
      id, std::span(keys).first(items.size()),
      [&](uint32_t i) { return ValueSink(*this, items[i].buffers); },
      [&](uint32_t i, const Result<uint64_t>& length) {
        items[i].status = length.status();
        items[i].length_bytes = length ? *length : 0;
      });
}

/// Reads only the first planes if the frame can be read piece by piece; else all of it, which also
/// reveals any damage.
Result<PrefixRead> CodedStore::get_prefix(const Key& key, uint32_t planes,
                                          std::span<const Span> buffers) {
  ValueSink sink(*this, buffers, planes);
  compression::FramePieces pieces;
  const auto part =
      core_.reading.get_parts(key, [&](const bh_block_header& header, const auto& read) {
        const auto room = sink.room_for(header);
        if (!room) return room.status();
        if (header.codec != BH_CODEC_FRAME) return Status::UNSUPPORTED_CODEC;
        const auto copy = [&](uint64_t offset, Bytes to) {
          read(offset, Span{reinterpret_cast<std::byte*>(to.data()), to.size()});
          return Status::OK;
        };
        const Status fetched = pieces.fetch(planes, copy, sink.frame());
        return fetched == Status::OK ? sink.take_values(header.length_bytes) : fetched;
      });
  if (part) return PrefixRead{*part, pieces.bytes_fetched()};
  const auto length = core_.reading.get_stored(key, sink);
  if (!length) return length.error();
  return PrefixRead{*length, sink.read_bytes()};
}

namespace {

/// Takes values as they are stored.
struct StoredSink {
  Span buffer;
  Span part = {};
  StoredValue value = {};

  Result<std::span<const Span>> room_for(const bh_block_header& header) {
    if (header.codec != BH_CODEC_RAW && header.codec != BH_CODEC_FRAME)
      return Status::UNSUPPORTED_CODEC;
    if (header.stored_bytes > buffer.size) return Status::BUFFER_TOO_SMALL;
    part = {buffer.data, header.stored_bytes};
    return std::span<const Span>(&part, 1);
  }
  Status take(const bh_block_header& header) {
    value = {header.stored_bytes, header.length_bytes, header.codec == BH_CODEC_FRAME};
    return Status::OK;
  }
};

}  // namespace

Result<StoredValue> CodedStore::get_stored(const Key& key, Span buffer) {
  StoredSink sink{buffer};
  const auto length = core_.reading.get_stored(key, sink);
  if (!length) return length.error();
  return sink.value;
}

Result<Lease> CodedStore::acquire(const Key& key, uint64_t ttl_ms, LeaseOf of) {
  const Known* ns = find(key.namespace_id);  // first: it may fail for lack of memory
  auto lease = core_.reading.acquire(key, ttl_ms, of);
  if (!lease) return lease;
  lease->layout = ns == nullptr ? &kOpaqueLayout : &ns->format.layout;
  return lease;
}

// ---- recompression ----

/// One pass at a time: two would do the same work twice.
Result<RecompressReport> CodedStore::recompress(uint64_t cold_ms) {
  constexpr int kTries = 8;  // consecutive blocks for which there was no space
  const std::lock_guard lock(tried_mutex_);
  std::unordered_set<uint64_t> tried;  // without blocks that are gone
  RecompressReport report;
  Status stopped = core_.membership.standing();
  int without_room = 0;
  Loan work(*this);
  core_.space.for_each_cold(
      std::min(cold_ms, kColdMsMost) * 1'000'000, [&](const core::Located& located) {
        const bh_block_header& header = located.header;
        // Bytes that no checksum verifies are not stored again with a checksum.
        const Known* ns = find(header.namespace_id);
        if (header.profile >= BH_PROFILE_DENSE || header.checksum_kind == BH_CHECKSUM_NONE ||
            header.codec > BH_CODEC_FRAME || ns == nullptr || !ns->token)
          return;
        const bool hopeless = tried_.contains(header.stamp);
        if (hopeless) tried.insert(header.stamp);
        if (hopeless || stopped != Status::OK) return;
        ++report.cold_blocks;
        const Status status = recompress_block(located, *ns->token, *work, report);
        if (status == Status::VALUE_TOO_LARGE) tried.insert(header.stamp);
        without_room = status == Status::NO_SPACE ? without_room + 1 : 0;
        if (status == Status::HOST_FENCED || status == Status::HOST_ID_CONFLICT ||
            without_room == kTries)
          stopped = status;
      });
  tried_ = std::move(tried);
  if (stopped != Status::OK && stopped != Status::NO_SPACE) return stopped;
  return report;
}

/// VALUE_TOO_LARGE: it does not shrink; BUSY: try again later; the statuses of Space::replace().
Status CodedStore::recompress_block(const core::Located& located, const Shape& token,
                                    Workspace& work, RecompressReport& report) {
  const bh_block_header& header = located.header;
  const bool raw = header.codec == BH_CODEC_RAW;
  const Bytes stored = (raw ? work.values : work.frame).room(header.stored_bytes);
  const Span to{reinterpret_cast<std::byte*>(stored.data()), stored.size()};
  std::string user_metadata;
  if (!core_.reading.read_stored(located, {&to, 1}, user_metadata)) return Status::BUSY;
  Shape shape = shape_of(token, header.length_bytes);
  if (!raw) {
    const auto info = compression::frame_info(stored);
    if (!info || info->shape.size_bytes() != header.length_bytes) return Status::VALUE_TOO_LARGE;
    shape = info->shape;
  }
  const Bytes values = work.values.room(header.length_bytes);
  if (!raw && work.decoder.decode(stored, values) != Status::OK) return Status::VALUE_TOO_LARGE;
  const ConstSpan value{reinterpret_cast<const std::byte*>(values.data()), values.size()};
  const Content content = Content::raw({&value, 1}, user_metadata);
  const auto coded = work.encode(CompressionProfile::DENSE, shape, content);
  if (!coded || core_.writing.room_for(*coded, header.key_bytes) >=
                    core::room_for(core_.context().layout, header))
    return Status::VALUE_TOO_LARGE;
  const Status status = core_.space.replace(located, *coded);
  if (status != Status::OK) return status;
  report.recompressed += 1;
  report.before_bytes += header.stored_bytes;
  report.after_bytes += coded->stored_bytes();
  return Status::OK;
}

}  // namespace bowhead
