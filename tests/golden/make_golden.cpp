// SPDX-License-Identifier: Apache-2.0
// Makes the golden pools: make_golden FOLDER. Run it for a new version of the format, into files
// with that version's name; the files of older versions never change.
#include <fmt/format.h>

#include "pool/media/media.h"
#include "tests/golden/content.h"
#include "tests/golden/sparse_file.h"

namespace bowhead::golden {
namespace {

Status put_one(Pool& pool, NamespaceId ns, const Block& block,
               const std::vector<std::byte>& value) {
  if (block.verified) {
    const ConstSpan from[] = {{value.data(), value.size()}};
    return pool.put(ns, block.key, from);
  }
  auto reservation = pool.reserve(ns, block.key, value.size());
  if (!reservation) return reservation.status();
  std::memcpy(reservation->data, value.data(), value.size());
  return pool.commit(*reservation, {PayloadSum::By::NONE});
}

/// Host `host` joins, stores its blocks and one that it removes again, and leaves cleanly.
Result<void> fill(const std::string& locator, uint32_t host,
                  const std::vector<NamespaceDescription>& namespaces,
                  const std::vector<Block>& blocks) {
  auto pool = Pool::open(locator, {.host = host});
  if (!pool) return pool.error();
  std::vector<NamespaceId> ids;
  for (const auto& description : namespaces) {
    auto id = pool->open_namespace(description);
    if (!id) return id.error();
    ids.push_back(*id);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].host != host) continue;
    const Status status =
        put_one(*pool, ids[blocks[i].name_space], blocks[i], value_of(blocks[i], i));
    if (status != Status::OK) return status;
  }
  const Block removed{0, "removed", 50};
  if (Status status = put_one(*pool, ids[0], removed, value_of(removed, 99)); status != Status::OK)
    return status;
  return pool->remove(ids[0], removed.key);
}

Result<void> make(const std::string& path, const CreateOptions& options,
                  const std::vector<NamespaceDescription>& namespaces,
                  const std::vector<Block>& blocks) {
  const std::string locator = "shm:golden-being-made";
  if (auto created = Pool::create(locator, options); !created) return created.error();
  Result<void> filled;
  for (uint32_t host = 0; host < options.hosts && filled; ++host)
    filled = fill(locator, host, namespaces, blocks);
  auto media = open_media(locator);
  if (filled && media) write_sparse(path, {(*media)->base(), (*media)->size_bytes()});
  if (auto removed = Pool::destroy(locator, /*force=*/true); !removed) return removed;
  return filled;
}

int run(const std::string& folder) {
  const CreateOptions small{.size_bytes = 16 << 20};
  const CreateOptions two_hosts{.size_bytes = 16 << 20, .hosts = 2};
  for (const auto& made :
       {make(folder + "/v2-one-host.sparse", small, kNamespaces, blocks_of_one_host()),
        make(folder + "/v2-two-hosts.sparse", two_hosts, kNamespaces, blocks_of_two_hosts()),
        make(folder + "/v2-compressed.sparse", small, kCompressedNamespaces,
             blocks_of_compressed_pool())}) {
    if (made) continue;
    fmt::print(stderr, "make_golden: {}\n", made.error().message());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace bowhead::golden

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "Usage: make_golden FOLDER\n");
    return 2;
  }
  return bowhead::golden::run(argv[1]);
}
