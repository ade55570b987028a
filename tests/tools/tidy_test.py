# SPDX-License-Identifier: Apache-2.0
"""tools/tidy must find one seeded fault of every kind, and nothing in a good tree."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TIDY = ROOT / "tools" / "tidy"
SPDX = "// SPDX-License-Identifier: Apache-2.0\n"

# Everything that looks like a fault but is not one.
GOOD = {
    "CMakeLists.txt":
        "# SPDX-License-Identifier: Apache-2.0\nadd_library(x base/a.cpp ${p}/b.cpp)\n",
    "base/a.cpp": SPDX + "int one() { return 1; }\n",
    "include/bowhead/format/common.h":
        "/* SPDX-License-Identifier: Apache-2.0 */\n#include <stdint.h>\n",
    "include/bowhead/format/block.h":
        "/* SPDX-License-Identifier: Apache-2.0 */\n#include <bowhead/format/common.h>\n",
    "include/bowhead/bowhead.h":
        "/* SPDX-License-Identifier: Apache-2.0 */\n#include <bowhead/format/block.h>\n",
    "pool/b.cpp": SPDX + '#include <vector>\n\n#include "base/status.h"\n\n'
        '// #include "api/x.h"\n// TODO(#12): more\n\nint two() { return 2; }\n',
    "docs/page.md": "x" * 200 + "\n[a](../LICENSE) [b](https://example.org/x) [c](#d)\n",
    "LICENSE": "x" * 200 + "\n",
    "build/generated.cpp": "using namespace std;\n",
    "tools/script": "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\necho\n",
}


def run_tidy(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / ".clang-format").write_text((ROOT / ".clang-format").read_text())
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        done = subprocess.run([sys.executable, TIDY, "--root", folder], capture_output=True,
                              text=True, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


def function(body_lines, head="int f()"):
    return f"{head} {{\n" + "  g();\n" * body_lines + "}\n"


class GoodTree(unittest.TestCase):
    def test_nothing_is_found(self):
        status, lines = run_tidy(GOOD)
        self.assertEqual((status, len([x for x in lines if "skipped format" not in x])), (0, 1),
                         lines)
        self.assertRegex(lines[-1], r"^tidy of 8 files: [89] passed, 0 failed, [01] skipped$")


class SeededFaults(unittest.TestCase):
    def expect(self, rule, path, line, text):
        """`text` in the file `path` is a fault against `rule` in line `line`, and the only one."""
        files = dict(GOOD)
        files[path] = text
        status, lines = run_tidy(files)
        found = [re.match(r"(\S+?):(\d+): .* \[([\w-]+)\]$", x) for x in lines]
        found = [x.groups() for x in found if x and x.group(3) != "format"]
        self.assertEqual(found, [(path, str(line), rule)], lines)
        self.assertEqual(status, 1)

    def test_layers(self):
        self.expect("layers", "base/a.cpp", 2, SPDX + '#include "pool/pool.h"\n')
        self.expect("layers", "pool/b.cpp", 2, SPDX + '#include "api/bowhead.h"\n')
        self.expect("layers", "pool/b.cpp", 2, SPDX + '#include "firmware-sim/mailbox.h"\n')
        self.expect("layers", "pool/b.cpp", 2, SPDX + "#include <bowhead/bowhead.h>\n")
        self.expect("layers", "pool/b.cpp", 2, SPDX + '#include "b.h"\n')
        self.expect("layers", "tools/b.cpp", 2, SPDX + '#include "bench/report.h"\n')

    def test_layers_within_a_folder(self):
        self.expect("layers", "pool/core/b.h", 2, SPDX + '#include "pool/pool.h"\n')
        self.expect("layers", "pool/media/b.h", 2, SPDX + '#include "pool/core/words.h"\n')
        self.expect("layers", "pool/types.h", 2, SPDX + '#include "pool/core/words.h"\n')
        self.expect("layers", "tools/program/b.h", 2, SPDX + '#include "tools/bowhead/cli.h"\n')

    def test_long_class(self):
        body = "".join(f"  void f{i}();\n  int x{i} = f(0);\n" for i in range(33))
        body += "".join(f"  int g{i}(int a = 1) const {{ return a; }}\n" for i in range(32))
        self.expect("classes", "pool/b.cpp", 3,
                    SPDX + "namespace a {\nclass Long : public B {\n" + body + "};\n}\n")

    def test_test_code_in_product(self):
        self.expect("layers", "pool/b.cpp", 2, SPDX + '#include "tests/helper.h"\n')

    def test_format_headers(self):
        head = "/* SPDX-License-Identifier: Apache-2.0 */\n"
        path = "include/bowhead/format/block.h"
        self.expect("layers", path, 2, head + "#include <bowhead/status.h>\n")
        self.expect("layers", path, 2, head + "#include <atomic>\n")
        self.expect("layers", path, 2, head + '#include "common.h"\n')

    def test_lines(self):
        self.expect("lines", "base/a.cpp", 2, SPDX + "// " + "x" * 98 + "\n")
        self.expect("lines", "CMakeLists.txt", 3, GOOD["CMakeLists.txt"] + "# " + "x" * 99 + "\n")

    def test_licence(self):
        self.expect("licence", "base/a.cpp", 1, "int one() { return 1; }\n")
        self.expect("licence", "tools/script", 2, "#!/bin/sh\necho\n")
        self.expect("licence", "base/a.cpp", 1, SPDX.strip() + " One.\nint one() { return 1; }\n")

    def test_banned(self):
        marker = "TO" + "DO"
        self.expect("banned", "base/a.cpp", 2, SPDX + "void f() { std::cout << std::endl; }\n")
        self.expect("banned", "base/a.h", 2, SPDX + "using namespace std;\n")
        self.expect("banned", "base/a.cpp", 2, SPDX + f"// {marker}: later\n")
        self.expect("banned", "base/a.cpp", 2, SPDX + "#ifdef BOWHEAD_HAVE_X\n#endif\n")
        self.expect("banned", "docs/page.md", 1, "Lies in " + "/ho" + "me/someone/x.\n")

    def test_unused(self):
        self.expect("unused", "pool/forgotten.cpp", 1, SPDX)
        self.expect("unused", "pool/my_b.cpp", 1, SPDX)
        self.expect("unused", "pool/deep/b.cpp", 1, SPDX)

    def test_function_lengths(self):
        self.expect("functions", "base/a.cpp", 2, SPDX + function(69))
        self.expect("functions", "base/a.h", 4,
                    SPDX + "namespace n {\nclass C : public D<int> {\n" +
                    function(69, "  auto m() const noexcept") + "};\n}\n")
        self.expect("functions", "base/a.h", 2, SPDX + function(69, "C::C() : a_{1}, b_(2)"))
        self.expect("functions", "base/a.h", 2, SPDX + function(69, "auto f() -> Result<T>"))
        self.expect("functions", "base/a.h", 2,
                    SPDX + function(69, "template <class T>\nvoid f(T a = {})").replace(
                        "  g();\n", "", 1))
        self.expect("functions", "base/s.py", 2, SPDX.replace("//", "#") + "def f():\n" +
                    "    g()\n" * 70)

    def test_links(self):
        self.expect("links", "docs/page.md", 2, "\n[a](../LICENSE) [b](gone.md#part)\n")

    def test_format(self):
        _, lines = run_tidy(GOOD | {"base/a.cpp": SPDX + "int  one( ){return 1;}\n"})
        if any("skipped format" in x for x in lines):
            self.skipTest("clang-format of the right version is not installed")
        self.assertTrue(any(x.startswith("base/a.cpp:2:") for x in lines), lines)


class FunctionsThatAreShort(unittest.TestCase):
    def test_no_false_alarm(self):
        filler = "  int x;\n" * 90
        for text in (
            function(68),
            "struct S {\n" + filler + "};\n",
            "class alignas(64) S : public B<decltype(f())> {\n" + filler + "};\n",
            "namespace a::b {\n" + "int f();\n" * 90 + "}\n",
            'extern "C" {\n' + "int f(void);\n" * 90 + "}\n",
            "const Row kTable[] = {\n" + "  {f(1), 2},\n" * 90 + "};\n",
            "std::function<void(int)> f{\n" + "  1,\n" * 90 + "};\n",
            "enum E : int {\n" + "  A,\n" * 90 + "};\n",
            "#define M(x) do { \\\n" + "  x; \\\n" * 90 + "} while (0)\n",
            'const char* s = R"(int f() {' + "\n" * 90 + ')";\n',
            "char c = '{';\n" + "int g();\n" * 90 + "char d = '}';\nint n = 1'000'000;\n",
            "/* int f() {" + "\n" * 90 + "} */\n",
            "int f() {\n  return 1;\n}\n\n" * 40,
        ):
            _, lines = run_tidy(GOOD | {"base/a.cpp": SPDX + text})
            self.assertFalse([x for x in lines if x.endswith("[functions]")], text[:60])


if __name__ == "__main__":
    unittest.main()
