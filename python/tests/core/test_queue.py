# SPDX-License-Identifier: Apache-2.0
import gc
import os
import select
import signal
import threading
import time

import bowhead_kv as bk
import pytest
from bowhead_kv import Status


def collect(queue: bk.Queue, jobs: int) -> dict[int, bk.Completion]:
    """Waits for jobs on the eventfd."""
    ended: dict[int, bk.Completion] = {}
    while len(ended) < jobs:
        assert select.select([queue], [], [], 30)[0], "nothing ended in 30 seconds"
        ended.update((completion.job, completion) for completion in queue.poll())
    return ended


@pytest.fixture
def queue(pool):
    with pool.queue() as opened:
        yield opened


def test_every_operation(queue, ns):
    put = queue.submit_put(ns, [b"1", b"2"], [b"value", [b"two", b"parts"]])
    assert collect(queue, 1)[put] == (put, "put", Status.OK, 0, [Status.OK] * 2, [], [])
    rooms = [bytearray(5), bytearray(10), bytearray(1), bytearray(1)]
    get = queue.submit_get(ns, [b"1", b"2", b"3", b"1"], rooms)
    exists = queue.submit_exists(ns, [b"1", b"3"])
    remove = queue.submit_remove(ns, [b"3", b"1"])
    ended = collect(queue, 3)
    assert ended[get].operation == "get"
    assert ended[get].failed == 2
    assert ended[get].statuses == [
        Status.OK, Status.OK, Status.NOT_FOUND, Status.BUFFER_TOO_SMALL
    ]
    assert ended[get].lengths == [5, 8, 0, 5]
    assert rooms[:2] == [b"value", b"twoparts\0\0"]
    assert ended[exists].present == [True, False]
    assert ended[exists].failed == 1
    assert ended[remove].statuses == [Status.NOT_FOUND, Status.OK]
    assert queue.poll() == []
    assert not select.select([queue], [], [], 0)[0]


def test_user_metadata(queue, ns):
    queue.submit_put(ns, [b"1"], [b"value"], user_metadata=[b"parent"])
    collect(queue, 1)
    assert ns.describe(b"1").user_metadata == b"parent"


def test_poll_reports_at_most_its_limit(queue, ns):
    jobs = [queue.submit_exists(ns, [b"1"]) for _ in range(200)]
    assert queue.drain(30)
    assert queue.poll(0) == []
    first = queue.poll(70)
    rest = queue.poll()
    assert [completion.job for completion in first + rest] == jobs
    assert len(first) == 70


def test_a_queue_that_is_never_polled_is_full(pool, ns):
    with pool.queue(jobs_max=4) as queue:
        for _ in range(4):
            queue.submit_exists(ns, [b"1"])
        assert queue.drain(30)
        room = bytearray(1)
        for _ in range(100):
            with pytest.raises(bk.Error) as caught:
                queue.submit_get(ns, [b"1"], [room])
            assert caught.value.status is Status.LIMIT_REACHED
        room.append(0)  # a refused job keeps no buffer
        assert len(queue.poll(1)) == 1
        queue.submit_exists(ns, [b"1"])


def test_a_job_keeps_its_keys_and_buffers(queue, ns):
    values = {b"key %d" % i: os.urandom(1 << 20) for i in range(16)}
    for key, value in values.items():
        queue.submit_put(ns, [bytearray(key)], [bytearray(value)])
    gc.collect()
    other = [bytearray(1 << 20) for _ in range(16)]  # takes the memory if it was freed
    collect(queue, 16)
    assert all(ns.get(key) == value for key, value in values.items())
    del other


def test_a_buffer_is_held_until_its_job_is_reported(queue, ns):
    ns.put(b"key", b"value")
    room = bytearray(5)
    queue.submit_get(ns, [b"key"], [room])
    assert queue.drain(30)
    with pytest.raises(BufferError):
        room.append(0)
    queue.poll()
    room.append(0)


def test_close_with_jobs_under_way(pool, ns):
    value = os.urandom(8 << 20)
    ns.put(b"key", value)
    for _ in range(5):
        queue = pool.queue(threads=2)
        rooms = [bytearray(8 << 20) for _ in range(8)]
        for room in rooms:
            queue.submit_get(ns, [b"key"], [room])
        queue.close()
        queue.close()
        assert queue.closed
        for room in rooms:
            room.append(0)  # it is the caller's again
            assert room[:-1] in (value, bytes(8 << 20))
    for call in (queue.poll, queue.fileno, lambda: queue.submit_exists(ns, [b"1"])):
        with pytest.raises(bk.Error, match="queue .* is closed") as caught:
            call()
        assert caught.value.status is Status.CLOSED


def test_closing_the_pool_closes_its_queues(locator):
    pool = bk.Pool(locator)
    ns = pool.namespace("test")
    queues = [pool.queue() for _ in range(3)]
    room = bytearray(1)
    queues[0].submit_get(ns, [b"1"], [room])
    pool.close()
    assert all(queue.closed for queue in queues)
    room.append(0)


def test_a_dropped_queue_is_closed(pool, ns):
    room = bytearray(1)
    queue = pool.queue()
    queue.submit_get(ns, [b"1"], [room])
    del queue
    gc.collect()
    room.append(0)


def test_cancel(pool, ns):
    value = bytes(32 << 20)
    ns.put(b"large", value)
    large = bytearray(len(value))
    with pool.queue(threads=1) as queue:
        end_s = time.monotonic() + 60
        cancelled = False
        while not cancelled and time.monotonic() < end_s:
            queue.submit_get(ns, [b"large"], [large])
            job = queue.submit_put(ns, [b"1", b"2"], [b"value"] * 2)
            cancelled = queue.cancel(job)
            ended = collect(queue, 2)[job]
            if not cancelled:  # the thread was faster
                assert ended.status is Status.OK
                ns.remove_batch([b"1", b"2"])
        assert cancelled
        assert ended.status is Status.CANCELLED
        assert ended.statuses == [Status.CANCELLED] * 2
        assert ns.exists([b"1", b"2"]) == [False, False]
        assert queue.cancel(job) is False
        assert queue.cancel(10**15) is False


def test_drain_is_bounded(pool, ns):
    value = bytes(48 << 20)
    ns.put(b"large", value)
    room = bytearray(len(value))
    with pool.queue() as queue:
        for _ in range(50):
            queue.submit_get(ns, [b"large"], [room])
        start_s = time.monotonic()
        assert queue.drain(0) is False
        assert time.monotonic() - start_s < 30
        with pytest.raises(ValueError, match="timeout_s"):
            queue.drain(-1)
        with pytest.raises(ValueError, match="timeout_s"):
            queue.drain(float("nan"))


@pytest.fixture
def sigint():
    """Raises KeyboardInterrupt, also where a shell started the tests in its background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_ends_a_drain(pool, ns, sigint):
    value = bytes(48 << 20)
    ns.put(b"large", value)
    room = bytearray(len(value))
    with pool.queue() as queue:
        for _ in range(500):
            queue.submit_get(ns, [b"large"], [room])
        timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            assert queue.drain(600)
            time.sleep(30)  # all were done before the signal: it comes here
        timer.join()


def test_arguments_are_checked(queue, ns, make_pool):
    with pytest.raises(ValueError, match="keys is empty"):
        queue.submit_exists(ns, [])
    with pytest.raises(TypeError, match=r"keys\[0\] is a str"):
        queue.submit_remove(ns, ["1"])
    with pytest.raises(BufferError, match=r"buffers\[0\] is a bytes"):
        queue.submit_get(ns, [b"1"], [b"read-only"])
    with pytest.raises(bk.Error) as caught:
        queue.submit_exists(ns, [b"1"], priority=256)
    assert caught.value.status is Status.INVALID_ARGUMENT
    with pytest.raises(ValueError, match="limit is -1"):
        queue.poll(-1)
    with pytest.raises(TypeError, match="job is a str"):
        queue.cancel("1")
    with pytest.raises(ValueError, match="priority is -1"):
        queue.submit_exists(ns, [b"1"], priority=-1)
    with bk.Pool(make_pool()) as other:
        with pytest.raises(ValueError, match="ns is of pool"):
            queue.submit_exists(other.namespace("test"), [b"1"])
        with pytest.raises(bk.Error) as caught:
            other.queue(threads=65)
        assert caught.value.status is Status.INVALID_ARGUMENT


def test_many_threads_use_one_queue(pool, ns):
    with pool.queue(threads=2, jobs_max=64) as queue:
        submitted: list[int] = []
        reported: list[int] = []
        stop = threading.Event()

        def submit(name: int):
            for i in range(200):
                while True:
                    try:
                        submitted.append(
                            queue.submit_put(ns, [b"%d %d" % (name, i)], [b"value"])
                        )
                        break
                    except bk.Error as error:
                        assert error.status is Status.LIMIT_REACHED
                        time.sleep(0.001)

        def report():
            while not stop.is_set():
                select.select([queue], [], [], 0.01)
                reported.extend(completion.job for completion in queue.poll())

        reporters = [threading.Thread(target=report) for _ in range(2)]
        writers = [threading.Thread(target=submit, args=[name]) for name in range(4)]
        for thread in reporters + writers:
            thread.start()
        for thread in writers:
            thread.join()
        assert queue.drain(30)
        end_s = time.monotonic() + 30
        while len(reported) < 800 and time.monotonic() < end_s:
            time.sleep(0.01)
        stop.set()
        for thread in reporters:
            thread.join()
        assert sorted(reported) == sorted(submitted)
        assert pool.info().blocks == 800


def test_close_returns_when_another_thread_has_closed(pool, ns):
    ns.put(b"large", bytes(48 << 20))
    for _ in range(5):
        queue = pool.queue()
        rooms = [bytearray(48 << 20) for _ in range(2)]
        for room in rooms:
            queue.submit_get(ns, [b"large"], [room])
        failed = []

        def close():
            queue.close()
            for room in rooms:
                try:
                    room.append(0)  # it is the caller's again
                except BufferError as error:
                    failed.append(error)

        threads = [threading.Thread(target=close) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
