#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The best 64 keys of 8 queries by FAISS and by NumKong, beside `bowhead-bench ndp`, in its JSON.

They are on PyPI: python3 -m venv VENV && VENV/bin/pip install faiss-cpu numkong numpy
Then: VENV/bin/python bench/ndp_peers.py --bowhead build/release/tools/bowhead/bowhead

One thread on one core, as many keys as bowhead goes over, and the same bf16 numbers for all peers:
FAISS's flat index has them as float32. Memory has huge pages, as bowhead's has. Peers take turns in
every round; bowhead measures before them, on normal numbers of its own, so that their best rounds
are compared: others on the machine only slow things down. FAISS is measured with and without its
BLAS. NumKong has no selection: it scores pieces of keys whose scores stay in a cache, and numpy
takes what is better than the 64th so far; its scores alone are a row of their own. Before anything
is timed the hits are compared with those of plain float32 products.
Exit status: 0 measured, 1 wrong hits, 3 a package or program is missing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

QUERIES, CHANNELS, WANTED = 8, 128, 64
PIECE = 8192  # keys
TARGET = 2.0


def summary(samples):
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples),
            "rounds": len(samples)}


def measure_bowhead(program, rounds):
    """Its line of bf16 keys and 8 queries on one core."""
    command = [program, "bench", "ndp", "--json", "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in map(json.loads, done.stdout.splitlines()):
        parameters = line["parameters"]
        if (line["row"], parameters["number"], parameters.get("queries"),
                parameters["cores"]) == ("topk", "bf16", QUERIES, 1):
            return line
    raise ValueError(f"{program} has no such row")


def make_numbers(numpy, seed, count):
    """Normal numbers that are bf16, as float32."""
    random = numpy.random.default_rng(seed)
    numbers = numpy.empty((count, CHANNELS), numpy.float32)
    for at in range(0, count, 1 << 18):
        piece = numbers[at : at + (1 << 18)]
        random.standard_normal(out=piece, dtype=numpy.float32)
        bits = piece.view(numpy.uint32)
        bits += 0x7FFF + (bits >> 16 & 1)
        bits &= 0xFFFF0000
    return numbers


class Faiss:
    bytes_per_key = CHANNELS * 4

    def __init__(self, faiss, index, queries, blas):
        self.name = "faiss, blas" if blas else "faiss"
        self.number = "float32"
        self.row = "topk"
        self.threshold = 1 if blas else QUERIES + 1
        self.faiss, self.index, self.queries = faiss, index, queries

    def run(self):
        self.faiss.cvar.distance_compute_blas_threshold = self.threshold
        return self.index.search(self.queries, WANTED)[1]


class NumKong:
    bytes_per_key = CHANNELS * 2

    def __init__(self, numpy, numkong, pieces, queries, select):
        self.name, self.number = "numkong", "bf16"
        self.row = "topk" if select else "score"
        self.numpy, self.numkong, self.select = numpy, numkong, select
        self.queries = numkong.dots_pack(numkong.astype(queries, "bfloat16"), "bf16")
        self.pieces = pieces
        self.scores = numkong.dots_packed(self.pieces[0], self.queries)
        self.view = numpy.asarray(self.scores)

    def run(self):
        """Hits, best first, if it selects."""
        numpy = self.numpy
        least = numpy.full((PIECE, QUERIES), -numpy.inf, numpy.float32)  # rows all alike
        best = [(numpy.empty(0, numpy.float32), numpy.empty(0, numpy.int64))] * QUERIES
        for i, piece in enumerate(self.pieces):
            self.numkong.dots_packed(piece, self.queries, out=self.scores)
            if not self.select:
                continue
            # Flat, as numpy compares rows of 8 slowly.
            found = numpy.flatnonzero(self.view.reshape(-1) >= least.reshape(-1))
            tokens, queries = numpy.divmod(found, QUERIES)
            for q in numpy.unique(queries):
                which = tokens[queries == q]
                scores = numpy.concatenate((best[q][0], self.view[which, q]))
                tokens_of = numpy.concatenate((best[q][1], which + i * PIECE))
                order = numpy.argsort(-scores)[:WANTED]
                best[q] = scores[order], tokens_of[order]
                if len(order) == WANTED:
                    least[:, q] = scores[order[-1]]
        return [tokens for _, tokens in best]


def hits_are_right(numpy, peer, keys, queries):
    """One of each 64 may differ: another order of additions may swap close scores."""
    if peer.row != "topk":
        peer.run()
        return True
    for query, hits in zip(queries, peer.run()):
        scores = keys @ query
        best = numpy.argpartition(scores, len(scores) - WANTED)[-WANTED:]
        if len(set(best.tolist()) & set(list(hits))) < WANTED - 1:
            return False
    return True


def figure(peer, count, seconds, unit):
    per_key = peer.bytes_per_key * 1e-9 if unit == "GB/s" else 1e-6
    return {"bench": "ndp", "row": peer.row, "unit": unit, "command": " ".join(sys.argv),
            "what": f"{peer.name}, {peer.number}, {QUERIES} queries, one core",
            "parameters": {"peer": peer.name, "number": peer.number, "queries": QUERIES,
                           "k": WANTED, "channels": CHANNELS, "cores": 1, "keys": count},
            "value": summary([count * per_key / s for s in seconds])}


def measure_peers(peers, count, rounds):
    """Prints their figures; returns the name and keys per second of the fastest that selects."""
    seconds = [[] for _ in peers]
    for number in range(rounds):
        for i in range(len(peers)):
            i = (i + number) % len(peers)
            begin = time.perf_counter()
            peers[i].run()
            seconds[i].append(time.perf_counter() - begin)
    fastest = ("", {"max": 0})
    for peer, times in zip(peers, seconds):
        for unit in ("GB/s", "M keys/s"):
            line = figure(peer, count, times, unit)
            print(json.dumps(line), flush=True)
        if peer.row == "topk" and line["value"]["max"] > fastest[1]["max"]:
            fastest = peer.name, line["value"]
    return fastest


def print_bowhead(line, fastest):
    """In keys per second, beside the fastest peer: the target of docs/bench.md."""
    value = {key: number if key == "rounds" else number * 1e3 / (CHANNELS * 2)
             for key, number in line["value"].items()}
    line |= {"unit": "M keys/s", "value": value,
             "limit": {"kind": fastest[0]} | fastest[1],
             "note": "the peer's rounds come after bowhead's; the ratio is of the best rounds"}
    ratio = value["max"] / fastest[1]["max"]
    line["ratio"] = summary([ratio])
    line["target"] = {"bound": TARGET, "at_least": True, "of": "ratio", "met": ratio >= TARGET}
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bowhead", required=True, help="the program")
    parser.add_argument("--rounds", type=int, default=7, help="5 or more")
    arguments = parser.parse_args()
    settings = {"OPENBLAS_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    if settings.items() - os.environ.items():  # read where a process starts
        os.execve(sys.executable, sys.orig_argv, os.environ | settings)
    try:
        import faiss
        import numkong
        import numpy
    except ImportError as error:
        print(f"ndp_peers: {error}: pip install faiss-cpu numkong numpy", file=sys.stderr)
        return 3
    try:
        line = measure_bowhead(arguments.bowhead, arguments.rounds)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"ndp_peers: {error}", file=sys.stderr)
        return 3
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    count = line["parameters"]["pass_bytes"] // (CHANNELS * 2) // PIECE * PIECE
    keys, queries = make_numbers(numpy, 5, count), make_numbers(numpy, 6, QUERIES)
    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(CHANNELS)
    index.add(keys)
    packed = numkong.astype(keys, "bfloat16")  # one behind the other
    pieces = [packed[at : at + PIECE] for at in range(0, count, PIECE)]
    peers = [Faiss(faiss, index, queries, blas) for blas in (False, True)]
    peers += [NumKong(numpy, numkong, pieces, queries, select) for select in (True, False)]
    for peer in peers:
        if not hits_are_right(numpy, peer, keys, queries):
            print(f"ndp_peers: {peer.name}: its hits differ from plain products", file=sys.stderr)
            return 1
    print_bowhead(line, measure_peers(peers, count, arguments.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
