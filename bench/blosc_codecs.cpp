// SPDX-License-Identifier: Apache-2.0
#include <blosc2.h>

#include <algorithm>
#include <string>
#include <utility>

#include "bench/codecs.h"

namespace bowhead::bench {
namespace {

using namespace compression;

/// One thread, elements of two bytes, Blosc's own choice of block size. The bits of the high and of
/// the low bytes are coded apart: of Blosc's modes this one has the best ratio here.
class BloscCodec : public Codec {
 public:
  BloscCodec(std::string name, uint8_t compressor, uint8_t level) : name_(std::move(name)) {
    blosc2_cparams encoding = BLOSC2_CPARAMS_DEFAULTS;
    encoding.compcode = compressor;
    encoding.clevel = level;
    encoding.typesize = 2;
    encoding.nthreads = 1;
    encoding.splitmode = BLOSC_ALWAYS_SPLIT;
    encoding.filters[BLOSC2_MAX_FILTERS - 1] = BLOSC_BITSHUFFLE;
    encoder_ = blosc2_create_cctx(encoding);
    blosc2_dparams decoding = BLOSC2_DPARAMS_DEFAULTS;
    decoding.nthreads = 1;
    decoder_ = blosc2_create_dctx(decoding);
  }
  ~BloscCodec() override {
    blosc2_free_ctx(encoder_);
    blosc2_free_ctx(decoder_);
  }
  BloscCodec(const BloscCodec&) = delete;
  BloscCodec& operator=(const BloscCodec&) = delete;

  std::string name() const override { return name_; }
  size_t encode(const Shape&, ConstBytes values, Bytes out) override {
    const int size = blosc2_compress_ctx(encoder_, values.data(), static_cast<int>(values.size()),
                                         out.data(), static_cast<int>(out.size()));
    return static_cast<size_t>(std::max(size, 0));
  }
  bool decode(const Shape&, ConstBytes coded, Bytes out) override {
    const int size = blosc2_decompress_ctx(decoder_, coded.data(), static_cast<int>(coded.size()),
                                           out.data(), static_cast<int>(out.size()));
    return std::cmp_equal(size, out.size());
  }

 private:
  const std::string name_;
  blosc2_context* encoder_;
  blosc2_context* decoder_;
};

}  // namespace

bool add_blosc_codecs(Codecs& codecs) {
  // The levels of Blosc at which LZ4 and ZSTD match the rows without bitshuffle.
  codecs.push_back(std::make_unique<BloscCodec>("bitshuffle+lz4", BLOSC_LZ4, 9));
  codecs.push_back(std::make_unique<BloscCodec>("bitshuffle+zstd", BLOSC_ZSTD, 1));
  return true;
}

}  // namespace bowhead::bench
