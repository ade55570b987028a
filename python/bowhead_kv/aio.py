# SPDX-License-Identifier: Apache-2.0
"""Queues for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from bowhead_kv._native import Namespace, Pool
from bowhead_kv._types import Attributes, Completion, Error, GetResult, Status

if TYPE_CHECKING:
    from typing_extensions import Buffer


class AsyncQueue:
    """A :class:`Queue` whose jobs are awaited. Make and use it in one running event loop.

    When an await ends, the buffers of its job are the caller's again. A task that is cancelled
    cancels its job if that has not started, and else waits for its end, which takes no longer
    than the copies.
    """

    def __init__(self, pool: Pool, *, threads: int = 1, jobs_max: int = 1024) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue = pool.queue(threads=threads, jobs_max=jobs_max)
        self._free = asyncio.Semaphore(jobs_max)
        self._waiting: dict[int, asyncio.Future[Completion]] = {}
        self._closed = False
        self._fd = self._queue.fileno()
        self._loop.add_reader(self._fd, self._report)

    async def put(
        self,
        ns: Namespace,
        keys: Sequence[Buffer],
        values: Sequence[Buffer | Sequence[Buffer]],
        *,
        user_metadata: Sequence[Buffer] | None = None,
        attributes: Attributes | None = None,
        priority: int = 0,
    ) -> list[Status]:
        """:meth:`Namespace.put_batch`."""
        ended = await self._run(
            self._queue.submit_put,
            ns,
            keys,
            values,
            user_metadata=user_metadata,
            attributes=attributes,
            priority=priority,
        )
        return ended.statuses

    async def get(
        self,
        ns: Namespace,
        keys: Sequence[Buffer],
        buffers: Sequence[Buffer | Sequence[Buffer]],
        *,
        priority: int = 0,
    ) -> list[GetResult]:
        """:meth:`Namespace.get_batch`."""
        ended = await self._run(self._queue.submit_get, ns, keys, buffers, priority=priority)
        return [GetResult(*item) for item in zip(ended.statuses, ended.lengths)]

    async def remove(
        self, ns: Namespace, keys: Sequence[Buffer], *, priority: int = 0
    ) -> list[Status]:
        """:meth:`Namespace.remove_batch`."""
        return (await self._run(self._queue.submit_remove, ns, keys, priority=priority)).statuses

    async def exists(
        self, ns: Namespace, keys: Sequence[Buffer], *, priority: int = 0
    ) -> list[bool]:
        """:meth:`Namespace.exists`."""
        return (await self._run(self._queue.submit_exists, ns, keys, priority=priority)).present

    def close(self) -> None:
        """Cancels the jobs that have not started, and waits for the others. Awaits that have not
        ended raise CancelledError. Close it before its pool."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        self._queue.close()
        for future in self._waiting.values():
            future.cancel()
        self._waiting.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.close()

    async def _run(
        self, submit: Callable[..., int], *arguments: object, **options: object
    ) -> Completion:
        async with self._free:
            job = submit(*arguments, **options)
            future: asyncio.Future[Completion] = self._loop.create_future()
            self._waiting[job] = future
            try:
                ended = await asyncio.shield(future)
            except asyncio.CancelledError:
                await self._end(job, future)
                raise
        if ended.status is not Status.OK:
            raise Error(ended.status)
        return ended

    async def _end(self, job: int, future: asyncio.Future[Completion]) -> None:
        """Waits until the job uses its buffers no more, however often the task is cancelled."""
        if self._queue.closed:
            self.close()  # the pool was closed first: nothing is reported any more
        else:
            self._queue.cancel(job)
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                continue

    def _report(self) -> None:
        for ended in self._queue.poll():
            future = self._waiting.pop(ended.job)
            if not future.done():
                future.set_result(ended)
