# SPDX-License-Identifier: Apache-2.0
"""How long blocks are to be kept: from a plug-in's settings, and from vLLM's hints of a request."""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import bowhead_kv as bk

ACTION = "bowhead.keep"
"""The type of the actions in vLLM's hints that are heeded; others are for other components."""
ACTION_VERSION = "1"

_PINS = {"none": bk.Pins.NONE, "soft": bk.Pins.SOFT, "hard": bk.Pins.HARD}
NAMES = ("ttl_s", "pin", "priority")
_TTL_MOST_S = 1 << 31
"""68 years; the pool counts seconds since 1970 in 32 bits."""


@dataclass(frozen=True)
class Keep:
    """What is asked for blocks that are stored."""

    ttl_s: float | None = None
    """How long they are to be kept; None: no limit."""
    pin: str = "none"
    priority: int = 0

    def attributes(self) -> bk.Attributes | None:
        """For a put that is done now."""
        if self == Keep():
            return None
        expires_unix_s = 0 if self.ttl_s is None else int(time.time() + self.ttl_s + 1)
        return bk.Attributes(
            priority=self.priority, pins=_PINS[self.pin], expires_unix_s=expires_unix_s
        )


def _checked(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ValueError, which names the setting, if one is unknown or wrong."""
    if not isinstance(asked, Mapping):
        raise ValueError(f"{asked!r} is no object with the settings {', '.join(NAMES)}")
    for name, value in asked.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name == "ttl_s":
            good = value is None or (is_number and 0 < value <= _TTL_MOST_S)
            wanted = f"a number of seconds above 0, at most {_TTL_MOST_S:,}"
        elif name == "pin":
            good, wanted = isinstance(value, str) and value in _PINS, f"one of {', '.join(_PINS)}"
        elif name == "priority":
            good, wanted = isinstance(value, int) and is_number and 0 <= value <= 255, "0 to 255"
        else:
            raise ValueError(f"unknown setting {name!r}; the settings are {', '.join(NAMES)}")
        if not good:
            raise ValueError(f"{name} is {value!r}; set it to {wanted}")
    return dict(asked)


def take_keep(settings: dict[str, Any]) -> Keep:
    """Takes the settings of a plug-in that are about keeping blocks out of its settings."""
    return Keep(**_checked({name: settings.pop(name) for name in NAMES if name in settings}))


class Hints:
    """Reads the hints of requests."""

    def __init__(self, default: Keep, log: logging.Logger) -> None:
        """default: what holds where a request has no hint."""
        self.default = default
        self._log = log
        self._warned = False

    def of(self, kv_hints: Any) -> Keep:
        """What a request asks for. A wrong hint is ignored, and the first one is warned of: no
        request may fail for it. kv_hints: vLLM's KvHintsEnvelope, or None."""
        keep = self.default
        actions: Iterable[Any] = () if kv_hints is None else kv_hints.actions
        for action in actions:
            if action.action_type != ACTION:
                continue
            try:
                if action.action_version != ACTION_VERSION:
                    raise ValueError(
                        f"action_version is {action.action_version!r}; set it to {ACTION_VERSION!r}"
                    )
                keep = replace(keep, **_checked(action.payload))
            except ValueError as error:
                if not self._warned:
                    self._log.warning("a hint %s is ignored, as later ones: %s", ACTION, error)
                self._warned = True
        return keep
