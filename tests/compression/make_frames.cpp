// SPDX-License-Identifier: Apache-2.0
// Makes the golden frames of the newest version of the format: make_frames FOLDER. A new version
// gets frames with new names; the frames of older versions never change, and no encoder makes them
// any more.
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
  Rotary interleaved = r8, part = r8, slow = r8;
  interleaved.interleaved = true;
  part.head = 16;
  part.first = 4;
  slow.step = kTurnOfOneRadian / 4;
  return {
      {"rotation_bf16_interleaved", {BF16, 1, 300, 16, interleaved}, Content::ROTATED, DENSE},
      {"rotation_bf16_part", {BF16, 2, 200, 32, part}, Content::ROTATED, FAST},
      {"rotation_fp16_slow", {FP16, 2, 300, 8, slow}, Content::ROTATED, FAST},
      {"search_bf16_keys", {BF16, 1, 256, 16, r8}, Content::ROTATED, DENSE},
      {"search_bf16_page", {BF16, 2, 16, 64, r64}, Content::ROTATED, FAST},
      {"search_bf16_wide", {BF16, 1, 3, 600}, Content::NORMAL, FAST},
      {"search_bf16_tiles", {BF16, 3, 1001, 1}, Content::REPEATED, DENSE},
      {"search_bf16_small", {BF16, 1, 9, 65}, Content::SMALL, BALANCED},
      {"search_fp16_keys", {FP16, 1, 260, 16, r8}, Content::ROTATED, DENSE},
      {"search_fp8_e4m3_keys", {FP8_E4M3, 1, 260, 16, r8}, Content::ROTATED, DENSE},
      {"search_fp8_e5m2_values", {FP8_E5M2, 1, 270, 12}, Content::NORMAL, FAST},
      {"search_int8_keys", {INT8, 1, 260, 16, rotary_of(1e4, 4)}, Content::ROTATED, FAST},
      {"search_int8_sparse", {INT8, 1, 257, 33}, Content::SPARSE, DENSE},
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
