// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "compression/fit.h"
#include "compression/frame_parts.h"

namespace bowhead::compression {
namespace {

struct ProfileRules {
  StreamCodec codec;
  int level;
  uint32_t least_saved_parts;  ///< a coded stream is kept if it saves 1 / so much at least
  int one_stream_level;        ///< of the codec, for a tile as one stream
  bool bytes_as_one_stream;    ///< tried for numbers of one byte; for all where tokens repeat
};

ProfileRules rules_of(Profile profile) {
  switch (profile) {
    case Profile::FAST:
      return {StreamCodec::LZ4, 1, 16, 1, false};
    case Profile::BALANCED:
      return {StreamCodec::ZSTD, 1, 8, 1, false};
    case Profile::DENSE:
      return {StreamCodec::ZSTD, 1, 100, 3, true};
  }
  return {StreamCodec::STORED, 0, 1, 0, false};
}

/// From this number of tokens on spreads take less than a hundredth of a tile.
constexpr uint32_t kWorthSpreads = 128;
/// For spreads: some samples of some neighbouring tokens.
constexpr uint32_t kSpreadSamples = 8, kSampleTokens = 4;
static_assert(kSpreadSamples * kSampleTokens <= kWorthSpreads);

/// Size of a plane from which on a table of its frequencies costs less than it saves.
constexpr size_t kWorthATable = 1024;

bool all_zero(ConstBytes bytes) {
  return bytes.empty() ||
         (bytes[0] == 0 && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

/// Whether all values are finite, of which these are the largest exponents.
bool all_finite(const Number& number, std::span<const uint16_t> largest, ConstBytes values) {
  const uint32_t most = (1u << number.exponent_bits) - 1;
  if (!number.is_float() || *std::max_element(largest.begin(), largest.end()) < most) return true;
  const uint32_t most_finite = uint32_t{number.largest_finite} >> number.mantissa_bits;
  if (most_finite < most) return false;
  BOWHEAD_ASSERT(number.element_bytes == 1);
  return std::all_of(values.begin(), values.end(),
                     [&](uint8_t bits) { return (bits & 0x7F) <= number.largest_finite; });
}

}  // namespace

class Encoder::Impl {
 public:
  explicit Impl(Profile profile) : rules_(rules_of(profile)) {}

  Result<size_t> encode(const Shape& shape, ConstBytes values, Bytes out) {
    if (!valid_shape(shape))
      return Error{Status::INVALID_ARGUMENT, "the shape of a frame must have values"};
    if (values.size() != shape.size_bytes() || out.size() < frame_bound(shape))
      return Error{Status::INVALID_ARGUMENT,
                   "the sizes of the buffers do not match the shape of the frame"};
    const uint32_t tile_tokens = tile_tokens_of(shape);
    const Tiling tiling = tiling_of(shape.outer, shape.tokens, tile_tokens);
    const Rotary& rotary = shape.rotary;
    const bool rotated = has_rotation(rotary);
    const auto version = rotated ? BH_FRAME_VERSION_ROTATION : BH_FRAME_VERSION;
    bh_frame_header header{.magic = BH_FRAME_MAGIC,
                           .version = static_cast<uint8_t>(version),
                           .number = static_cast<uint8_t>(shape.number),
                           .channels = static_cast<uint16_t>(shape.channels),
                           .outer = shape.outer,
                           .tokens = shape.tokens,
                           .tile_tokens = static_cast<uint16_t>(tile_tokens),
                           .rotary_dim = rotary.dim,
                           .rotary_ratio = rotary.ratio};
    size_t at = head_bytes_of(shape, tiling);
    const Bytes behind = out.subspan(sizeof header, at - sizeof header);
    if (rotated) {
      const bh_frame_rotation rotation{
          .head = rotary.head,
          .first = rotary.first,
          .step = rotary.step,
          .pairs =
              static_cast<uint8_t>(rotary.interleaved ? BH_ROTARY_INTERLEAVED : BH_ROTARY_HALVES)};
      std::memcpy(behind.data(), &rotation, sizeof rotation);
    }
    const Bytes table = behind.last(tiling.table_bytes());
    for (uint64_t tile = 0; tile < tiling.tiles; ++tile) {
      const uint32_t tokens = tiling.tokens_of(shape.tokens, tile);
      const size_t bytes = tokens * shape.row_bytes();
      const auto size =
          static_cast<uint32_t>(encode_tile(shape, tokens, values.first(bytes), out.subspan(at)));
      if (!table.empty()) std::memcpy(table.data() + tile * 4, &size, 4);
      values = values.subspan(bytes);
      at += size;
    }
    header.table_checksum = head_checksum(header, behind);
    std::memcpy(out.data(), &header, sizeof header);
    return at;
  }

 private:
  /// Writes at most kStoredTileHeaderBytes more than the values.
  size_t encode_tile(const Shape& shape, uint32_t tokens, ConstBytes values, Bytes out) {
    const Number* number = number_of(shape.number);
    const size_t limit = values.size() + kStoredTileHeaderBytes;
    size_t size = number == nullptr ? encode_bytes(values, out)
                                    : encode_planes(*number, shape, tokens, values, out);
    if (number != nullptr &&
        (repeats_ || (rules_.bytes_as_one_stream && number->element_bytes == 1)))
      size = encode_as_one_stream(values, size == 0 ? limit : size, out);
    if (size != 0 && size < limit) return size;
    ByteWriter to(out.data());
    to.u8(BH_TILE_STORED);
    to.u32(rest_checksum(BH_TILE_STORED, BH_STREAM_STORED, values));
    to.bytes(values);
    return to.size();
  }

  size_t encode_bytes(ConstBytes values, Bytes out) {
    const size_t most = values.size() - values.size() / rules_.least_saved_parts;
    const Bytes rest = out.subspan(kBytesTileHeaderBytes);
    const size_t size = coder_.encode(rules_.codec, rules_.level, values, rest, most);
    if (size == 0) return 0;
    write_bytes_tile(rules_.codec, rest.first(size), out);
    return kBytesTileHeaderBytes + size;
  }

  /// Numbers of one byte may repeat as bytes where no plane does; a row that repeats is one match,
  /// where planes have one each. Searches then read the tile whole, so that it has to save a 32nd.
  /// Returns `size`, and leaves `out`, if it does not.
  size_t encode_as_one_stream(ConstBytes values, size_t size, Bytes out) {
    const size_t most = size - std::min(size, size / 32 + kBytesTileHeaderBytes);
    const size_t coded = coder_.encode(rules_.codec, rules_.one_stream_level, values, coded_, most);
    if (coded == 0) return size;
    write_bytes_tile(rules_.codec, Bytes(coded_).first(coded), out);
    return kBytesTileHeaderBytes + coded;
  }

  static void write_bytes_tile(StreamCodec codec, ConstBytes coded, Bytes out) {
    ByteWriter to(out.data());
    to.u8(BH_TILE_BYTES);
    to.u8(static_cast<uint32_t>(codec));
    to.u32(rest_checksum(BH_TILE_BYTES, static_cast<uint32_t>(codec), coded));
    if (coded.data() != to.position()) to.bytes(coded);
  }

  /// Returns 0 if it does not fit.
  size_t encode_planes(const Number& number, const Shape& shape, uint32_t tokens, ConstBytes values,
                       Bytes out) {
    const uint32_t channels = shape.channels;
    make_room(number, tokens, channels);
    if (number.is_float())
      kernels_.largest_exponents(number, values.data(), tokens, channels, exponents_.data());
    else
      std::fill_n(exponents_.begin(), channels, uint16_t{0});
    TileHeader header;
    header.searchable = all_finite(number, std::span(exponents_).first(channels), values);
    split(number, shape, tokens, values);
    set_parameters(number, channels, header);
    if (header.searchable) make_directory(number, shape, tokens, values, header);
    const uint32_t streams = stream_count(number);
    ConstBytes plain[kMaxStreams];
    for (uint32_t s = 0; s < number.planes(); ++s)
      plain[s] = {split_.planes[s], plane_bytes(channels, tokens)};
    plain[streams - 2] = {split_.remainder, (split_.remainder_bits + 7) / 8};
    plain[streams - 1] = {split_.exceptions, split_.exception_count};
    ConstBytes coded[kMaxStreams];
    code_streams(number, plain, coded, header);
    return assemble(number, channels, coded, header, out);
  }

  void make_room(const Number& number, uint32_t tokens, uint32_t channels) {
    const size_t plane = plane_bytes(channels, tokens) + 8;
    const size_t values = size_t{tokens} * channels;
    const size_t remainder = remainder_room(number, values);
    const size_t exceptions = values + 64;
    const size_t all = number.planes() * plane + remainder + exceptions;
    if (plain_.size() < all) plain_.resize(all);
    if (coded_.size() < all) coded_.resize(all);
    if (exponents_.size() < channels + 64) exponents_.resize(channels + 64);
    if (beyond_.size() < channels + 64) beyond_.resize(channels + 64);
    uint8_t* at = plain_.data();
    for (uint32_t p = 0; p < number.planes(); ++p, at += plane) split_.planes[p] = at;
    split_.remainder = at;
    split_.exceptions = at + remainder;
    split_.beyond = beyond_.data();
  }

  /// Fits a centre and splits. A channel with values too far from its centre gets a larger unit, or
  /// no centre.
  void split(const Number& number, const Shape& shape, uint32_t tokens, ConstBytes values) {
    const uint32_t channels = shape.channels;
    const std::span<uint16_t> exponents(exponents_.data(), channels);
    centre_ = fitter_.fit(number, values.data(), tokens, channels, exponents, shape.rotary);
    for (bool again = true; again;) {
      const Rotary rotary = centre_.turns ? shape.rotary : Rotary{};
      const TileFrame tile{
          number, tokens, channels, exponents_.data(),
          centres_.make(number, exponents, centre_.amplitudes, centre_.shift, rotary)};
      kernels_.split(tile, values.data(), split_);
      again = false;
      for (uint32_t c = 0; c < channels && !centre_.amplitudes.empty(); ++c) {
        if (beyond_[c] == 0) continue;
        again = true;
        raise_unit(number, c, centre_.turns ? fitter_.partners()[c] : c, exponents, centre_);
      }
    }
  }

  void set_parameters(const Number& number, uint32_t channels, TileHeader& header) {
    header.centre_width = centre_.amplitudes.empty() ? 0 : centre_.width;
    header.centre_shift = header.centre_width == 0 ? 0 : centre_.shift;
    header.centre_turns = header.centre_width != 0 && centre_.turns;
    if (!number.is_float()) return;
    const auto [least, most] =
        std::minmax_element(exponents_.begin(), exponents_.begin() + channels);
    header.exponent_base = static_cast<uint8_t>(*least);
    header.exponent_width =
        static_cast<uint8_t>(std::bit_width(static_cast<uint8_t>(*most - *least)));
  }

  void make_directory(const Number& number, const Shape& shape, uint32_t tokens, ConstBytes values,
                      TileHeader& header) {
    spreads_.clear();
    header.has_spreads = tokens >= kWorthSpreads;
    if (header.has_spreads) add_spreads(number, shape.channels, tokens);
    if (!number.is_float()) return;
    const Steps steps = Steps::of(tokens, shape.channels);
    header.steps_noted = steps.noted();
    step_bits_.clear();
    step_exceptions_.clear();
    for (uint32_t i = 0; i < steps.noted(); ++i) {
      const uint32_t token = i / steps.per_token * steps.tokens;
      const uint32_t channel = i % steps.per_token * kStepValues;
      const size_t at = token * shape.row_bytes() + size_t{channel} * number.element_bytes;
      const StepCount count = kernels_.count_rests(
          number, values.data() + at, shape.row_bytes(), std::min(steps.tokens, tokens - token),
          std::min(shape.channels - channel, kStepValues), exponents_.data() + channel);
      step_bits_.push_back(count.bits);
      step_exceptions_.push_back(count.exceptions);
    }
    if (step_bits_.empty()) return;
    const auto [least, most] = std::minmax_element(step_bits_.begin(), step_bits_.end());
    header.step_bits_least = *least;
    header.step_bits_width = static_cast<uint8_t>(std::bit_width(uint32_t{*most} - *least));
    header.step_exceptions_width = static_cast<uint8_t>(std::bit_width(
        uint32_t{*std::max_element(step_exceptions_.begin(), step_exceptions_.end())}));
    for (uint16_t& bits : step_bits_) bits = static_cast<uint16_t>(bits - header.step_bits_least);
  }

  /// How far the values of each channel are from the centre on average.
  void add_spreads(const Number& number, uint32_t channels, uint32_t tokens) {
    const uint32_t padded = padded_channels(channels);
    rows_.resize(size_t{kSampleTokens} * padded);
    sums_.assign(channels, 0);
    for (uint32_t sample = 0; sample < kSpreadSamples; ++sample) {
      const size_t token = size_t{sample} * tokens / kSpreadSamples;
      const uint8_t* planes[kMaxPlanes + 1] = {};
      for (uint32_t p = 0; p < number.planes(); ++p)
        planes[p] = split_.planes[p] + token * plane_bytes(channels, 1);
      kernels_.differences(number, planes, number.planes(), kSampleTokens, channels, rows_.data());
      for (uint32_t i = 0; i < kSampleTokens; ++i) {
        for (uint32_t c = 0; c < channels; ++c)
          sums_[c] += static_cast<uint32_t>(std::abs(rows_[size_t{i} * padded + c]));
      }
    }
    constexpr uint32_t kSamples = kSpreadSamples * kSampleTokens;
    for (const uint32_t sum : sums_)  // of twice the distances
      spreads_.push_back(static_cast<uint8_t>(
          std::min((uint64_t{sum} * 128 / kSamples) >> number.magnitude_bits, uint64_t{255})));
  }

  /// Codes planes from the top until one does not shrink. The sign shows whether tokens repeat:
  /// then all streams are coded, by a codec that finds repeats.
  void code_streams(const Number& number, const ConstBytes* plain, ConstBytes* coded,
                    TileHeader& header) {
    constexpr int kQuick = 4;
    const uint32_t streams = stream_count(number);
    Bytes room(coded_);
    repeats_ =
        coder_.encode(StreamCodec::LZ4, kQuick, plain[0], room, plain[0].size() / 32 * 31) != 0;
    bool worth_it = true;
    for (uint32_t s = 0; s < streams; ++s) {
      StreamSize& stream = header.streams[s];
      stream = {StreamCodec::STORED, plain[s].size(), plain[s].size()};
      coded[s] = plain[s];
      const bool plane = s > 0 && s < number.planes();
      if (all_zero(plain[s])) {
        stream.codec = StreamCodec::ZERO;
        stream.coded_bytes = 0;
        coded[s] = {};
      } else if (repeats_ || (plane ? worth_it : s == streams - 1)) {
        code_stream(plain[s], repeats_, room, stream);
        if (plane) worth_it = stream.codec != StreamCodec::STORED;
        if (stream.codec == StreamCodec::STORED) continue;
        coded[s] = room.first(stream.coded_bytes);
        room = room.subspan(stream.coded_bytes);
      }
    }
  }

  /// Codes into `room` by the codec that needs the fewest bytes, if it saves enough.
  void code_stream(ConstBytes plain, bool repeats, Bytes room, StreamSize& stream) {
    const size_t most = plain.size() - plain.size() / rules_.least_saved_parts - 1;
    const size_t nibbles = kernels_.nibbles_size(plain);
    size_t size = 0;
    if (repeats || (rules_.codec == StreamCodec::ZSTD && plain.size() >= kWorthATable))
      size = coder_.encode(rules_.codec, repeats ? rules_.level : kZstdWithoutSearch, plain, room,
                           std::min(most, nibbles));
    stream.codec = rules_.codec;
    if (size == 0) {
      size = coder_.encode(StreamCodec::NIBBLES, 0, plain, room, most);
      stream.codec = size == 0 ? StreamCodec::STORED : StreamCodec::NIBBLES;
    }
    stream.coded_bytes = size == 0 ? plain.size() : size;
  }

  /// Returns 0 if it does not fit.
  size_t assemble(const Number& number, uint32_t channels, const ConstBytes* coded,
                  TileHeader& header, Bytes out) {
    const uint32_t streams = stream_count(number);
    uint64_t size = kMaxTileHeaderBytes + parameter_bytes(header, channels);
    for (uint32_t s = 0; s < streams; ++s) size += coded[s].size();
    if (size > out.size()) return 0;

    // The streams first, at the end of the header: the header holds their checksums.
    ByteWriter measured(out.data());
    write_tile_header(measured, number, header);
    const size_t header_bytes = measured.size() + parameter_bytes(header, channels) + 4;
    ByteWriter body(out.data() + header_bytes);
    header.checksums.fill(checksum32({}));  // checksum of a group without planes
    const Groups groups(number, header.streams[0].plain_bytes);
    size_t group_begin = 0;
    for (uint32_t s = 0; s < streams; ++s) {
      body.bytes(coded[s]);
      if (s + 1 < streams && groups.of(s + 1) == groups.of(s)) continue;
      header.checksums[groups.of(s)] =
          checksum32({out.data() + header_bytes + group_begin, body.size() - group_begin});
      group_begin = body.size();
    }
    ByteWriter to(out.data());
    write_tile_header(to, number, header);
    Lines<uint8_t>& deltas = beyond_;  // no longer needed
    for (uint32_t c = 0; c < channels; ++c)
      deltas[c] = static_cast<uint8_t>(exponents_[c] - header.exponent_base);
    to.packed(std::span(deltas).first(channels), header.exponent_width);
    to.packed(centre_.amplitudes, header.centre_width);
    if (header.searchable) {
      to.bytes(spreads_);
      to.packed(step_bits_, header.step_bits_width);
      to.packed(step_exceptions_, header.step_exceptions_width);
    }
    to.u32(checksum32({out.data(), to.size()}));
    BOWHEAD_ASSERT(to.size() == header_bytes);
    return header_bytes + body.size();
  }

  const ProfileRules rules_;
  const PlaneKernels& kernels_ = plane_kernels();
  StreamCoder coder_;
  CentreFitter fitter_;
  Centre centre_;
  CentreMaker centres_;
  Split split_{};
  bool repeats_ = false;  // tokens of the tile
  Lines<uint8_t> plain_, coded_, beyond_;
  Lines<uint16_t> exponents_;
  std::vector<uint8_t> spreads_;
  std::vector<uint16_t> step_bits_, step_exceptions_;  // as in the directory
  Lines<int16_t> rows_;                                // of some tokens
  std::vector<uint32_t> sums_;                         // by channel
};

Encoder::Encoder(Profile profile) : impl_(std::make_unique<Impl>(profile)) {}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

Result<size_t> Encoder::encode(const Shape& shape, ConstBytes values, Bytes out) {
  return impl_->encode(shape, values, out);
}

}  // namespace bowhead::compression
