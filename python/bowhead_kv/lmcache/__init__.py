# SPDX-License-Identifier: Apache-2.0
"""LMCache on a Bowhead pool.

`BowheadConnector` stores LMCache's objects in a pool (L2 adapter type `native_plugin`).
`BowheadReadThrough` wraps another L2 adapter, the far tier, and puts what the far tier delivers
into the pool as well (type `plugin`). docs/engines/lmcache.md has the configuration.
"""

from typing import TYPE_CHECKING, Any

from bowhead_kv.lmcache.connector import BowheadConnector

if TYPE_CHECKING:
    from bowhead_kv.lmcache.read_through import BowheadReadThrough

__all__ = ["BowheadConnector", "BowheadReadThrough"]


def __getattr__(name: str) -> Any:
    # The read-through subclasses LMCache's interface; the connector needs no LMCache to import.
    if name == "BowheadReadThrough":
        from bowhead_kv.lmcache.read_through import BowheadReadThrough

        return BowheadReadThrough
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
