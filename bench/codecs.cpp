// SPDX-License-Identifier: Apache-2.0
#include "bench/codecs.h"

#include <fmt/format.h>
#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <utility>

namespace bowhead::bench {
namespace {

using namespace compression;

class FrameCodec : public Codec {
 public:
  FrameCodec(std::string name, Profile profile) : name_(std::move(name)), encoder_(profile) {}
  std::string name() const override { return name_; }
  size_t encode(const Shape& shape, ConstBytes values, Bytes out) override {
    const auto size = encoder_.encode(shape, values, out);
    return size ? *size : 0;
  }
  bool decode(const Shape&, ConstBytes coded, Bytes out) override {
    return decoder_.decode(coded, out) == Status::OK;
  }

 private:
  const std::string name_;
  Encoder encoder_;
  Decoder decoder_;
};

class Lz4Codec : public Codec {
 public:
  std::string name() const override { return "lz4"; }
  size_t encode(const Shape&, ConstBytes values, Bytes out) override {
    const int size = LZ4_compress_default(
        reinterpret_cast<const char*>(values.data()), reinterpret_cast<char*>(out.data()),
        static_cast<int>(values.size()), static_cast<int>(out.size()));
    return static_cast<size_t>(std::max(size, 0));
  }
  bool decode(const Shape&, ConstBytes coded, Bytes out) override {
    const int size = LZ4_decompress_safe(
        reinterpret_cast<const char*>(coded.data()), reinterpret_cast<char*>(out.data()),
        static_cast<int>(coded.size()), static_cast<int>(out.size()));
    return std::cmp_equal(size, out.size());
  }
};

class ZstdCodec : public Codec {
 public:
  explicit ZstdCodec(int level) : level_(level) {}
  ~ZstdCodec() override {
    ZSTD_freeCCtx(encoder_);
    ZSTD_freeDCtx(decoder_);
  }
  ZstdCodec(const ZstdCodec&) = delete;
  ZstdCodec& operator=(const ZstdCodec&) = delete;

  std::string name() const override { return fmt::format("zstd -{}", level_); }
  size_t encode(const Shape&, ConstBytes values, Bytes out) override {
    const size_t size =
        ZSTD_compressCCtx(encoder_, out.data(), out.size(), values.data(), values.size(), level_);
    return ZSTD_isError(size) != 0 ? 0 : size;
  }
  bool decode(const Shape&, ConstBytes coded, Bytes out) override {
    return ZSTD_decompressDCtx(decoder_, out.data(), out.size(), coded.data(), coded.size()) ==
           out.size();
  }

 private:
  const int level_;
  ZSTD_CCtx* const encoder_ = ZSTD_createCCtx();
  ZSTD_DCtx* const decoder_ = ZSTD_createDCtx();
};

/// First bytes of all values, then second ones, as Blosc's shuffle has them.
class ShuffledZstdCodec : public Codec {
 public:
  explicit ShuffledZstdCodec(int level) : zstd_(level) {}
  std::string name() const override { return "byte shuffle+" + zstd_.name(); }
  size_t encode(const Shape& shape, ConstBytes values, Bytes out) override {
    shuffled_.resize(values.size());
    const uint32_t bytes = element_bytes(shape.number);
    const size_t count = values.size() / bytes;
    for (uint32_t byte = 0; byte < bytes; ++byte) {
      for (size_t i = 0; i < count; ++i) shuffled_[byte * count + i] = values[i * bytes + byte];
    }
    return zstd_.encode(shape, shuffled_, out);
  }
  bool decode(const Shape& shape, ConstBytes coded, Bytes out) override {
    shuffled_.resize(out.size());
    if (!zstd_.decode(shape, coded, shuffled_)) return false;
    const uint32_t bytes = element_bytes(shape.number);
    const size_t count = out.size() / bytes;
    for (uint32_t byte = 0; byte < bytes; ++byte) {
      for (size_t i = 0; i < count; ++i) out[i * bytes + byte] = shuffled_[byte * count + i];
    }
    return true;
  }

 private:
  ZstdCodec zstd_;
  std::vector<uint8_t> shuffled_;
};

}  // namespace

bool Codec::right(const Shape&, ConstBytes values, ConstBytes out) const {
  return std::equal(values.begin(), values.end(), out.begin(), out.end());
}

void add_frame_codecs(Codecs& codecs) {
  codecs.push_back(std::make_unique<FrameCodec>("frames fast", Profile::FAST));
  codecs.push_back(std::make_unique<FrameCodec>("frames balanced", Profile::BALANCED));
  codecs.push_back(std::make_unique<FrameCodec>("frames dense", Profile::DENSE));
}

void add_general_codecs(Codecs& codecs) {
  codecs.push_back(std::make_unique<Lz4Codec>());
  codecs.push_back(std::make_unique<ZstdCodec>(1));
  codecs.push_back(std::make_unique<ZstdCodec>(3));
  codecs.push_back(std::make_unique<ShuffledZstdCodec>(3));
}

}  // namespace bowhead::bench
