# SPDX-License-Identifier: Apache-2.0
"""Where the pool is and how to use it, from the environment or a TOML file."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

FILE_VARIABLE = "BOWHEAD_CONFIG"


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings that the plug-ins for engines share."""

    locator: str
    """Of the pool, such as "shm:NAME", "dax:/dev/dax0.0" or "file:/PATH"."""
    host: int | None = None
    """The host slot; None: that of this machine, or a free one."""
    namespace: str | None = None
    """Name of the namespace; None: the plug-in chooses one."""
    threads: int = 1
    """Threads of a queue, which copy values."""
    wipe: bool = False
    """The pool overwrites what the namespace stored before the memory is free."""


_TYPES = {"locator": str, "host": int, "namespace": str, "threads": int, "wipe": bool}
_RANGES = {"host": range(64), "threads": range(1, 65)}
_NAMESPACE_BYTES_MAX = 63


def load(overrides: Mapping[str, object] | None = None) -> Config:
    """The settings from `overrides`; what these lack, from the environment variables
    BOWHEAD_LOCATOR, BOWHEAD_HOST, BOWHEAD_NAMESPACE, BOWHEAD_THREADS and BOWHEAD_WIPE (0 or 1);
    what these lack, from the TOML file that BOWHEAD_CONFIG names, which has the same names in lower
    case without prefix.

    Raises ValueError, which names the setting and its source, if a setting is unknown or wrong.
    """
    settings = _from_file(os.environ.get(FILE_VARIABLE))
    settings.update(_from_environment())
    settings.update(_checked(overrides or {}, "the overrides"))
    if "locator" not in settings:
        raise ValueError(
            "no pool is configured: set BOWHEAD_LOCATOR, such as shm:kv, or `locator` in the file "
            f"that {FILE_VARIABLE} names"
        )
    return Config(**settings)


def _from_file(path: str | None) -> dict[str, Any]:
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except (OSError, ValueError) as error:  # also of bytes that are no UTF-8
        raise ValueError(f"{FILE_VARIABLE}={path} cannot be read: {error}") from error
    return _checked(found, path)


def _from_environment() -> dict[str, Any]:
    settings = {}
    for field in fields(Config):
        variable = "BOWHEAD_" + field.name.upper()
        text = os.environ.get(variable)
        if not text:
            continue
        value: object = text
        if _TYPES[field.name] is int:
            try:
                value = int(text)
            except ValueError:
                raise ValueError(f"{variable} is {text!r}; set it to an integer") from None
        if _TYPES[field.name] is bool:
            if text not in ("0", "1"):
                raise ValueError(f"{variable} is {text!r}; set it to 0 or 1")
            value = text == "1"
        settings[field.name] = _checked_value(field.name, value, variable)
    return settings


def _checked(settings: Mapping[str, object], source: str) -> dict[str, Any]:
    unknown = [name for name in settings if name not in _TYPES]
    if unknown:
        raise ValueError(
            f"{source}: unknown setting {unknown[0]!r}; the settings are {', '.join(_TYPES)}"
        )
    return {
        name: _checked_value(name, value, f"{source}: {name}")
        for name, value in settings.items()
        if value is not None
    }


def _checked_value(name: str, value: object, source: str) -> object:
    expected = _TYPES[name]
    if type(value) is not expected:
        raise ValueError(f"{source} is {value!r}; set it to a value of type {expected.__name__}")
    allowed = _RANGES.get(name)
    if allowed is not None and value not in allowed:
        raise ValueError(f"{source} is {value}; set it to {allowed[0]} to {allowed[-1]}")
    if isinstance(value, str) and not (value.isprintable() and value):
        raise ValueError(f"{source} is {value!r}; set it to a text of printable characters")
    if name == "namespace" and len(str(value).encode()) > _NAMESPACE_BYTES_MAX:
        raise ValueError(f"{source} is {value!r}; set it to at most {_NAMESPACE_BYTES_MAX} bytes")
    return value
