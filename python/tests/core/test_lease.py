# SPDX-License-Identifier: Apache-2.0
import gc

import bowhead_kv as bk
import numpy as np
import pytest
from bowhead_kv import Status


@pytest.fixture
def stored(ns):
    ns.put(b"key", bytes(range(100)))
    return ns


def test_a_lease_is_read_only_memory(stored):
    lease = stored.acquire(b"key")
    view = memoryview(lease)
    assert view.readonly
    assert view == bytes(range(100))
    assert len(lease) == lease.length_bytes == 100
    assert lease.stamp == stored.describe(b"key").stamp
    assert lease.offset == stored.describe(b"key").offset
    assert lease.checksum == bk.checksum(view)
    assert lease.layout == stored.options().layout == bk.Layout()
    del view
    assert lease.release() is True
    assert lease.release() is True


def test_dlpack(stored):
    with stored.acquire(b"key") as lease:
        array = np.from_dlpack(lease)
        assert not array.flags.writeable
        assert array.dtype == np.uint8
        assert array.tobytes() == bytes(range(100))
        assert lease.__dlpack_device__() == (1, 0)


def test_a_removed_block_lapses(stored):
    lease = stored.acquire(b"key")
    stored.remove(b"key")
    assert lease.release() is False
    assert lease.release() is False


def test_the_context_manager_raises_if_the_lease_lapsed(stored):
    with pytest.raises(bk.Error) as caught:
        with stored.acquire(b"key"):
            stored.remove(b"key")
    assert caught.value.status is Status.LAPSED


def test_the_context_manager_does_not_hide_what_the_body_raised(stored):
    with pytest.raises(ZeroDivisionError):
        with stored.acquire(b"key"):
            stored.remove(b"key")
            raise ZeroDivisionError


def test_the_context_manager_leaves_a_released_lease_alone(stored):
    with stored.acquire(b"key") as lease:
        stored.remove(b"key")
        assert lease.release() is False


def test_a_released_lease_gives_no_memory(stored):
    lease = stored.acquire(b"key")
    lease.release()
    with pytest.raises(bk.Error, match="the lease was released"):
        memoryview(lease)
    with pytest.raises(bk.Error, match="the lease was released"):
        np.from_dlpack(lease)


def test_a_pool_stays_open_while_its_memory_is_viewed(stored):
    pool = stored.pool
    for view in (memoryview, np.from_dlpack, lambda lease: np.frombuffer(lease, dtype=np.uint8)):
        seen = view(stored.acquire(b"key"))
        with pytest.raises(BufferError, match="while views of its memory exist"):
            pool.close()
        assert not pool.closed
        assert bytes(seen) == bytes(range(100))
        del seen
        gc.collect()
    pool.close()


def test_closing_the_pool_ends_its_leases(stored):
    lease = stored.acquire(b"key")
    stored.pool.close()
    with pytest.raises(bk.Error, match="ended when its pool was closed"):
        memoryview(lease)
    assert lease.release() is False


def test_a_dropped_lease_is_released(stored):
    def leases():
        return stored.pool.hosts()[0].leases_active

    lease = stored.acquire(b"key")
    assert leases() == 1
    del lease
    gc.collect()
    assert leases() == 0


def test_the_time_limit_is_checked(stored):
    with pytest.raises(bk.Error) as caught:
        stored.acquire(b"key", ttl_ms=0)
    assert caught.value.status is Status.INVALID_ARGUMENT
    with pytest.raises(ValueError, match="ttl_ms is -1"):
        stored.acquire(b"key", ttl_ms=-1)


def test_a_prefix(ns):
    ns.put_batch([b"1", b"2", b"4"], [b"one", b"three", b"four"])
    with ns.acquire_prefix([b"1", b"2", b"3", b"4"]) as prefix:
        assert [bytes(memoryview(lease)) for lease in prefix.leases] == [b"one", b"three"]
        assert prefix.length_bytes == prefix.stored_bytes == 8
        assert prefix.restore_ns >= 0
    assert ns.acquire_prefix([]).leases == []
    assert ns.acquire_prefix([b"3", b"1"]).leases == []
    with ns.acquire_prefix([b"1", b"2", b"4", b"3"], group_keys=2) as prefix:
        assert len(prefix.leases) == 2
    with pytest.raises(bk.Error) as caught:
        ns.acquire_prefix([b"1", b"2"], group_keys=3)
    assert caught.value.status is Status.INVALID_ARGUMENT
    assert ns.pool.hosts()[0].leases_active == 0


def test_a_prefix_that_lapsed(ns):
    ns.put_batch([b"1", b"2"], [b"value"] * 2)
    prefix = ns.acquire_prefix([b"1", b"2"])
    ns.remove(b"1")
    assert prefix.release() is False
    assert ns.pool.hosts()[0].leases_active == 0
    ns.put(b"1", b"value")
    with pytest.raises(bk.Error) as caught:
        with ns.acquire_prefix([b"1", b"2"]):
            ns.remove(b"2")
    assert caught.value.status is Status.LAPSED


def test_a_compressed_block_of_a_prefix_is_its_frame(pool, coded, numbers):
    coded.put(b"1", numbers)
    with coded.acquire_prefix([b"1"]) as prefix:
        (lease,) = prefix.leases
        assert lease.codec is bk.Codec.FRAME
        assert lease.length_bytes == numbers.nbytes
        assert len(lease) == len(memoryview(lease)) == prefix.stored_bytes < numbers.nbytes
    plain = pool.namespace("plain")
    plain.put(b"1", numbers)
    with plain.acquire(b"1") as lease:
        assert lease.codec is bk.Codec.RAW
