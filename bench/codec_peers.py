#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Blosc2 and ZipNN on the blocks of `bowhead-bench codec --data DIR`, in lines of the same JSON.

Both are called by their Python interfaces (pip install blosc2 zipnn), so that the calls are in
their speeds: they count in blocks of 4 KiB. One thread, a walk over 64 MiB, every block compared
before anything is timed. ZipNN takes bf16 and fp16 only.
Exit status: 0 measured, 1 a block was not restored exactly, 3 a package or the data is missing.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import sys
import time

BLOCK_BYTES = (65536, 4096)
WALK_BYTES = 64 << 20
NUMBER_BYTES = {"bf16": 2, "fp16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}
ZIPNN_NAMES = {"bf16": "bfloat16", "fp16": "float16"}
# Filter, codec and level of Blosc2, whose level 2 is level 3 of zstd.
BLOSC_WAYS = {"blosc2 byte shuffle+zstd -3": ("SHUFFLE", "ZSTD", 2),
              "blosc2 bitshuffle+zstd -3": ("BITSHUFFLE", "ZSTD", 2),
              "blosc2 bitshuffle+lz4": ("BITSHUFFLE", "LZ4", 9)}
ROLES = {"k": "keys", "v": "values"}


def tensors_of(folder):
    """(set, role, number, bytes of a head, bytes), in the order of tools/program/kv_data.h."""
    for meta_path in sorted(folder.glob("*/meta.json")):
        found = []
        for name, entry in json.loads(meta_path.read_text())["files"].items():
            if entry["tensor"] in ROLES and entry["dtype"] in NUMBER_BYTES:
                head_bytes = (entry["shape"][2] * entry["shape"][3] *
                              NUMBER_BYTES[entry["dtype"]])
                values = (meta_path.parent / name).read_bytes()
                found.append((entry["dtype"], ROLES[entry["tensor"]], head_bytes, values))
        for number, role, head_bytes, values in sorted(found, key=lambda tensor: tensor[:2]):
            yield meta_path.parent.name, role, number, head_bytes, values


def blocks_of(values, head_bytes, block_bytes):
    for head in range(0, len(values), head_bytes):
        for at in range(0, head_bytes - block_bytes + 1, block_bytes):
            yield values[head + at : head + at + block_bytes]


class Blosc:
    def __init__(self, blosc2, name, number):
        self.name = name
        self.blosc2 = blosc2
        filter_, codec, level = BLOSC_WAYS[name]
        self.options = {"codec": getattr(blosc2.Codec, codec), "clevel": level, "nthreads": 1,
                        "typesize": NUMBER_BYTES[number], "filters_meta": [0],
                        "filters": [getattr(blosc2.Filter, filter_)]}

    def compress(self, block):
        return self.blosc2.compress2(block, **self.options)

    def decompress(self, coded):
        return self.blosc2.decompress2(coded, nthreads=1)


class Zip:
    name = "zipnn"

    def __init__(self, zipnn, number):
        self.codec = zipnn.ZipNN(bytearray_dtype=ZIPNN_NAMES[number], input_format="byte",
                                 threads=1)

    def compress(self, block):
        return self.codec.compress(block)

    def decompress(self, coded):
        return self.codec.decompress(bytearray(coded))


def peers_of(blosc2, zipnn, number):
    peers = [Blosc(blosc2, name, number) for name in BLOSC_WAYS]
    return peers + ([Zip(zipnn, number)] if number in ZIPNN_NAMES else [])


def timed(call, inputs):
    """Seconds in the calls only, and their results. Each call gets a copy that it may change."""
    seconds, outputs = 0.0, []
    for value in inputs:
        copy = bytearray(value)
        begin = time.perf_counter()
        outputs.append(call(copy))
        seconds += time.perf_counter() - begin
    return seconds, outputs


def summary(samples):
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples),
            "rounds": len(samples)}


def measure(codec, blocks, rounds):
    """Ratio, and GB/s of encode, decode and a plain copy by round; None if a block is wrong."""
    coded = [bytes(codec.compress(bytearray(block))) for block in blocks]
    if any(codec.decompress(bytearray(c)) != b for c, b in zip(coded, blocks)):
        return None
    ratio = sum(map(len, blocks)) / sum(map(len, coded))
    count = max(WALK_BYTES // len(blocks[0]), len(blocks))
    walk = [bytes(bytearray(block)) for block in itertools.islice(itertools.cycle(blocks), count)]
    speeds = {"encode": [], "decode": [], "copy": []}
    for _ in range(rounds):
        encoding, coded = timed(codec.compress, walk)
        decoding, _ = timed(codec.decompress, coded)
        copying, _ = timed(bytes, walk)
        for what, seconds in (("encode", encoding), ("decode", decoding), ("copy", copying)):
            speeds[what].append(len(walk) * len(walk[0]) / seconds * 1e-9)
    return ratio, speeds


def report(parameters, ratio, speeds):
    line = {"bench": "codec", "command": " ".join(sys.argv), "parameters": parameters}
    print(json.dumps(line | {"row": "ratio", "unit": "to 1", "value": summary([ratio])}))
    for row in ("encode", "decode"):
        of_copy = [a / b for a, b in zip(speeds[row], speeds["copy"])]
        print(json.dumps(line | {
            "row": row, "unit": "GB/s", "value": summary(speeds[row]),
            "limit": summary(speeds["copy"]) | {"kind": "bytes() of Python"},
            "ratio": summary(of_copy)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=pathlib.Path, help="folder of captured sets")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    try:
        import blosc2
        import zipnn
    except ImportError as error:
        print(f"codec_peers: {error}: pip install blosc2 zipnn", file=sys.stderr)
        return 3
    tensors = list(tensors_of(arguments.data))
    if not tensors:
        print(f"codec_peers: {arguments.data} has no captured keys or values", file=sys.stderr)
        return 3
    for name, role, number, head_bytes, values in tensors:
        for block_bytes in BLOCK_BYTES:
            if head_bytes < block_bytes:
                continue
            blocks = list(blocks_of(values, head_bytes, block_bytes))
            for peer in peers_of(blosc2, zipnn, number):
                measured = measure(peer, blocks, arguments.rounds)
                if measured is None:
                    print(f"codec_peers: {name} {role} {number}: {peer.name} did not restore a "
                          "block exactly", file=sys.stderr)
                    return 1
                report({"codec": peer.name, "set": name, "synthetic": False, "tensor": role,
                        "number": number, "block_bytes": block_bytes, "blocks": len(blocks)},
                       *measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
