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
import threading
import time
from collections.abc import Iterator

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
        # One handle for all: each stores to parts of the pool of its own.
        pool = stack.enter_context(bk.Pool(locator))
        ns = pool.namespace("bench")
        endpoint = f"ipc://{folder}/events"
        command = [sys.executable, "-c", SUBSCRIBER, endpoint]
        router = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stack.callback(router.kill)
        assert router.stdout is not None
        router.stdout.readline()

        @contextlib.contextmanager
        def reader() -> Iterator[None]:
            events = pool.events(capacity_bytes=BUFFER_BYTES)
            stop = threading.Event()

            def collect() -> None:
                while not stop.wait(0.02):
                    while events.read(1000)[0]:
                        pass

            thread = threading.Thread(target=collect)
            thread.start()
            yield
            stop.set()
            thread.join()
            events.close()

        @contextlib.contextmanager
        def publisher() -> Iterator[None]:
            with Publisher(endpoint, log=logging.getLogger()) as one:
                one.attach(ns)
                time.sleep(1)  # the subscription arrives
                yield
                time.sleep(0.2)  # it catches up

        modes = {
            "off": contextlib.nullcontext,
            "off again": contextlib.nullcontext,
            "reader": reader,
            "publisher": publisher,
        }
        seconds(ns, value, metadata, (768 << 20) // options.block_bytes, 0)  # the pool is full
        turns = []
        for _ in range(options.turns):
            turn = {}
            for name in random.sample(list(modes), len(modes)):
                with modes[name]():
                    turn[name] = seconds(ns, *arguments) / options.puts * 1e6
            turns.append(turn)
        with publisher():
            end = block_metadata(hash_bytes=3, token_ids=[0])
            ns.put(b"end", b"value", user_metadata=end)
        print(f"the subscriber got {router.communicate(timeout=60)[0].strip()}")
    print(
        f"put of {options.block_bytes >> 10} KiB, batches of {BATCH}, {options.pause_ms} ms "
        f"between them, median of {options.turns}"
    )
    for name in modes:
        put_us = statistics.median(turn[name] for turn in turns)
        ratio = statistics.median(turn["off"] / turn[name] for turn in turns)
        print(f"  {name:12}{put_us:8.2f} us{ratio:8.3f}")


if __name__ == "__main__":
    main()
