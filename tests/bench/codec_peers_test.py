# SPDX-License-Identifier: Apache-2.0
"""bench/codec_peers.py, with stub modules in place of Blosc2 and ZipNN: its output and refusals."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "bench" / "codec_peers.py"

# Halves its input, whose values repeat; and returns both halves, or less.
ZIPNN = """
class ZipNN:
    def __init__(self, bytearray_dtype, input_format, threads):
        assert bytearray_dtype in ("bfloat16", "float16") and threads == 1
    def compress(self, data):
        half = len(data) // 2
        coded = bytes(data[:half])
        data[:] = bytes(len(data))  # as it may
        return coded
    def decompress(self, coded):
        return bytes(coded) + bytes(coded[:{taken}])
"""

# Stores its input.
BLOSC2 = """
class Codec:
    ZSTD = LZ4 = 1
class Filter:
    SHUFFLE = BITSHUFFLE = 2
def compress2(data, codec, clevel, nthreads, typesize, filters_meta, filters):
    assert nthreads == 1 and typesize in (1, 2)
    return bytes(data)
def decompress2(coded, nthreads):
    return bytes(coded)
"""
BLOSC_ROWS = ("blosc2 byte shuffle+zstd -3", "blosc2 bitshuffle+zstd -3", "blosc2 bitshuffle+lz4")


class CodecPeers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.data = self.folder / "data" / "set"
        self.data.mkdir(parents=True)

    def write_data(self):
        files = {}
        for name, tensor, kind, shape in (("a", "v", "fp16", [1, 2, 512, 64]),
                                          ("b", "k", "bf16", [2, 1, 768, 64]),
                                          ("c", "k", "int8", [1, 1, 64, 64]),
                                          ("e", "k", "bf16", [1, 1, 16, 64]),
                                          ("d", "q", "bf16", [1, 1, 512, 64])):
            files[name] = {"tensor": tensor, "dtype": kind, "shape": shape}
            size = shape[0] * shape[1] * shape[2] * shape[3] * (1 if kind == "int8" else 2)
            (self.data / name).write_bytes(bytes(i % 251 for i in range(2048)) * (size // 2048))
        (self.data / "meta.json").write_text(json.dumps({"files": files}))

    def run_script(self, taken):
        (self.folder / "zipnn.py").write_text(ZIPNN.replace("{taken}", taken))
        (self.folder / "blosc2.py").write_text(BLOSC2)
        return subprocess.run(
            [sys.executable, "-B", SCRIPT, "--data", self.data.parent, "--rounds", "2"],
            env=dict(os.environ, PYTHONPATH=str(self.folder)), capture_output=True, text=True)

    def test_prints_every_row(self):
        self.write_data()
        done = self.run_script("len(coded)")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        seen = [(line["row"], line["parameters"]["codec"], line["parameters"]["tensor"],
                 line["parameters"]["number"], line["parameters"]["block_bytes"],
                 line["parameters"]["blocks"]) for line in lines]
        # Heads of 96 KiB hold one block of 64 KiB, heads of 2 KiB none; queries are skipped.
        self.assertEqual(seen, [
            (row, codec, *rest)
            for rest in (("keys", "bf16", 65536, 2), ("keys", "bf16", 4096, 48),
                         ("values", "fp16", 65536, 2), ("values", "fp16", 4096, 32),
                         ("keys", "int8", 4096, 1))
            for codec in BLOSC_ROWS + (() if rest[1] == "int8" else ("zipnn",))
            for row in ("ratio", "encode", "decode")])
        for line in lines:
            self.assertEqual(line["bench"], "codec")
            if line["row"] == "ratio":
                halves = line["parameters"]["codec"] == "zipnn"
                self.assertEqual(line["value"]["median"], 2 if halves else 1)
            else:
                self.assertGreater(line["value"]["min"], 0)
                self.assertGreater(line["limit"]["median"], 0)
                self.assertEqual(line["value"]["rounds"], 2)

    def test_wrong_blocks_are_found(self):
        self.write_data()
        done = self.run_script("-1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("set keys bf16: zipnn did not restore a block exactly", done.stderr)
        self.assertNotIn("zipnn", done.stdout)

    def test_data_must_be_there(self):
        done = self.run_script("len(coded)")
        self.assertEqual(done.returncode, 3)
        self.assertIn("no captured keys or values", done.stderr)


if __name__ == "__main__":
    unittest.main()
