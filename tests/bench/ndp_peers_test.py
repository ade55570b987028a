# SPDX-License-Identifier: Apache-2.0
"""bench/ndp_peers.py without its peers: it names the missing packages."""

import pathlib
import subprocess
import sys
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "bench" / "ndp_peers.py"


class NdpPeers(unittest.TestCase):
    def run_script(self, *arguments):
        # -S: as if no package were installed.
        return subprocess.run([sys.executable, "-B", "-S", SCRIPT, *arguments],
                              capture_output=True, text=True)

    def test_packages_must_be_there(self):
        done = self.run_script("--bowhead", "/no/such/program")
        self.assertEqual(done.returncode, 3)
        self.assertIn("pip install faiss-cpu numkong numpy", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_the_program_is_asked_for(self):
        done = self.run_script()
        self.assertEqual(done.returncode, 2)
        self.assertIn("--bowhead", done.stderr)


if __name__ == "__main__":
    unittest.main()
