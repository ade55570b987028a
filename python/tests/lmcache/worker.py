# SPDX-License-Identifier: Apache-2.0
"""A process of the chaos test: calls a connector at random and checks what it answers.

Usage: worker.py LOCATOR HOST SECONDS SEED

Prints a line of JSON: how many objects it loaded, how many had wrong bytes, the longest wait for a
future, and whether the last second still had loads.
"""

import json
import random
import select
import sys
import time

from bowhead_kv.lmcache import BowheadConnector

OBJECTS = 48
BATCH = 8


def value(number: int) -> bytes:
    return random.Random(number).randbytes(20_000 + 3_000 * number)


def main() -> None:
    locator, host, seconds, seed = sys.argv[1], *(int(a) for a in sys.argv[2:])
    chance = random.Random(seed)
    values = [value(i) for i in range(OBJECTS)]
    connector = BowheadConnector(locator=locator, host=host, threads=2)
    poll = select.poll()
    poll.register(connector.event_fd(), select.POLLIN)

    loads = wrong = 0
    longest_wait_s = loaded_s = 0.0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        numbers = chance.sample(range(OBJECTS), BATCH)
        keys = [f"model@00000000@0@{i:08x}" for i in numbers]
        buffers = [memoryview(bytearray(len(values[i]))) for i in numbers]
        operation = chance.choice(["set", "get", "get", "exists", "delete"])
        start_s = time.monotonic()
        if operation == "set":
            for buffer, i in zip(buffers, numbers, strict=True):
                buffer[:] = values[i]
            future = connector.submit_batch_set(keys, buffers)
        elif operation == "get":
            future = connector.submit_batch_get(keys, buffers)
        elif operation == "exists":
            future = connector.submit_batch_exists(keys)
        else:
            future = connector.submit_batch_delete(keys[:2])
        answers: list[tuple[int, bool, str, list[bool] | None]] = []
        while not answers:
            poll.poll(100)
            answers = connector.drain_completions()
        longest_wait_s = max(longest_wait_s, time.monotonic() - start_s)
        ((number, _, _, results),) = answers
        assert number == future and results is not None
        if operation == "get":
            for result, buffer, i in zip(results, buffers, numbers, strict=True):
                loads += result
                wrong += result and buffer != values[i]
                if result:
                    loaded_s = time.monotonic()
    connector.close()
    report = {
        "loads": loads,
        "wrong": wrong,
        "longest_wait_s": longest_wait_s,
        "loaded_at_the_end": loaded_s > end_s - 1,
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
