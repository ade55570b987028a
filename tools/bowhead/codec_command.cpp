// SPDX-License-Identifier: Apache-2.0
// bowhead codec: compresses the tensors in files and reports ratio, speed and error.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "tools/bowhead/cli.h"
#include "tools/bowhead/codec/measure.h"
#include "tools/bowhead/codec/plot.h"
#include "tools/bowhead/json.h"
#include "tools/program/numbers.h"
#include "tools/program/text.h"

namespace bowhead::cli {
namespace {

using compression::Profile;

constexpr std::pair<const char*, Profile> kProfiles[] = {
    {"fast", Profile::FAST}, {"balanced", Profile::BALANCED}, {"dense", Profile::DENSE}};

struct Arguments {
  std::vector<std::string> files, profiles;
  std::string number, plot;
  RawDescription raw;
  CodecOptions options;
  bool json = false;
};

constexpr const char* kFooter = R"(
Divides each tensor into blocks of whole tokens, compresses every block on its own, and verifies
that it is restored bit for bit. Shows the ratio and speed of each profile, beside a plain copy in
the same rounds; and bits and error if only the first bit-planes are read, which --plot draws.

A tensor is [...][tokens][channels]: the last two dimensions of its shape. Keys after rotary
position embedding compress better if its base ("rope theta") is known.

Examples:
  bowhead codec keys.npy
  bowhead codec model-cache.safetensors --profile dense --plot planes.svg
  bowhead codec k.bin --number bf16 --shape 12,2048,64 --rope-base 10000)";

const char* profile_name(Profile profile) {
  for (const auto& [name, known] : kProfiles) {
    if (known == profile) return name;
  }
  return "?";
}

std::string speed_text(const Speed& speed) {
  return fmt::format("{:.2f} ({:.2f}..{:.2f})", speed.median, speed.least, speed.most);
}

void print_people(const Tensor& tensor, const TensorReport& report) {
  const auto& shape = report.block;
  print(fmt::format("{}: {} [{}], {} in {} blocks of {} tokens x {} channels\n", tensor.name,
                    number_name(tensor.number), fmt::join(tensor.shape, ", "),
                    human_bytes(tensor.values.size()), grouped(report.blocks), shape.tokens,
                    shape.channels));
  Table profiles({"profile", ">ratio", ">encode GB/s", ">decode GB/s", ">copy GB/s"});
  for (const ProfileReport& p : report.profiles)
    profiles.add({profile_name(p.profile), fmt::format("{:.3f}", p.ratio()), speed_text(p.encode),
                  speed_text(p.decode), speed_text(p.copy)});
  print(profiles.text());
  if (report.precisions.empty()) return;
  const ProfileReport& last = report.profiles.back();
  const double plane_bytes =
      static_cast<double>(last.values_bytes) / element_bytes(tensor.number) / 8;
  print(fmt::format("\nFirst planes only ({}):\n", profile_name(last.profile)));
  Table planes({"planes", ">the last takes", ">bits read per value", ">error", ">decode GB/s"});
  for (const PrecisionReport& p : report.precisions)
    planes.add({fmt::format("sign + {}", p.planes - 1),
                fmt::format("{:.3f} bits",
                            static_cast<double>(last.stream_bytes[p.planes - 1]) / plane_bytes),
                fmt::format("{:.2f}", p.bits_per_value), fmt::format("{:.3g}", p.error),
                speed_text(p.decode)});
  print(planes.text() + "\n");
}

Json speed_json(const Speed& speed) {
  return {{"median", speed.median}, {"min", speed.least}, {"max", speed.most}};
}

Json to_json(const Tensor& tensor, const TensorReport& report) {
  Json json{{"tensor", tensor.name},
            {"number", number_name(tensor.number)},
            {"shape", tensor.shape},
            {"blocks", report.blocks},
            {"block_tokens", report.block.tokens},
            {"block_channels", report.block.channels}};
  for (const ProfileReport& p : report.profiles) {
    const auto begin = p.stream_bytes.begin();
    json["profiles"].push_back({{"profile", profile_name(p.profile)},
                                {"values_bytes", p.values_bytes},
                                {"frames_bytes", p.frames_bytes},
                                {"ratio", p.ratio()},
                                {"plane_bytes", std::vector<uint64_t>(begin, begin + p.planes)},
                                {"remainder_bytes", p.stream_bytes[compression::kMaxPlanes]},
                                {"exceptions_bytes", p.stream_bytes[compression::kMaxPlanes + 1]},
                                {"other_bytes", p.stream_bytes[compression::kMaxPlanes + 2]},
                                {"encode_gb_per_s", speed_json(p.encode)},
                                {"decode_gb_per_s", speed_json(p.decode)},
                                {"copy_gb_per_s", speed_json(p.copy)}});
  }
  json["precisions"] = Json::array();
  for (const PrecisionReport& p : report.precisions)
    json["precisions"].push_back({{"planes", p.planes},
                                  {"bits_read_per_value", p.bits_per_value},
                                  {"relative_error", p.error},
                                  {"decode_gb_per_s", speed_json(p.decode)}});
  return json;
}

Curve curve_of(const Tensor& tensor, const TensorReport& report) {
  Curve curve{tensor.name, {}};
  for (const PrecisionReport& p : report.precisions)
    curve.points.push_back({fmt::format("sign + {}", p.planes - 1), p.bits_per_value, p.error});
  return curve;
}

int run(Arguments arguments) {
  arguments.raw.number = number_named(arguments.number);
  std::vector<Profile> profiles;
  for (const auto& [name, profile] : kProfiles) {
    const auto& wanted = arguments.profiles;
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end())
      profiles.push_back(profile);
  }
  std::ofstream plot;
  if (!arguments.plot.empty()) {
    plot.open(arguments.plot);  // first: fails before the long work
    if (!plot)
      return fail({Status::SYSTEM, fmt::format("{}: {}", arguments.plot, std::strerror(errno))});
  }
  uint64_t tensors = 0;
  std::vector<Curve> curves;
  std::vector<std::string> skipped;
  for (const std::string& file : arguments.files) {
    const auto read = read_tensors(file, arguments.raw, skipped);
    if (!read) return fail(read.error());
    for (const Tensor& tensor : *read) {
      const auto report = measure_tensor(tensor, arguments.options, profiles);
      if (!report) return fail(report.error(), tensor.name);
      ++tensors;
      if (!report->precisions.empty()) curves.push_back(curve_of(tensor, *report));
      arguments.json ? print(json_text(to_json(tensor, *report), -1) + "\n")
                     : print_people(tensor, *report);
    }
  }
  for (const std::string& sentence : skipped) say(sentence);
  if (tensors == 0) {
    say("no tensor to compress");
    return kUsage;
  }
  if (arguments.plot.empty()) return kOk;
  plot << plot_svg(fmt::format("First bit-planes of frames ({})", profile_name(profiles.back())),
                   curves);
  plot.close();
  if (!plot) return fail({Status::SYSTEM, "cannot write " + arguments.plot});
  return kOk;
}

}  // namespace

void add_codec_command(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("codec", "Compress tensors from files, verify and measure");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("file", arguments->files, ".npy, .safetensors, or raw numbers")->required();
  command
      ->add_option("--number,--dtype", arguments->number,
                   "Number format of raw files: bf16, fp16, fp8_e4m3, fp8_e5m2, int8, or bytes")
      ->check(CLI::IsMember({"bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8", "bytes"}));
  add_number(*command, "--shape", arguments->raw.shape,
             "Shape of raw files, such as 12,2048,64; each dimension at most 2^32",
             {1, uint64_t{1} << 32})
      ->delimiter(',');
  command
      ->add_option("--profile", arguments->profiles,
                   "Only this profile: fast, balanced, or dense; may be repeated")
      ->check(CLI::IsMember({"fast", "balanced", "dense"}));
  add_size(*command, "--block-bytes", arguments->options.block_bytes,
           "Uncompressed bytes of a block, 1K to 1G (64K)", {1024, uint64_t{1} << 30});
  add_rope_options(*command, arguments->options.rope_base, arguments->options.rotary_dim,
                   arguments->options.rope_interleaved);
  add_number(*command, "--rounds", arguments->options.rounds,
             "Rounds of each timed figure, 3 to 1000", {3, 1000})
      ->capture_default_str();
  command->add_option("--plot", arguments->plot,
                      "Write an SVG plot: error against bits read, one line per tensor");
  command->add_flag("--quick", arguments->options.quick,
                    "Short rounds, as a smoke test: the speeds mean nothing");
  command->add_flag("--json", arguments->json, "One JSON line per tensor");
  command->footer(kFooter);
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace bowhead::cli
