# SPDX-License-Identifier: Apache-2.0
"""The connection of an engine's plug-in to its pool, which may go and come back.

An engine must outlive its pool. So a plug-in asks the link for the namespace before each use: None
means that there is no pool now, which the plug-in treats as a miss.
"""

import logging
import os
import threading
import time
from collections.abc import Callable

from bowhead_kv._native import Namespace, Pool
from bowhead_kv._types import Error, Layout, Status
from bowhead_kv.config import Config

RETRY_S = 1.0

_GONE = frozenset(
    {
        Status.CLOSED,
        Status.FORKED,
        Status.HOST_FENCED,
        Status.HOST_ID_CONFLICT,
        Status.MEDIA_ERROR,
        Status.NAMESPACE_GONE,
    }
)
"""The handle serves no more: open the pool again."""

_FINAL = frozenset(
    {
        Status.BAD_LOCATOR,
        Status.INVALID_ARGUMENT,
        Status.LAYOUT_MISMATCH,
        Status.NAMESPACE_MISMATCH,
        Status.NOT_SUPPORTED,
        Status.VERSION_UNKNOWN,
    }
)
"""Opening fails for ever, until the configuration changes."""


class PoolLink:
    """Opens the pool and a namespace when first asked, and again after they were lost.

    The first attempt is made by the caller of :meth:`ns`; later ones by a thread, at most one a
    second, so that the engine never waits for a pool that is gone. All methods may be called from
    any thread, and in the child of a fork.
    """

    def __init__(
        self,
        config: Config,
        *,
        namespace: str,
        description: str,
        layout: Layout | None = None,
        log: logging.Logger,
        on_open: Callable[[Namespace], None] | None = None,
    ) -> None:
        """`namespace` is the name if the configuration has none; `description` says all that
        distinguishes the values, so that engines with others never meet in it. `on_open` is called
        with the namespace each time the pool was opened, before anyone can use it."""
        self._config = config
        self._name = config.namespace or namespace
        self._description = description
        self._layout = layout
        self._log = log
        self._on_open = on_open
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._ns: Namespace | None = None
        self._tried_s = float("-inf")
        self._opening = False
        self._final = False
        self._lost = False
        self._warned: set[Status] = set()

    def ns(self) -> Namespace | None:
        """The namespace, or None while there is no pool."""
        if self._pid != os.getpid():
            self._reset()  # the child of a fork: the handle, and the lock, are the parent's
        ns = self._ns
        if ns is not None or self._final:
            return ns
        with self._lock:
            if self._ns is not None or self._final or self._opening:
                return self._ns
            first = self._tried_s == float("-inf")
            if time.monotonic() - self._tried_s < RETRY_S:
                return None
            self._opening = True
        if first:
            self._open()
        else:
            threading.Thread(target=self._open, name="bowhead-open", daemon=True).start()
        return self._ns

    def _open(self) -> None:
        try:
            pool = Pool(self._config.locator, host=self._config.host)
            try:
                ns = pool.namespace(
                    self._name, self._description, layout=self._layout, wipe=self._config.wipe
                )
                if self._on_open is not None:
                    self._on_open(ns)
            except BaseException:
                pool.close()
                raise
        except Exception as error:  # of any kind: the next try comes only after this one has ended
            self._failed_to_open(error)
            return
        with self._lock:
            self._opening, self._tried_s = False, time.monotonic()
            closed = self._final
            if not closed:
                self._ns = ns
            self._warned.clear()
            was_lost, self._lost = self._lost, False
        if closed:
            pool.close()
        elif was_lost:
            self._log.warning("pool %s is open again", self._config.locator)

    def _failed_to_open(self, error: Exception) -> None:
        status = error.status if isinstance(error, Error) else None
        with self._lock:
            self._opening, self._tried_s = False, time.monotonic()
            self._final = self._final or status in _FINAL
            warned, self._lost = self._lost, True
        if self._final:
            self._log.error("the pool will not be used: %s", error)
        elif not warned:
            self._log.warning(
                "no pool: %s (%s). The engine goes on without; trying again once a second",
                error,
                type(error).__name__ if status is None else status.name,
            )

    def fault(self, error: Error | Status, ns: Namespace | None = None) -> bool:
        """Takes note of a failed call or item: pass what it raised, or its status, and the
        namespace that it used. If the handle serves no more, closes it and returns True.
        Warns once for each fault."""
        status = error.status if isinstance(error, Error) else error
        text = str(error) if isinstance(error, Error) else f"{self._config.locator}: {status.text}"
        with self._lock:
            if ns is not None and ns is not self._ns:
                return False  # of a handle that was closed already
            lost = self._ns
            if status in _GONE:
                self._ns = None
                warned, self._lost = self._lost, True
            else:
                lost = None
                warned = status in self._warned
                self._warned.add(status)
        if not warned:
            end = ". The engine goes on without; trying again once a second" if lost else ""
            self._log.warning("%s (%s)%s", text, status.name, end)
        if lost is not None:
            _close(lost.pool)
        return lost is not None

    def close(self) -> None:
        """Closes the pool. It is not opened again."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            ns, self._ns, self._final = self._ns, None, True
        if ns is not None:
            _close(ns.pool)


def _close(pool: Pool) -> None:
    try:
        pool.close()
    except BufferError:
        pass  # a lease is still in use; the pool is closed when its last view is gone
