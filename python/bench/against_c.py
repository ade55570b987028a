# SPDX-License-Identifier: Apache-2.0
"""The cost of Python over the C ABI: both call the same library, in turns, in one process.

The C side calls through ctypes with arguments that were converted beforehand, which costs it half
a microsecond a call. Prints the medians.
"""

import argparse
import ctypes
import os
import pathlib
import select
import statistics
import time
from collections.abc import Callable

import bowhead_kv as bk


class Bytes(ctypes.Structure):
    """bh_key, bh_iovec and bh_const_iovec."""

    _fields_ = [("data", ctypes.c_void_p), ("size_bytes", ctypes.c_size_t)]


def library() -> ctypes.CDLL:
    (path,) = pathlib.Path(bk.__file__).parent.glob("libbowhead.so.*")
    loaded = ctypes.CDLL(str(path))
    pool, number, count = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
    array = ctypes.c_void_p
    loaded.bh_pool_open.argtypes = [ctypes.c_char_p, ctypes.c_uint32, ctypes.POINTER(pool)]
    loaded.bh_put.argtypes = [pool, number, Bytes, array, count]
    loaded.bh_get.argtypes = [pool, number, Bytes, array, count, array]
    loaded.bh_exists.argtypes = [pool, number, array, count, array]
    loaded.bh_remove.argtypes = [pool, number, Bytes]
    loaded.bh_pool_close.argtypes = [pool]
    return loaded


def address(buffer: bytearray) -> int:
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))


def seconds(call: Callable[[], object], calls: int) -> float:
    start_s = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start_s) / calls


def compare(name: str, python: Callable[[], object], c: Callable[[], object], calls: int) -> None:
    rounds = [(seconds(c, 1), seconds(python, 1)) for _ in range(calls)]
    c_us = statistics.median(pair[0] for pair in rounds) * 1e6
    python_us = statistics.median(pair[1] for pair in rounds) * 1e6
    print(f"{name:24}{c_us:10.2f}{python_us:12.2f}{c_us / python_us:10.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--block-bytes", type=int, default=2 << 20)
    parser.add_argument("--keys", type=int, default=128)
    options = parser.parse_args()
    locator = f"shm:py-bench-{os.getpid()}"
    bk.create(locator, 64 * options.block_bytes + (512 << 20))
    try:
        measure(locator, options.block_bytes, options.keys)
    finally:
        bk.destroy(locator, force=True)


def measure(locator: str, block_bytes: int, key_count: int) -> None:
    c = library()
    handle = ctypes.c_void_p()
    assert c.bh_pool_open(locator.encode(), 2**32 - 1, ctypes.byref(handle)) == 0
    with bk.Pool(locator) as pool:
        ns = pool.namespace("bench")
        value, room = bytearray(os.urandom(block_bytes)), bytearray(block_bytes)
        keys = [os.urandom(36) for _ in range(key_count)]
        ns.put_batch(keys, [b"value"] * key_count)
        ns.put(b"block", value)

        c_keys = (Bytes * key_count)()
        for c_key, key in zip(c_keys, keys):
            c_key.data, c_key.size_bytes = ctypes.cast(key, ctypes.c_void_p).value, len(key)
        block = Bytes(ctypes.cast(b"block", ctypes.c_void_p), 5)
        new = Bytes(ctypes.cast(b"new", ctypes.c_void_p), 3)
        c_value, c_room = Bytes(address(value), block_bytes), Bytes(address(room), block_bytes)
        length, present = ctypes.c_uint64(), (ctypes.c_uint8 * key_count)()

        def c_put() -> None:
            assert c.bh_put(handle, ns.id, new, ctypes.byref(c_value), 1) == 0
            assert c.bh_remove(handle, ns.id, new) == 0

        def python_put() -> None:
            ns.put(b"new", value)
            assert ns.remove(b"new")

        def c_get() -> None:
            got = c.bh_get(handle, ns.id, block, ctypes.byref(c_room), 1, ctypes.byref(length))
            assert got == 0

        calls = 1000
        print(f"{'':24}{'C, us':>10}{'Python, us':>12}{'C/Python':>10}")
        size = f"{block_bytes >> 10} KiB"
        compare(f"put and remove {size}", python_put, c_put, calls)
        compare(f"get_into {size}", lambda: ns.get_into(b"block", room), c_get, calls)
        assert room == value
        compare(f"get_batch of 1, {size}", lambda: ns.get_batch([b"block"], [room]), c_get, calls)
        compare(
            f"exists of {key_count} keys",
            lambda: ns.exists(keys),
            lambda: c.bh_exists(handle, ns.id, c_keys, key_count, present),
            calls,
        )
        queue_against_calls(ns)
    c.bh_pool_close(handle)


def queue_against_calls(ns: bk.Namespace, depth: int = 32, value_bytes: int = 64 << 10) -> None:
    """Gets through a queue of one thread, which this thread keeps filled, against calls."""
    keys = [b"queued %d" % i for i in range(depth)]
    rooms = [bytearray(value_bytes) for _ in keys]
    ns.put_batch(keys, [bytes(value_bytes)] * depth)
    rounds = 100

    def calls() -> None:
        for _ in range(rounds):
            for key, room in zip(keys, rooms):
                ns.get_into(key, room)

    def jobs() -> None:
        with ns.pool.queue(threads=1, jobs_max=depth) as queue:
            slots = {}
            for slot in range(depth):
                slots[queue.submit_get(ns, [keys[slot]], [rooms[slot]])] = slot
            left = rounds * depth - depth
            while slots:
                ended_jobs = queue.poll()
                if not ended_jobs:
                    select.select([queue], [], [])
                for ended in ended_jobs:
                    slot = slots.pop(ended.job)
                    assert ended.failed == 0
                    if left > 0:
                        left -= 1
                        slots[queue.submit_get(ns, [keys[slot]], [rooms[slot]])] = slot

    pairs = [(seconds(calls, 1), seconds(jobs, 1)) for _ in range(9)]
    each = rounds * depth / 1e6
    calls_us = statistics.median(pair[0] for pair in pairs) / each
    jobs_us = statistics.median(pair[1] for pair in pairs) / each
    ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
    print(f"{'':24}{'calls, us':>10}{'queue, us':>12}{'ratio':>10}")
    name = f"get {value_bytes >> 10} KiB, depth {depth}"
    print(f"{name:24}{calls_us:10.2f}{jobs_us:12.2f}{ratio:10.3f}")


if __name__ == "__main__":
    main()
