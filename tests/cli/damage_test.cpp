// SPDX-License-Identifier: Apache-2.0
// Pools that were damaged behind the pool's back, or written by a newer version: errors name the
// damage.
#include <bowhead/format/superblock.h>

#include <cstddef>
#include <cstring>
#include <fstream>

#include "base/checksum.h"
#include "tests/cli/run.h"

namespace bowhead::cli_test {
namespace {

class Damage : public CliTest {
 protected:
  void SetUp() override {
    create(file_locator());
    value_ = std::string(100'000, 'v');
    ASSERT_EQ(run({"put", file_locator(), "k"}, value_).code, 0);
    ASSERT_EQ(run({"put", file_locator(), "other"}, "o").code, 0);
  }

  void flip(uint64_t offset) {
    std::fstream file(path("pool"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 1));
    ASSERT_TRUE(file.good());
  }

  /// In both copies, which are sealed anew.
  void change_superblock(void (*change)(bh_superblock&)) {
    std::fstream file(path("pool"), std::ios::in | std::ios::out | std::ios::binary);
    for (const uint64_t at : {uint64_t{0}, uint64_t{BH_SUPERBLOCK_COPY_OFFSET}}) {
      bh_superblock superblock;
      file.seekg(static_cast<std::streamoff>(at));
      file.read(reinterpret_cast<char*>(&superblock), sizeof superblock);
      change(superblock);
      superblock.checksum = hash64(&superblock, offsetof(bh_superblock, checksum));
      file.seekp(static_cast<std::streamoff>(at));
      file.write(reinterpret_cast<const char*>(&superblock), sizeof superblock);
    }
    ASSERT_TRUE(file.good());
  }

  uint64_t payload_of(const std::string& key) {
    const auto listed = json_of(run({"ls", file_locator(), "--json"}));
    for (const auto& block : listed["blocks"]) {
      if (block["key"] == key) return block["offset"].get<uint64_t>();
    }
    ADD_FAILURE() << key << " is not listed";
    return 0;
  }

  std::string value_;
};

TEST_F(Damage, ADamagedBlockIsAMissAndIsNamedByCheck) {
  flip(payload_of("k") + 77'777);
  const Outcome check = run({"pool", "check", file_locator(), "--payload"});
  EXPECT_EQ(check.code, 1) << check.out;
  EXPECT_NE(check.out.find("LOST: "), std::string::npos) << check.out;
  EXPECT_NE(check.out.find("1 wrong"), std::string::npos) << check.out;
  const auto json = json_of(run({"pool", "check", file_locator(), "--payload", "--json"}));
  EXPECT_EQ(json["good"], false);
  ASSERT_EQ(json["findings"].size(), 1u);
  EXPECT_EQ(json["findings"][0]["data_lost"], true);
  EXPECT_TRUE(json["findings"][0]["what"].is_string());
  EXPECT_EQ(run({"pool", "check", file_locator()}).code, 0)
      << "without --payload payloads are not read";

  const Outcome get = run({"get", file_locator(), "k"});
  EXPECT_EQ(get.code, 1);
  EXPECT_EQ(get.out, "");
  EXPECT_NE(get.err.find("damaged"), std::string::npos) << get.err;
  EXPECT_EQ(run({"get", file_locator(), "other"}).out, "o");
  EXPECT_EQ(run({"pool", "check", file_locator(), "--payload"}).code, 1) << "get only looks";
  const Outcome dropped = run({"get", file_locator(), "k", "--host", "0"});
  EXPECT_EQ(dropped.code, 1);
  EXPECT_NE(dropped.err.find("has been dropped"), std::string::npos) << dropped.err;
  EXPECT_EQ(run({"pool", "check", file_locator(), "--payload"}).code, 0);
}

TEST_F(Damage, RepairDropsADamagedBlock) {
  flip(payload_of("k"));
  const Outcome repair = run({"pool", "repair", file_locator()});
  EXPECT_EQ(repair.code, 0) << repair.err;
  EXPECT_NE(repair.out, "");
  EXPECT_EQ(run({"pool", "check", file_locator(), "--payload"}).code, 0);
  EXPECT_EQ(run({"get", file_locator(), "k"}).code, 1);
  EXPECT_EQ(run({"get", file_locator(), "other"}).out, "o");
}

TEST_F(Damage, WithOneSuperblockTheSecondIsUsedAndThisIsSaid) {
  flip(offsetof(bh_superblock, pool_id));
  const Outcome get = run({"get", file_locator(), "k"});
  EXPECT_EQ(get.code, 0);
  EXPECT_EQ(get.out, value_);
  EXPECT_NE(get.err.find("superblock is damaged"), std::string::npos) << get.err;
  EXPECT_EQ(json_of(run({"pool", "info", file_locator(), "--json"}))["second_superblock_used"],
            true);
  EXPECT_EQ(run({"pool", "check", file_locator()}).code, 1);
  EXPECT_EQ(run({"pool", "repair", file_locator()}).code, 0);
  EXPECT_EQ(run({"get", file_locator(), "k"}).err, "");
  EXPECT_EQ(run({"pool", "check", file_locator()}).code, 0);
}

TEST_F(Damage, WithoutAnySuperblockThePoolIsRefused) {
  flip(offsetof(bh_superblock, pool_id));
  flip(BH_SUPERBLOCK_COPY_OFFSET + offsetof(bh_superblock, pool_id));
  const Outcome info = run({"pool", "info", file_locator()});
  EXPECT_EQ(info.code, 1) << info.err;
  EXPECT_NE(info.err.find(path("pool")), std::string::npos) << info.err;
  EXPECT_EQ(run({"pool", "destroy", file_locator(), "--force"}).code, 0);
}

TEST_F(Damage, ANewerVersionIsRefused) {
  change_superblock([](bh_superblock& sb) { sb.version = BH_FORMAT_VERSION + 1; });
  const Outcome info = run({"pool", "info", file_locator()});
  EXPECT_EQ(info.code, 3) << info.err;
  EXPECT_NE(info.err.find("version"), std::string::npos) << info.err;
}

TEST_F(Damage, FeaturesOfANewerVersionDecideWhatCanBeDone) {
  change_superblock([](bh_superblock& sb) { sb.compat = 1 << 3; });
  EXPECT_EQ(run({"put", file_locator(), "more"}, "m").code, 0);
  change_superblock([](bh_superblock& sb) { sb.ro_compat = 1 << 4; });
  EXPECT_EQ(run({"get", file_locator(), "k"}).out, value_);
  EXPECT_EQ(run({"pool", "check", file_locator(), "--payload"}).code, 0);
  const Outcome json = run({"pool", "info", file_locator(), "--json"});
  EXPECT_EQ(json_of(json)["features"]["compat"], 1 << 3);
  EXPECT_EQ(json_of(json)["features"]["ro_compat"], 1 << 4);
  const Outcome text = run({"pool", "info", file_locator()});
  EXPECT_NE(text.out.find("compat 0x8, incompat 0x0, ro_compat 0x10"), std::string::npos)
      << text.out;
  for (const Arguments& command : {Arguments{"put", file_locator(), "x", path("pool")},
                                   Arguments{"pool", "info", file_locator(), "--host", "0"},
                                   Arguments{"pool", "repair", file_locator()},
                                   Arguments{"pool", "destroy", file_locator()}}) {
    const Outcome refused = run(command);
    EXPECT_EQ(refused.code, 3) << refused.err;
    EXPECT_NE(refused.err.find("(ro_compat, bit 4): upgrade Bowhead"), std::string::npos)
        << refused.err;
  }
  change_superblock([](bh_superblock& sb) { sb.incompat = 1 << 5; });
  const Outcome refused = run({"pool", "info", file_locator()});
  EXPECT_EQ(refused.code, 3);
  EXPECT_NE(refused.err.find("(incompat, bit 5): upgrade Bowhead"), std::string::npos)
      << refused.err;
}

TEST_F(Damage, AFileCutShortIsRefused) {
  std::filesystem::resize_file(path("pool"), 16 << 20);
  const Outcome info = run({"pool", "info", file_locator()});
  EXPECT_NE(info.code, 0);
  EXPECT_NE(info.err.find(path("pool")), std::string::npos) << info.err;
}

TEST_F(Damage, AHostThatCannotJoinIsReportedInJsonWithWhatIsLost) {
  bh_superblock superblock{};
  std::memcpy(&superblock, read("pool").data(), sizeof superblock);
  const auto& g = superblock.geometry;
  const uint64_t slot = g.regions_offset + g.parts[BH_PART_SLOT].offset;
  for (const uint64_t copy : {0, 1}) flip(slot + copy * BH_LINE_BYTES + 8);
  for (const Arguments& as : {Arguments{}, Arguments{"--host", "0"}}) {
    Arguments command = {"pool", "check", file_locator(), "--json", "--payload"};
    command.insert(command.end(), as.begin(), as.end());
    const Outcome check = run(command);
    EXPECT_EQ(check.code, 1) << check.err;
    const auto json = json_of(check);
    EXPECT_EQ(json["blocks_checked"], 2) << check.out;
    ASSERT_FALSE(json["findings"].empty());
    for (const auto& finding : json["findings"]) EXPECT_EQ(finding["data_lost"], false);
  }
  EXPECT_EQ(run({"pool", "repair", file_locator()}).code, 0);
  EXPECT_EQ(run({"get", file_locator(), "k"}).out, value_);
}

TEST_F(Damage, APoolThatCannotBeOpenedIsReportedInJsonAndCanBeRemoved) {
  std::filesystem::resize_file(path("pool"), 16 << 20);
  const Outcome check = run({"pool", "check", file_locator(), "--json"});
  EXPECT_EQ(check.code, 1);
  const auto json = json_of(check);
  EXPECT_EQ(json["good"], false);
  ASSERT_EQ(json["findings"].size(), 1u);
  EXPECT_EQ(json["findings"][0]["data_lost"], true);
  EXPECT_EQ(json["payload_verified"], false);
  const Outcome refused = run({"pool", "destroy", file_locator()});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("--force removes it"), std::string::npos) << refused.err;
  EXPECT_EQ(run({"pool", "destroy", file_locator(), "--force"}).code, 0);
}

}  // namespace
}  // namespace bowhead::cli_test
