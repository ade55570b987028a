// SPDX-License-Identifier: Apache-2.0
#include "tools/program/kv_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "base/random.h"
#include "tools/program/input.h"

namespace bowhead::tensors {
namespace {

using namespace compression;

constexpr std::pair<const char*, KvRole> kRoles[] = {
    {"k", KvRole::KEYS}, {"v", KvRole::VALUES}, {"q", KvRole::QUERIES}};
constexpr std::pair<const char*, NumberFormat> kNumberNames[] = {
    {"bf16", NumberFormat::BF16},
    {"fp16", NumberFormat::FP16},
    {"fp8_e4m3", NumberFormat::FP8_E4M3},
    {"fp8_e5m2", NumberFormat::FP8_E5M2},
    {"int8", NumberFormat::INT8}};

template <class Table>
auto find_in(const Table& table, const std::string& name)
    -> std::optional<decltype(table[0].second)> {
  for (const auto& [known, value] : table) {
    if (name == known) return value;
  }
  return std::nullopt;
}

Error wrong_file(const std::filesystem::path& path, const std::string& what) {
  return {Status::INVALID_ARGUMENT, fmt::format("{}: {}", path.string(), what)};
}

Result<void> read_tensor(const std::filesystem::path& path, const nlohmann::json& entry,
                         KvSet& set) {
  const auto role = find_in(kRoles, entry.at("tensor"));
  const auto number = find_in(kNumberNames, entry.at("dtype"));
  if (!role || !number) return {};
  KvTensor tensor{.set = set.name, .number = *number, .role = *role};
  tensor.shape = entry.at("shape");
  const auto bytes = cli::read_input(path.string());
  if (!bytes) return bytes.error();
  const uint64_t expected = uint64_t{tensor.layers()} * tensor.heads() * tensor.head_bytes();
  if (expected == 0 || bytes->size() != expected)
    return wrong_file(
        path, fmt::format("it has {} bytes, but by meta.json, as [{}] of {}, {}", bytes->size(),
                          fmt::join(tensor.shape, ", "), number_name(*number), expected));
  tensor.values.assign(bytes->begin(), bytes->end());
  set.tensors.push_back(std::move(tensor));
  return {};
}

Result<KvSet> read_set(const std::filesystem::path& folder) {
  KvSet set{.name = std::filesystem::path(folder / "").parent_path().filename().string()};
  const auto meta_path = folder / "meta.json";
  const auto text = cli::read_input(meta_path.string());
  if (!text) return text.error();
  try {
    const auto meta = nlohmann::json::parse(text->begin(), text->end());
    for (const auto& [name, entry] : meta.at("files").items()) {
      if (auto result = read_tensor(folder / name, entry, set); !result) return result.error();
    }
  } catch (const nlohmann::json::exception& exception) {
    return wrong_file(meta_path, fmt::format("it lists no tensors: {}", exception.what()));
  }
  const std::string positions_path = folder / "qpos.u32.bin";
  const auto has_positions = cli::input_exists(positions_path);
  if (!has_positions) return has_positions.error();
  if (*has_positions) {
    const auto positions = cli::read_input(positions_path);
    if (!positions) return positions.error();
    set.query_positions.resize(positions->size() / 4);
    std::memcpy(set.query_positions.data(), positions->data(), set.query_positions.size() * 4);
  }
  std::sort(set.tensors.begin(), set.tensors.end(), [](const KvTensor& a, const KvTensor& b) {
    return std::tie(a.number, a.role) < std::tie(b.number, b.role);
  });
  return set;
}

double uniform(Random& random) { return static_cast<double>(random.next() >> 11) * 0x1p-53; }

double normal(Random& random) {
  return std::sqrt(-2 * std::log(1 - uniform(random))) * std::cos(2 * M_PI * uniform(random));
}

/// The nearest number of a format; none of our numbers comes near its largest.
uint32_t nearest(const Number& number, double value) {
  const int bias = (1 << (number.exponent_bits - 1)) - 1;
  int exponent = 0;
  (void)std::frexp(value, &exponent);
  exponent = std::max(exponent - 1, 1 - bias);
  // If rounding carries, the mantissa overflows into the exponent, as it should.
  const auto significand = static_cast<uint32_t>(
      std::nearbyint(std::ldexp(std::abs(value), number.mantissa_bits - exponent)));
  const auto hidden = 1u << number.mantissa_bits;
  const auto magnitude =
      (static_cast<uint32_t>(exponent + bias) << number.mantissa_bits) + significand - hidden;
  return magnitude | (std::signbit(value) ? 1u << (number.element_bytes * 8 - 1) : 0);
}

constexpr uint32_t kSyntheticTokens = 2048, kSyntheticChannels = 128, kSyntheticHeads = 4;
constexpr uint32_t kSyntheticGroup = 2, kSyntheticQueries = 64;
constexpr double kSyntheticBase = 5e5;

/// One head, [token][channel].
std::vector<double> make_head(KvRole role, uint32_t head) {
  Random random(1000 * (static_cast<uint64_t>(role) + 1) + head);
  std::vector<double> scales, means, values;
  for (uint32_t c = 0; c < kSyntheticChannels; ++c) {
    scales.push_back(std::exp(0.5 * normal(random)));
    means.push_back(scales[c] * normal(random) * (role == KvRole::KEYS ? 1 : 0.3));
  }
  const bool repeats = role == KvRole::VALUES && head == 0;
  const uint32_t half = kSyntheticChannels / 2;
  std::vector<double> row(kSyntheticChannels);
  for (uint32_t t = 0; t < kSyntheticTokens; ++t) {
    // Words are as frequent as in a text: the n-th with a weight of 1 / n.
    Random of_token(static_cast<uint64_t>(std::exp(uniform(random) * std::log(8192))) + 77);
    for (uint32_t c = 0; c < kSyntheticChannels; ++c)
      row[c] = means[c] + scales[c] * normal(repeats ? of_token : random);
    for (uint32_t i = 0; role == KvRole::KEYS && i < half; ++i) {
      const double angle = t * std::pow(kSyntheticBase, -2.0 * i / kSyntheticChannels);
      const double x = row[i], y = row[i + half];
      row[i] = x * std::cos(angle) - y * std::sin(angle);
      row[i + half] = x * std::sin(angle) + y * std::cos(angle);
    }
    values.insert(values.end(), row.begin(), row.end());
  }
  return values;
}

void append(const Number& number, double value, std::vector<uint8_t>& out) {
  const uint32_t bits = nearest(number, value);
  out.push_back(static_cast<uint8_t>(bits));
  out.push_back(static_cast<uint8_t>(bits >> 8));
}

/// Small queries like the keys of random tokens; sets their positions, too.
KvTensor make_queries(const KvTensor& keys, KvSet& set) {
  KvTensor tensor{.set = set.name, .number = keys.number, .role = KvRole::QUERIES};
  tensor.shape = {1, kSyntheticHeads * kSyntheticGroup, kSyntheticQueries, kSyntheticChannels};
  for (uint32_t q = 0; q < kSyntheticQueries; ++q)
    set.query_positions.push_back(kSyntheticTokens - kSyntheticQueries + q);
  Random random(77);
  for (uint32_t head = 0; head < tensor.heads(); ++head) {
    const ConstBytes rows = keys.head(head / kSyntheticGroup);
    for (const uint32_t position : set.query_positions) {
      const size_t row = random.below(position + 1) * keys.row_bytes();
      for (uint32_t c = 0; c < kSyntheticChannels; ++c) {
        const uint32_t bits = rows[row + 2 * c] | uint32_t{rows[row + 2 * c + 1]} << 8;
        append(*number_of(keys.number), 0.2 * (value_of(keys.number, bits) + normal(random)),
               tensor.values);
      }
    }
  }
  return tensor;
}

}  // namespace

const char* kv_role_name(KvRole role) {
  constexpr const char* kNames[] = {"keys", "values", "queries"};
  return kNames[static_cast<size_t>(role)];
}

Result<std::vector<KvSet>> read_kv_data(const std::string& folder) {
  std::vector<std::filesystem::path> candidates = {folder}, folders;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    candidates.push_back(entry.path());
  if (error) return Error{Status::SYSTEM, fmt::format("{}: {}", folder, error.message())};
  for (const auto& path : candidates) {
    const auto is_set = cli::input_exists((path / "meta.json").string());
    if (!is_set) return is_set.error();
    if (*is_set) folders.push_back(path);
  }
  if (folders.empty())
    return wrong_file(folder,
                      "neither it nor a folder in it has a meta.json: there is no set of tensors");
  std::sort(folders.begin(), folders.end());
  std::vector<KvSet> sets;
  for (const auto& path : folders) {
    auto set = read_set(path);
    if (!set) return set.error();
    sets.push_back(std::move(*set));
  }
  return sets;
}

KvSet make_kv_data() {
  KvSet set{.name = "synthetic", .synthetic = true};
  for (const NumberFormat kind : {NumberFormat::BF16, NumberFormat::FP16}) {
    for (const KvRole role : {KvRole::KEYS, KvRole::VALUES}) {
      KvTensor tensor{.set = set.name, .number = kind, .role = role};
      tensor.shape = {1, kSyntheticHeads, kSyntheticTokens, kSyntheticChannels};
      if (role == KvRole::KEYS) tensor.rotary = rotary_of(kSyntheticBase, kSyntheticChannels);
      for (uint32_t head = 0; head < kSyntheticHeads; ++head) {
        for (const double value : make_head(role, head))
          append(*number_of(kind), value, tensor.values);
      }
      set.tensors.push_back(std::move(tensor));
    }
    if (kind == NumberFormat::BF16) set.tensors.push_back(make_queries(set.tensors.front(), set));
  }
  return set;
}

const KvTensor* find_tensor(const KvSet& set, KvRole role, NumberFormat number) {
  for (const KvTensor& tensor : set.tensors) {
    if (tensor.role == role && tensor.number == number) return &tensor;
  }
  return nullptr;
}

Result<void> check_queries(const KvSet& set, const KvTensor& keys, const KvTensor& queries) {
  const auto& at = set.query_positions;
  std::string why;
  if (queries.layers() != keys.layers())
    why = "they have another number of layers";
  else if (queries.heads() % keys.heads() != 0)
    why = "the number of query heads is no multiple of that of key heads";
  else if (queries.channels() != keys.channels())
    why = "they have other channels";
  else if (at.size() != queries.tokens())
    why = fmt::format("qpos.u32.bin has {} positions", at.size());
  else if (const uint32_t last = *std::max_element(at.begin(), at.end()); last >= keys.tokens())
    why = fmt::format("position {} lies behind the last token", last);
  if (why.empty()) return {};
  return Error{Status::INVALID_ARGUMENT,
               fmt::format("{}: queries of [{}] do not go with keys of [{}]: {}", set.name,
                           fmt::join(queries.shape, ", "), fmt::join(keys.shape, ", "), why)};
}

double find_rotary_base(const KvTensor& keys) {
  if (keys.channels() % 2 != 0) return 0;
  Encoder encoder(Profile::FAST);
  Shape shape{keys.number, 1, keys.tokens(), keys.channels()};
  std::vector<uint8_t> frame(frame_bound(shape));
  const uint32_t heads = keys.layers() * keys.heads();
  double best = 0;
  size_t least = SIZE_MAX;
  for (const double base : {0.0, 1e4, 5e5, 1e6}) {
    shape.rotary = base == 0 ? Rotary{} : rotary_of(base, keys.channels());
    size_t all = 0;
    // In the first layer keys may repeat, so that the rotation makes no difference.
    for (const uint32_t head : {0u, heads / 2, heads - 1}) {
      const auto size = encoder.encode(shape, keys.head(head), frame);
      all += size ? *size : frame.size();
    }
    if (all >= least) continue;
    least = all;
    best = base;
  }
  return best;
}

Rotary find_rotary(const KvTensor& keys) {
  const double base = find_rotary_base(keys);
  return base == 0 ? Rotary{} : rotary_of(base, keys.channels());
}

}  // namespace bowhead::tensors
