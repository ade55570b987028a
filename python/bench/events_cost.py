# SPDX-License-Identifier: Apache-2.0
"""What publishing events costs: the same puts with and without a publisher, in turns.

Puts batches into a full pool as fast as one thread can, which therefore evicts as much: two events
for each put. A process of its own subscribes. Prints medians, and the ratio of each pair of rounds.
"""

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time

import bowhead_kv as bk
from bowhead_kv.events import Publisher, block_metadata

BATCH = 32
SUBSCRIBER = """
import sys, msgspec, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.setsockopt(zmq.SUBSCRIBE, b"")
socket.setsockopt(zmq.RCVHWM, 0)
socket.connect(sys.argv[1])
counts = {}
print(flush=True)
while True:
    events = msgspec.msgpack.decode(socket.recv_multipart()[2])[1]
    for event in events:
        if event["type"] == "BlockStored" and event["token_ids"] == [0]:
            print(counts)
            sys.exit()
        blocks = len(event.get("block_hashes", [None]))
        counts[event["type"]] = counts.get(event["type"], 0) + blocks
"""


def seconds(ns: bk.Namespace, value: bytes, metadata: bytes, puts: int, pause_s: float) -> float:
    """The time in put_batch, without the pauses."""
    total_s = 0.0
    for _ in range(puts // BATCH):
        keys = [os.urandom(36) for _ in range(BATCH)]
        start_s = time.perf_counter()
        ns.put_batch(keys, [value] * BATCH, user_metadata=[metadata] * BATCH)
        total_s += time.perf_counter() - start_s
        if pause_s:
            time.sleep(pause_s)
    return total_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--block-bytes", type=int, default=64 << 10)
    parser.add_argument("--puts", type=int, default=16_000, help="in a round")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--pause-ms", type=float, default=0, help="after a batch")
    options = parser.parse_args()
    logging.basicConfig()
    locator = f"shm:py-bench-events-{os.getpid()}"
    bk.create(locator, 512 << 20)
    try:
        measure(locator, options)
    finally:
        bk.destroy(locator, force=True)


def measure(locator: str, options: argparse.Namespace) -> None:
    metadata = block_metadata(hash_bytes=32, parent=os.urandom(32), token_ids=range(30_000, 30_032))
    value = os.urandom(options.block_bytes)
    with tempfile.TemporaryDirectory() as folder, bk.Pool(locator) as on, bk.Pool(locator) as off:
        endpoint = f"ipc://{folder}/events"
        ns_on, ns_off = on.namespace("bench"), off.namespace("bench")
        publisher = Publisher(endpoint, log=logging.getLogger())
        publisher.attach(ns_on)
        command = [sys.executable, "-c", SUBSCRIBER, endpoint]
        router = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert router.stdout is not None
            router.stdout.readline()
            time.sleep(1)  # the subscription arrives
            arguments = (value, metadata, options.puts, options.pause_ms / 1000)
            seconds(ns_off, *arguments)  # the pool is full from now on
            pairs = []
            for _ in range(options.pairs):
                pairs.append((seconds(ns_off, *arguments), seconds(ns_on, *arguments)))
                time.sleep(0.2)  # the publisher is idle in the rounds without it
            ns_on.put(b"end", b"value", user_metadata=block_metadata(hash_bytes=3, token_ids=[0]))
            publisher.close()
            print(f"the subscriber got {router.communicate(timeout=60)[0].strip()}")
        finally:
            router.kill()
    off_us, on_us = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
    ratios = sorted(pair[0] / pair[1] for pair in pairs)
    print(
        f"put of {options.block_bytes >> 10} KiB in batches of {BATCH}, pause {options.pause_ms} ms:"
        f" off {off_us / options.puts * 1e6:.2f} us, on {on_us / options.puts * 1e6:.2f} us, ratio "
        f"{statistics.median(ratios):.3f} (from {ratios[0]:.3f} to {ratios[-1]:.3f})"
    )


if __name__ == "__main__":
    main()
