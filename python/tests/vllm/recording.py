# SPDX-License-Identifier: Apache-2.0
"""BowheadConnector, and a list of the keys that it stores, for tests that attack them."""

from typing import Any

from bowhead_kv.vllm.connector import BowheadConnector, rank_keys

KEYS: list[bytes] = []


class RecordingConnector(BowheadConnector):
    def build_connector_meta(self, scheduler_output: Any) -> Any:
        metadata = super().build_connector_meta(scheduler_output)
        KEYS.extend(rank_keys(metadata.stores.hashes, range(1)))
        return metadata
