# SPDX-License-Identifier: Apache-2.0
"""An independent decoder must read the golden frames, which must cover the whole format."""

import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import frame_decoder
from frame_decoder import Damaged, Frame, Header, Unsupported

IN_PLANES = (frame_decoder.PLANES, frame_decoder.SEARCHABLE)
HERE = pathlib.Path(__file__).resolve().parent
FRAMES = sorted((HERE / "frames").glob("*.frame"))


def value_of(bits, kind):
    """The number of a bit pattern in the format, which has no infinities."""
    negative = bits >> 8 * kind.element_bytes - 1
    if kind.exponent_bits == 0:
        return bits - 256 * negative
    x = bits >> kind.mantissa & (1 << kind.exponent_bits) - 1
    s = 1 << kind.mantissa | bits & (1 << kind.mantissa) - 1
    return math.ldexp(-s if negative else s, x - frame_decoder.bias_of(kind) - kind.mantissa)


def values_of(raw, kind):
    count = len(raw) // kind.element_bytes
    return [value_of(b, kind) for b in struct.unpack(f"<{count}{' BH'[kind.element_bytes]}", raw)]


def units_of(data):
    """The unit of each value of the frame in DATA; None in tiles that are not in planes."""
    frame = Frame(data)
    kind = frame.kind
    units = []
    for tile, tokens in zip(frame.tiles, frame.tokens_of_tiles()):
        of_token = [None] * frame.channels
        if tile[0] in IN_PLANES:
            least = -frame_decoder.bias_of(kind) - kind.mantissa
            header = Header(tile, tokens, frame)
            of_token = [math.ldexp(1, e + least) for e in header.exponents]
        units += of_token * tokens
    return units


def traits_of(data):
    """The parts of the format that the frame in DATA covers."""
    frame = Frame(data)
    kind = frame.kind.name
    traits = {(kind, "tiles")} if len(frame.tiles) > 1 else set()
    for tile, tokens in zip(frame.tiles, frame.tokens_of_tiles()):
        traits.add((kind, "layout", tile[0]))
        if tokens < frame.tile_tokens:
            traits.add(("partial tile", "layout", tile[0]))
        if tile[0] == frame_decoder.ONE_STREAM:
            traits.add(("one stream", "codec", tile[1]))
        if tile[0] not in IN_PLANES:
            continue
        header = Header(tile, tokens, frame)
        if header.steps:
            traits.add((kind, "steps", "of tokens" if header.step_tokens > 1 else "of channels"))
        if header.spreads:
            traits.add((kind, "spreads"))
        traits |= {("planes", "codec", codec) for codec in header.codecs}
        traits.add(("groups", "of one plane" if len(header.groups) > 3 else "of several"))
        if any(header.amplitudes):
            traits.add((kind, "turning" if header.turns else "resting", "centre"))
        traits |= {(kind, name) for name, size in zip(("remainder", "exceptions"),
                                                      header.decoded[-2:]) if size > 0}
        if frame.channels % 8 != 0:
            traits.add((kind, "odd channels"))
    return traits


FLOATS = ("bf16", "fp16", "fp8 e4m3", "fp8 e5m2")
WANTED = (
    {("planes", "codec", codec) for codec in range(5)}
    | {("groups", "of one plane"), ("groups", "of several")}
    | {("one stream", "codec", codec) for codec in (2, 3)}
    | {("partial tile", "layout", layout) for layout in (1, 2)}
    | {(kind, "layout", 1) for kind in FLOATS + ("int8",)}
    | {(kind, "layout", 3) for kind in FLOATS + ("int8",)}
    | {(kind, "steps", "of tokens") for kind in FLOATS}
    | {(kind, "spreads") for kind in FLOATS + ("int8",)}
    | {("bf16", "steps", "of channels")}
    | {(kind, "layout", 0) for kind in ("bf16", "fp8 e4m3", "int8")}
    | {(kind, "tiles") for kind in ("bf16", "fp16", "fp8 e4m3", "bytes")}
    | {(kind, what) for kind in FLOATS for what in ("remainder", "exceptions")}
    | {(kind, "resting", "centre") for kind in ("bf16", "fp16", "fp8 e5m2")}
    | {(kind, "turning", "centre") for kind in ("bf16", "fp16", "fp8 e4m3", "int8")}
    | {(kind, "odd channels") for kind in ("bf16", "fp16", "fp8 e4m3", "fp8 e5m2", "int8")}
)


class Decoder(unittest.TestCase):
    def test_frames_decode(self):
        self.assertGreater(len(FRAMES), 12)
        for path in FRAMES:
            with self.subTest(frame=path.name):
                raw = path.with_suffix(".raw").read_bytes()
                self.assertTrue(frame_decoder.decode(path.read_bytes()) == raw)

    def test_frames_show_all_of_the_format(self):
        traits = set().union(*(traits_of(path.read_bytes()) for path in FRAMES))
        self.assertEqual(WANTED - traits, set())

    def test_planes_approximate(self):
        for path in FRAMES:
            data, raw = path.read_bytes(), path.with_suffix(".raw").read_bytes()
            kind = Frame(data).kind
            if kind.magnitude is None or len(raw) > 10_000:
                continue
            values, units = values_of(raw, kind), units_of(data)
            for planes in range(1, kind.magnitude + 2):
                with self.subTest(frame=path.name, planes=planes):
                    half = 2.0 ** (kind.magnitude - planes)
                    middles = frame_decoder.approximations(data, planes)
                    for value, unit, middle in zip(values, units, middles, strict=True):
                        if unit is not None:
                            self.assertLessEqual(abs(value - middle), half * unit)

    def test_damage_is_found(self):
        for path in FRAMES:
            data = path.read_bytes()
            for at in range(0, len(data), max(len(data) // 16, 1)):
                flipped = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
                for damaged in (data[:at], flipped):
                    with self.subTest(frame=path.name, at=at):
                        self.assertRaises((Damaged, Unsupported), frame_decoder.decode, damaged)

    def test_command(self):
        frame = HERE / "frames" / "bf16_values.frame"
        with tempfile.TemporaryDirectory() as folder:
            out, cut = pathlib.Path(folder) / "out", pathlib.Path(folder) / "cut"
            command = [sys.executable, "-B", HERE / "frame_decoder.py"]
            subprocess.run([*command, frame, out], check=True)
            self.assertEqual(out.read_bytes(), frame.with_suffix(".raw").read_bytes())
            cut.write_bytes(frame.read_bytes()[:-1])
            done = subprocess.run([*command, cut, out], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("the streams of a tile do not fill it", done.stderr)


if __name__ == "__main__":
    unittest.main()
