# SPDX-License-Identifier: Apache-2.0
import gc
import threading

import bowhead_kv as bk
import numpy as np
import pytest
from bowhead_kv import Status


def refused(status: Status):
    """Expects an Error of this status."""
    return pytest.raises(bk.Error, check=lambda error: error.status is status)


def test_a_value_is_written_in_place(ns):
    with ns.reserve(b"key", 100) as space:
        assert not space.present
        assert len(space) == 100
        view = memoryview(space)
        assert not view.readonly
        view[:] = bytes(range(100))
        del view
        assert ns.exists([b"key"]) == [False]
    assert ns.get(b"key") == bytes(range(100))
    assert ns.describe(b"key").offset == space.offset


@pytest.mark.parametrize("view", [np.from_dlpack, lambda s: np.frombuffer(s, dtype=np.uint8)])
def test_arrays_over_the_memory(ns, view):
    space = ns.reserve(b"key", 4096)
    array = view(space)
    array[:] = 7
    for end in (space.commit, space.commit_unverified, space.abort):
        with pytest.raises(BufferError, match="while views of its memory exist"):
            end()
    del array
    space.commit()
    assert ns.get(b"key") == b"\7" * 4096


def test_metadata_and_attributes(ns):
    attributes = bk.Attributes(priority=3, group=9)
    with ns.reserve(b"key", 1, user_metadata=b"parent", attributes=attributes):
        pass
    assert ns.describe(b"key").user_metadata == b"parent"
    assert ns.describe(b"key").attributes == attributes


def test_abort_and_drop_store_nothing(ns):
    used = ns.pool.info().used_bytes
    space = ns.reserve(b"key", 1000)
    space.abort()
    for call in (space.abort, space.commit, lambda: memoryview(space)):
        with pytest.raises(bk.Error, match="the reservation has ended"):
            call()
    dropped = ns.reserve(b"key", 1000)
    del dropped
    gc.collect()
    with pytest.raises(ZeroDivisionError):
        with ns.reserve(b"key", 1000):
            raise ZeroDivisionError
    assert ns.exists([b"key"]) == [False]
    assert ns.pool.info().used_bytes == used


def test_an_error_of_the_body_is_not_hidden_by_views(ns):
    with pytest.raises(ZeroDivisionError):
        with ns.reserve(b"key", 1000) as space:
            view = memoryview(space)
            view[0] = 1 // 0
    del view, space
    gc.collect()
    assert ns.exists([b"key"]) == [False]
    ns.pool.close()


def test_a_key_that_is_present(ns):
    ns.put(b"key", b"value")
    with ns.reserve(b"key", 5) as space:
        assert space.present
        assert len(space) == 0
    for call in (space.commit, space.abort, lambda: memoryview(space)):
        with pytest.raises(bk.Error, match="the key is stored already") as caught:
            call()
        assert caught.value.status is Status.CLOSED
    assert ns.get(b"key") == b"value"


def test_a_key_that_is_stored_meanwhile_keeps_its_value(ns):
    with ns.reserve(b"key", 5) as space:
        memoryview(space)[:] = b"later"
        ns.put(b"key", b"first")
    assert ns.get(b"key") == b"first"


def test_checksums(ns):
    def write(key: bytes) -> bk.Reservation:
        space = ns.reserve(key, 5)
        memoryview(space)[:] = b"value"
        return space

    write(b"own").commit(checksum=bk.checksum(b"value"))
    write(b"wrong").commit(checksum=bk.checksum(b"other"))
    write(b"none").commit_unverified()
    assert ns.get(b"own") == ns.get(b"none") == b"value"
    with ns.acquire(b"own") as own, ns.acquire(b"none") as none:
        assert own.checksum == bk.checksum(b"value")
        assert none.checksum is None
    with refused(Status.NOT_FOUND):
        ns.get(b"wrong")
    with pytest.raises(ValueError, match="checksum is -1"):
        write(b"bad").commit(checksum=-1)


def test_arguments_are_checked(ns):
    with refused(Status.VALUE_TOO_LARGE):
        ns.reserve(b"key", 0)
    with refused(Status.KEY_TOO_LONG):
        ns.reserve(b"", 1)
    with pytest.raises(TypeError, match="length_bytes is a str"):
        ns.reserve(b"key", "1")
    with pytest.raises(TypeError, match="user_metadata is a str"):
        ns.reserve(b"key", 1, user_metadata="1")


def test_a_pool_stays_open_and_joined_while_its_memory_is_written(locator):
    pool = bk.Pool(locator)
    view = memoryview(pool.namespace("test").reserve(b"key", 5))
    for end in (pool.close, pool.leave):
        with pytest.raises(BufferError, match="while views of its memory exist"):
            end()
    view[:] = b"value"
    del view
    gc.collect()
    space = pool.namespace("test").reserve(b"key", 5)
    pool.close()
    with pytest.raises(bk.Error, match="ended when its pool was closed"):
        space.commit()


def test_only_one_of_many_threads_commits(ns):
    for number in range(20):
        space = ns.reserve(b"%d" % number, 1 << 20)
        ended: list[object] = []

        def commit() -> None:
            try:
                ended.append(space.commit())
            except bk.Error as error:
                ended.append(error.status)

        threads = [threading.Thread(target=commit) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ended.count(None) == 1
        assert ended.count(Status.CLOSED) == 3


def test_the_child_of_a_fork_cannot_commit(ns, in_child):
    space = ns.reserve(b"key", 5)

    def child() -> None:
        for end in (space.commit, space.abort):
            with refused(Status.FORKED):
                end()

    in_child(child)
    memoryview(space)[:] = b"value"
    space.commit()
    assert ns.get(b"key") == b"value"
