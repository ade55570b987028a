// SPDX-License-Identifier: Apache-2.0
// A process detects CPU features only once, so each case starts this program again, with --report,
// in the environment under test.
#include "base/cpu.h"

#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "base/checksum.h"

namespace bowhead {
namespace {

// The level, then the checksum of fixed bytes computed at that level.
int report() {
  std::vector<unsigned char> bytes(100'000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 31);
  std::vector<unsigned char> copy(bytes.size());
  ChecksumCopy checksum(true);
  checksum.append(copy.data(), bytes.data(), bytes.size());
  printf("%d %llx\n", static_cast<int>(cpu_features().isa),
         static_cast<unsigned long long>(checksum.finish()));
  return 0;
}

struct Report {
  int isa = -1;
  unsigned long long checksum = 0;
  std::string complaint;
};

Report report_with(const char* isa) {
  const std::string command =
      (isa != nullptr ? std::string("BOWHEAD_ISA=") + isa + " " : "env -u BOWHEAD_ISA ") +
      testing::internal::GetArgvs()[0] + " --report 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  Report result;
  char line[256];
  while (pipe != nullptr && fgets(line, sizeof(line), pipe) != nullptr) {
    if (sscanf(line, "%d %llx", &result.isa, &result.checksum) != 2) result.complaint += line;
  }
  EXPECT_TRUE(pipe != nullptr && pclose(pipe) == 0) << command;
  return result;
}

TEST(Cpu, EnvironmentLowersTheLevel) {
  const Report native = report_with(nullptr);
  const char* const names[] = {"scalar", "avx2", "avx512"};
  for (int level = 0; level <= native.isa; ++level) {
    const Report lowered = report_with(names[level]);
    EXPECT_EQ(lowered.isa, level);
    EXPECT_EQ(lowered.checksum, native.checksum) << names[level];
    EXPECT_EQ(lowered.complaint, "");
  }
}

TEST(Cpu, UnsupportedAndUnknownLevelsAreIgnoredWithAMessage) {
  const int native = report_with(nullptr).isa;
  std::vector<std::string> refused = {"sse9", ""};
  if (native < static_cast<int>(IsaLevel::AVX2)) refused.emplace_back("avx2");
  if (native < static_cast<int>(IsaLevel::AVX512)) refused.emplace_back("avx512");
  for (const std::string& name : refused) {
    const Report report = report_with(name.c_str());
    EXPECT_EQ(report.isa, native) << name;
    EXPECT_NE(report.complaint.find("BOWHEAD_ISA=" + name + " ignored"), std::string::npos);
  }
}

TEST(Cpu, HasAModel) { EXPECT_FALSE(cpu_features().model.empty()); }

}  // namespace
}  // namespace bowhead

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--report") return bowhead::report();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
