# SPDX-License-Identifier: Apache-2.0
"""Every method with arguments of every kind: an answer or a plain error, and the pool goes on."""

import gc
import random
import sys
import types

import bowhead_kv as bk
import numpy as np
import pytest

EXPECTED = (TypeError, ValueError, BufferError, bk.Error, IndexError)


class Shrinking(list):
    """A list that gets shorter while its items are read."""

    def __init__(self, items: list) -> None:
        super().__init__(items)
        self.append(Tensor(self))
        self.append(b"last")


class Tensor:
    """Runs Python code when it is asked for its memory."""

    def __init__(self, shrinks: list | None = None) -> None:
        self.shrinks = shrinks
        self.memory = np.zeros(8, dtype=np.uint8)

    def __dlpack__(self, **arguments):
        if self.shrinks is not None:
            self.shrinks.clear()
        return self.memory.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.memory.__dlpack_device__()


class Failing:
    def __index__(self):
        raise RuntimeError("no index")

    def __iter__(self):
        raise RuntimeError("no items")

    def __dlpack__(self, **arguments):
        raise RuntimeError("no memory")


class Lazy(Tensor):
    """As a tensor of torch with a lazy negation: memory that is not its values."""

    def __dlpack__(self, **arguments):
        raise BufferError("the negation is not resolved")


Lazy.__module__ = "torch"


def arguments(lease: bk.Lease) -> list:
    leaf = [
        b"", b"key", b"1", bytes(513), bytearray(8), bytearray(5), memoryview(b"key"),
        memoryview(bytearray(16))[::2], np.zeros(8), np.zeros((4, 4))[:, 1:3], np.zeros(0),
        Tensor(), lease, "key", None, 0, -1, 2**70, 1.5, True, object(), Failing(), {},
    ]  # fmt: skip
    lists = [
        [], (), [b"1"], [b"1", b"2"], (b"1", bytearray(8)), [bytearray(8), bytearray(5)], ["1"],
        [b"1", None], [[b"1", b"2"], [bytearray(8)]], [[]], [[], []], [Tensor(), Tensor()],
        Shrinking([b"1", b"2"]), {b"1": 1}, iter([b"1", b"2"]), range(2), [[[b"1"]]],
    ]  # fmt: skip
    return leaf + lists


def test_a_tensor_that_refuses_is_not_stored(locator, monkeypatch):
    # torch has an older function, which exports the memory all the same.
    older = types.ModuleType("torch.utils.dlpack")
    older.to_dlpack = lambda tensor: tensor.memory.__dlpack__()
    for name in ("torch", "torch.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "torch.utils.dlpack", older)
    with bk.Pool(locator) as pool:
        ns = pool.namespace("test")
        with pytest.raises(BufferError, match="value.* is a .*Lazy.*the negation is not resolved"):
            ns.put(b"key", Lazy())
        with pytest.raises(BufferError, match="negation"):
            ns.put_batch([b"key", b"other"], [b"value", Lazy()])
        assert not any(ns.exists([b"key", b"other"]))
        ns.put(b"key", Tensor())


@pytest.mark.parametrize("seed", range(4))
def test_any_method_with_any_arguments(locator, seed):
    choose = random.Random(seed)
    pool = bk.Pool(locator)
    ns = pool.namespace("test")
    ns.put(b"key", b"value")
    queue = pool.queue(jobs_max=16)
    answers = 0
    for _ in range(3000):
        lease = ns.acquire(b"key")
        values = arguments(lease)
        calls = [
            (ns.put, 2), (ns.get, 1), (ns.get_into, 2), (ns.length, 1), (ns.exists, 1),
            (ns.longest_prefix, 1), (ns.touch, 1), (ns.put_batch, 2), (ns.get_batch, 2),
            (ns.remove_batch, 1), (ns.acquire, 2), (ns.describe, 1),
            (lambda *a: queue.submit_put(ns, *a), 2), (lambda *a: queue.submit_get(ns, *a), 2),
            (lambda *a: queue.submit_remove(ns, *a), 1),
            (lambda *a: queue.submit_exists(ns, *a), 1), (queue.cancel, 1), (queue.poll, 1),
            (pool.namespace, 2), (ns.acquire_prefix, 1), (ns.set_attributes, 2),
            (bk.checksum, 1), (lease.release, 0),
        ]  # fmt: skip
        call, count = choose.choice(calls)
        try:
            call(*(choose.choice(values) for _ in range(count)))
            answers += 1
        except EXPECTED:
            pass
        if choose.random() < 0.1:
            queue.poll()
        ns.put(b"key", b"value")
        del lease, values, calls, call
    assert answers > 300
    queue.close()
    gc.collect()
    assert pool.hosts()[0].leases_active == 0
    pool.close()
