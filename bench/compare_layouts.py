#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ratios of bf16 keys and values in several layouts of bit-planes: the comparison in
docs/compression.md.

Each block is cut into planes, each plane is coded on its own, stored where that is smaller; what a
layout has to say besides (exponents of channels) is counted in bytes, frames' heads are not. Needs
numpy, libzstd and liblz4.
"""

import argparse
import ctypes

import numpy as np

ZSTD, LZ4 = ctypes.CDLL("libzstd.so.1"), ctypes.CDLL("liblz4.so.1")
ROOM = ctypes.create_string_buffer(1 << 21)


def coded(plane, codec):
    """Bytes of a plane."""
    data = np.packbits(plane).tobytes()
    if codec == "zstd":
        size = ZSTD.ZSTD_compress(ROOM, len(ROOM), data, len(data), 1)
    else:
        size = LZ4.LZ4_compress_default(data, ROOM, len(data), len(ROOM)) or len(data)
    return min(size, len(data))


def planes_of(numbers, bits):
    return [numbers >> bit & 1 for bit in range(bits - 1, -1, -1)]


def plain(block, order):
    """The bits, unchanged."""
    return planes_of(order(block), 16), 0


def by_block(block, order):
    """Exponents as the distance from the block's largest."""
    exponent = block >> 7 & 255
    changed = (block & 0x807F) | (exponent.max() - exponent) << 7
    return planes_of(order(changed), 16), 1


def by_channel(block, order):
    """Exponents as the distance from the channel's largest; the channel's most frequent sign."""
    exponent, sign = block >> 7 & 255, block >> 15
    flip = (sign.mean(axis=0) > 0.5).astype(int)
    changed = (sign ^ flip) << 15 | (exponent.max(axis=0) - exponent) << 7 | (block & 127)
    channels = block.shape[1]
    return planes_of(order(changed), 16), channels + channels / 8


def fixed_point(block, order):
    """Multiples of the channel's unit, and the remainder: see docs/frame.md. No centre."""
    exponent, significand = block >> 7 & 255, block & 127 | 128
    below = exponent.max(axis=0) - exponent
    whole = np.where(below < 8, significand >> np.minimum(below, 8), 0)
    planes = [order(block >> 15)] + planes_of(order(whole), 8)
    remainder = np.minimum(below, 8).sum() / 8 + 2 * (below > 8).sum()
    return planes, remainder + block.shape[1] / 2


LAYOUTS = {"plain": plain, "block exponent": by_block, "channel exponent": by_channel,
           "fixed point": fixed_point}
ORDERS = {"by token": lambda block: block, "by channel": lambda block: block.T.copy()}


def blocks_of(tensor, block_bytes):
    heads, tokens, channels = tensor.shape
    count = block_bytes // (2 * channels)
    return tensor[:, : tokens // count * count].reshape(-1, count, channels)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tensor", nargs="+", help="FILE:HEADS,TOKENS,CHANNELS of bf16 numbers")
    arguments = parser.parse_args()
    for argument in arguments.tensor:
        path, shape = argument.rsplit(":", 1)
        sizes = [int(size) for size in shape.split(",")]
        tensor = np.fromfile(path, dtype="<u2").astype(int).reshape(sizes)
        for block_bytes in (65536, 4096):
            blocks = blocks_of(tensor, block_bytes)
            blocks = blocks[:: max(len(blocks) // 48, 1)]
            for name, layout in LAYOUTS.items():
                for order_name, order in ORDERS.items():
                    line = []
                    for codec in ("lz4", "zstd"):
                        size = 0
                        for block in blocks:
                            planes, more = layout(block, order)
                            size += sum(coded(plane, codec) for plane in planes) + more
                        line.append(f"{blocks.size * 2 / size:.3f}")
                    what = f"{path} {block_bytes} {name}, {order_name}"
                    print(f"{what}: lz4 {line[0]} zstd {line[1]}")


if __name__ == "__main__":
    main()
