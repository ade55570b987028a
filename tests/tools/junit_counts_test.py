# SPDX-License-Identifier: Apache-2.0
"""tools/junit_counts must count like ctest; a test that could not be started has failed."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "tools" / "junit_counts"

# The format of ctest 3.25.
REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="x" tests="8" failures="2" disabled="1" skipped="4">
<testcase name="a.1" status="run" time="1.25"><system-out>ok</system-out></testcase>
<testcase name="b" status="run" time="3"/>
<testcase name="a.2" status="fail" time="2.5"><failure message=""/>
<system-out>what it said
why it failed
</system-out></testcase>
<testcase name="d" status="fail"><failure message="timeout"/></testcase>
<testcase name="e" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
<system-out>[ RUN      ] X.Y
/x/a.cpp:3: Skipped
no hugepages here
[  SKIPPED ] X.Y (0 ms)</system-out></testcase>
<testcase name="f" status="notrun"><skipped message="Unable to find executable"/></testcase>
<testcase name="g" status="disabled"/>
<testcase name="h" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
<system-out>skipped: no nm here
</system-out></testcase>
</testsuite>
"""


def count(text):
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as report:
        report.write(text)
        report.flush()
        done = subprocess.run([sys.executable, SCRIPT, report.name], capture_output=True, text=True,
                              check=True)
    return done.stdout.splitlines()


class Counts(unittest.TestCase):
    def test_every_kind(self):
        self.assertEqual(count(REPORT), [
            "skipped: e: no hugepages here",
            "skipped: g: disabled",
            "skipped: h: no nm here",
            "failed: a.2",
            "  what it said",
            "  why it failed",
            "failed: d",
            "failed: f: Unable to find executable",
            "slowest: a 4 s, b 3 s, d 0 s, e 0 s, f 0 s, g 0 s",
            "2 3 3",
        ])

    def test_nothing(self):
        self.assertEqual(count("<testsuite/>"), ["slowest: ", "0 0 0"])


if __name__ == "__main__":
    unittest.main()
