// SPDX-License-Identifier: Apache-2.0
// Files of tensors: raw, .npy, .safetensors. A tensor that is read matches its shape and can be
// measured; a refusal names the file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/assert.h"
#include "tests/fuzz/input.h"
#include "tools/bowhead/codec/measure.h"
#include "tools/bowhead/codec/tensor_file.h"

namespace bowhead::cli {
namespace {

/// One file in memory under three names, in a folder that is removed at exit.
class TensorFile {
 public:
  TensorFile() : fd_(memfd_create("tensor", 0)) {
    BOWHEAD_ASSERT(fd_ >= 0 && mkdtemp(folder_.data()) != nullptr);
    const std::string target = "/proc/self/fd/" + std::to_string(fd_);
    for (const char* name : kNames)
      BOWHEAD_ASSERT(symlink(target.c_str(), path(name).c_str()) == 0);
  }
  ~TensorFile() {
    for (const char* name : kNames) (void)unlink(path(name).c_str());
    (void)rmdir(folder_.c_str());
    (void)close(fd_);
  }
  std::string hold(std::string_view bytes, uint32_t name) {
    BOWHEAD_ASSERT(ftruncate(fd_, 0) == 0);
    BOWHEAD_ASSERT(pwrite(fd_, bytes.data(), bytes.size(), 0) ==
                   static_cast<ssize_t>(bytes.size()));
    return path(kNames[name % std::size(kNames)]);
  }

 private:
  static constexpr const char* kNames[] = {"t.bin", "t.npy", "t.safetensors"};
  std::string path(const char* name) const { return folder_ + "/" + name; }

  int fd_;
  std::string folder_ = std::filesystem::temp_directory_path() / "bowhead-fuzz-XXXXXX";
};

void check(const std::string& path, const RawDescription& raw) {
  std::vector<std::string> skipped;
  const auto tensors = read_tensors(path, raw, skipped);
  if (!tensors) {
    BOWHEAD_ASSERT(tensors.status() == Status::INVALID_ARGUMENT);
    BOWHEAD_ASSERT(tensors.error().message().find(path) != std::string::npos);
    return;
  }
  for (const Tensor& tensor : *tensors) {
    uint64_t values = 1;
    for (const uint64_t size : tensor.shape) values *= size;
    BOWHEAD_ASSERT(tensor.values.size() == values * element_bytes(tensor.number));
    BOWHEAD_ASSERT(!tensor.values.empty());
    BOWHEAD_ASSERT(!tensor.shape.empty());
    if (element_bytes(tensor.number) > 2) continue;  // the command takes no such numbers
    const auto measured =
        measure_tensor(tensor, {.rounds = 1, .quick = true}, {compression::Profile::FAST});
    BOWHEAD_ASSERT(measured || measured.status() == Status::INVALID_ARGUMENT);
  }
}

}  // namespace
}  // namespace bowhead::cli

/// The name, the description of a raw file, the file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bowhead;
  static cli::TensorFile file;
  fuzz::Input input(data, size);
  const auto name = input.take<uint8_t>();
  cli::RawDescription raw;
  if (const auto number = input.take<uint8_t>() % 8; number > 0 && number < 7)
    raw.number = static_cast<NumberFormat>(number);
  for (auto sizes = input.take<uint8_t>() % 4; sizes > 0; --sizes)
    raw.shape.push_back(input.take<uint8_t>());
  cli::check(file.hold(input.take_bytes(size), name), raw);
  return 0;
}
