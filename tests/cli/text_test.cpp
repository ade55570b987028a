// SPDX-License-Identifier: Apache-2.0
#include "tools/program/text.h"

#include <gtest/gtest.h>

namespace bowhead::cli {
namespace {

TEST(Text, BytesForPeopleAndExactly) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.00 MiB");
  EXPECT_EQ(human_bytes(3ull << 29), "1.50 GiB");
  EXPECT_EQ(human_bytes(UINT64_MAX), "16.00 EiB");
  EXPECT_EQ(exact_bytes(5), "5 bytes");
  EXPECT_EQ(exact_bytes(4ull << 30), "4.00 GiB (4,294,967,296 bytes)");
}

TEST(Text, Numbers) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(12345678), "12,345,678");
  EXPECT_EQ(duration_text(999), "999 ns");
  EXPECT_EQ(duration_text(12345), "12.3 us");
  EXPECT_EQ(duration_text(12345678), "12.35 ms");
  EXPECT_EQ(duration_text(2500000000), "2.50 s");
}

TEST(Text, KeysAreShownAsTheyAreOrInHex) {
  EXPECT_EQ(key_text("a key"), "a key");
  EXPECT_EQ(key_text(std::string("a\0b", 3)), "hex:610062");
  EXPECT_EQ(key_text("\x7f"), "hex:7f");
  EXPECT_EQ(key_text("\xc3\xa9"), "hex:c3a9");
}

TEST(Text, EveryTextOfAKeyLeadsBackToIt) {
  for (const std::string key : {"", "a key", "\xc3\xa9", "\n", "hex:", "hex:c3a9", "hex:xy"})
    EXPECT_EQ(from_key_text(key_text(key)), key) << key;
  for (const std::string name : {"hex:c3a", "hex:", "hex:41", "hex:C3A9"})
    EXPECT_EQ(from_key_text(name), name) << "no key has this text";
}

TEST(Text, AMessageHasOneLine) {
  EXPECT_EQ(one_line("a\nb\x1b[31m\x7f \xc3\xa9"), "a\\x0ab\\x1b[31m\\x7f \xc3\xa9");
}

TEST(Text, HexReadsWhatItWrites) {
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  EXPECT_EQ(parse_hex(hex_text(all)), all);
  EXPECT_EQ(parse_hex("aAfF"), "\xaa\xff");
  EXPECT_EQ(parse_hex(""), "");
  for (const char* bad : {"a", "0x12", "gg", "1 ", "-1"}) EXPECT_FALSE(parse_hex(bad)) << bad;
}

TEST(Text, TablesAreAligned) {
  Table table({"NAME", ">SIZE"});
  table.add({"a", "1"});
  table.add({"longer", "12345"});
  EXPECT_EQ(table.text(), "NAME     SIZE\na           1\nlonger  12345\n");
  Fields fields;
  fields.add("a", "1");
  fields.add("long", "2");
  EXPECT_EQ(fields.text(), "a     1\nlong  2\n");
}

}  // namespace
}  // namespace bowhead::cli
