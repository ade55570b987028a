# SPDX-License-Identifier: Apache-2.0
"""A far tier whose hits also fill the pool.

LMCache loads an object from the first L2 adapter that has it, and does not offer it to the other
adapters. Without this class a pool in front of a far tier (Redis, a file system, an object store)
therefore stays empty for everything that other racks stored.

The wrapped adapter does all the work of the far tier: its stores, lookups, locks, deletes, usage,
and events pass through unchanged. Only loads have a second step: what the far tier delivered is
put into the pool from the buffers that it was delivered to, and then reported. The put comes
first because LMCache may release the buffers as soon as the load is reported. If it fails, the
load is reported all the same.
"""

from __future__ import annotations

import os
import select
import threading
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import KeyListPage, MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.internal_api import L1MemoryDesc, L2AdapterListener, L2StoreResult
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface, L2TaskId
from lmcache.v1.distributed.l2_adapters.config import (
    get_l2_adapter_config_class,
    get_registered_l2_adapter_types,
)
from lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter import _object_key_to_string
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.platform import consume_fd

from bowhead_kv.lmcache.connector import BowheadConnector

# LMCache reads these from the adapter that it creates, which is this one, not the far tier.
_OUTER_SETTINGS = ("affinity_tag", "eviction", "persist_enabled", "serde", "shared")


class BowheadReadThrough(L2AdapterInterface):
    """An L2 adapter (type `plugin`) around a far tier.

    :param params: the `adapter_params`: `far` is the specification of the far tier's adapter, as
        for `--l2-adapter`; all others are parameters of BowheadConnector and must name the pool and
        namespace of the `native_plugin` adapter in front
    :param l1_memory_desc: LMCache's description of its memory, for the far tier
    :raises ValueError: `far` is missing or unusable
    """

    def __init__(self, params: dict[str, Any], l1_memory_desc: L1MemoryDesc | None = None) -> None:
        super().__init__()
        pool_params = dict(params)
        far_config = _far_config(pool_params.pop("far", None))
        self._pool = BowheadConnector(**pool_params)
        try:
            self._far = create_l2_adapter(far_config, l1_memory_desc=l1_memory_desc)
        except BaseException:
            self._pool.close()
            raise
        self._lock = threading.Lock()
        self._loads: dict[L2TaskId, tuple[list[ObjectKey], list[MemoryObj]]] = {}
        self._fills: dict[int, tuple[L2TaskId, Bitmap]] = {}  # by future of the pool
        self._loaded: dict[L2TaskId, Bitmap] = {}
        self._loaded_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="bowhead-read-through", daemon=True)
        self._thread.start()

    # Loads

    def get_load_event_fd(self) -> int:
        return self._loaded_fd

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2TaskId:
        # Under the lock, so that the thread cannot see the task's end before the task.
        with self._lock:
            task = self._far.submit_load_task(keys, objects)
            self._loads[task] = (keys, objects)
            return task

    def query_load_result(self, task_id: L2TaskId) -> Bitmap | None:
        with self._lock:
            return self._loaded.pop(task_id, None)

    def _run(self) -> None:
        far_fd = self._far.get_load_event_fd()
        pool_fd = self._pool.event_fd()
        poll = select.poll()
        for fd in (far_fd, pool_fd, self._stop_fd):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._stop_fd:
                    return
                with self._lock:
                    if fd == far_fd:
                        consume_fd(far_fd)
                        self._fill()
                    else:
                        self._report_filled()

    def _fill(self) -> None:
        """Submits what the far tier has delivered to the pool. With the lock held."""
        for task in list(self._loads):
            bitmap = self._far.query_load_result(task)
            if bitmap is None:
                continue
            keys, objects = self._loads.pop(task)
            hits = bitmap.get_indices_list()
            if not hits:
                self._report(task, bitmap)
                continue
            future = self._pool.submit_batch_set(
                [_object_key_to_string(keys[i]) for i in hits],
                [objects[i].byte_array for i in hits],
            )
            self._fills[future] = (task, bitmap)

    def _report_filled(self) -> None:
        for future, _ok, _error, _results in self._pool.drain_completions():
            self._report(*self._fills.pop(future))

    def _report(self, task: L2TaskId, bitmap: Bitmap) -> None:
        self._loaded[task] = bitmap
        os.eventfd_write(self._loaded_fd, 1)

    def close(self) -> None:
        os.eventfd_write(self._stop_fd, 1)
        self._thread.join()
        self._pool.close()
        self._far.close()
        os.close(self._loaded_fd)
        os.close(self._stop_fd)

    def report_status(self) -> dict[str, Any]:
        status = self._far.report_status()
        status["is_healthy"] = bool(status.get("is_healthy")) and self._thread.is_alive()
        return status

    # Everything else is the far tier's.

    def get_store_event_fd(self) -> int:
        return self._far.get_store_event_fd()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._far.get_lookup_and_lock_event_fd()

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2TaskId:
        return self._far.submit_store_task(keys, objects)

    def pop_completed_store_tasks(self) -> dict[L2TaskId, L2StoreResult]:
        return self._far.pop_completed_store_tasks()

    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc]
    ) -> L2TaskId:
        return self._far.submit_lookup_and_lock_task(keys, group_layout_descs)

    def query_lookup_and_lock_result(self, task_id: L2TaskId) -> Bitmap | None:
        return self._far.query_lookup_and_lock_result(task_id)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        self._far.submit_unlock(keys)

    def register_listener(self, listener: L2AdapterListener) -> None:
        self._far.register_listener(listener)

    def set_backend_identity(self, name: str, shared: bool = False) -> None:
        self._far.set_backend_identity(name, shared)

    @property
    def supports_global_eviction(self) -> bool:
        return self._far.supports_global_eviction

    def delete(self, keys: list[ObjectKey]) -> None:
        self._far.delete(keys)

    def list_l2_keys(
        self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None
    ) -> KeyListPage:
        return self._far.list_l2_keys(model_name, page_size, cursor)

    def get_usage(self) -> AdapterUsage:
        return self._far.get_usage()


def _far_config(spec: Any) -> Any:
    if not isinstance(spec, dict) or not isinstance(spec.get("type"), str):
        raise ValueError(
            'adapter_params of BowheadReadThrough need "far": the specification of the far '
            'tier\'s adapter, such as {"type": "fs", "base_path": "/mnt/kv"}'
        )
    misplaced = [name for name in _OUTER_SETTINGS if name in spec]
    if misplaced:
        raise ValueError(
            f'"far" has {", ".join(misplaced)}, which LMCache reads only outside: move '
            "it beside the type of BowheadReadThrough's own specification"
        )
    known = get_registered_l2_adapter_types()
    if spec["type"] not in known:
        raise ValueError(
            f'"far" has type "{spec["type"]}"; the types that this LMCache can load are '
            f"{', '.join(known)}"
        )
    return get_l2_adapter_config_class(spec["type"]).from_dict(spec)
