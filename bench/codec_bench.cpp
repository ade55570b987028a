// SPDX-License-Identifier: Apache-2.0
// Every block of a tensor lies in memory many times, so that no pass finds its source or
// destination in the caches. In every round all codecs walk over all copies and back, as do plain
// copies of the same pieces; each round starts with a different codec.
#include "bench/codec_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "base/copy.h"
#include "base/private_memory.h"
#include "bench/codecs.h"
#include "bench/report.h"
#include "bench/team.h"
#include "tools/program/kv_data.h"

namespace bowhead::bench {
namespace {

using compression::Bytes;
using compression::ConstBytes;
using compression::Shape;
using namespace tensors;

constexpr char kLineFormat[] = "  {:<21} {:>6}  {:>21} {:>7}  {:>21} {:>7}";
constexpr uint64_t kBlockBytes[] = {64u << 10, 4u << 10};

struct Samples {
  std::vector<double> encode, decode;  // GB/s by round
  uint64_t values_bytes = 0, coded_bytes = 0;
};

/// The blocks of one tensor and one size, repeated to fill the walk.
class Walk {
 public:
  Walk(const KvTensor& tensor, uint64_t block_bytes, uint64_t bytes)
      : shape_{tensor.number, 1, static_cast<uint32_t>(block_bytes / tensor.row_bytes()),
               tensor.channels(), tensor.rotary},
        block_bytes_(shape_.size_bytes()),
        blocks_(tensor.head_bytes() / block_bytes_ * tensor.layers() * tensor.heads()),
        count_(std::max(bytes / block_bytes_, blocks_)),
        values_(count_ * block_bytes_),
        out_(count_ * block_bytes_),
        coded_(count_ * block_bytes_ / 2 * 3 + coded_room(block_bytes_)) {
    if (!has_memory()) return;
    const uint64_t per_head = tensor.head_bytes() / block_bytes_;
    for (uint64_t i = 0; i < count_; ++i) {
      const uint64_t block = i % blocks_;
      const uint64_t from =
          block / per_head * tensor.head_bytes() + block % per_head * block_bytes_;
      std::memcpy(values_.bytes().data() + i * block_bytes_, tensor.values.data() + from,
                  block_bytes_);
    }
    ends_.reserve(count_);
  }

  bool has_memory() const {
    return values_.data() != nullptr && out_.data() != nullptr && coded_.data() != nullptr;
  }
  const Shape& shape() const { return shape_; }
  uint64_t blocks() const { return blocks_; }  // distinct blocks
  uint64_t bytes() const { return count_ * block_bytes_; }

  bool encode(Codec& codec) {
    ends_.clear();
    uint64_t at = 0;
    const size_t room = coded_room(block_bytes_);
    for (uint64_t i = 0; i < count_; ++i) {
      if (at + room > coded_.bytes().size()) return false;
      const size_t size =
          codec.encode(shape_, block_of(values_, i), coded_.bytes().subspan(at, room));
      if (size == 0) return false;
      at += size;
      ends_.push_back(at);
    }
    return true;
  }
  bool decode(Codec& codec) {
    uint64_t at = 0;
    for (uint64_t i = 0; i < count_; ++i) {
      const ConstBytes coded = coded_.bytes().subspan(at, ends_[i] - at);
      if (!codec.decode(shape_, coded, block_of(out_, i))) return false;
      at = ends_[i];
    }
    return true;
  }
  void copy(CopyKind kind) {
    for (uint64_t i = 0; i < count_; ++i)
      copy_with(kind, block_of(out_, i).data(), block_of(values_, i).data(), block_bytes_);
  }

  void forget() { std::memset(out_.data(), 0xEE, bytes()); }
  bool right(const Codec& codec) const {
    for (uint64_t i = 0; i < count_; ++i) {
      if (!codec.right(shape_, block_of(values_, i), block_of(out_, i))) return false;
    }
    return true;
  }
  /// For the distinct blocks.
  uint64_t coded_bytes() const { return ends_[blocks_ - 1]; }

 private:
  Bytes block_of(const PrivateMemory& memory, uint64_t i) const {
    return memory.bytes().subspan(i * block_bytes_, block_bytes_);
  }

  const Shape shape_;
  const uint64_t block_bytes_, blocks_, count_;
  PrivateMemory values_, out_, coded_;
  std::vector<uint64_t> ends_;
};

double gb_per_s(uint64_t bytes, uint64_t begin_ns) {
  return static_cast<double>(bytes) / static_cast<double>(now_ns() - begin_ns);
}

class CodecBench {
 public:
  CodecBench(const CodecBenchOptions& options, const Machine& machine)
      : options_(options),
        walk_bytes_(options.quick ? 2u << 20
                                  : std::max<uint64_t>(64u << 20, machine.last_level_cache_bytes)),
        report_({"codec", options.quick, options.json, options.command}, machine) {
    add_frame_codecs(codecs_);
    add_plane_codecs(codecs_);
    add_general_codecs(codecs_);
  }

  Result<void> run(const std::vector<KvSet>& sets) {
    report_.print_header();
    if (!options_.json)
      fmt::print("{}\n", fmt::format(kLineFormat, "codec", "ratio", "encode GB/s", "of copy",
                                     "decode GB/s", "of copy"));
    for (const KvSet& set : sets) {
      for (const KvTensor& tensor : set.tensors) {
        if (tensor.role == KvRole::QUERIES) continue;
        for (const uint64_t block_bytes : kBlockBytes) {
          if (tensor.head_bytes() < block_bytes || block_bytes % tensor.row_bytes() != 0) {
            fmt::print(stderr,
                       "bowhead: skipped: {} {} of {}: the tokens of a head do not fill {}\n",
                       kv_role_name(tensor.role), number_name(tensor.number), set.name,
                       bytes_text(block_bytes));
          } else if (auto result = measure(set, tensor, block_bytes); !result) {
            return result;
          }
        }
      }
    }
    return {};
  }

 private:
  Result<void> measure(const KvSet& set, const KvTensor& tensor, uint64_t block_bytes) {
    const std::string what = fmt::format("{} {} {}, {} blocks", set.name, kv_role_name(tensor.role),
                                         number_name(tensor.number), bytes_text(block_bytes));
    report_.progress(what);
    Walk walk(tensor, block_bytes, walk_bytes_);
    if (!walk.has_memory())
      return Error{Status::SYSTEM,
                   fmt::format("no memory for buffers of {}", bytes_text(walk.bytes() * 7 / 2))};
    used_.clear();
    for (const auto& codec : codecs_) {
      if (codec->takes(tensor.number)) used_.push_back(codec.get());
    }
    samples_.assign(used_.size(), {});
    for (auto& kind : copies_) kind.clear();
    for (size_t i = 0; i < used_.size(); ++i) {
      if (auto result = check(walk, i, what); !result) return result;
    }
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      if (!measure_round(walk, round)) return wrong_block(what, "a codec");
    }
    report(set, tensor, walk, what);
    return {};
  }

  static Error wrong_block(const std::string& what, const std::string& codec) {
    return {Status::DAMAGED, fmt::format("{}: {} did not restore a block exactly", what, codec)};
  }

  /// Codes and decodes every block. Also touches every page that the rounds will use.
  Result<void> check(Walk& walk, size_t index, const std::string& what) {
    Codec& codec = *used_[index];
    walk.forget();
    if (!walk.encode(codec) || !walk.decode(codec) || !walk.right(codec))
      return wrong_block(what, codec.name());
    samples_[index].values_bytes = walk.blocks() * walk.shape().size_bytes();
    samples_[index].coded_bytes = walk.coded_bytes();
    return {};
  }

  bool measure_round(Walk& walk, uint32_t round) {
    bool good = true;
    const size_t kinds = copy_kinds().size(), passes = used_.size() + kinds;
    for (size_t i = 0; i < passes; ++i) {
      const size_t pass = (round + i) % passes;
      uint64_t begin = now_ns();
      if (pass < kinds) {
        walk.copy(copy_kinds()[pass]);
        copies_[pass].push_back(gb_per_s(walk.bytes(), begin));
        continue;
      }
      Codec& codec = *used_[pass - kinds];
      Samples& samples = samples_[pass - kinds];
      good &= walk.encode(codec);
      samples.encode.push_back(gb_per_s(walk.bytes(), begin));
      begin = now_ns();
      good &= walk.decode(codec);
      samples.decode.push_back(gb_per_s(walk.bytes(), begin));
    }
    return good;
  }

  void report(const KvSet& set, const KvTensor& tensor, const Walk& walk, const std::string& what) {
    size_t best = 0;
    for (size_t kind = 1; kind < copy_kinds().size(); ++kind) {
      if (summarize(copies_[kind]).median > summarize(copies_[best]).median) best = kind;
    }
    const std::vector<double>& limit = copies_[best];
    const char* limit_name = copy_kind_name(copy_kinds()[best]);
    report_.progress("");
    if (!options_.json) {
      fmt::print("{} ({} of them{}); copy: {} {}\n", what, walk.blocks(),
                 tensor.rotary.dim == 0 ? "" : ", rotated back", limit_name,
                 spread(summarize(limit), "GB/s"));
    }
    for (size_t i = 0; i < used_.size(); ++i) {
      const Codec& codec = *used_[i];
      const Samples& samples = samples_[i];
      if (!options_.json) {
        print_line(codec, samples, limit);
        continue;
      }
      Figure figure{.parameters = {{"codec", codec.name()},
                                   {"set", set.name},
                                   {"synthetic", set.synthetic},
                                   {"tensor", kv_role_name(tensor.role)},
                                   {"number", number_name(tensor.number)},
                                   {"block_bytes", walk.shape().size_bytes()},
                                   {"blocks", walk.blocks()},
                                   {"rotary_dim", tensor.rotary.dim},
                                   {"walk_bytes", walk.bytes()}}};
      add_figures(figure, codec, samples, {limit_name, summarize(limit)}, limit);
    }
    std::fflush(stdout);
  }

  static double ratio_of_bytes(const Samples& samples) {
    return static_cast<double>(samples.values_bytes) / static_cast<double>(samples.coded_bytes);
  }

  static void print_line(const Codec& codec, const Samples& samples,
                         const std::vector<double>& limit) {
    const auto of_copy = [&](const std::vector<double>& speeds) {
      return fmt::format("{:.3f}", ratio_of(speeds, limit).median);
    };
    std::string line =
        fmt::format(kLineFormat, codec.name(),
                    codec.is_format() ? fmt::format("{:.3f}", ratio_of_bytes(samples)) : "",
                    codec.encodes() ? spread(summarize(samples.encode), "") : "",
                    codec.encodes() ? of_copy(samples.encode) : "",
                    spread(summarize(samples.decode), ""), of_copy(samples.decode));
    fmt::print("{}\n", line);
  }

  void add_figures(Figure& figure, const Codec& codec, const Samples& samples, const Limit& best,
                   const std::vector<double>& limit) {
    if (codec.is_format()) {
      const double ratio = ratio_of_bytes(samples);
      figure.row = "ratio";
      figure.what = codec.name() + ": bytes of the values to bytes of the blocks";
      figure.value = {ratio, ratio, ratio, 1};
      figure.unit = "to 1";
      report_.add(figure);
    }
    figure.unit = "GB/s";
    figure.limit = best;
    for (const bool encode : {true, false}) {
      if (encode && !codec.encodes()) continue;
      const auto& speeds = encode ? samples.encode : samples.decode;
      figure.row = encode ? "encode" : "decode";
      figure.what = fmt::format("{}: {}", codec.name(), figure.row);
      figure.value = summarize(speeds);
      figure.ratio = ratio_of(speeds, limit);
      report_.add(figure);
    }
  }

  const CodecBenchOptions& options_;
  const uint64_t walk_bytes_;
  const Report report_;
  Codecs codecs_;
  std::vector<Codec*> used_;                     // those that take the numbers of the tensor
  std::vector<Samples> samples_;                 // by codec in use
  std::array<std::vector<double>, 3> copies_{};  // GB/s by kind and round
};

Result<std::vector<KvSet>> data_of(const CodecBenchOptions& options) {
  if (options.data.empty()) {
    std::vector<KvSet> sets;
    sets.push_back(make_kv_data());
    return sets;
  }
  auto sets = read_kv_data(options.data);
  if (!sets) return sets;
  for (KvSet& set : *sets) {
    for (KvTensor& tensor : set.tensors) {
      if (tensor.role == KvRole::KEYS) tensor.rotary = find_rotary(tensor);
    }
  }
  return sets;
}

}  // namespace

int run_codec_bench(const CodecBenchOptions& options) {
  const Machine machine = this_machine();
  Team team({machine.cpus.front()}, 0, 0);
  const auto result = team.run([&](Member&) -> Result<void> {
    const auto sets = data_of(options);
    if (!sets) return sets.error();
    return CodecBench(options, machine).run(*sets);
  });
  return result ? 0 : complain(result.error());
}

}  // namespace bowhead::bench
