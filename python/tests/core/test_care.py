# SPDX-License-Identifier: Apache-2.0
"""Lists of blocks, check, recompress, scavenge, fence, mapping, and reads of stored bytes."""

import ctypes
import itertools
import subprocess
import sys

import bowhead_kv as bk
import numpy as np
import pytest
from bowhead_kv import Status


def refused(status: Status):
    """Expects an Error of this status."""
    return pytest.raises(bk.Error, check=lambda error: error.status is status)


def test_blocks_are_listed(pool, ns):
    other = pool.namespace("other")
    attributes = bk.Attributes(priority=7)
    ns.put(b"1", b"one", user_metadata=b"metadata", attributes=attributes)
    ns.put(b"a longer key", bytes(100_000))
    other.put(b"1", b"in another namespace")
    mine = {block.key: block for block in ns.blocks()}
    assert mine == {key: ns.describe(key) for key in (b"1", b"a longer key")}
    assert mine[b"1"].user_metadata == b"metadata"
    assert mine[b"1"].attributes == attributes
    assert mine[b"1"].namespace_id == ns.id
    assert [block.length_bytes for block in other.blocks()] == [20]
    everything = pool.blocks()
    assert everything.__length_hint__() == 3
    assert next(everything).stamp != next(everything).stamp
    assert everything.__length_hint__() == 1
    assert len(list(everything)) == 1
    assert list(everything) == []


def test_a_list_of_blocks_outlives_them_and_the_pool(locator):
    with bk.Pool(locator) as pool:
        ns = pool.namespace("test")
        ns.put_batch([b"%d" % i for i in range(1000)], [b"value"] * 1000)
        listed = ns.blocks()
        ns.remove(b"1")
    assert {block.key for block in listed} == {b"%d" % i for i in range(1000)}
    with refused(Status.CLOSED):
        ns.blocks()


def test_a_pool_that_is_whole_passes_its_check(pool, ns):
    ns.put_batch([b"%d" % i for i in range(10)], [bytes(1000)] * 10)
    report = pool.check(payloads=True)
    assert (report.findings, report.data_lost) == (0, 0)
    assert report.finding_texts == []
    assert report.blocks_checked == 10
    assert report.bytes_checked == 10_000
    assert report.not_checked == len(report.not_checked_texts)
    assert pool.check().bytes_checked == 0


def test_a_damaged_block_is_found(pool, ns):
    space = ns.reserve(b"key", 5)
    space.commit(checksum=bk.checksum(b"other"))
    report = pool.check(payloads=True)
    assert (report.findings, report.data_lost) == (1, 1)
    (sentence,) = report.finding_texts
    assert "checksum" in sentence


def test_recompress(coded, numbers):
    for number in range(4):
        coded.put(b"%d" % number, numbers)
    before = {block.key: block.stored_bytes for block in coded.blocks()}
    report = coded.pool.recompress(0)
    assert report.cold_blocks == 4
    assert report.after_bytes <= report.before_bytes <= sum(before.values())
    after = sum(block.stored_bytes for block in coded.blocks())
    assert sum(before.values()) - after == report.before_bytes - report.after_bytes
    assert all(coded.get(key) == numbers.tobytes() for key in before)
    with pytest.raises(ValueError, match="cold_ms is -1"):
        coded.pool.recompress(-1)


def test_planes(coded, numbers):
    coded.put(b"key", numbers)
    rooms = [np.zeros_like(numbers) for _ in range(2)]
    few = coded.get_planes(b"key", 1, rooms[0])
    all_ = coded.get_planes(b"key", 12, [rooms[1][:100], rooms[1][100:]])
    assert few.length_bytes == all_.length_bytes == numbers.nbytes
    assert few.read_bytes < all_.read_bytes
    assert (rooms[1] == numbers).all()
    assert ((rooms[0] ^ numbers) & 0x8000 == 0).all()  # the signs
    with refused(Status.INVALID_ARGUMENT):
        coded.get_planes(b"key", 0, rooms[0])
    with refused(Status.NOT_FOUND):
        coded.get_planes(b"absent", 1, rooms[0])
    with refused(Status.BUFFER_TOO_SMALL):
        coded.get_planes(b"key", 1, bytearray(5))


def test_stored_bytes(coded, numbers):
    coded.put(b"key", numbers)
    room = bytearray(numbers.nbytes)
    got = coded.get_stored(b"key", room)
    assert got.codec is bk.Codec.FRAME
    assert got.length_bytes == numbers.nbytes
    assert got.stored_bytes == coded.describe(b"key").stored_bytes < numbers.nbytes
    with refused(Status.CODED):
        coded.acquire(b"key")
    with coded.acquire(b"key", stored=True) as lease:
        assert lease.codec is bk.Codec.FRAME
        assert lease.layout == coded.options().layout
        with memoryview(lease) as frame:
            assert frame == room[: got.stored_bytes]
    with pytest.raises(TypeError, match="buffer is a list; pass one buffer"):
        coded.get_stored(b"key", [bytearray(5), bytearray(5)])


def test_options_of_a_namespace(coded, ns):
    assert coded.options().profile == bk.Profile.FAST
    assert coded.options().layout.key_channels == 64
    assert ns.options() == bk.NamespaceOptions(profile=bk.Profile.NONE, layout=bk.Layout())


def test_the_mapping_has_the_blocks(pool, ns):
    ns.put(b"key", b"value")
    mapping = pool.mapping()
    assert mapping.size_bytes == pool.info().size_bytes
    at = mapping.address + ns.describe(b"key").offset
    assert ctypes.string_at(at, 5) == b"value"


KILLED = """
import os, sys
import bowhead_kv as bk
pool = bk.Pool(sys.argv[1])
space = pool.namespace("test").reserve(b"killed", 1000)
os._exit(9)
"""


def test_scavenge(make_pool):
    with bk.Pool(make_pool()) as pool:
        assert pool.scavenge() == 0
        used = pool.info().used_bytes
        done = subprocess.run([sys.executable, "-c", KILLED, pool.locator], check=False)
        assert done.returncode == 9
        assert pool.scavenge() == 1
        assert pool.info().used_bytes == used


def test_fence_of_a_host_that_is_not_dead(make_pool):
    with bk.Pool(make_pool(hosts=3), host=0) as pool, bk.Pool(pool.locator, host=1):
        with refused(Status.BUSY):
            pool.fence(1)
        for slot in itertools.chain([0, 2], [64, 2**32 - 1]):  # its own, never used, none
            with refused(Status.INVALID_ARGUMENT):
                pool.fence(slot)
    with pytest.raises(TypeError, match="host is a str"):
        pool.fence("1")


def test_an_observer_changes_nothing(locator, ns):
    ns.put(b"key", b"value")
    with bk.Pool(locator, observe=True) as observer:
        seen = observer.namespace("test", "of the tests")
        assert [block.key for block in seen.blocks()] == [b"key"]
        assert observer.check().findings == 0
        with refused(Status.READ_ONLY):
            seen.reserve(b"new", 5)
        with refused(Status.READ_ONLY):
            observer.recompress(0)
