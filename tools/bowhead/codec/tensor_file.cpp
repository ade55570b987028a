// SPDX-License-Identifier: Apache-2.0
#include "tools/bowhead/codec/tensor_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>

namespace bowhead::cli {
namespace {

constexpr std::pair<const char*, NumberFormat> kSafetensorsKinds[] = {
    {"BF16", NumberFormat::BF16},        {"F16", NumberFormat::FP16},
    {"F8_E4M3", NumberFormat::FP8_E4M3}, {"F8_E5M2", NumberFormat::FP8_E5M2},
    {"I8", NumberFormat::INT8},          {"U8", NumberFormat::BYTES}};

Error wrong(const std::string& path, const std::string& what) {
  return {Status::INVALID_ARGUMENT, fmt::format("{}: {}", path, what)};
}

/// Number of values in a shape; 0 if it has none or too many.
uint64_t values_of(const std::vector<uint64_t>& shape) {
  uint64_t values = 1;
  for (const uint64_t size : shape) {
    if (size == 0 || values > (uint64_t{1} << 40) / size) return 0;
    values *= size;
  }
  return values;
}

/// `name` is the file's name, with the tensor's if the file has several.
Result<Tensor> tensor_of(std::string name, NumberFormat number, std::vector<uint64_t> shape,
                         const char* begin, uint64_t bytes) {
  const uint64_t expected = values_of(shape) * element_bytes(number);
  if (expected == 0 || expected != bytes)
    return wrong(name, fmt::format("it has {} bytes, but its shape [{}] of {} takes {}", bytes,
                                   fmt::join(shape, ", "), number_name(number), expected));
  Tensor tensor{std::move(name), number, std::move(shape), {}};
  tensor.values.assign(begin, begin + bytes);
  return tensor;
}

/// The last dimension may be omitted: it follows from the size of the file.
Result<Tensor> read_raw(const std::string& path, const std::string& file,
                        const RawDescription& raw) {
  if (!raw.number)
    return wrong(path,
                 "not a .npy or .safetensors file: give its content by --number and "
                 "--shape (such as --number bf16 --shape 2048,64)");
  std::vector<uint64_t> shape = raw.shape;
  if (*raw.number == NumberFormat::BYTES && shape.empty()) shape = {file.size()};
  if (shape.empty()) return wrong(path, "--shape is missing: give it, such as --shape 2048,64");
  return tensor_of(path, *raw.number, shape, file.data(), file.size());
}

/// NumPy's format, versions 1 to 3 (numpy.lib.format).
Result<Tensor> read_npy(const std::string& path, const std::string& file) {
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(file[at]); };
  if (file.size() < 12) return wrong(path, "the file ends within its .npy header");
  const bool first = byte(6) == 1;
  const size_t header_bytes =
      first ? byte(8) | size_t{byte(9)} << 8
            : byte(8) | size_t{byte(9)} << 8 | size_t{byte(10)} << 16 | size_t{byte(11)} << 24;
  const size_t begin = first ? 10 : 12;
  if (header_bytes > file.size() - begin)
    return wrong(path, "the file ends within its .npy header");
  // NumPy's headers are short; std::regex needs stack for every byte.
  if (header_bytes > 10'000)
    return wrong(path, fmt::format("its .npy header has {} bytes, more than 10,000", header_bytes));
  const std::string header = file.substr(begin, header_bytes);
  std::smatch match;
  if (!std::regex_search(header, match, std::regex("'descr': *'([^']*)'")))
    return wrong(path, "its .npy header gives no simple type ('descr')");
  const std::string type = match[1];
  const NumberFormat kind = type == "<f2"   ? NumberFormat::FP16
                            : type == "|i1" ? NumberFormat::INT8
                                            : NumberFormat::BYTES;
  if (kind == NumberFormat::BYTES && type != "|u1")
    return wrong(
        path,
        fmt::format("its number type is {}, but only <f2, |i1 and |u1 can be compressed", type));
  if (header.find("'fortran_order': False") == std::string::npos)
    return wrong(path, "it is in Fortran order; save it in C order");
  if (!std::regex_search(header, match, std::regex("'shape': *\\(([0-9, ]*)\\)")))
    return wrong(path, "its .npy header has no shape");
  std::vector<uint64_t> shape;
  const std::string sizes = match[1];
  const std::regex number("[0-9]+");
  for (std::sregex_iterator at(sizes.begin(), sizes.end(), number), end; at != end; ++at)
    shape.push_back(std::strtoull(at->str().c_str(), nullptr, 10));
  const size_t data = begin + header_bytes;
  return tensor_of(path, kind, shape, file.data() + data, file.size() - data);
}

/// Eight bytes of header size, a JSON header, then the tensors' bytes.
Result<std::vector<Tensor>> read_safetensors(const std::string& path, const std::string& file,
                                             std::vector<std::string>& skipped) {
  uint64_t header_bytes = 0;
  if (file.size() >= 8) std::memcpy(&header_bytes, file.data(), 8);
  if (file.size() < 8 || header_bytes > file.size() - 8)
    return wrong(path, "the file ends within its .safetensors header");
  const auto header = nlohmann::json::parse(file.begin() + 8,
                                            file.begin() + 8 + static_cast<ptrdiff_t>(header_bytes),
                                            nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return wrong(path, "its .safetensors header is not a JSON object");
  const uint64_t data_bytes = file.size() - 8 - header_bytes;
  std::vector<Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::string full = path + ":" + name;
    try {
      const std::string type = entry.at("dtype");
      const std::vector<uint64_t> shape = entry.at("shape");
      const std::array<uint64_t, 2> offsets = entry.at("data_offsets");
      if (offsets[0] > offsets[1] || offsets[1] > data_bytes)
        return wrong(path, fmt::format("tensor {} lies outside the file", name));
      const auto* kind = std::find_if(std::begin(kSafetensorsKinds), std::end(kSafetensorsKinds),
                                      [&](const auto& k) { return type == k.first; });
      if (kind == std::end(kSafetensorsKinds)) {
        skipped.push_back(fmt::format("{} ({})", full, type));
        continue;
      }
      auto tensor = tensor_of(full, kind->second, shape,
                              file.data() + 8 + header_bytes + offsets[0], offsets[1] - offsets[0]);
      if (!tensor) return tensor.error();
      tensors.push_back(std::move(*tensor));
    } catch (const nlohmann::json::exception&) {
      return wrong(path, fmt::format("tensor {} has no dtype, shape and data_offsets", name));
    }
  }
  return tensors;
}

}  // namespace

Result<std::vector<Tensor>> read_tensors(const std::string& path, const RawDescription& raw,
                                         std::vector<std::string>& skipped) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return Error{Status::SYSTEM, fmt::format("{}: {}", path, std::strerror(errno))};
  const std::string file{std::istreambuf_iterator<char>(stream), {}};
  if (stream.bad()) return Error{Status::SYSTEM, fmt::format("cannot read {}", path)};
  if (path.ends_with(".safetensors")) return read_safetensors(path, file, skipped);
  auto tensor = file.starts_with("\x93NUMPY") ? read_npy(path, file) : read_raw(path, file, raw);
  if (!tensor) return tensor.error();
  std::vector<Tensor> tensors;
  tensors.push_back(std::move(*tensor));
  return tensors;
}

}  // namespace bowhead::cli
