# SPDX-License-Identifier: Apache-2.0
"""What others may do to an engine's blocks."""

import os
import random

import bowhead_kv as bk

KINDS = ("removed", "damaged", "replaced", "filled")


def memory_of(locator: str) -> str:
    """The file that is the memory of a pool, by its locator."""
    return f"/dev/shm/bowhead-{locator.removeprefix('shm:')}"


def attack(
    chance: random.Random, ns: bk.Namespace, filler: bk.Namespace, memory: int, keys: list[bytes]
) -> str | None:
    """Removes a block, damages it in memory, replaces it by a value of another length, or puts
    another value, which makes a full pool evict. ns: the engine's namespace; filler: of the other
    values; memory: a file descriptor. Returns which of KINDS it was; None if the block is not
    there, or the pool is full and does not evict."""
    key, kind = chance.choice(keys), chance.choice(KINDS)
    try:
        if kind == "filled":
            filler.put(chance.randbytes(8), bytes(256 << 10))
        elif kind == "damaged":
            block = ns.describe(key)
            os.pwrite(memory, b"\xa5" * 256, block.offset + block.stored_bytes // 2)
        elif not ns.remove(key):
            return None
        elif kind == "replaced":
            ns.put(key, bytes(chance.choice((10, 1 << 20))))
        return kind
    except bk.Error as error:
        if error.status in (bk.Status.NOT_FOUND, bk.Status.NO_SPACE):
            return None
        raise
