# SPDX-License-Identifier: Apache-2.0
"""The plug-ins, with a record of the keys that they store and of the events that they publish."""

from collections.abc import Iterable
from typing import Any

import msgspec
from bowhead_kv.vllm.connector import BowheadConnector, rank_keys
from bowhead_kv.vllm.tier import BowheadTier

_keys: list[bytes] = []
_events: list[Any] = []


class RecordingConnector(BowheadConnector):
    def build_connector_meta(self, scheduler_output: Any) -> Any:
        metadata = super().build_connector_meta(scheduler_output)
        ranks = range(self._vllm_config.parallel_config.world_size)
        _keys.extend(rank_keys(metadata.stores.hashes, ranks))
        return metadata

    def take_events(self) -> Iterable[Any]:
        events = list(super().take_events())
        _events.extend(events)
        return events


class RecordingTier(BowheadTier):
    def submit_store(self, job_metadata: Any) -> None:
        super().submit_store(job_metadata)
        _keys.extend(job_metadata.keys)


def answer(command: str) -> Any:
    """The record, as JSON can hold it."""
    if command == "keys":
        return [key.hex() for key in _keys]
    assert command == "events"
    return [msgspec.to_builtins(event) for event in _events]
