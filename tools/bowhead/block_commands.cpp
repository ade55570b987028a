// SPDX-License-Identifier: Apache-2.0
// bowhead put | get | ls | rm: single blocks from the shell.
#include <bowhead/format/common.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <tuple>
#include <vector>

#include "base/unique_fd.h"
#include "tools/bowhead/cli.h"
#include "tools/bowhead/json.h"
#include "tools/program/input.h"
#include "tools/program/numbers.h"
#include "tools/program/text.h"

namespace bowhead::cli {
namespace {

// The arguments that name a block.
struct BlockArguments {
  std::string locator;
  std::string key;  // as typed
  bool hex = false;
  std::string namespace_name = "default";
};

void add_block_arguments(CLI::App& command, BlockArguments& arguments) {
  command.add_option("locator", arguments.locator, kLocatorHelp)->required();
  add_host_option(command);
  command.add_option("key", arguments.key, "The block's key, 1 to 512 bytes")->required();
  command.add_flag("--hex", arguments.hex,
                   "The key is given as hexadecimal digits, for binary keys");
  command.add_option("--namespace", arguments.namespace_name, "Namespace of the key")
      ->capture_default_str()
      ->transform(from_key_text);
}

Result<std::string> key_of(const BlockArguments& arguments) {
  std::string key = arguments.key;
  if (arguments.hex) {
    auto bytes = parse_hex(arguments.key);
    if (!bytes) {
      return Error{
          Status::INVALID_ARGUMENT,
          fmt::format("--hex: '{}' is not an even number of hexadecimal digits", arguments.key)};
    }
    key = std::move(*bytes);
  }
  if (key.empty() || key.size() > BH_KEY_BYTES_MAX) {
    return Error{Status::KEY_TOO_LONG, fmt::format("the key has {} bytes, but keys have 1 to {}",
                                                   key.size(), BH_KEY_BYTES_MAX)};
  }
  return key;
}

// The namespace of this name as the pool describes it; NOT_FOUND if there is none.
Result<PoolInfo::Namespace> describe_namespace(Pool& pool, const std::string& locator,
                                               const std::string& name) {
  const auto info = pool.info();
  if (!info) return info.error();
  for (const auto& ns : info->namespaces) {
    if (ns.name == name) return ns;
  }
  return Error{Status::NOT_FOUND, fmt::format("{} has no namespace '{}'", locator, name)};
}

Result<NamespaceId> find_namespace(Pool& pool, const std::string& locator,
                                   const std::string& name) {
  const auto found = describe_namespace(pool, locator, name);
  if (!found) return found.error();
  return found->id;
}

// The failure of an operation on one block, with the block's name.
Error about(const BlockArguments& arguments, std::string_view key, const Error& error) {
  return Error{error.status,
               fmt::format("{}: key '{}' of namespace '{}': {}", arguments.locator, key_text(key),
                           key_text(arguments.namespace_name), error.message())};
}

Result<std::string> read_value(const std::string& path) {
  auto value = read_input(path, BH_VALUE_BYTES_MAX);
  const bool too_large = value.status() == Status::VALUE_TOO_LARGE;
  if (!too_large && (!value || !value->empty())) return value;
  return Error{Status::VALUE_TOO_LARGE,
               fmt::format("{} {}, but values have 1 to {} bytes", input_name(path),
                           too_large ? "is longer" : "is empty", grouped(BH_VALUE_BYTES_MAX))};
}

// The layout and profile of a new namespace, as typed.
struct ValueArguments {
  std::string profile, number;  // empty: not typed
  uint32_t layers = 0, heads = 0, channels = 0, value_channels = 0, block_tokens = 0;  // 0: as well
  bool is_tokens_first = false, is_interleaved = false, wipe = false;
  double rope_base = 0;
  uint64_t rotary_dim = 0;  // 0: all channels, if there is a base
};

void add_value_arguments(CLI::App& command, ValueArguments& arguments) {
  command
      .add_option("--compress", arguments.profile,
                  "Compression profile for a new namespace: fast, balanced, or dense")
      ->check(CLI::IsMember({"none", "fast", "balanced", "dense"}));
  command.add_flag("--wipe", arguments.wipe,
                   "A new namespace whose blocks are overwritten before their memory is free");
  CLI::Option* number =
      command
          .add_option("--number", arguments.number,
                      "Number format of the values of a new namespace: bf16, fp16, fp8_e4m3, "
                      "fp8_e5m2, int8, fp32, or bytes (opaque values, the default)")
          ->check(CLI::IsMember({"bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8", "fp32", "bytes"}));
  const auto count = [&](const char* name, uint32_t& to, const char* text, uint64_t most) {
    add_number(command, name, to, text, {1, most})->needs(number);
  };
  count("--channels", arguments.channels, "Channels of a key of one head, 1 to 65535", 65535);
  count("--layers", arguments.layers, "Layers in a value, 1 to 65535 (default 1)", 65535);
  count("--heads", arguments.heads, "KV heads in a value, 1 to 65535 (default 1)", 65535);
  count("--value-channels", arguments.value_channels,
        "Channels of a value of one head, if blocks hold K and V (default: keys only)", 65535);
  count("--block-tokens", arguments.block_tokens, "Tokens of a full block (default: unspecified)",
        UINT32_MAX);
  command
      .add_flag("--tokens-first", arguments.is_tokens_first,
                "Order rows as [token][head], not [head][token]")
      ->needs(number);
  add_rope_options(command, arguments.rope_base, arguments.rotary_dim, arguments.is_interleaved)
      ->needs(number);
  refuse_old_option(command, "--outer", "--layers and --heads, and --value-channels for V");
}

Result<ValueFormat> opaque_format(const ValueArguments& a, const ValueFormat& format) {
  const std::pair<const char*, bool> given[] = {{"--channels", a.channels != 0},
                                                {"--value-channels", a.value_channels != 0},
                                                {"--layers", a.layers != 0},
                                                {"--heads", a.heads != 0},
                                                {"--block-tokens", a.block_tokens != 0},
                                                {"--tokens-first", a.is_tokens_first},
                                                {"--rope-base", a.rope_base != 0}};
  for (const auto& [name, is_given] : given) {
    if (is_given)
      return Error{Status::INVALID_ARGUMENT,
                   fmt::format("--number bytes takes no {}: the values are opaque", name)};
  }
  return format;
}

Result<ValueFormat> format_of(const ValueArguments& a) {
  ValueFormat format;
  format.wipe = a.wipe;
  if (!a.profile.empty()) format.profile = *profile_named(a.profile);
  if (a.number.empty()) return format;
  const NumberFormat number = *number_named(a.number);
  KvLayout& layout = format.layout;
  if (number == NumberFormat::BYTES) return opaque_format(a, format);
  if (a.channels == 0)
    return Error{Status::INVALID_ARGUMENT, "--number " + a.number + " needs --channels"};
  layout = keys_layout(number, static_cast<uint16_t>(a.channels),
                       static_cast<uint16_t>(std::max(a.heads, 1u)));
  layout.layers = static_cast<uint16_t>(std::max(a.layers, 1u));
  layout.order = a.is_tokens_first ? BH_ORDER_TOKENS_FIRST : BH_ORDER_HEADS_FIRST;
  layout.parts = a.value_channels != 0 ? 2 : 1;
  layout.value_channels = static_cast<uint16_t>(a.value_channels);
  layout.block_tokens = a.block_tokens;
  if (a.rope_base != 0) {
    layout.rotary = a.is_interleaved ? BH_ROTARY_INTERLEAVED : BH_ROTARY_HALVES;
    layout.rotary_channels = static_cast<uint16_t>(a.rotary_dim != 0 ? a.rotary_dim : a.channels);
    layout.rotary_base_thousandths = static_cast<uint64_t>(std::llround(a.rope_base * 1000));
  }
  return format;
}

// A namespace takes `none` and `bytes` as not said, and keeps what it has; typed, they are meant.
Result<void> check_typed(Pool& pool, NamespaceId ns, const ValueArguments& a) {
  const auto has = pool.value_format(ns);
  if (!has) return has.error();
  const auto mismatch = [](const char* option, const char* typed, const std::string& stored) {
    return Error{Status::LAYOUT_MISMATCH,
                 fmt::format("{} {}: the namespace has {}", option, typed, stored)};
  };
  if (a.profile == "none" && has->profile != CompressionProfile::NONE)
    return mismatch("--compress", "none", profile_name(has->profile));
  if (a.number == "bytes" && !is_opaque(has->layout))
    return mismatch("--number", "bytes", number_name(number_format(has->layout)));
  return {};
}

/// A host that has no space asks others, which give it some within some heartbeats, if it has not
/// ended by then.
Status put_patiently(Pool& pool, NamespaceId ns, const std::string& key, const ConstSpan& bytes,
                     const std::string& user_metadata) {
  constexpr std::chrono::milliseconds kPatience(3000), kPause(50);
  const auto begun = std::chrono::steady_clock::now();
  for (;;) {
    const Status stored = pool.put(ns, key, {&bytes, 1}, user_metadata);
    if (stored != Status::NO_SPACE || std::chrono::steady_clock::now() - begun > kPatience)
      return stored;
    if (const auto info = pool.info(); !info || info->hosts.size() == 1) return stored;
    std::this_thread::sleep_for(kPause);
  }
}

int run_put(const BlockArguments& arguments, const ValueArguments& value_arguments,
            const std::string& user_metadata, const std::string& path) {
  const auto key = key_of(arguments);
  if (!key) return fail(key.error());
  if (user_metadata.size() > BH_USER_BYTES_MAX)
    return fail({Status::INVALID_ARGUMENT,
                 fmt::format("--user-metadata has {} bytes, but a block has up to {}",
                             user_metadata.size(), BH_USER_BYTES_MAX)});
  const auto format = format_of(value_arguments);
  if (!format) return fail(format.error());
  if (auto good = check_format(*format); !good) return fail(good.error());
  const auto value =
      read_value(path);  // first: the pool is not held open while a slow writer feeds us
  if (!value) return fail(value.error());
  auto pool = open_pool(arguments.locator);
  if (!pool) return fail(pool.error(), arguments.locator);
  const auto there = describe_namespace(*pool, arguments.locator, arguments.namespace_name);
  if (!there && there.status() != Status::NOT_FOUND) return fail(*pool, there.error());
  const auto ns =
      pool->open_namespace({arguments.namespace_name, there ? there->description : "", *format});
  if (!ns) return fail(*pool, ns.error());
  if (auto same = check_typed(*pool, *ns, value_arguments); !same)
    return fail(*pool, same.error(), arguments.locator);
  const bool present = static_cast<bool>(pool->length(*ns, *key));
  const ConstSpan bytes{reinterpret_cast<const std::byte*>(value->data()), value->size()};
  const Status stored = put_patiently(*pool, *ns, *key, bytes, user_metadata);
  if (stored != Status::OK)
    return fail(*pool, about(arguments, *key, pool->explain(stored, *ns, *key)));
  print(present ? fmt::format("'{}' is already present and unchanged\n", key_text(*key))
                : fmt::format("stored '{}', {}\n", key_text(*key), exact_bytes(value->size())));
  return kOk;
}

void add_put(CLI::App& app, Action& action) {
  struct Arguments {
    BlockArguments block;
    ValueArguments values;
    std::string user_metadata;
    std::string path = "-";
  };
  auto* command = app.add_subcommand("put", "Store a value under a key");
  auto a = std::make_shared<Arguments>();
  add_block_arguments(*command, a->block);
  add_value_arguments(*command, a->values);
  command
      ->add_option(
          "--user-metadata", a->user_metadata,
          "Text, or hex:DIGITS, to keep with the block, up to 512 bytes; `ls --json` shows it")
      ->transform(from_key_text);
  command->add_option("file", a->path, "File to read the value from; - is standard input")
      ->capture_default_str();
  command->footer(R"(
Examples:
  bowhead put shm:demo layer0 ./layer0.bin
  echo hello | bowhead put shm:demo greeting
  bowhead put shm:demo --hex 00ff10 ./block.bin
  bowhead put shm:demo k0 ./k0.bin --namespace keys --compress dense --number bf16 \
    --channels 128 --rope-base 500000

The put that creates a namespace decides how it is compressed; later puts need not repeat it.
A key that is already present keeps its value and user metadata; to replace it, `rm` it first.)");
  command->callback([a, &action] {
    action = [a] { return run_put(a->block, a->values, a->user_metadata, a->path); };
  });
}

Result<std::vector<std::byte>> read_block(Pool& pool, NamespaceId ns, const std::string& key) {
  // Another process may replace the block between the two calls.
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto length = pool.length(ns, key);
    if (!length) return length.error();
    std::vector<std::byte> value(*length);
    const Span span{value.data(), value.size()};
    const auto got = pool.get(ns, key, std::span(&span, 1));
    if (got.status() == Status::BUFFER_TOO_SMALL) continue;
    if (!got) return got.error();
    value.resize(*got);
    return value;
  }
  return Status::BUSY;
}

int write_all(int fd, std::span<const std::byte> value) {
  while (!value.empty()) {
    const ssize_t put = write(fd, value.data(), value.size());
    if (put < 0 && errno != EINTR) return errno;
    if (put > 0) value = value.subspan(static_cast<size_t>(put));
  }
  return 0;
}

// The space is taken first, where the file system can do that: a full disk then leaves an old file
// as it is.
Result<void> write_file(const std::string& path, const std::vector<std::byte>& value) {
  UniqueFd file = open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
  const bool made = file.get() >= 0;
  if (!made && errno == EEXIST) file = open_file(path, O_WRONLY | O_CREAT, 0666);
  struct stat old {};
  if (file.get() < 0 || fstat(file.get(), &old) != 0)
    return Error{Status::SYSTEM, fmt::format("cannot create {}: {}", path, strerror(errno))};
  const auto size = static_cast<off_t>(value.size());
  const bool regular = S_ISREG(old.st_mode);
  int error = regular && fallocate(file.get(), 0, 0, size) != 0 ? errno : 0;
  if (error == EOPNOTSUPP || error == ENOSYS) error = 0;
  if (error != 0 && ftruncate(file.get(), old.st_size) != 0) error = errno;
  if (error == 0) error = write_all(file.get(), value);
  if (error == 0 && regular && ftruncate(file.get(), size) != 0) error = errno;
  if (close(file.release()) != 0 && error == 0) error = errno;
  if (error == 0) return {};
  if (made) (void)unlink(path.c_str());
  return Error{Status::SYSTEM, fmt::format("cannot write {}: {}", path, strerror(error))};
}

int run_get(const BlockArguments& arguments, const std::string& path, bool json) {
  if (path.empty())
    return fail({Status::INVALID_ARGUMENT, "--output: '' is not the name of a file"});
  const bool to_output = path == "-";
  if (json && to_output) {
    return fail({Status::INVALID_ARGUMENT,
                 "get --json needs -o FILE: without it the value goes to standard output"});
  }
  const auto key = key_of(arguments);
  if (!key) return fail(key.error());
  auto pool = open_pool(arguments.locator, {}, /*look=*/true);
  if (!pool) return fail(pool.error(), arguments.locator);
  const auto ns = find_namespace(*pool, arguments.locator, arguments.namespace_name);
  if (!ns) return fail(*pool, ns.error());
  const auto before = pool->info();
  const auto value = read_block(*pool, *ns, *key);
  if (!value) {
    const auto after = pool->info();
    Error error = about(arguments, *key, value.error());
    if (before && after && after->damaged > before->damaged) {
      error.detail += " (it was damaged and has been dropped)";
    }
    if (value.status() == Status::DAMAGED)
      error.detail =
          fmt::format("{}: the block of key '{}' is damaged; `bowhead pool repair` drops it",
                      arguments.locator, key_text(*key));
    return fail(*pool, error);
  }
  if (to_output) {
    print({reinterpret_cast<const char*>(value->data()), value->size()});
    return kOk;
  }
  const auto written = write_file(path, *value);
  if (!written) return fail(written.error());
  if (json) {
    const Json out = {{"key", is_printable(*key) ? Json(*key) : Json(nullptr)},
                      {"key_hex", hex_text(*key)},
                      {"namespace", key_text(arguments.namespace_name)},
                      {"size_bytes", value->size()},
                      {"file", path}};
    print(json_text(out, 2) + "\n");
  }
  return kOk;
}

void add_get(CLI::App& app, Action& action) {
  struct Arguments {
    BlockArguments block;
    std::string path = "-";
    bool json = false;
  };
  auto* command =
      app.add_subcommand("get", "Write the value of a key to standard output or a file");
  auto a = std::make_shared<Arguments>();
  add_block_arguments(*command, a->block);
  command->add_option("-o,--output", a->path, "File to write the value to; - is standard output")
      ->capture_default_str();
  command->add_flag("--json", a->json, "Describe what was written to the file, as JSON");
  command->footer(
      "\nExit code 1 if nothing is stored under the key.\n\nExamples:\n"
      "  bowhead get shm:demo greeting\n  bowhead get shm:demo layer0 -o layer0.bin");
  command->callback([a, &action] { action = [a] { return run_get(a->block, a->path, a->json); }; });
}

struct ListArguments {
  std::string locator;
  std::optional<std::string> namespace_name;  // nothing: all
  bool json = false;
};

std::string namespace_text(const PoolInfo& info, NamespaceId id) {
  for (const auto& ns : info.namespaces) {
    if (ns.id == id) return key_text(ns.name);
  }
  return fmt::format("{:016x}", id);
}

Json attributes_json(const BlockAttributes& a) {
  return {{"priority", a.priority},
          {"soft_pin", a.soft_pin},
          {"hard_pin", a.hard_pin},
          {"forks", a.forks},
          {"parity_group", a.parity_group},
          {"expires_unix_s", a.expires_unix_s},
          {"next_use_unix_s", a.next_use_unix_s},
          {"group", a.group}};
}

// One line per block, printed as it goes: a pool may hold millions.
void print_blocks_json(const std::string& locator, const PoolInfo& info,
                       const std::vector<BlockInfo>& blocks) {
  print("{\"locator\": " + json_text(locator, -1) + ", \"blocks\": [");
  const char* separator = "\n";
  for (const BlockInfo& block : blocks) {
    Json row = {{"key", is_printable(block.key) ? Json(block.key) : Json(nullptr)},
                {"key_hex", hex_text(block.key)},
                {"namespace", namespace_text(info, block.namespace_id)},
                {"size_bytes", block.length_bytes},
                {"stored_bytes", block.stored_bytes},
                {"offset", block.offset},
                {"stamp", fmt::format("{:016x}", block.stamp)}};
    if (!block.user_metadata.empty()) row["user_metadata"] = key_text(block.user_metadata);
    if (block.attributes != BlockAttributes{})
      row["attributes"] = attributes_json(block.attributes);
    print(separator + json_text(row, -1));
    separator = ",\n";
  }
  print("\n]}\n");
}

void print_blocks(const PoolInfo& info, const std::vector<BlockInfo>& blocks) {
  Table table({"NAMESPACE", ">BYTES", ">STORED", ">OFFSET", "KEY"});
  for (const BlockInfo& block : blocks) {
    table.add({namespace_text(info, block.namespace_id), grouped(block.length_bytes),
               grouped(block.stored_bytes), fmt::format("{:#x}", block.offset),
               key_text(block.key)});
  }
  print(table.text());
}

int run_ls(const ListArguments& arguments) {
  auto pool = open_pool(arguments.locator, {}, /*look=*/true);
  if (!pool) return fail(pool.error(), arguments.locator);
  const auto info = pool->info();
  if (!info) return fail(*pool, info.error(), arguments.locator);
  NamespaceId only = 0;
  if (arguments.namespace_name) {
    const auto ns = find_namespace(*pool, arguments.locator, *arguments.namespace_name);
    if (!ns) return fail(*pool, ns.error());
    only = *ns;
  }
  std::vector<BlockInfo> blocks;
  const Status listed = pool->list([&](const BlockInfo& block) {
    if (!arguments.namespace_name || block.namespace_id == only) blocks.push_back(block);
    return true;
  });
  if (listed != Status::OK)
    return fail(*pool, {listed, arguments.locator + ": " + status_text(listed)});
  std::sort(blocks.begin(), blocks.end(), [](const BlockInfo& a, const BlockInfo& b) {
    return std::tie(a.namespace_id, a.key) < std::tie(b.namespace_id, b.key);
  });
  arguments.json ? print_blocks_json(arguments.locator, *info, blocks)
                 : print_blocks(*info, blocks);
  return kOk;
}

void add_ls(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("ls", "List the blocks of a pool");
  auto a = std::make_shared<ListArguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  add_host_option(*command);
  command
      ->add_option("--namespace", a->namespace_name, "Only blocks of this namespace (default: all)")
      ->transform(from_key_text);
  command->add_flag("--json", a->json, "As JSON");
  command->footer(
      "\nKeys and names that are not printable are shown as hex:DIGITS; pass a key to other\n"
      "commands as --hex DIGITS, a name as --namespace hex:DIGITS.\n\nExample:\n  bowhead ls "
      "shm:demo");
  command->callback([a, &action] { action = [a] { return run_ls(*a); }; });
}

int run_rm(const BlockArguments& arguments) {
  const auto key = key_of(arguments);
  if (!key) return fail(key.error());
  auto pool = open_pool(arguments.locator);
  if (!pool) return fail(pool.error(), arguments.locator);
  const auto ns = find_namespace(*pool, arguments.locator, arguments.namespace_name);
  if (!ns) return fail(*pool, ns.error());
  const Status removed = pool->remove(*ns, *key);
  if (removed != Status::OK) {
    Error why = pool->explain(removed, *ns, *key);
    if (removed == Status::BUSY) why.detail = "it may still be stored: " + why.detail;
    return fail(*pool, about(arguments, *key, why));
  }
  print(fmt::format("removed '{}'\n", key_text(*key)));
  return kOk;
}

void add_rm(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("rm", "Remove a key and its value");
  auto a = std::make_shared<BlockArguments>();
  add_block_arguments(*command, *a);
  command->footer(
      "\nExit code 1 if nothing is stored under the key.\n\nExample:\n"
      "  bowhead rm shm:demo greeting");
  command->callback([a, &action] { action = [a] { return run_rm(*a); }; });
}

}  // namespace

void add_block_commands(CLI::App& app, Action& action) {
  add_put(app, action);
  add_get(app, action);
  add_ls(app, action);
  add_rm(app, action);
}

}  // namespace bowhead::cli
