# SPDX-License-Identifier: Apache-2.0
import asyncio
import time

import bowhead_kv as bk
import pytest
from bowhead_kv import Status
from bowhead_kv.aio import AsyncQueue


def test_every_operation(pool, ns):
    async def main():
        async with AsyncQueue(pool) as queue:
            assert await queue.put(ns, [b"1", b"2"], [b"value", b"other"]) == [Status.OK] * 2
            room = bytearray(5)
            assert await queue.get(ns, [b"1", b"3"], [room, bytearray(1)]) == [
                (Status.OK, 5),
                (Status.NOT_FOUND, 0),
            ]
            assert room == b"value"
            assert await queue.exists(ns, [b"1", b"3"]) == [True, False]
            assert await queue.remove(ns, [b"1", b"3"]) == [Status.OK, Status.NOT_FOUND]

    asyncio.run(main())


def test_more_tasks_than_jobs_wait_for_their_turn(pool, ns):
    async def main():
        async with AsyncQueue(pool, jobs_max=8) as queue:
            found = await asyncio.gather(*(queue.exists(ns, [b"1"]) for _ in range(1000)))
            assert found == [[False]] * 1000

    asyncio.run(main())


def test_a_cancelled_task_gives_its_buffers_back(pool, ns):
    ns.put(b"key", bytes(16 << 20))

    async def main():
        async with AsyncQueue(pool) as queue:
            rooms = [bytearray(16 << 20) for _ in range(4)]
            tasks = [asyncio.create_task(queue.get(ns, [b"key"], [room])) for room in rooms]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()  # more than once
            for task, room in zip(tasks, rooms):
                with pytest.raises(asyncio.CancelledError):
                    await task
                room.append(0)
            assert await queue.exists(ns, [b"key"]) == [True]

    asyncio.run(main())


def test_a_timeout(pool, ns):
    ns.put(b"key", bytes(32 << 20))
    room = bytearray(32 << 20)

    async def main():
        async with AsyncQueue(pool) as queue:
            work = asyncio.gather(*(queue.get(ns, [b"key"], [room]) for _ in range(200)))
            start_s = time.monotonic()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(work, timeout=0.01)
            assert time.monotonic() - start_s < 30
        room.append(0)

    asyncio.run(main())


def test_close_ends_the_tasks_that_wait(pool, ns):
    ns.put(b"key", bytes(16 << 20))

    async def main():
        queue = AsyncQueue(pool)
        tasks = [
            asyncio.create_task(queue.get(ns, [b"key"], [bytearray(16 << 20)])) for _ in range(5)
        ]
        await asyncio.sleep(0)
        queue.close()
        queue.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)

    asyncio.run(main())


def test_a_wrong_argument_is_raised(pool, ns):
    async def main():
        async with AsyncQueue(pool) as queue:
            with pytest.raises(TypeError, match=r"keys\[0\] is a str"):
                await queue.exists(ns, ["1"])
            await queue.exists(ns, [b"1"])

    asyncio.run(main())


def test_a_failed_job_raises_its_error(pool, ns, locator):
    async def main():
        async with AsyncQueue(pool) as queue:
            bk.destroy(locator, force=True)
            with pytest.raises(bk.Error) as caught:
                await queue.put(ns, [b"1"], [b"value"])
            assert caught.value.status is Status.CLOSED

    asyncio.run(main())


def test_a_pool_that_is_closed_first(pool, ns, locator):
    """The tasks that wait end, and the queue's descriptor is watched no more: it gets another
    use."""

    async def main():
        queue = AsyncQueue(pool)
        tasks = [asyncio.create_task(queue.exists(ns, [b"1"])) for _ in range(3)]
        await asyncio.sleep(0)
        pool.close()
        tasks[0].cancel()
        await asyncio.wait(tasks, timeout=10)
        assert all(task.cancelled() for task in tasks)
        with bk.Pool(locator) as again:
            async with AsyncQueue(again) as other:
                look = other.exists(again.namespace("test", "of the tests"), [b"1"])
                assert await asyncio.wait_for(look, 10) == [False]
        queue.close()

    asyncio.run(main())
