#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ZipNN on the blocks of `bowhead-bench codec --data DIR`, in lines of the same JSON.

ZipNN (pip install zipnn) has a Python interface only, so that its calls are in its speed: it counts
in blocks of 4 KiB. One thread, a walk over 64 MiB, every block compared before anything is timed.
Exit status: 0 measured, 1 a block was not restored exactly, 3 ZipNN or the data is missing.
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
NAMES = {"bf16": "bfloat16", "fp16": "float16"}
ROLES = {"k": "keys", "v": "values"}


def tensors_of(folder):
    """(set, role, number, bytes of a head, bytes), in the order of bench/kv_data.h."""
    for meta_path in sorted(folder.glob("*/meta.json")):
        found = []
        for name, entry in json.loads(meta_path.read_text())["files"].items():
            if entry["tensor"] in ROLES and entry["dtype"] in NAMES:
                head_bytes = entry["shape"][2] * entry["shape"][3] * 2
                values = (meta_path.parent / name).read_bytes()
                found.append((entry["dtype"], ROLES[entry["tensor"]], head_bytes, values))
        for number, role, head_bytes, values in sorted(found, key=lambda tensor: tensor[:2]):
            if head_bytes >= BLOCK_BYTES[0]:
                yield meta_path.parent.name, role, number, head_bytes, values


def blocks_of(values, head_bytes, block_bytes):
    for head in range(0, len(values), head_bytes):
        for at in range(0, head_bytes - block_bytes + 1, block_bytes):
            yield values[head + at : head + at + block_bytes]


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=pathlib.Path, help="folder of captured sets")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    try:
        import zipnn
    except ImportError as error:
        print(f"codec_peers: ZipNN is missing ({error}): pip install zipnn", file=sys.stderr)
        return 3
    tensors = list(tensors_of(arguments.data))
    if not tensors:
        print(f"codec_peers: {arguments.data} has no captured keys or values", file=sys.stderr)
        return 3
    for name, role, number, head_bytes, values in tensors:
        codec = zipnn.ZipNN(bytearray_dtype=NAMES[number], input_format="byte", threads=1)
        for block_bytes in BLOCK_BYTES:
            blocks = list(blocks_of(values, head_bytes, block_bytes))
            measured = measure(codec, blocks, arguments.rounds)
            if measured is None:
                print(f"codec_peers: {name} {role} {number}: a block was not restored exactly",
                      file=sys.stderr)
                return 1
            ratio, speeds = measured
            line = {"bench": "codec", "command": " ".join(sys.argv),
                    "parameters": {"codec": "zipnn", "set": name, "synthetic": False,
                                   "tensor": role, "number": number, "block_bytes": block_bytes,
                                   "blocks": len(blocks)}}
            print(json.dumps(line | {"row": "ratio", "unit": "to 1", "value": summary([ratio])}))
            for row in ("encode", "decode"):
                of_copy = [a / b for a, b in zip(speeds[row], speeds["copy"])]
                print(json.dumps(line | {
                    "row": row, "unit": "GB/s", "value": summary(speeds[row]),
                    "limit": summary(speeds["copy"]) | {"kind": "bytes() of Python"},
                    "ratio": summary(of_copy)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
