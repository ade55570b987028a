# SPDX-License-Identifier: Apache-2.0
"""The pool of a plug-in."""

import logging

from bowhead_kv._types import Layout
from bowhead_kv.config import Config
from bowhead_kv.events import Publisher
from bowhead_kv.link import PoolLink
from bowhead_kv.vllm._identity import Identity

log = logging.getLogger("vllm.bowhead")
"""Of both plug-ins; below vLLM's own, so that its settings hold."""


def link_pool(
    config: Config,
    identity: Identity,
    publisher: Publisher | None,
    layout: Layout | None = None,
) -> PoolLink:
    """The link to the pool that the settings name, with the engine's namespace. publisher: where
    events of the pool go, if anywhere. layout: of the values; None: they are opaque."""
    return PoolLink(
        config,
        namespace=identity.name,
        description=identity.description,
        layout=layout,
        log=log,
        on_open=publisher.attach if publisher else None,
    )
