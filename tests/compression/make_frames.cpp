// SPDX-License-Identifier: Apache-2.0
// Makes the golden frames: make_frames FOLDER. Run it for a new version of the format, into files
// with new names; the frames of older versions never change.
//
// decoder_test.py asserts that they contain every number format, layout, codec and kind of centre.
#include <fmt/format.h>

#include <fstream>

#include "tests/support/tensors.h"

namespace bowhead::compression {
namespace {

struct Golden {
  const char* name;
  Shape shape;
  Content content;
  Profile profile;
};

std::vector<Golden> goldens() {
  using enum NumberFormat;
  using enum Profile;
  const Rotary r8 = rotary_of(1e4, 8), r64 = rotary_of(1e4, 64);
  return {
      {"bf16_values", {BF16, 1, 20, 72}, Content::NORMAL, DENSE},
      {"bf16_keys", {BF16, 1, 96, 16, r8}, Content::ROTATED, DENSE},
      {"bf16_repeated", {BF16, 1, 64, 64}, Content::REPEATED, FAST},
      {"bf16_sparse", {BF16, 1, 40, 80}, Content::SPARSE, DENSE},
      {"bf16_special", {BF16, 1, 20, 72}, Content::SPECIAL, DENSE},
      {"bf16_small", {BF16, 1, 9, 65}, Content::SMALL, BALANCED},
      {"bf16_random", {BF16, 1, 3, 65}, Content::RANDOM, FAST},
      {"bf16_long_planes", {BF16, 1, 64, 128, r64}, Content::ROTATED, FAST},
      {"bf16_tiles", {BF16, 3, 1001, 1}, Content::REPEATED, DENSE},
      {"fp16_values", {FP16, 1, 40, 35}, Content::NORMAL, DENSE},
      {"fp16_keys", {FP16, 2, 33, 8, r8}, Content::ROTATED, DENSE},
      {"fp16_sparse", {FP16, 1, 30, 40}, Content::SPARSE, BALANCED},
      {"fp8_e4m3_keys", {FP8_E4M3, 1, 48, 64, r64}, Content::ROTATED, DENSE},
      {"fp8_e4m3_sparse", {FP8_E4M3, 3, 40, 21}, Content::SPARSE, FAST},
      {"fp8_e4m3_tiles", {FP8_E4M3, 1, 65'537, 1}, Content::REPEATED, DENSE},
      {"fp8_e5m2_values", {FP8_E5M2, 1, 40, 72}, Content::NORMAL, DENSE},
      {"fp8_e5m2_sparse", {FP8_E5M2, 1, 60, 30}, Content::SPARSE, FAST},
      {"int8_values", {INT8, 1, 20, 33}, Content::NORMAL, DENSE},
      {"int8_repeated", {INT8, 1, 60, 33}, Content::REPEATED, FAST},
      {"int8_sparse", {INT8, 1, 50, 40}, Content::SPARSE, FAST},
      {"bytes_text", {BYTES, 1, 2000, 1}, Content::NORMAL, DENSE},
      {"bytes_tiles", {BYTES, 1, 65'000, 1}, Content::ZERO, FAST},
  };
}

bool write(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  return file.flush().good();
}

int run(const std::string& folder) {
  for (const Golden& golden : goldens()) {
    const auto values = make_tensor(golden.shape, golden.content, 1);
    std::vector<uint8_t> frame(frame_bound(golden.shape));
    const auto size = Encoder(golden.profile).encode(golden.shape, values, frame);
    if (!size) {
      fmt::print(stderr, "make_frames: {}: {}\n", golden.name, size.error().message());
      return 1;
    }
    frame.resize(*size);
    const std::string path = folder + "/" + golden.name;
    if (write(path + ".frame", frame) && write(path + ".raw", values)) continue;
    fmt::print(stderr, "make_frames: cannot write {}.frame and .raw; is it a folder?\n", path);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace bowhead::compression

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "Usage: make_frames FOLDER\n");
    return 2;
  }
  return bowhead::compression::run(argv[1]);
}
