#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Top-k of attention keys from few bit-planes: bytes of an exact search, recall within few bits.

Keys are cut into tiles of 512 tokens as docs/frame.md says, around a centre that turns; it is
fitted here by least squares, so that sizes differ a little from an encoder's. What is read is
counted in whole lines of 64 bytes, heads included: a plane that is coded is read whole, of one that
is not a line is the rows of 8 tokens. Every set that is found exactly is compared with the one by
scores in double. Needs numpy, libzstd, and minutes; --every 8 looks at every eighth query only.
"""

import argparse
import ctypes
import os

import numpy as np

ZSTD = ctypes.CDLL("libzstd.so.1")
ROOM = ctypes.create_string_buffer(1 << 16)
LAYERS, KV_HEADS, GROUP, CONTEXT, CHANNELS = 6, 2, 3, 2048, 64
TOKENS, ROW, LINE = 512, CHANNELS // 8, 64  # of a tile; bytes of a token in a plane; bytes
TILES = CONTEXT // TOKENS
HEAD_LINES = 4  # of a tile: exponents, amplitudes, sizes, scales of channels
WANTED = 64


def bfloats(words):
    return (words.astype(np.uint32) << 16).view(np.float32).astype(float)


def coded_size(bits):
    """Bytes of a plane by nibbles, by zstd, or stored."""
    data = np.packbits(bits, bitorder="little")
    some = np.count_nonzero(data & 15) + np.count_nonzero(data >> 4)
    zstd = [ZSTD.ZSTD_compress(ROOM, len(ROOM), data.tobytes(), data.size, n) for n in (-1, 1)]
    return min(data.size, -(-data.size // 4) + -(-some // 2), *zstd)


class Tile:
    """The content of a frame of 512 tokens, in units of the channel."""

    def __init__(self, words, first):
        self.exponent, self.significand = words >> 7 & 255, words & 127 | 128
        self.negative, self.values = words >> 15 == 1, bfloats(words)
        half = CHANNELS // 2
        turns = np.arange(first, first + TOKENS)[:, None] * 1e4 ** -(np.arange(half) / half)
        turns = np.exp(1j * turns)
        mean = ((self.values[:, :half] + 1j * self.values[:, half:]) / turns).mean(axis=0) * turns
        self.mean = np.hstack([mean.real, mean.imag])
        self.cut(self.exponent.max(axis=0))

    def cut(self, largest):
        self.unit = np.exp2(largest - 134.0)
        below = largest - self.exponent
        whole = self.significand >> np.minimum(below, 9)
        self.centre = np.floor(self.mean / self.unit)
        apart = np.where(self.negative, ~whole, whole) - self.centre.astype(int)
        far = ((apart < -256) | (apart > 255)).any(axis=0)
        if far.any():  # until all are near enough the unit of a pair is raised
            return self.cut(largest + np.tile(np.logical_or(*np.split(far, 2)), 2))
        self.sign, self.magnitude = np.where(apart < 0, -1, 1), np.where(apart < 0, ~apart, apart)
        planes = [apart < 0] + [self.magnitude >> 8 - p & 1 for p in range(1, 9)]
        self.sizes = [coded_size(plane) for plane in planes]
        self.exceptions = (whole == 0).sum(axis=1)
        self.rest_bits = np.where(whole > 0, below, 7).sum(axis=1)

    def middles(self, planes):
        """The value of the first planes, less the centre; error at most 2^(8 - planes)."""
        return self.sign * ((self.magnitude >> 9 - planes << 9 - planes) + 2.0 ** (8 - planes))

    def scaled(self, planes):
        """Middles, scaled by channel to the least error."""
        middles, apart = self.middles(planes), self.values / self.unit - self.centre
        return middles * (middles * apart).sum(axis=0) / (middles**2).sum(axis=0)

    def size(self, coded):
        planes = sum(size if p in coded else ROW * TOKENS for p, size in enumerate(self.sizes))
        return planes + self.rest_bits.sum() / 8 + self.exceptions.sum() + 3 * LINE


class Head:
    """A head of keys, and the queries of its group."""

    def __init__(self, words, queries, positions):
        self.tiles = [Tile(words[t : t + TOKENS], t) for t in range(0, CONTEXT, TOKENS)]
        self.queries, self.counts = queries.reshape(-1, CHANNELS), np.tile(positions + 1, GROUP)
        self.seen = np.arange(CONTEXT) < self.counts[:, None]
        self.tiles_seen = -(-self.counts // TOKENS)
        self.exact = self.scores(bfloats(words))
        self.order = np.argsort(-self.exact, axis=1, kind="stable")  # of equal ones the first
        self.coded = ()  # planes that are

    def scores(self, keys):
        return np.where(self.seen, self.queries @ keys.T, -np.inf)

    def scores_of(self, method, planes):
        keys = [(getattr(tile, method)(planes) + tile.centre) * tile.unit for tile in self.tiles]
        return self.scores(np.vstack(keys))

    def best(self, k):
        mask = np.zeros(self.exact.shape, bool)
        np.put_along_axis(mask, self.order, np.arange(CONTEXT) < np.reshape(k, (-1, 1)), axis=1)
        return mask

    def plane_bytes(self, plane, lines):
        """Bytes read for these lines of a plane, for each query."""
        if plane not in self.coded:
            return lines.sum(axis=1) * LINE
        sizes = np.ceil(np.array([tile.sizes[plane] for tile in self.tiles]) / LINE) * LINE
        return lines.reshape(len(lines), TILES, -1).any(axis=2) @ sizes

    def rest_bytes(self, tokens):
        """Of remainder, exceptions and the index: 4 bytes for 8 tokens, where both begin."""
        total = np.zeros(len(tokens))
        for i, tile in enumerate(self.tiles):
            end, exceptions = np.cumsum(tile.rest_bits), np.cumsum(tile.exceptions)
            for query, mask in enumerate(tokens[:, i * TOKENS : (i + 1) * TOKENS]):
                some, lines = np.flatnonzero(mask), set()
                for t in some:
                    begin = end[t] - tile.rest_bits[t]
                    lines |= {("rest", b) for b in range(begin // 512, (end[t] - 1) // 512 + 1)}
                    lines |= {("exceptions", exceptions[t] // LINE), ("index", t // 128)}
                total[query] += LINE * len(lines)
        return total


def lines_of(tokens):
    """The lines of a plane that they lie in; over the last axis."""
    return tokens.reshape(*tokens.shape[:-1], -1, LINE // ROW).any(axis=-1)


def fold(masks):
    """The union of what the queries of a group read."""
    return masks.reshape(GROUP, -1, masks.shape[1]).any(axis=0)


class Search:
    """Reads of the exact search of all queries of a head; `first` planes for all tokens."""

    def __init__(self, head, first, seeded, coded):
        self.head, self.first, self.seeded, head.coded = head, first, seeded, coded
        self.k = np.ceil(0.015 * head.counts).astype(int)
        self.middle = [head.scores_of("middles", max(n, 1)) for n in range(10)]
        most = [np.abs(head.queries * tile.unit).sum(axis=1) for tile in head.tiles]
        most = np.repeat(np.stack(most, axis=1), TOKENS, axis=1) * (1 + 1e-9)  # our rounding
        self.reach = [most * 2.0 ** (8 - n) for n in range(10)]
        self.lines = [lines_of(head.seen) & (p < first) for p in range(9)]
        self.rest = np.zeros(head.seen.shape, bool)
        for query in range(len(self.k)):
            self.run(query)

    def run(self, query):
        head, k, level = self.head, self.k[query], np.full(CONTEXT, self.first)

        def undecided():
            """Tokens that may or may not be among the k best; and tokens that are."""
            middle = np.choose(level, [scores[query] for scores in self.middle])
            reach = np.choose(level, [bound[query] for bound in self.reach])
            tau = -np.partition(reach - middle, k - 1)[k - 1]  # k keys score as much
            rival = -np.partition(-middle - reach, k)[k]  # all but k score no more
            certain = middle - reach > rival
            return head.seen[query] & (middle + reach >= tau) & ~certain, certain

        def deepen(plane, tokens):
            lines = lines_of(tokens & (level == plane))
            self.lines[plane][query] |= lines
            level[np.repeat(lines, LINE // ROW)] += 1  # all of a line are at one level

        if self.seeded:  # the likeliest first: then tau is near what it will be
            likely = np.zeros(CONTEXT, bool)
            likely[np.argpartition(-self.middle[self.first][query], k - 1)[:k]] = True
            for plane in range(self.first, 9):
                deepen(plane, likely)
        for plane in range(self.first, 9):
            deepen(plane, undecided()[0])
        self.rest[query], certain = undecided()
        score = np.where(self.rest[query], head.exact[query], np.where(certain, np.inf, -np.inf))
        found = np.argsort(-score, kind="stable")[:k]
        assert set(found) == set(head.order[query, :k]), "differs from the set by exact scores"

    def shares(self, scores_too, grouped):
        """Shares of bf16 bytes, by query or group: planes of all, each later one, rest, heads."""
        head, some = self.head, fold if grouped else lambda masks: masks
        top = head.best(self.k) if scores_too else np.zeros(head.seen.shape, bool)
        lines = [some(read | lines_of(top)) for read in self.lines]
        planes = [head.plane_bytes(p, read) for p, read in enumerate(lines)]
        rest = head.rest_bytes(some(self.rest | top))
        heads = head.tiles_seen[: len(rest)] * HEAD_LINES * LINE
        parts = [sum(planes[: self.first]), *planes[self.first :], rest, heads]
        return np.array(parts) / (2 * CHANNELS * head.counts[: len(rest)])


class Approximate:
    def __init__(self, head, method="scaled"):
        self.head, self.top = head, head.best(WANTED)
        self.prefixes = {n: head.scores_of(method, n) for n in range(1, 9)}
        weights = np.exp((head.exact - head.exact.max(axis=1)[:, None]) / np.sqrt(CHANNELS))
        self.weights = weights / weights.sum(axis=1)[:, None]

    def run(self, plan, grouped):
        """Recall, mass of those found (of the best's, of all), bits per value. A plan: planes of
        all tokens; then how many of the best have their lines read, up to which plane; with a
        third number whole tiles are read, so many: those that have most of them."""
        head, planes, lines = self.head, plan[0], lines_of(self.head.seen)
        some = fold if grouped else lambda masks: masks
        read = sum(head.plane_bytes(p, some(lines)) for p in range(planes))
        scores, ready = self.prefixes[planes], head.seen
        for count, deeper, *tiles in plan[1:]:
            open_ = np.where(ready, scores, -np.inf)
            edge = -np.partition(-open_, count - 1, axis=1)[:, count - 1 : count]
            chosen = some(ready & (scores >= edge))
            if tiles:
                hits = chosen.reshape(len(chosen), TILES, TOKENS).sum(axis=2)
                rank = np.argsort(np.argsort(-hits, axis=1, kind="stable"), axis=1)
                chosen = some(head.seen) & np.repeat(rank < tiles[0], TOKENS, axis=1)
            read = read + sum(head.plane_bytes(p, lines_of(chosen)) for p in range(planes, deeper))
            ready = np.repeat(lines_of(chosen), LINE // ROW, axis=1)
            ready = np.tile(ready, (GROUP, 1)) if grouped else ready
            scores, planes = np.where(ready & head.seen, self.prefixes[deeper], scores), deeper
        found = np.argpartition(-scores, WANTED - 1, axis=1)[:, :WANTED]
        hits = np.take_along_axis(self.top, found, axis=1)
        mass = np.take_along_axis(self.weights, found, axis=1)
        share = (mass * hits).sum(axis=1) / (self.weights * self.top).sum(axis=1)
        read = read + head.tiles_seen[: len(read)] * HEAD_LINES * LINE
        bits = read * 8 / CHANNELS / head.counts[: len(read)]
        return [hits.mean(), share.mean(), mass.sum(axis=1).mean(), bits.mean()]


# Coded planes, and plans: the best of some 800 for each.
PLANS = {
    (1, 2, 3): ((1, (96, 4, 1), (80, 5)), (2, (96, 4, 1), (80, 5)), (4, (128, 5), (72, 8)),
                (3, (96, 4, 2), (96, 5), (64, 6)), (3, (96, 4, 3), (96, 5), (80, 7))),
    (1, 2): ((1, (96, 3, 1), (96, 4)), (1, (96, 3, 2), (128, 4), (64, 5)),
             (1, (96, 3, 3), (96, 4), (80, 5)), (1, (96, 3, 3), (128, 4), (80, 6)),
             (3, (128, 5)), (3, (128, 6)), (3, (192, 5), (80, 8)), (3, (384, 5), (96, 8))),
    (1,): ((1, (384, 2), (72, 3)), (2, (128, 3), (80, 5)), (2, (192, 4), (80, 6))),
}  # fmt: skip
# Coded planes, planes of all tokens, whether the likely winners go first.
EXACT = (((1, 2, 3), 4, False), ((1, 2, 3), 4, True), ((1, 2), 3, False), ((1, 2), 3, True),
         ((1,), 2, True))  # fmt: skip


def figures(numbers):
    return " ".join(f"{number:.3f}" for number in numbers)


def print_exact(heads):
    print("\nexact, k = 1.5 %: mean and worst share of the bf16 bytes; by layer; by what is read")
    print("in turn: planes of all tokens, each later plane, remainder, heads")
    for coded, first, seeded in EXACT:
        searches = [Search(head, first, seeded, coded) for head in heads]
        print(f"coded {coded}, {first} planes of all, seeded {seeded}")
        for scores_too, grouped in ((False, False), (True, False), (False, True), (True, True)):
            shares = np.stack([search.shares(scores_too, grouped) for search in searches])
            sums, parts = shares.sum(axis=1), shares.mean(axis=(0, 2))
            layers = sums.reshape(LAYERS, -1).mean(axis=1)
            what = f"{'group' if grouped else 'query'}, {'set and scores' if scores_too else 'set'}"
            means = f"{figures([sums.mean(), sums.max()])}; {figures(layers)}; {figures(parts)}"
            print(f"  {what:<22} {means}", flush=True)


def print_approximate(heads):
    print("\ntop-64: recall, mass of the best found, mass of all, bits per value; for a group")
    singles = {(1, 2): tuple((planes,) for planes in range(1, 7))}
    for method, table in (("middles", singles), ("scaled", singles), ("scaled", PLANS)):
        tries = [Approximate(head, method) for head in heads]
        for coded, plan in ((c, plan) for c, plans in table.items() for plan in plans):
            for head in heads:
                head.coded = coded
            runs = [[one.run(plan, grouped) for one in tries] for grouped in (False, True)]
            rows = "; ".join(map(figures, np.mean(runs, axis=1)))
            print(f"{method}, coded {coded}, plan {plan}: {rows}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder of kv-gpt12m-tech")
    parser.add_argument("--every", type=int, default=1, help="use only every N-th query")
    arguments = parser.parse_args()
    read = lambda name, kind: np.fromfile(os.path.join(arguments.data, name), dtype=kind)
    keys = read("k.bf16.bin", "<u2").astype(int).reshape(-1, CONTEXT, CHANNELS)
    positions = read("qpos.u32.bin", "<u4").astype(int)
    queries = bfloats(read("q.bf16.bin", "<u2")).reshape(len(keys), GROUP, -1, CHANNELS)


    def heads_of(least):
        chosen = np.flatnonzero(positions >= least)[:: arguments.every]
        return [Head(k, q[:, chosen], positions[chosen]) for k, q in zip(keys, queries)]

    heads = heads_of(1024)
    for coded in PLANS:
        sizes = [tile.size(coded) for head in heads for tile in head.tiles]
        print(f"coded {coded}: ratio {2 * TOKENS * CHANNELS / np.mean(sizes):.3f}")
    print_exact(heads)
    print_approximate(heads_of(1536))


if __name__ == "__main__":
    main()
