#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes sets of one-byte numbers of captured ones, for `bowhead-bench codec` and codec_peers.py.

Keys and values of bf16 become e4m3 and e5m2, rounded to the nearest, and int8, whose scale is that
of the largest number of each token and head. Needs numpy and ml_dtypes (pip install ml_dtypes).
Exit status: 0 done, 3 a package or the data is missing.
"""

import argparse
import json
import pathlib
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=pathlib.Path, help="folder of captured sets")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder to make")
    arguments = parser.parse_args()
    try:
        import ml_dtypes
        import numpy
    except ImportError as error:
        print(f"narrow_data: {error}: pip install ml_dtypes", file=sys.stderr)
        return 3

    def int8(values):
        scales = numpy.abs(values).max(axis=-1, keepdims=True) / 127
        return numpy.rint(values / numpy.where(scales == 0, 1, scales)).astype(numpy.int8)

    narrow = {"fp8_e4m3": lambda values: values.astype(ml_dtypes.float8_e4m3fn),
              "fp8_e5m2": lambda values: values.astype(ml_dtypes.float8_e5m2), "int8": int8}
    made = 0
    for meta_path in sorted(arguments.data.glob("*/meta.json")):
        folder, files = arguments.out / meta_path.parent.name, {}
        for name, entry in json.loads(meta_path.read_text())["files"].items():
            if entry["tensor"] not in ("k", "v") or entry["dtype"] != "bf16":
                continue
            wide = numpy.frombuffer((meta_path.parent / name).read_bytes(), ml_dtypes.bfloat16)
            wide = wide.reshape(entry["shape"]).astype(numpy.float32)
            folder.mkdir(parents=True, exist_ok=True)
            for number, convert in narrow.items():
                to = f"{entry['tensor']}.{number}.bin"
                (folder / to).write_bytes(convert(wide).tobytes())
                files[to] = {"tensor": entry["tensor"], "dtype": number, "shape": entry["shape"]}
        if files:
            (folder / "meta.json").write_text(json.dumps({"files": files}))
            made += 1
    if made == 0:
        print(f"narrow_data: {arguments.data} has no captured keys or values of bf16",
              file=sys.stderr)
        return 3
    print(f"{made} sets in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
