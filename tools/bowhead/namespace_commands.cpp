// SPDX-License-Identifier: Apache-2.0
// bowhead ns list | rm
#include "tools/bowhead/namespace_commands.h"

#include <fmt/format.h>

#include <memory>

#include "tools/bowhead/cli.h"
#include "tools/program/numbers.h"
#include "tools/program/text.h"

namespace bowhead::cli {
namespace {

NamespaceUsage usage_of(const Usage& usage, NamespaceId id) {
  for (const NamespaceUsage& one : usage) {
    if (one.id == id) return one;
  }
  return {.id = id};
}

std::string count_text(int64_t count) {
  return grouped(static_cast<uint64_t>(std::max<int64_t>(count, 0)));
}
std::string bytes_text(int64_t bytes) {
  return human_bytes(static_cast<uint64_t>(std::max<int64_t>(bytes, 0)));
}

/// Bytes that were put, divided by the bytes that their blocks occupy.
double ratio_of(const NamespaceUsage& usage) {
  return usage.block_bytes <= 0
             ? 1.0
             : static_cast<double>(usage.value_bytes) / static_cast<double>(usage.block_bytes);
}

Json layout_json(const KvLayout& layout) {
  Json json = {{"number_format", number_name(number_format(layout))}};
  if (is_opaque(layout)) return json;
  json.update({{"order", layout.order == BH_ORDER_HEADS_FIRST ? "heads_first" : "tokens_first"},
               {"layers", layout.layers},
               {"parts", layout.parts},
               {"heads", layout.heads},
               {"key_channels", layout.key_channels},
               {"value_channels", layout.value_channels},
               {"block_tokens", layout.block_tokens}});
  if (layout.rotary != BH_ROTARY_NONE)
    json.update({{"rotary", layout.rotary == BH_ROTARY_HALVES ? "halves" : "interleaved"},
                 {"rotary_first", layout.rotary_first},
                 {"rotary_channels", layout.rotary_channels},
                 {"rotary_base", rotary_base(layout)}});
  if (layout.model_layers != 0)
    json.update({{"first_layer", layout.first_layer}, {"model_layers", layout.model_layers}});
  if (layout.model_heads != 0)
    json.update({{"first_head", layout.first_head}, {"model_heads", layout.model_heads}});
  return json;
}

}  // namespace

Json usage_json(const NamespaceUsage& usage) {
  return {{"blocks", usage.blocks},
          {"value_bytes", usage.value_bytes},
          {"stored_bytes", usage.stored_bytes},
          {"block_bytes", usage.block_bytes},
          {"hits", usage.hits},
          {"misses", usage.misses},
          {"evictions", usage.evictions}};
}

Json namespace_json(const PoolInfo::Namespace& ns, const Usage& all) {
  const NamespaceUsage usage = usage_of(all, ns.id);
  Json json = {{"id", fmt::format("{:016x}", ns.id)},
               {"name", key_text(ns.name)},
               {"description", key_text(ns.description)},
               {"profile", profile_name(ns.values.profile)},
               {"layout", layout_json(ns.values.layout)},
               {"wipe", ns.values.wipe},
               {"ratio", ratio_of(usage)}};
  json.update(usage_json(usage));
  return json;
}

Json other_usage_json(const Usage& all) { return usage_json(usage_of(all, 0)); }

std::string namespaces_text(const PoolInfo& info, const Usage& usage) {
  Table table({"NAMESPACE", ">BLOCKS", ">VALUES", ">IN POOL", ">RATIO", ">HITS", ">MISSES",
               ">EVICTED", "FORMAT", "ID", "DESCRIPTION"});
  const auto add = [&](const NamespaceUsage& of, const std::string& name, const std::string& format,
                       const std::string& id, const std::string& description) {
    table.add({name, count_text(of.blocks), bytes_text(of.value_bytes), bytes_text(of.block_bytes),
               fmt::format("{:.3f}", ratio_of(of)), grouped(of.hits), grouped(of.misses),
               grouped(of.evictions), format, id, description});
  };
  for (const auto& ns : info.namespaces)
    add(usage_of(usage, ns.id), key_text(ns.name), to_text(ns.values),
        fmt::format("{:016x}", ns.id), key_text(ns.description));
  const NamespaceUsage other = usage_of(usage, 0);
  if (other.blocks != 0 || other.hits != 0 || other.misses != 0 || other.evictions != 0)
    add(other, "(other)", "-", "-", "removed namespaces, and those without a counter");
  return table.text();
}

namespace {

struct Arguments {
  std::string locator;
  std::string name;
  bool json = false;
  bool yes = false;
};

int run_list(const Arguments& arguments) {
  auto pool = open_pool(arguments.locator, {}, /*look=*/true);
  if (!pool) return fail(pool.error(), arguments.locator);
  const auto info = pool->info();
  if (!info) return fail(*pool, info.error(), arguments.locator);
  const auto usage = pool->usage();
  if (!usage) return fail(*pool, usage.error(), arguments.locator);
  if (!arguments.json) {
    print(namespaces_text(*info, *usage));
    return kOk;
  }
  Json json = {{"locator", arguments.locator}, {"namespaces", Json::array()}};
  for (const auto& ns : info->namespaces) json["namespaces"].push_back(namespace_json(ns, *usage));
  json["other"] = other_usage_json(*usage);
  print(json_text(json, 2) + "\n");
  return kOk;
}

void add_list(CLI::App& parent, Action& action) {
  auto* command = parent.add_subcommand("list", "List the namespaces of a pool");
  auto a = std::make_shared<Arguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  add_host_option(*command);
  command->add_flag("--json", a->json, "As JSON");
  command->footer("\nExample:\n  bowhead ns list shm:demo");
  command->callback([a, &action] { action = [a] { return run_list(*a); }; });
}

/// Without --yes only a namespace without blocks is removed.
int run_rm(const Arguments& arguments) {
  auto pool = open_pool(arguments.locator);
  if (!pool) return fail(pool.error(), arguments.locator);
  const auto info = pool->info();
  if (!info) return fail(*pool, info.error(), arguments.locator);
  NamespaceId id = 0;
  for (const auto& ns : info->namespaces) {
    if (ns.name == arguments.name) id = ns.id;
  }
  uint64_t lost_blocks = 0, lost_bytes = 0;  // not by the counters, which may be wrong
  const Status listed = pool->list([&](const BlockInfo& block) {
    lost_blocks += block.namespace_id == id;
    lost_bytes += block.namespace_id == id ? block.length_bytes : 0;
    return true;
  });
  if (listed != Status::OK) return fail(*pool, {listed, {}}, arguments.locator);
  const std::string blocks =
      fmt::format("{} block(s), {}", grouped(lost_blocks), human_bytes(lost_bytes));
  if (lost_blocks != 0 && !arguments.yes)
    return fail({Status::INVALID_ARGUMENT,
                 fmt::format("{}: namespace '{}' has {}: remove them with --yes", arguments.locator,
                             key_text(arguments.name), blocks)});
  if (const auto removed = pool->remove_namespace(arguments.name); !removed)
    return fail(*pool, removed.error(), arguments.locator);
  print(fmt::format("removed namespace '{}' ({})\n", key_text(arguments.name), blocks));
  return kOk;
}

void add_rm(CLI::App& parent, Action& action) {
  auto* command = parent.add_subcommand("rm", "Remove a namespace and all its blocks");
  auto a = std::make_shared<Arguments>();
  command->add_option("locator", a->locator, kLocatorHelp)->required();
  command->add_option("name", a->name, "Name of the namespace")
      ->required()
      ->transform(from_key_text);
  add_host_option(*command);
  command->add_flag("--yes", a->yes, "Remove it even if it has blocks");
  command->footer(R"(
The name can be used again at once, for values of another layout too. Processes that use the
namespace get NAMESPACE_GONE. In a pool of several hosts each frees its blocks in the background.

Example:
  bowhead ns rm shm:demo keys --yes)");
  command->callback([a, &action] { action = [a] { return run_rm(*a); }; });
}

}  // namespace

void add_namespace_commands(CLI::App& app, Action& action) {
  auto* ns = app.add_subcommand("ns", "List and remove namespaces");
  ns->require_subcommand(1);
  ns->footer(R"(
Examples:
  bowhead ns list shm:demo
  bowhead ns rm shm:demo keys --yes)");
  add_list(*ns, action);
  add_rm(*ns, action);
}

}  // namespace bowhead::cli
