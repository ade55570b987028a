# SPDX-License-Identifier: Apache-2.0
"""LMCache's own tests of native connectors, on BowheadConnector."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TESTS = Path(os.environ.get("BOWHEAD_LMCACHE_TESTS", "missing"))
FILE = "v1/distributed/test_native_connector_l2_adapter.py"

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("lmcache") is None,
        reason="lmcache is not installed; `tools/engines install` makes an environment with it",
    ),
    pytest.mark.skipif(
        not (TESTS / FILE).is_file(),
        reason="BOWHEAD_LMCACHE_TESTS does not name the folder `tests` of lmcache's source package "
        "(docs/engines/lmcache.md says how to get it)",
    ),
]


def test_native_connector_tests_pass_on_the_pool(tmp_path: Path) -> None:
    # Away from the source package's own `lmcache`, which lacks the compiled modules.
    shutil.copytree(TESTS, tmp_path / "tests")
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "upstream", f"tests/{FILE}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 0, done.stdout[-4000:]
    print(done.stdout.splitlines()[-1])
