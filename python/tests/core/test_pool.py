# SPDX-License-Identifier: Apache-2.0
import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
import weakref

import bowhead_kv as bk
import pytest
from bowhead_kv import Status


def refused(status: Status):
    """Expects an Error of this status."""
    return pytest.raises(bk.Error, check=lambda error: error.status is status)


def test_importing_needs_neither_torch_nor_numpy():
    code = (
        "import sys, bowhead_kv, bowhead_kv.aio, bowhead_kv.config, bowhead_kv.link;"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_versions():
    assert bk.abi_version() == 1
    assert bk.__version__.count(".") == 2


def test_create_and_destroy(make_pool):
    locator = make_pool(64 << 20, hosts=2, extent_bytes=4 << 20, no_eviction=True)
    with bk.Pool(locator) as pool:
        info = pool.info()
        assert info.size_bytes == 64 << 20
        assert info.hosts == 2
        assert info.extent_bytes == 4 << 20
        assert info.evict_high_permille == 0
        with refused(Status.IN_USE):
            bk.destroy(locator)
    with refused(Status.POOL_EXISTS):
        bk.create(locator, 64 << 20)
    bk.create(locator, 32 << 20, replace=True)
    bk.destroy(locator)
    with refused(Status.NO_SUCH_POOL):
        bk.Pool(locator)


def test_errors_say_what_is_wrong():
    with pytest.raises(bk.Error, match="no-such-pool") as caught:
        bk.Pool("shm:no-such-pool")
    assert caught.value.status is Status.NO_SUCH_POOL
    assert caught.value.text == str(caught.value)
    with refused(Status.BAD_LOCATOR):
        bk.Pool("nonsense")
    with refused(Status.TOO_SMALL):
        bk.create("shm:too-small", 1 << 20)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bk.create("shm:x", -1), ValueError, "size_bytes is -1; pass 0 to "),
        (lambda: bk.create("shm:x", 1.5), TypeError, "size_bytes is a float; pass an int"),
        (lambda: bk.create("shm:x", 1 << 25, hosts=1 << 32), ValueError, "hosts is 4294967296"),
        (lambda: bk.create("shm:x", 1 << 25, colour=1), TypeError, "no setting 'colour'"),
        (lambda: bk.create("shm:x\0y", 1 << 25), ValueError, "locator has a zero byte"),
        (lambda: bk.destroy("shm:x\0y"), ValueError, "locator has a zero byte"),
        (lambda: bk.Pool("shm:x\0y"), ValueError, "locator has a zero byte"),
        (lambda: bk.Pool("shm:x", host="0"), TypeError, "host is a str"),
        (lambda: bk.Pool("shm:x", host=1, observe=True), ValueError, "host is set, but"),
    ],
)
def test_arguments_are_checked(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_namespaces(pool):
    ns = pool.namespace("model", "bf16")
    assert ns.name == "model"
    assert ns.pool is pool
    assert pool.namespace("model", "bf16").id == ns.id
    with refused(Status.NAMESPACE_MISMATCH):
        pool.namespace("model", "fp16")
    ns.put(b"key", b"value")
    (info,) = pool.namespaces()
    assert (info.id, info.name, info.description, info.blocks) == (ns.id, "model", "bf16", 1)
    pool.remove_namespace("model")
    with refused(Status.NAMESPACE_GONE):
        ns.put(b"key", b"value")
    with refused(Status.NOT_FOUND):
        pool.remove_namespace("model")
    with pytest.raises(ValueError, match="name has a zero byte"):
        pool.namespace("model\0")
    with pytest.raises(ValueError, match="description has a zero byte"):
        pool.namespace("other", "bf16\0 of model A")
    with pytest.raises(TypeError, match="layout is a dict; pass a bowhead_kv.Layout"):
        pool.namespace("other", layout={})


def test_a_closed_pool_is_refused(locator):
    pool = bk.Pool(locator)
    ns = pool.namespace("test")
    assert not pool.closed
    pool.close()
    pool.close()
    assert pool.closed
    for call in (pool.info, pool.hosts, pool.leave, pool.queue, lambda: ns.get(b"key")):
        with pytest.raises(bk.Error, match="is closed; open it again") as caught:
            call()
        assert caught.value.status is Status.CLOSED
    bk.destroy(locator)  # no process has it open


def test_a_pool_is_closed_when_nothing_refers_to_it(locator):
    ns = bk.Pool(locator).namespace("test")
    ns.put(b"key", b"value")
    gone = weakref.ref(ns.pool)
    assert gone() is not None
    del ns
    gc.collect()
    assert gone() is None
    bk.destroy(locator)


def test_a_failing_body_is_reported_though_a_view_exists(locator):
    with pytest.raises(ZeroDivisionError):
        with bk.Pool(locator) as pool:
            ns = pool.namespace("test")
            ns.put(b"key", b"value")
            view = memoryview(ns.acquire(b"key"))
            raise ZeroDivisionError
    assert bytes(view) == b"value"


def test_an_observer_only_reads(pool, ns, locator):
    ns.put(b"key", b"value")
    with bk.Pool(locator, observe=True) as observer:
        seen = observer.namespace("test", "of the tests")
        assert seen.get(b"key") == b"value"
        with refused(Status.READ_ONLY):
            seen.put(b"other", b"value")


def test_a_destroyed_pool_stores_no_more(pool, ns, locator):
    ns.put(b"key", b"value")
    bk.destroy(locator, force=True)
    with refused(Status.CLOSED):
        ns.put(b"other", b"value")
    with refused(Status.CLOSED):
        ns.put_batch([b"other"], [b"value"])
    assert ns.get(b"key") == b"value"


def test_two_hosts(make_pool, until):
    locator = make_pool(hosts=2, heartbeat_ms=10)
    with bk.Pool(locator, host=0) as first, bk.Pool(locator, host=1) as second:
        writer = first.namespace("test")
        until(lambda: [host.state for host in second.hosts()] == ["live", "live"])
        writer.put(b"key", b"value")
        reader = second.namespace("test")
        until(lambda: reader.exists([b"key"]) == [True])
        assert reader.get(b"key") == b"value"
        assert second.info().hits_elsewhere > 0
        with second.queue(), pytest.raises(bk.Error, match="open queues or readers"):
            second.leave()
        second.leave()
        with refused(Status.HOST_FENCED):
            reader.put(b"other", b"value")


def test_the_child_of_a_fork_opens_the_pool_again(pool, ns, locator, in_child):
    ns.put(b"key", b"value")
    lease = ns.acquire(b"key")
    queue = pool.queue()
    queue.submit_exists(ns, [b"key"])

    def body():
        calls = [
            lambda: ns.get(b"key"),
            lambda: ns.exists([b"key"]),
            lambda: ns.put_batch([b"k"], [b"v"]),
            lambda: lease.release(),
            lambda: queue.poll(),
            lambda: queue.submit_exists(ns, [b"key"]),
            lambda: pool.queue(),
        ]
        for call in calls:
            with pytest.raises(bk.Error, match="opened before fork") as caught:
                call()
            assert caught.value.status is Status.FORKED
        queue.close()
        pool.close()
        with bk.Pool(locator) as again:
            assert again.namespace("test", "of the tests").get(b"key") == b"value"

    in_child(body)
    assert lease.release() is True
    assert queue.drain(30)
    assert queue.poll()[0].present == [True]
    assert ns.get(b"key") == b"value"


def test_a_fork_during_a_call_of_another_thread(ns, in_child):
    value = bytes(32 << 20)
    stop = threading.Event()

    def use():
        while not stop.is_set():
            ns.put(b"large", value)
            ns.remove(b"large")

    thread = threading.Thread(target=use)
    thread.start()
    try:
        for _ in range(5):
            in_child(ns.pool.close)
    finally:
        stop.set()
        thread.join()
    ns.put(b"large", value)


def _calls_without_the_gil(ns):
    big = bytearray(os.urandom(16 << 20))
    keys = [b"key %d" % i for i in range(100_000)]
    ns.put(b"big", big)
    return {
        "put": lambda: (ns.put(b"new", big), ns.remove(b"new")),
        "get": lambda: ns.get_into(b"big", big),
        "get_batch": lambda: ns.get_batch([b"big"], [big]),
        "exists": lambda: ns.exists(keys),
        "checksum": lambda: bk.checksum(big),
    }


@pytest.mark.parametrize("name", ["put", "get", "get_batch", "exists", "checksum"])
def test_another_thread_runs_during_a_call(ns, name):
    call = _calls_without_the_gil(ns)[name]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # only a call that releases the GIL lets another thread run
    try:
        end_s = time.monotonic() + 60
        ran = False
        while not ran and time.monotonic() < end_s:
            ready, go, done = threading.Event(), threading.Event(), threading.Event()

            def other(ready=ready, go=go, done=done):
                ready.set()
                go.wait()
                done.set()

            thread = threading.Thread(target=other)
            thread.start()
            ready.wait()
            time.sleep(0.001)  # until it waits
            go.set()
            call()
            ran = done.is_set()
            thread.join()
        assert ran, f"{name} held the GIL each time"
    finally:
        sys.setswitchinterval(interval_s)


def test_close_waits_for_calls_of_other_threads(locator):
    value = bytes(8 << 20)
    for _ in range(20):
        pool = bk.Pool(locator)
        ns = pool.namespace("test")
        ended = []

        def use(ns=ns, ended=ended):
            try:
                while True:
                    ns.put(b"key", value)
                    ns.remove(b"key")
            except bk.Error as error:
                ended.append(error.status)

        threads = [threading.Thread(target=use) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.005)
        pool.close()
        for thread in threads:
            thread.join()
        # BUSY: two threads put or removed the key at once
        assert set(ended) <= {Status.CLOSED, Status.BUSY}


def test_threads_close_pool_and_queues_at_once(locator):
    for _ in range(5):
        pool = bk.Pool(locator)
        ns = pool.namespace("test")
        queues = [pool.queue() for _ in range(3)]
        for queue in queues:
            for _ in range(5):
                queue.submit_put(ns, [b"key"], [bytes(1 << 20)])
        closers = [pool.close, pool.close, *(queue.close for queue in queues)]
        threads = [threading.Thread(target=close) for close in closers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert pool.closed
        assert all(queue.closed for queue in queues)


def test_a_medium_that_fails(tmp_path):
    """The file is truncated while it is mapped: the process goes on."""
    file = tmp_path / "pool"
    locator = f"file:{file}"
    bk.create(locator, 64 << 20)
    with bk.Pool(locator) as pool:
        ns = pool.namespace("test")
        ns.put_batch([b"1", b"2"], [bytes(1 << 20)] * 2)
        lease = ns.acquire(b"2")
        os.truncate(file, 0)
        room = bytearray(1 << 20)
        calls = [
            lambda: ns.get_into(b"1", room),
            lambda: ns.get_batch([b"1"], [room]),
            lambda: ns.exists([b"1"]),
            lambda: ns.put(b"3", room),
            lambda: lease.release(),
        ]
        for call in calls:
            with refused(Status.MEDIA_ERROR):
                call()


DAEMONS = """
import sys, threading, time, bowhead_kv as bk
ns = bk.Pool(sys.argv[1]).namespace("test")
value = bytes(4 << 20)
ns.put(b"key", value)
def use():
    room = bytearray(len(value))
    while True:
        ns.get_into(b"key", room)
for _ in range(3):
    threading.Thread(target=use, daemon=True).start()
time.sleep(0.1)
"""


def test_a_process_ends_while_daemon_threads_are_in_calls(locator):
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", DAEMONS, locator], capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_namespace_that_is_wiped(pool):
    secret = b"the secret of a tenant"
    for wipe in (False, True):
        ns = pool.namespace(f"wipe {wipe}", wipe=wipe)
        assert ns.options().wipe is wipe
        ns.put(b"key", secret + bytes([wipe]), user_metadata=secret)
        ns.remove(b"key")
        mapping = pool.mapping()
        there = secret + bytes([wipe]) in ctypes.string_at(mapping.address, mapping.size_bytes)
        assert there is not wipe
    wiped = {info.name: info.wipe for info in pool.namespaces()}
    assert wiped == {"wipe False": False, "wipe True": True}
    with refused(Status.NAMESPACE_MISMATCH):
        pool.namespace("wipe False", wipe=True)


def test_the_memory_of_mirrors(make_pool):
    locator = make_pool(hosts=2)
    for mirror_bytes in (None, 0, 1 << 20):
        with bk.Pool(locator, host=0, mirror_bytes=mirror_bytes) as pool:
            assert pool.namespace("mirrors").exists([b"key"]) == [False]
    with pytest.raises((ValueError, OverflowError, TypeError)):
        bk.Pool(locator, mirror_bytes=-1)
