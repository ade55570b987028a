# SPDX-License-Identifier: Apache-2.0
"""What events cost: the same puts without any, with a reader that only collects them, and with a
publisher, in turns.

Puts batches into a full pool, which therefore evicts as much: two events for each put. A process of
its own subscribes. Prints medians, and the median of the ratios to the first round of the same
turn; that of "off again" says how much the machine disturbs.
"""

import argparse
import contextlib
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

import bowhead_kv as bk
from bowhead_kv.events import BUFFER_BYTES, Publisher, block_metadata

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
    parser.add_argument("--turns", type=int, default=11)
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
    arguments = (value, metadata, options.puts, options.pause_ms / 1000)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        names = ("off", "off again", "reader", "publisher")
        pools = [stack.enter_context(bk.Pool(locator)) for _ in names]
        spaces = [pool.namespace("bench") for pool in pools]
        reader = pools[2].events(capacity_bytes=BUFFER_BYTES)
        endpoint = f"ipc://{folder}/events"
        publisher = stack.enter_context(Publisher(endpoint, log=logging.getLogger()))
        publisher.attach(spaces[3])
        command = [sys.executable, "-c", SUBSCRIBER, endpoint]
        router = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stack.callback(router.kill)
        assert router.stdout is not None
        router.stdout.readline()
        time.sleep(1)  # the subscription arrives
        for ns in spaces:
            seconds(ns, value, metadata, 10_000, 0)  # the pool is full from now on
        turns = []
        for _ in range(options.turns):
            turn = [0.0] * len(names)
            for i in random.sample(range(len(names)), len(names)):
                turn[i] = seconds(spaces[i], *arguments) / options.puts * 1e6
                while reader.read()[0]:
                    pass
                time.sleep(0.2)  # the publisher catches up
            turns.append(turn)
        end = block_metadata(hash_bytes=3, token_ids=[0])
        spaces[3].put(b"end", b"value", user_metadata=end)
        publisher.close()
        print(f"the subscriber got {router.communicate(timeout=60)[0].strip()}")
    print(
        f"put of {options.block_bytes >> 10} KiB, batches of {BATCH}, {options.pause_ms} ms "
        f"between them, median of {options.turns}"
    )
    for i, name in enumerate(names):
        put_us = statistics.median(turn[i] for turn in turns)
        ratio = statistics.median(turn[0] / turn[i] for turn in turns)
        print(f"  {name:12}{put_us:8.2f} us{ratio:8.3f}")


if __name__ == "__main__":
    main()
