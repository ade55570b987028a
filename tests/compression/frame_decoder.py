#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decodes a frame; written only from docs/frame.md.

It shares no code with compression/, so that what both read the same is what the page says. It is
slow and plain on purpose. frame_decoder.py FRAME OUT writes the values; approximations()
tells what the first planes of each tile say.
"""

import argparse
import ctypes
import math
import struct
import sys
from collections import namedtuple

MAX_VALUE_BYTES = 1 << 31
MAX_TILE_VALUE_BYTES = 1 << 20


class Damaged(Exception):
    pass


class Unsupported(Exception):
    pass


Kind = namedtuple("Kind", "name element_bytes exponent_bits mantissa magnitude")

KINDS = {
    1: Kind("bf16", 2, 8, 7, 8),
    2: Kind("fp16", 2, 5, 10, 11),
    3: Kind("fp8 e4m3", 1, 4, 3, 4),
    4: Kind("fp8 e5m2", 1, 5, 2, 3),
    5: Kind("int8", 1, 0, 0, 7),
    6: Kind("bytes", 1, None, None, None),
}
INT8, BYTES = 5, 6

STORED, PLANES, ONE_STREAM, SEARCHABLE = 0, 1, 2, 3  # layouts of a tile
STEP_VALUES = 256
ONE_RADIAN = 683565276  # in units of 2^-32 turns
CODEC_STORED, CODEC_ZERO, CODEC_LZ4, CODEC_ZSTD, CODEC_NIBBLES = range(5)


XXHASH = ctypes.CDLL("libxxhash.so.0")
XXHASH.XXH3_64bits_withSeed.restype = ctypes.c_uint64
XXHASH.XXH3_64bits_withSeed.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
ZSTD = ctypes.CDLL("libzstd.so.1")
ZSTD.ZSTD_decompress.restype = ctypes.c_size_t
ZSTD.ZSTD_decompress.argtypes = [
    ctypes.c_char_p,
    ctypes.c_size_t,
    ctypes.c_char_p,
    ctypes.c_size_t,
]
ZSTD.ZSTD_isError.argtypes = [ctypes.c_size_t]
ZSTD.ZSTD_findFrameCompressedSize.restype = ctypes.c_size_t
ZSTD.ZSTD_findFrameCompressedSize.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def xxh3(data, seed=0):
    return XXHASH.XXH3_64bits_withSeed(bytes(data), len(data), seed)


def check(data, checksum, what, seed=0):
    if xxh3(data, seed) & 0xFFFFFFFF != checksum:
        raise Damaged(f"the checksum of {what} does not match")


# ---- Streams


def lz4_block(coded, size):
    """One block of the public LZ4 block format."""
    out = bytearray()
    at = 0

    def length(nibble, at):
        total = nibble
        while nibble == 15:
            total += coded[at]
            at += 1
            if coded[at - 1] != 255:
                break
        return total, at

    try:
        while True:
            token = coded[at]
            literals, at = length(token >> 4, at + 1)
            if at + literals > len(coded):
                raise Damaged("the literals of an LZ4 block run over its end")
            out += coded[at : at + literals]
            at += literals
            if at == len(coded):
                break
            distance = coded[at] | coded[at + 1] << 8
            match, at = length(token & 15, at + 2)
            match += 4
            if distance == 0 or distance > len(out) or len(out) + match > size:
                raise Damaged("a match of an LZ4 block lies outside what is decoded")
            for _ in range(match):
                out.append(out[-distance])
    except IndexError:
        raise Damaged("an LZ4 block ends in the middle of a sequence") from None
    return bytes(out)


def zstd_frame(coded, size):
    out = ctypes.create_string_buffer(max(size, 1))
    used = ZSTD.ZSTD_findFrameCompressedSize(coded, len(coded))
    if ZSTD.ZSTD_isError(used) or used != len(coded):
        raise Damaged("a ZSTD stream is not one whole frame")
    got = ZSTD.ZSTD_decompress(out, size, coded, len(coded))
    if ZSTD.ZSTD_isError(got):
        raise Damaged("a ZSTD frame does not decode to its size")
    return out.raw[:got]


def nibbles(coded, size):
    map_bytes = (2 * size + 7) // 8
    if len(coded) < map_bytes:
        raise Damaged("the map of a stream of nibbles is cut off")
    present = int.from_bytes(coded[:map_bytes], "little")
    if present >> (2 * size):
        raise Damaged("the map of a stream of nibbles counts nibbles after its end")
    count = bin(present).count("1")
    if len(coded) != map_bytes + (count + 1) // 2:
        raise Damaged("a stream of nibbles has another length than its map says")
    out = bytearray(size)
    taken = 0
    for i in range(2 * size):
        if present >> i & 1:
            nibble = coded[map_bytes + taken // 2] >> 4 * (taken % 2) & 15
            taken += 1
            out[i // 2] |= nibble << 4 * (i % 2)
    return bytes(out)


def stream(codec, coded, size):
    """The bytes of a stream that is SIZE bytes long when decoded."""
    coded = bytes(coded)
    if codec == CODEC_STORED:
        out = coded
    elif codec == CODEC_ZERO:
        if coded:
            raise Damaged("a stream of zeros has bytes")
        out = bytes(size)
    elif codec == CODEC_LZ4:
        out = lz4_block(coded, size)
    elif codec == CODEC_ZSTD:
        out = zstd_frame(coded, size)
    elif codec == CODEC_NIBBLES:
        out = nibbles(coded, size)
    else:
        raise Unsupported(f"codec {codec} is unknown")
    if len(out) != size:
        raise Damaged(f"a stream decodes to {len(out)} bytes instead of {size}")
    return out


# ---- Centres


def saturate(value, bits=16):
    return max(-(1 << bits - 1), min((1 << bits - 1) - 1, value))


def sine_table():
    table = []
    for j in range(1025):
        value = 32768 * math.sin(2 * math.pi * j / 1024)
        table.append(int(math.copysign(math.floor(abs(value) + 0.5), value)))
    return table


SINE = sine_table()


def sine(phase):
    j, r = phase >> 22, phase & (1 << 22) - 1
    value = SINE[j] + ((SINE[j + 1] - SINE[j]) * r + (1 << 21) >> 22)
    return max(-32767, min(32767, value))


class Centres:
    """The centre of each channel, token after token."""

    def __init__(self, header, frame):
        magnitude = frame.kind.magnitude
        self.turns = header.turns
        self.f = 13 - magnitude
        self.states = [saturate(a << header.centre_shift + self.f) for a in header.amplitudes]
        self.lifts = [0] * frame.channels
        self.pairs = []
        if not self.turns:
            return
        step = frame.rotary_step
        half = frame.rotary_dim // 2
        for i in range(half):
            sin, cos = sine(step), sine((step + (1 << 30)) % (1 << 32))
            at, apart = (2 * i, 1) if frame.interleaved else (i, half)
            for head in range(0, frame.channels, frame.rotary_head):
                x = head + frame.rotary_first + at
                self.pairs.append((x, x + apart, sin, cos))
            step = step * frame.rotary_ratio >> 32
        for x, y, _, _ in self.pairs:
            self.lifts[x] = max(header.exponents[y] - header.exponents[x], 0)
            self.lifts[y] = max(header.exponents[x] - header.exponents[y], 0)

    def of_token(self):
        return [
            state >> (15 if g > self.f else self.f - g)
            for state, g in zip(self.states, self.lifts)
        ]

    def advance(self):
        half = 1 << 14
        for c, d, sin, cos in self.pairs:
            x, y = self.states[c], self.states[d]
            self.states[c] = saturate((x * cos + half >> 15) - (y * sin + half >> 15))
            self.states[d] = saturate((x * sin + half >> 15) + (y * cos + half >> 15))


# ---- A tile in planes


class Cursor:
    """Takes bytes from the front of DATA; an error if there are none left."""

    def __init__(self, data, what):
        self.data, self.at, self.what = data, 0, what

    def take(self, count):
        if count > len(self.data) - self.at:
            raise Damaged(f"{self.what} is cut off")
        self.at += count
        return self.data[self.at - count : self.at]

    def byte(self):
        return self.take(1)[0]

    def u32(self):
        return struct.unpack("<I", self.take(4))[0]

    def varint(self):
        value = 0
        for shift in range(0, 42, 7):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise Damaged(f"a size in {self.what} does not end")


def packed(data, count, width):
    """COUNT numbers of WIDTH bits, the lowest bit first."""
    bits = int.from_bytes(data, "little")
    mask = (1 << width) - 1
    return [bits >> i * width & mask for i in range(count)]


def bias_of(kind):
    return (1 << kind.exponent_bits >> 1) - 1 if kind.exponent_bits else 0


def groups_of(planes, plane_bytes):
    """First stream, and the one after the last, of each group with one checksum."""
    if plane_bytes >= 1024:
        return [(i, i + 1) for i in range(planes)] + [(planes, planes + 2)]
    first = min(5, planes)
    return [(0, first), (first, planes), (planes, planes + 2)]


class Header:
    """The header of a tile in planes: all bytes before its streams."""

    def __init__(self, tile, tokens, frame):
        kind = frame.kind
        cursor = Cursor(tile, "the header of a tile")
        searchable = cursor.byte() == SEARCHABLE
        base = cursor.byte()
        widths = cursor.byte()
        exponent_bits, centre_bits = widths & 15, widths >> 4
        if exponent_bits > 8:
            raise Damaged(f"an exponent of {exponent_bits} bits is too wide")
        centre = cursor.byte()
        self.centre_shift, self.turns = centre & 127, centre >> 7 == 1
        if self.centre_shift > 15:
            raise Damaged(f"a centre shift of {self.centre_shift} is too large")
        if self.turns and frame.rotary_dim == 0:
            raise Damaged("a centre turns in a frame that has no rotary dim")
        streams = kind.magnitude + 3
        self.codecs = packed(cursor.take((streams + 1) // 2), streams, 4)
        self.decoded = [tokens * frame.row_bytes] * (kind.magnitude + 1)
        self.coded = []
        for i, codec in enumerate(self.codecs):
            if i > kind.magnitude:
                self.decoded.append(cursor.varint())
            if codec == CODEC_STORED:
                self.coded.append(self.decoded[i])
            elif codec == CODEC_ZERO:
                self.coded.append(0)
            else:
                self.coded.append(cursor.varint())
        self.groups = groups_of(kind.magnitude + 1, self.decoded[0])
        self.checksums = [cursor.u32() for _ in self.groups]
        channels = frame.channels
        has_spreads, least, widths = 0, 0, 0
        if searchable:
            has_spreads = cursor.byte()
            if has_spreads > 1:
                raise Unsupported(f"a directory has parts {has_spreads}, which are unknown")
        self.step_tokens = max(STEP_VALUES // channels, 1)
        steps = 0
        if searchable and kind.exponent_bits:
            least, widths = cursor.varint(), cursor.byte()
            if least > 65535 or widths & 15 > 12 or widths >> 4 > 9:
                raise Damaged("a directory has counts that are too large")
            steps = -(-tokens // self.step_tokens) * -(-channels // STEP_VALUES) - 1
        exponents = cursor.take((channels * exponent_bits + 7) // 8)
        self.exponents = [base + e for e in packed(exponents, channels, exponent_bits)]
        if max(self.exponents) >= 1 << kind.exponent_bits:
            raise Damaged("a channel has an exponent that its kind of number has not")
        amplitudes = cursor.take((channels * centre_bits + 7) // 8)
        sign = 1 << centre_bits >> 1
        self.amplitudes = [(a ^ sign) - sign for a in packed(amplitudes, channels, centre_bits)]
        self.spreads = list(cursor.take(channels * has_spreads))
        bits = cursor.take((steps * (widths & 15) + 7) // 8)
        exceptions = cursor.take((steps * (widths >> 4) + 7) // 8)
        self.steps = [
            (least + b, e)
            for b, e in zip(
                packed(bits, steps, widths & 15), packed(exceptions, steps, widths >> 4)
            )
        ]
        covered = tile[: cursor.at]
        check(covered, cursor.u32(), "the header of a tile")
        self.size = cursor.at


class BitReader:
    def __init__(self, data):
        self.data, self.size, self.at = data, 8 * len(data), 0

    def take(self, count):
        """The next COUNT bits, the first lowest."""
        if count > self.size - self.at:
            raise Damaged("the remainder of a tile ends before its values do")
        bits = 0
        for i in range(count):
            bits |= (self.data[self.at >> 3] >> (self.at & 7) & 1) << i
            self.at += 1
        return bits

    def check_end(self):
        if (self.at + 7) // 8 != self.size // 8:
            raise Damaged("the remainder of a tile is longer than its values need")


def streams_of(tile, header, frame, planes):
    """The decoded streams: the first PLANES of them, or all if PLANES is None."""
    last_plane = frame.kind.magnitude
    count = last_plane + 3
    starts = [header.size]
    for size in header.coded:
        starts.append(starts[-1] + size)
    if starts[-1] != len(tile):
        raise Damaged("the streams of a tile do not fill it")
    wanted = count if planes is None else planes
    for (begin, end), checksum in zip(header.groups, header.checksums):
        if begin < wanted:
            check(tile[starts[begin] : starts[end]], checksum, f"the streams from {begin}")
    return [
        stream(header.codecs[i], tile[starts[i] : starts[i + 1]], header.decoded[i])
        for i in range(wanted)
    ]


def plane_bit(plane, frame, token, channel):
    return plane[token * frame.row_bytes + channel // 8] >> channel % 8 & 1


def differences(planes, frame, token):
    """Sign and magnitude of d in TOKEN; the bits of missing planes are zero."""
    magnitude_bits = frame.kind.magnitude
    for c in range(frame.channels):
        magnitude = 0
        for i, plane in enumerate(planes[1:]):
            magnitude |= plane_bit(plane, frame, token, c) << magnitude_bits - 1 - i
        yield plane_bit(planes[0], frame, token, c), magnitude


def sign_bit(negative, kind):
    return negative << 8 * kind.element_bytes - 1


def decode_planes(tile, tokens, frame):
    kind = frame.kind
    header = Header(tile, tokens, frame)
    streams = streams_of(tile, header, frame, None)
    planes = streams[: kind.magnitude + 1]
    remainder = BitReader(streams[kind.magnitude + 1])
    exceptions = Cursor(streams[kind.magnitude + 2], "the stream of exceptions")
    centres = Centres(header, frame)
    out = []
    begins = []  # of steps
    for token in range(tokens):
        qs = []
        for (negative, magnitude), centre in zip(
            differences(planes, frame, token), centres.of_token()
        ):
            q = (~magnitude if negative else magnitude) + centre
            if not -(1 << kind.magnitude) <= q < 1 << kind.magnitude:
                raise Damaged("a value lies outside its channel")
            qs.append(q)
        centres.advance()
        if frame.kind_number == INT8:
            out += [q & 255 for q in qs]
            continue
        for first in range(0, frame.channels, STEP_VALUES):
            if token % header.step_tokens == 0:
                begins.append((remainder.at, exceptions.at))
            part = slice(first, first + STEP_VALUES)
            out += elements(qs[part], header.exponents[part], frame, remainder, exceptions)
    check_steps(header, begins)
    remainder.check_end()
    if exceptions.at != len(exceptions.data):
        raise Damaged("a tile has more exceptions than values need them")
    return struct.pack(f"<{len(out)}{'BH'[kind.element_bytes - 1]}", *out)


def check_steps(header, begins):
    """The directory tells where each step begins; where there is none, nothing."""
    begin = (0, 0)
    for counts, at in zip(header.steps, begins[1:]):
        begin = (begin[0] + counts[0], begin[1] + counts[1])
        if begin != at:
            raise Damaged(f"a step begins at {at} and not, as the directory says, at {begin}")


def elements(qs, exponents, frame, remainder, exceptions):
    """The values of one token, or of some of its channels."""
    kind = frame.kind
    out = []
    for q, exponent in zip(qs, exponents):
        t = ~q if q < 0 else q
        if t > 0:
            e = kind.magnitude - t.bit_length()
            mantissa = (t << e | remainder.take(e)) - (1 << kind.mantissa)
        else:
            e = kind.magnitude + exceptions.byte()
            mantissa = remainder.take(kind.mantissa)
        if e > exponent:
            raise Damaged("a value has no exponent")
        out.append((exponent - e) << kind.mantissa | mantissa | sign_bit(int(q < 0), kind))
    return out


def approximate_planes(tile, tokens, frame, count):
    """The middle of each value's interval if only COUNT planes are read."""
    kind = frame.kind
    header = Header(tile, tokens, frame)
    planes = streams_of(tile, header, frame, count)
    centres = Centres(header, frame)
    half = 2.0 ** (kind.magnitude - count)
    out = []
    for token in range(tokens):
        for (negative, w), centre, exponent in zip(
            differences(planes, frame, token), centres.of_token(), header.exponents
        ):
            middle = centre - w - half if negative else centre + w + half
            out.append(math.ldexp(middle, exponent - bias_of(kind) - kind.mantissa))
        centres.advance()
    return out


# ---- Frames


class Frame:
    def __init__(self, data):
        cursor = Cursor(data, "the header of the frame")
        if cursor.take(4) != b"BHF1":
            raise Damaged("this is not a frame: it does not begin with BHF1")
        version = cursor.byte()
        if version not in (1, 2):
            raise Unsupported(f"version {version} is unknown")
        self.kind_number = cursor.byte()
        if self.kind_number not in KINDS:
            raise Unsupported(f"kind of number {self.kind_number} is unknown")
        self.kind = KINDS[self.kind_number]
        self.channels, self.outer, self.tokens, self.tile_tokens = struct.unpack(
            "<HIIH", cursor.take(12)
        )
        self.rotary_dim, self.rotary_ratio = struct.unpack("<HI", cursor.take(6))
        checksum = cursor.u32()
        self.read_rotation(cursor, version)
        self.row_bytes = (self.channels + 7) // 8
        self.check_shape()
        tiles = self.outer * -(-self.tokens // self.tile_tokens)
        if 4 * tiles > len(data) and tiles > 1:
            raise Damaged(f"a table of {tiles} tiles does not fit")
        table = cursor.take(4 * tiles if tiles > 1 else 0)
        if xxh3(data[28 : cursor.at], xxh3(data[:24])) & 0xFFFFFFFF != checksum:
            raise Damaged("the checksum of the frame's header does not match")
        sizes = struct.unpack(f"<{len(table) // 4}I", table) or (len(data) - cursor.at,)
        self.tiles = [cursor.take(size) for size in sizes]
        if cursor.at != len(data):
            raise Damaged("the tiles do not fill the frame")

    def read_rotation(self, cursor, version):
        self.rotary_head, self.rotary_first, self.rotary_step = self.rotary_dim, 0, ONE_RADIAN
        self.interleaved = False
        if version == 1:
            return
        self.rotary_head, self.rotary_first, self.rotary_step, pairs, zero = struct.unpack(
            "<HHIB3s", cursor.take(12)
        )
        if pairs > 2:
            raise Unsupported(f"pairs of kind {pairs} are unknown")
        if pairs == 0 or any(zero):
            raise Damaged("an impossible rotation")
        self.interleaved = pairs == 2
        plain = (self.rotary_dim, 0, ONE_RADIAN, 1)
        if (self.rotary_head, self.rotary_first, self.rotary_step, pairs) == plain:
            raise Damaged("a rotation that version 1 has")

    def check_shape(self):
        sizes = (self.channels, self.outer, self.tokens, self.tile_tokens)
        if 0 in sizes:
            raise Damaged("a size of the frame is zero")
        if self.outer * self.tokens * self.channels * self.kind.element_bytes > MAX_VALUE_BYTES:
            raise Damaged("the frame says that its values take more than 2 GiB")
        token_bytes = self.channels * self.kind.element_bytes
        if min(self.tokens, self.tile_tokens) * token_bytes > MAX_TILE_VALUE_BYTES:
            raise Damaged("the frame says that the values of a tile take more than 1 MiB")
        if self.kind_number == BYTES and self.channels != 1:
            raise Damaged("a frame of bytes has channels")
        if self.rotary_dim == 0:
            if (self.rotary_ratio, self.rotary_head, self.rotary_step) != (0, 0, ONE_RADIAN):
                raise Damaged("a rotation without a rotary dim")
        elif (
            0 in (self.rotary_ratio, self.rotary_head, self.rotary_step)
            or self.rotary_dim % 2
            or self.rotary_first + self.rotary_dim > self.rotary_head
            or self.channels % self.rotary_head
        ):
            raise Damaged("the rotation does not fit the channels")

    def tokens_of_tiles(self):
        for _ in range(self.outer):
            for first in range(0, self.tokens, self.tile_tokens):
                yield min(self.tile_tokens, self.tokens - first)


def layout_of(tile, frame):
    if not tile:
        raise Damaged("a tile is empty")
    layout = tile[0]
    if layout not in (STORED, PLANES, ONE_STREAM, SEARCHABLE):
        raise Unsupported(f"layout {layout} of a tile is unknown")
    if layout in (PLANES, SEARCHABLE) and frame.kind_number == BYTES:
        raise Damaged("a tile of bytes says that it is in planes")
    return layout


def decode_tile(tile, tokens, frame):
    layout = layout_of(tile, frame)
    if layout in (PLANES, SEARCHABLE):
        return decode_planes(tile, tokens, frame)
    cursor = Cursor(tile, "a tile")
    cursor.byte()
    codec = CODEC_STORED if layout == STORED else cursor.byte()
    checksum = cursor.u32()
    coded = tile[cursor.at :]
    check(coded, checksum, "a tile", layout + 256 * codec)
    return stream(codec, coded, tokens * frame.channels * frame.kind.element_bytes)


def decode(data):
    """The values of the frame in DATA, as bytes."""
    frame = Frame(data)
    return b"".join(
        decode_tile(tile, tokens, frame)
        for tile, tokens in zip(frame.tiles, frame.tokens_of_tiles())
    )


def approximations(data, planes):
    """The values of the frame in DATA from its first PLANES planes; None where a tile is
    not in planes."""
    frame = Frame(data)
    out = []
    for tile, tokens in zip(frame.tiles, frame.tokens_of_tiles()):
        if layout_of(tile, frame) in (PLANES, SEARCHABLE):
            out += approximate_planes(tile, tokens, frame, planes)
        else:
            out += [None] * (tokens * frame.channels)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("frame")
    parser.add_argument("out")
    arguments = parser.parse_args()
    with open(arguments.frame, "rb") as file:
        data = file.read()
    try:
        values = decode(data)
    except (Damaged, Unsupported) as error:
        print(f"{arguments.frame}: {error}", file=sys.stderr)
        return 1
    with open(arguments.out, "wb") as file:
        file.write(values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
