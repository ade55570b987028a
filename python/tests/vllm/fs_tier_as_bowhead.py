# SPDX-License-Identifier: Apache-2.0
"""A pytest plug-in that points vLLM's own tests of its file system tier at BowheadTier.

    pytest -p fs_tier_as_bowhead VLLM/tests/v1/kv_offload/tiering/test_fs_tier.py

It replaces the class that the tests import. A test's root folder becomes a pool, and a block's file
an empty file that exists while the pool has the block.
"""

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bowhead_kv as bk
import vllm.v1.kv_offload.tiering.fs.manager as fs_manager
from bowhead_kv.vllm.tier import BowheadTier
from vllm.v1.kv_offload.base import LookupResult, ReqContext

SIZE_BYTES = 64 << 20


class FileSystemTierManager(BowheadTier):
    def __init__(
        self, *, root_dir: str, n_read_threads: int = 1, n_write_threads: int = 1, **rest: Any
    ) -> None:
        self._root = Path(root_dir)
        digest = hashlib.sha256(root_dir.encode()).hexdigest()[:16]
        self._locator = f"shm:test-vllm-fs-{digest}"
        bk.create(self._locator, SIZE_BYTES, replace=True)
        try:
            super().__init__(locator=self._locator, threads=n_read_threads, **rest)
        except ValueError:
            bk.destroy(self._locator)
            raise
        self.file_mapper = SimpleNamespace(get_file_name=self._get_file_name)
        # The tests wait until a look-up in the background has ended; there is none here.
        pending = SimpleNamespace(empty=lambda: False)
        self._lookup_manager = SimpleNamespace(_pending_results=pending, _lookup_batch=[])

    def _get_file_name(self, key: Any) -> str:
        path = self._root / key.hex()
        if self.lookup(key, ReqContext(req_id="file")) == LookupResult.HIT:
            path.touch()
        else:
            path.unlink(missing_ok=True)
        return str(path)

    def shutdown(self) -> None:
        super().shutdown()
        bk.destroy(self._locator, force=True)


fs_manager.FileSystemTierManager = FileSystemTierManager
