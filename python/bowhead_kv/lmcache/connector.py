# SPDX-License-Identifier: Apache-2.0
"""The connector that LMCache's L2 adapter type `native_plugin` loads.

LMCache submits batches and reads completions when `event_fd()` is readable. Puts, gets, and
deletes are jobs of queues; exists() is answered at once, because the pool answers it without
waiting. A batch of large values is split over a queue's threads.

Invariants:
- Every future that a submit returned is reported exactly once, unless the connector is closed.
- A submit never raises: LMCache calls it on threads that do not expect an exception. Without a
  pool a get or an exists is a miss, and a set or a delete fails.
- A get succeeds only if the value's length is the buffer's.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from dataclasses import dataclass
from typing import Any

import bowhead_kv as bk
from bowhead_kv import config
from bowhead_kv.link import PoolLink
from bowhead_kv.lmcache import _versions

_log = logging.getLogger(__name__)

_NAMESPACE_DEFAULT = "lmcache"
_DESCRIPTION_BYTES_MAX = 383
_PART_BYTES_MIN = 1 << 20  # a smaller part costs more to hand to another thread than to copy

# A load is waited for by a request; a store is not.
_PRIORITY_GET = 2
_PRIORITY_PUT = 1

Completion = tuple[int, bool, str, "list[bool] | None"]


def _encoded(text: str) -> bytes:
    """Never fails: the name of a model may be a path that is no UTF-8."""
    return text.encode(errors="surrogatepass")


@dataclass
class _Future:
    """A batch that LMCache waits for."""

    number: int
    results: list[bool]
    parts_left: int
    error: str = ""


@dataclass
class _Part:
    """A job of a queue: the keys of a future from `start` on."""

    future: _Future
    start: int
    lengths_bytes: list[int] | None  # that the values of a get must have


class BowheadConnector:
    """A pool as LMCache's L2 storage.

    The parameters are the `adapter_params` of LMCache's adapter specification.

    :param description: identifies model, data type, and layout. A namespace keeps the description
        that it was created with, and is refused to a connector with another one.
    :param settings: as for bowhead_kv.config.load(), which says where those that are not given
        come from: locator, host, namespace (default "lmcache"), threads, wipe
    :raises RuntimeError: this version of LMCache is not supported
    :raises ValueError: a setting is unknown or wrong, or no locator is configured
    """

    def __init__(self, *, description: str = "", **settings: Any) -> None:
        _versions.check()
        settings_all = config.load(settings)
        if not isinstance(description, str) or len(_encoded(description)) > _DESCRIPTION_BYTES_MAX:
            raise ValueError(
                f"description is {description!r}; set it to a text of at most "
                f"{_DESCRIPTION_BYTES_MAX} bytes"
            )
        self._threads = settings_all.threads
        self._link = PoolLink(
            settings_all, namespace=_NAMESPACE_DEFAULT, description=description, log=_log
        )
        self._lock = threading.Lock()
        self._closed = False
        self._namespace: bk.Namespace | None = None
        # Removals wait for other hosts, so they have a queue of their own: no load waits for them.
        self._queues: list[bk.Queue] = []  # of copies, of removals; empty while there is no pool
        self._parts: dict[tuple[bk.Queue, int], _Part] = {}  # by queue and number of the job
        self._ended: list[Completion] = []
        self._future_last = 0
        # LMCache asks for the descriptor once. Queues come and go with the pool, so it gets an
        # epoll descriptor that is readable when one of the queues', or that of `_ended`, is.
        self._ended_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._ended_fd, select.EPOLLIN)
        # To join a pool of several hosts takes some heartbeats: no request shall wait for it.
        with self._lock:
            self._open()

    def event_fd(self) -> int:
        """The descriptor that is readable while drain_completions() has something to report."""
        return self._epoll.fileno()

    def submit_batch_set(self, keys: list[str], buffers: list[memoryview]) -> int:
        """Stores each buffer under its key; ok only if all are stored."""
        return self._submit("put", keys, buffers)

    def submit_batch_get(self, keys: list[str], buffers: list[memoryview]) -> int:
        """Fills each buffer with its key's value; a result for each key."""
        return self._submit("get", keys, buffers)

    def submit_batch_delete(self, keys: list[str]) -> int:
        """Removes the keys; the result of a key is true if the pool no longer has it."""
        return self._submit("remove", keys, [])

    def submit_batch_exists(self, keys: list[str]) -> int:
        """Looks the keys up; a result for each key."""
        with self._lock:
            future = self._new_future(len(keys), parts=1)
            namespace = self._open()
            if namespace is None:
                self._end_part(future, "no pool")
                return future.number
            try:
                future.results = namespace.exists([_encoded(key) for key in keys])
                self._end_part(future)
            except bk.Error as error:
                self._end_part(future, str(error))
                self._fault(error)
            return future.number

    def drain_completions(self) -> list[Completion]:
        """The futures that have ended since the last call: number, ok, error, result per key."""
        with self._lock:
            if self._closed:
                return []
            faults: set[bk.Error | bk.Status] = set()
            for queue in self._queues:
                try:
                    for completion in queue.poll():
                        faults |= self._end_job(queue, completion)
                except bk.Error as error:
                    faults.add(error)
            for fault in faults:
                self._fault(fault)
            try:
                os.eventfd_read(self._ended_fd)
            except BlockingIOError:
                pass
            ended, self._ended = self._ended, []
            return ended

    def close(self) -> None:
        """Waits for the jobs that have started and closes the pool. Buffers are LMCache's again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._epoll.close()
            self._close_queues("closed")
            self._link.close()
            os.close(self._ended_fd)

    # All below: with the lock held.

    def _submit(
        self, operation: str, keys: list[str], buffers: list[memoryview]
    ) -> int:
        with self._lock:
            encoded = [_encoded(key) for key in keys]
            bounds = self._split(len(keys), buffers)
            future = self._new_future(len(keys), parts=len(bounds))
            namespace = self._open()
            for start, end in bounds:
                if namespace is None or not self._queues:
                    self._end_part(future, "no pool")
                    continue
                part_buffers = buffers[start:end]
                try:
                    job = self._submit_job(operation, namespace, encoded[start:end], part_buffers)
                except bk.Error as error:
                    self._end_part(future, str(error))
                    self._fault(error)
                    continue
                lengths = [b.nbytes for b in part_buffers] if operation == "get" else None
                self._parts[job] = _Part(future, start, lengths)
            return future.number

    def _submit_job(
        self,
        operation: str,
        namespace: bk.Namespace,
        keys: list[bytes],
        buffers: list[memoryview],
    ) -> tuple[bk.Queue, int]:
        copies, removals = self._queues
        if operation == "put":
            return copies, copies.submit_put(namespace, keys, buffers, priority=_PRIORITY_PUT)
        if operation == "get":
            return copies, copies.submit_get(namespace, keys, buffers, priority=_PRIORITY_GET)
        return removals, removals.submit_remove(namespace, keys)

    def _split(self, count: int, buffers: list[memoryview]) -> list[tuple[int, int]]:
        size_bytes = sum(buffer.nbytes for buffer in buffers)
        parts = max(1, min(self._threads, count, size_bytes // _PART_BYTES_MIN))
        return [(count * i // parts, count * (i + 1) // parts) for i in range(parts)]

    def _new_future(self, count: int, *, parts: int) -> _Future:
        self._future_last += 1
        return _Future(self._future_last, [False] * count, parts)

    def _open(self) -> bk.Namespace | None:
        """The namespace, with queues on its pool, or None."""
        if self._closed:
            return None
        namespace = self._link.ns()
        if namespace is None:
            return None
        if namespace is not self._namespace:
            try:
                self._queues = [namespace.pool.queue(threads=n) for n in (self._threads, 1)]
            except bk.Error as error:
                self._link.fault(error, namespace)
                return None
            self._namespace = namespace
            for queue in self._queues:
                self._epoll.register(queue.fileno(), select.EPOLLIN)
        return namespace

    def _close_queues(self, reason: str) -> None:
        queues, self._queues = self._queues, []
        for queue in queues:
            queue.close()
        self._namespace = None
        parts, self._parts = self._parts, {}
        for part in parts.values():
            self._end_part(part.future, reason)

    def _fault(self, fault: bk.Error | bk.Status) -> None:
        """After a failed call or item: gives the queues up if their pool is gone."""
        if not self._queues:
            return
        # The link closes a lost pool, and with it the queues' descriptors.
        fds = [queue.fileno() for queue in self._queues]
        for fd in fds:
            self._epoll.unregister(fd)
        if self._link.fault(fault, self._namespace):
            self._close_queues("the pool is gone")
        else:
            for fd in fds:
                self._epoll.register(fd, select.EPOLLIN)

    def _end_job(self, queue: bk.Queue, completion: bk.Completion) -> set[bk.Status]:
        """Takes a job's results; returns what it failed with."""
        part = self._parts.pop((queue, completion.job))
        failed: set[bk.Status] = {completion.status}
        for i, status in enumerate(completion.statuses):
            if status == bk.Status.OK:
                lengths = part.lengths_bytes
                done = lengths is None or completion.lengths[i] == lengths[i]
            else:
                done = status == bk.Status.NOT_FOUND and completion.operation == "remove"
                failed.add(status)
            part.future.results[part.start + i] = done
        failed -= {bk.Status.OK, bk.Status.NOT_FOUND}
        stored = completion.operation != "put" or not failed
        self._end_part(part.future, "" if stored else ", ".join(s.name for s in sorted(failed)))
        return failed

    def _end_part(self, future: _Future, error: str = "") -> None:
        future.error = future.error or error
        future.parts_left -= 1
        if future.parts_left == 0 and not self._closed:
            self._ended.append((future.number, not future.error, future.error, future.results))
            os.eventfd_write(self._ended_fd, 1)
