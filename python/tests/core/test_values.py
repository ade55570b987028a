# SPDX-License-Identifier: Apache-2.0
import array
import sys

import bowhead_kv as bk
import numpy as np
import pytest
from bowhead_kv import Status


def refused(status: Status):
    """Expects an Error of this status."""
    return pytest.raises(bk.Error, check=lambda error: error.status is status)


def test_a_value_comes_back(ns):
    ns.put(b"key", b"value")
    assert ns.get(b"key") == b"value"
    assert ns.length(b"key") == 5
    room = bytearray(7)
    assert ns.get_into(b"key", room) == 5
    assert room == b"value\0\0"


def test_a_present_key_keeps_its_value(ns):
    ns.put(b"key", b"first")
    ns.put(b"key", b"second")
    assert ns.get(b"key") == b"first"


@pytest.mark.parametrize("key", [b"key", bytearray(b"key"), memoryview(b"_key")[1:]])
def test_any_buffer_is_a_key(ns, key):
    ns.put(key, b"value")
    assert ns.get(b"key") == b"value"


@pytest.mark.parametrize(
    "value",
    [
        b"12345678",
        bytearray(b"12345678"),
        memoryview(b"0123456789")[1:9],
        array.array("B", b"12345678"),
        np.frombuffer(b"12345678", dtype=np.float16),
        np.frombuffer(b"12345678", dtype=np.uint8).reshape(2, 4),
        [b"12", bytearray(b"345"), b"", b"678"],
        (np.frombuffer(b"1234", dtype=np.uint8), b"5678"),
    ],
)
def test_any_buffer_or_list_of_them_is_a_value(ns, value):
    ns.put(b"key", value)
    assert ns.get(b"key") == b"12345678"


def test_a_value_is_scattered_over_buffers(ns):
    ns.put(b"key", b"12345678")
    parts = [bytearray(3), np.zeros(2, dtype=np.uint8), bytearray(4)]
    assert ns.get_into(b"key", parts) == 8
    assert b"".join(bytes(part) for part in parts) == b"12345678\0"


class Tensor:
    """An object without the buffer protocol, as torch's tensors are."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __dlpack__(self, **arguments):
        return self.values.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


def test_tensors_are_values_and_destinations(ns):
    values = np.arange(6, dtype=np.float32)
    ns.put(b"key", [Tensor(values[:2]), Tensor(values[2:])])
    assert ns.get(b"key") == values.tobytes()
    room = np.zeros(6, dtype=np.float32)
    assert ns.get_into(b"key", Tensor(room)) == 24
    assert (room == values).all()


@pytest.mark.parametrize(
    ("tensor", "error"),
    [
        (np.zeros((4, 4))[:, :2], TypeError),  # not contiguous
        (np.frombuffer(bytes(64)), TypeError),  # read-only
    ],
)
def test_a_tensor_that_cannot_be_written_is_refused(ns, tensor, error):
    ns.put(b"key", bytes(64))
    with pytest.raises(error, match="buffers is a Tensor"):
        ns.get_into(b"key", Tensor(tensor))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("key", r"key is a str; pass bytes, such as key.encode\(\)"),
        (1, "key is a int; pass bytes"),
        (None, "key is a NoneType; pass bytes"),
        (memoryview(b"abcdef")[::2], "key is a memoryview; pass bytes or a C-contiguous buffer"),
    ],
)
def test_a_key_of_another_type_is_refused(ns, key, message):
    calls = [
        lambda: ns.put(key, b"value"),
        lambda: ns.get(key),
        lambda: ns.get_into(key, bytearray(1)),
        lambda: ns.length(key),
        lambda: ns.describe(key),
        lambda: ns.remove(key),
        lambda: ns.acquire(key),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=message):
            call()
    lists = [ns.exists, ns.longest_prefix, ns.touch, ns.remove_batch]
    for call in lists:
        with pytest.raises(TypeError, match=message.replace("key is", r"keys\[1\] is")):
            call([b"good", key])


@pytest.mark.parametrize("keys", [b"key", "key", bytearray(b"key"), 1, None])
def test_keys_must_be_a_list(ns, keys):
    with pytest.raises(TypeError, match="keys is a .*; pass a list"):
        ns.exists(keys)


def test_keys_may_be_any_iterable(ns):
    ns.put(b"1", b"value")
    assert ns.exists(key for key in [b"1", b"2"]) == [True, False]
    assert ns.exists({b"1": None}) == [True]
    with pytest.raises(ZeroDivisionError):
        ns.exists(bytes(1 // number) for number in [1, 0])


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("text", TypeError),
        (1, TypeError),
        (None, TypeError),
        ([b"good", "text"], TypeError),
        ([[b"nested"]], TypeError),
        (np.zeros((4, 4))[:, :2], BufferError),
    ],
)
def test_a_value_of_another_type_is_refused(ns, value, error):
    with pytest.raises(error, match="value is a "):
        ns.put(b"key", value)
    assert ns.exists([b"key"]) == [False]


@pytest.mark.parametrize(
    "buffer", [b"read-only", memoryview(b"read-only"), np.frombuffer(b"read-only", dtype=np.uint8)]
)
def test_a_read_only_buffer_is_no_destination(ns, buffer):
    ns.put(b"key", b"12345")
    with pytest.raises(BufferError, match="buffers is a .* read-only"):
        ns.get_into(b"key", buffer)
    with pytest.raises(BufferError, match=r"buffers\[1\] is a .* read-only"):
        ns.get_batch([b"key", b"key"], [bytearray(9), buffer])


def test_a_short_buffer_is_refused(ns):
    ns.put(b"key", b"12345")
    with refused(Status.BUFFER_TOO_SMALL):
        ns.get_into(b"key", bytearray(4))
    with refused(Status.BUFFER_TOO_SMALL):
        ns.get_into(b"key", [])


def test_an_absent_key(ns):
    for call in (ns.get, ns.length, ns.describe, ns.acquire):
        with refused(Status.NOT_FOUND):
            call(b"absent")
    with refused(Status.NOT_FOUND):
        ns.get_into(b"absent", bytearray(1))
    assert ns.remove(b"absent") is False


def test_remove(ns):
    ns.put(b"key", b"value")
    assert ns.remove(b"key") is True
    assert ns.exists([b"key"]) == [False]


def test_keys_of_a_wrong_length(ns):
    for key in (b"", bytes(513)):
        with refused(Status.KEY_TOO_LONG):
            ns.put(key, b"value")
    ns.put(bytes(512), b"value")
    with refused(Status.VALUE_TOO_LARGE):
        ns.put(b"key", b"")


def test_longest_prefix_and_touch(ns):
    for key in (b"1", b"2", b"4"):
        ns.put(key, b"value")
    assert ns.longest_prefix([b"1", b"2", b"3", b"4"]) == 2
    assert ns.longest_prefix([]) == 0
    assert ns.touch([b"1", b"3"]) is None


def test_user_metadata(ns):
    ns.put(b"key", b"value", user_metadata=b"parent")
    found = ns.describe(b"key")
    assert found.user_metadata == b"parent"
    assert found.length_bytes == found.stored_bytes == 5
    ns.put(b"none", b"value")
    assert ns.describe(b"none").user_metadata == b""
    with refused(Status.INVALID_ARGUMENT):
        ns.put(b"key", b"value", user_metadata=bytes(513))
    with pytest.raises(TypeError, match="user_metadata is a str"):
        ns.put(b"key", b"value", user_metadata="parent")
    with pytest.raises(TypeError, match="user_metadata is a list"):
        ns.put(b"key", b"value", user_metadata=[b"a", b"b"])


def test_no_reference_is_lost_or_kept(ns):
    key, value, room = b"a key", b"a value" * 100, bytearray(700)
    ns.put(key, value)

    def count():
        return [sys.getrefcount(thing) for thing in (key, value, room, Status.OK, True)]

    before = count()
    for _ in range(100):
        ns.put(key, value)
        ns.put_batch([key], [[value, value]], user_metadata=[value[:9]])
        ns.get_into(key, room)
        results = ns.get_batch([key, key, b"absent"], [room, [room], room])
        present = ns.exists([key])
        with pytest.raises(TypeError):
            ns.get_batch([key, "str"], [room, room])
        with pytest.raises(TypeError):
            ns.put_batch([key, key], [value, "str"])
    del results, present
    assert all(abs(now - then) < 50 for now, then in zip(count(), before))
    room.append(0)  # no view of it is left


def test_batches(ns):
    keys = [b"key %d" % i for i in range(100)]
    values = [bytes([i]) * (i + 1) * 100 for i in range(100)]
    assert ns.put_batch(keys, values) == [Status.OK] * 100
    rooms = [bytearray(len(value)) for value in values]
    assert ns.get_batch(keys, rooms) == [(Status.OK, len(value)) for value in values]
    assert rooms == values
    assert ns.exists(keys) == [True] * 100
    assert ns.remove_batch([*keys[:2], b"absent"]) == [Status.OK, Status.OK, Status.NOT_FOUND]


def test_each_item_of_a_batch_has_a_result(ns):
    ns.put(b"key", b"value")
    results = ns.get_batch(
        [b"key", b"absent", b"key", b"key"],
        [bytearray(5), bytearray(5), bytearray(3), [bytearray(3), bytearray(5)]],
    )
    assert results == [
        (Status.OK, 5),
        (Status.NOT_FOUND, 0),
        (Status.BUFFER_TOO_SMALL, 5),
        (Status.OK, 5),
    ]
    assert results[0].status is Status.OK
    assert results[0].length_bytes == 5
    statuses = ns.put_batch([b"1", b"", b"2"], [b"value", b"value", b""])
    assert statuses == [Status.OK, Status.KEY_TOO_LONG, Status.VALUE_TOO_LARGE]


def test_user_metadata_of_a_batch(ns):
    ns.put_batch([b"1", b"2"], [b"value", b"value"], user_metadata=[b"first", b""])
    assert ns.describe(b"1").user_metadata == b"first"
    assert ns.describe(b"2").user_metadata == b""


def test_empty_batches(ns):
    assert ns.put_batch([], []) == []
    assert ns.get_batch([], []) == []
    assert ns.remove_batch([]) == []
    assert ns.exists([]) == []


def test_lists_of_different_lengths_are_refused(ns):
    with pytest.raises(ValueError, match="values has 1 items for 2 keys"):
        ns.put_batch([b"1", b"2"], [b"value"])
    with pytest.raises(ValueError, match="buffers has 3 items for 2 keys"):
        ns.get_batch([b"1", b"2"], [bytearray(1)] * 3)
    with pytest.raises(ValueError, match="user_metadata has 0 items for 1 keys"):
        ns.put_batch([b"1"], [b"value"], user_metadata=[])


def test_a_full_pool(make_pool):
    with bk.Pool(make_pool(16 << 20, no_eviction=True)) as pool:
        ns = pool.namespace("test")
        keys = [b"%d" % i for i in range(40)]
        statuses = ns.put_batch(keys, [bytes([i]) * (1 << 20) for i in range(40)])
        assert set(statuses) == {Status.OK, Status.NO_SPACE}
        stored = statuses.count(Status.OK)
        assert pool.info().blocks == stored
        assert ns.get(keys[0]) == bytes(1 << 20)


def test_a_compressed_namespace_returns_every_bit(pool, layout, numbers):
    ns = pool.namespace("compressed", layout=layout, profile=bk.Profile.DENSE)
    ns.put(b"key", numbers)
    assert ns.get(b"key") == numbers.tobytes()
    assert ns.describe(b"key").stored_bytes < numbers.nbytes
    with refused(Status.CODED):
        ns.acquire(b"key")
    (info,) = pool.namespaces()
    assert info.layout == layout
    assert info.profile == bk.Profile.DENSE
    with refused(Status.LAYOUT_MISMATCH):
        pool.namespace("compressed", layout=bk.Layout(number_format=bk.NumberFormat.FP16, parts=2,
                                                      layers=1, heads=2, key_channels=64,
                                                      value_channels=64))


def test_checksum():
    assert bk.checksum(b"value") == bk.checksum(bytearray(b"value")) != bk.checksum(b"other")
    with pytest.raises(TypeError, match="buffer is a str"):
        bk.checksum("value")
