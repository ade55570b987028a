// SPDX-License-Identifier: Apache-2.0
#include "tools/bowhead/codec/tensor_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <regex>

#include "tools/program/input.h"

namespace bowhead::cli {
namespace {

constexpr std::pair<const char*, NumberFormat> kSafetensorsKinds[] = {
    {"BF16", NumberFormat::BF16},        {"F16", NumberFormat::FP16},
    {"F8_E4M3", NumberFormat::FP8_E4M3}, {"F8_E5M2", NumberFormat::FP8_E5M2},
    {"I8", NumberFormat::INT8},          {"U8", NumberFormat::BYTES}};

Error wrong(const std::string& path, const std::string& what) {
  return {Status::INVALID_ARGUMENT, fmt::format("{}: {}", path, what)};
}

/// Number of values in a shape, 1 of a scalar; empty if it is more than any file has.
std::optional<uint64_t> values_of(const std::vector<uint64_t>& shape) {
  uint64_t values = 1;
  for (const uint64_t size : shape) {
    if (size != 0 && values > (uint64_t{1} << 40) / size) return std::nullopt;
    values *= size;
  }
  return values;
}

/// What a file holds: tensors, and sentences about those that cannot be measured.
struct Found {
  std::vector<Tensor> tensors;
  std::vector<std::string>& skipped;
};

/// `name` is the file's name, with the tensor's if the file has several.
Result<void> add_tensor(std::string name, NumberFormat number, std::vector<uint64_t> shape,
                        const char* begin, uint64_t bytes, Found& found) {
  const auto values = values_of(shape);
  if (!values || *values * element_bytes(number) != bytes)
    return wrong(name, fmt::format("it has {} bytes, but its shape [{}] of {} takes {}", bytes,
                                   fmt::join(shape, ", "), number_name(number),
                                   values ? fmt::to_string(*values * element_bytes(number))
                                          : "more than any file has"));
  if (shape.empty() || bytes == 0) {
    found.skipped.push_back(
        fmt::format("{} is skipped: {}", name, bytes == 0 ? "it is empty" : "it is a scalar"));
    return {};
  }
  Tensor tensor{std::move(name), number, std::move(shape), {}};
  tensor.values.assign(begin, begin + bytes);
  found.tensors.push_back(std::move(tensor));
  return {};
}

/// The last dimension may be omitted: it follows from the size of the file.
Result<void> read_raw(const std::string& path, const std::string& file, const RawDescription& raw,
                      Found& found) {
  if (!raw.number)
    return wrong(path,
                 "not a .npy or .safetensors file: give its content by --number and "
                 "--shape (such as --number bf16 --shape 2048,64)");
  std::vector<uint64_t> shape = raw.shape;
  if (*raw.number == NumberFormat::BYTES && shape.empty()) shape = {file.size()};
  if (shape.empty()) return wrong(path, "--shape is missing: give it, such as --shape 2048,64");
  return add_tensor(path, *raw.number, shape, file.data(), file.size(), found);
}

/// NumPy's format, versions 1 to 3 (numpy.lib.format).
Result<void> read_npy(const std::string& path, const std::string& file, Found& found) {
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
  return add_tensor(path, kind, shape, file.data() + data, file.size() - data, found);
}

/// A list of whole numbers; nothing if it is anything else. JSON converts what has a sign or a
/// fraction without a word.
std::optional<std::vector<uint64_t>> whole_numbers(const nlohmann::json& list) {
  if (!list.is_array()) return std::nullopt;
  std::vector<uint64_t> numbers;
  for (const auto& number : list) {
    if (!number.is_number_unsigned()) return std::nullopt;
    numbers.push_back(number);
  }
  return numbers;
}

/// A value as an error shows it. One that is nested may be so deeply, and is not followed.
std::string shown(const nlohmann::json& value) {
  constexpr size_t kMostShown = 16, kMostBytes = 100;
  const bool flat =
      value.is_primitive() ||
      (value.is_array() && value.size() <= kMostShown &&
       std::all_of(value.begin(), value.end(), [](const auto& one) { return one.is_primitive(); }));
  const std::string text =
      flat ? value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) : "";
  return text.empty() || text.size() > kMostBytes ? std::string("of type ") + value.type_name()
                                                  : text;
}

/// One tensor of a .safetensors file, whose `data` follows its header.
Result<void> read_entry(const std::string& path, const std::string& name,
                        const nlohmann::json& entry, std::string_view data, Found& found) {
  static const nlohmann::json kAbsent;
  const auto field = [&](const char* key) -> const nlohmann::json& {
    const auto at = entry.find(key);
    return at == entry.end() ? kAbsent : *at;
  };
  if (!entry.is_object() || !field("dtype").is_string())
    return wrong(path, fmt::format("tensor {} has no dtype", name));
  const std::string type = field("dtype");
  const auto shape = whole_numbers(field("shape"));
  if (!shape)
    return wrong(path, fmt::format("tensor {} has shape {}, which is not a list of whole numbers",
                                   name, shown(field("shape"))));
  const auto offsets = whole_numbers(field("data_offsets"));
  if (!offsets || offsets->size() != 2)
    return wrong(path, fmt::format("tensor {} has no data_offsets of two whole numbers", name));
  const uint64_t begin = (*offsets)[0], end = (*offsets)[1];
  if (begin > end || end > data.size())
    return wrong(path, fmt::format("tensor {} lies outside the file", name));
  const std::string full = path + ":" + name;
  const auto* kind = std::find_if(std::begin(kSafetensorsKinds), std::end(kSafetensorsKinds),
                                  [&](const auto& k) { return type == k.first; });
  if (kind == std::end(kSafetensorsKinds)) {
    found.skipped.push_back(
        fmt::format("{} ({}) is skipped: its number format is not supported", full, type));
    return {};
  }
  return add_tensor(full, kind->second, *shape, data.data() + begin, end - begin, found);
}

/// Eight bytes of header size, a JSON header, then the tensors' bytes.
Result<void> read_safetensors(const std::string& path, const std::string& file, Found& found) {
  uint64_t header_bytes = 0;
  if (file.size() >= 8) std::memcpy(&header_bytes, file.data(), 8);
  if (file.size() < 8 || header_bytes > file.size() - 8)
    return wrong(path, "the file ends within its .safetensors header");
  const auto header = nlohmann::json::parse(file.begin() + 8,
                                            file.begin() + 8 + static_cast<ptrdiff_t>(header_bytes),
                                            nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return wrong(path, "its .safetensors header is not a JSON object");
  const std::string_view data = std::string_view(file).substr(8 + header_bytes);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    if (auto read = read_entry(path, name, entry, data, found); !read) return read;
  }
  return {};
}

}  // namespace

Result<std::vector<Tensor>> read_tensors(const std::string& path, const RawDescription& raw,
                                         std::vector<std::string>& skipped) {
  const auto input = read_input(path);
  if (!input) return input.error();
  const std::string& file = *input;
  Found found{{}, skipped};
  const auto read = path.ends_with(".safetensors")  ? read_safetensors(path, file, found)
                    : file.starts_with("\x93NUMPY") ? read_npy(path, file, found)
                                                    : read_raw(path, file, raw, found);
  if (!read) return read.error();
  return std::move(found.tensors);
}

}  // namespace bowhead::cli
