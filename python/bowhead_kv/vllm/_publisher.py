# SPDX-License-Identifier: Apache-2.0
"""The settings of a plug-in that are about events for routers."""

import logging
from typing import Any

from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash

from bowhead_kv.events import Publisher, rank_endpoint


NAMES = ("events_endpoint", "events_replay_endpoint", "events_topic")


def take_event_settings(settings: dict[str, Any]) -> dict[str, str]:
    """Takes the settings that are about events out of those of a plug-in. Raises ValueError, which
    names the setting, if one is wrong."""
    found = {name: settings.pop(name) for name in NAMES if name in settings}
    for name, value in found.items():
        if not isinstance(value, str):
            raise ValueError(f"{name} is {value!r}; set it to a text")
    if found and "events_endpoint" not in found:
        raise ValueError(
            f"{next(iter(found))} is set and events_endpoint is not: set it as well, such as "
            "tcp://*:5557"
        )
    return found


def open_publisher(
    settings: dict[str, str],
    *,
    medium: str,
    rank: int,
    data_parallel_rank: int,
    log: logging.Logger,
) -> Publisher | None:
    """The publisher that the settings ask for. rank: of this process among all that have the same
    settings."""
    if not settings:
        return None
    replay = settings.get("events_replay_endpoint")
    return Publisher(
        rank_endpoint(settings["events_endpoint"], rank),
        medium=medium,
        topic=settings.get("events_topic", ""),
        replay_endpoint=rank_endpoint(replay, rank) if replay else None,
        data_parallel_rank=data_parallel_rank,
        int_hashes=isinstance(maybe_convert_block_hash(BlockHash(bytes(32))), int),
        log=log,
    )
