# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/python.md run as they stand, and print what it says."""

import pathlib
import re
import subprocess
import sys

import pytest

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "python.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
PRINTED = [
    "b'key 1' OK 10\nb'key 2' NOT_FOUND 0\nb'here'\n",
    "True ['OK']\nTrue ['OK']\n",
    "[True, False]\n",
]


@pytest.mark.parametrize(("program", "printed"), list(zip(PROGRAMS, PRINTED, strict=True)))
def test_a_program_of_the_page(program, printed, make_pool):
    program = program.replace("shm:demo", make_pool(16 << 20))
    program = program.replace("bk.create(", "bk.create(replace=True, locator=")
    program = program.replace("1 << 30", "size_bytes=64 << 20")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (printed, "")
    page = PAGE.read_text().replace("\n    ", "\n")
    assert printed.strip() in page
