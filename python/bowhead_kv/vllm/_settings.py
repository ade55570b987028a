# SPDX-License-Identifier: Apache-2.0
"""The settings of a plug-in: where they are wrong, an error names the setting and the place."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from bowhead_kv.config import Config
from bowhead_kv.config import load as load_config

OF_THE_POOL = tuple(field.name for field in fields(Config))


def check_names(settings: Mapping[str, Any], names: tuple[str, ...], place: str) -> None:
    """Raises ValueError if a setting is none of the names."""
    for name in settings:
        if name not in names:
            raise ValueError(
                f"{place}: unknown setting {name!r}; the settings are {', '.join(names)}"
            )


def check(name: str, value: Any, is_good: bool, wanted: str) -> None:
    """Raises ValueError if a setting has a wrong value."""
    if not is_good:
        raise ValueError(f"{name} is {value!r}; set it to {wanted}")


def pool_config(settings: Mapping[str, Any], place: str) -> Config:
    """What is left of the settings, and what the environment and the file add. Raises ValueError
    if one is wrong, or no pool is named anywhere."""
    try:
        return load_config(settings)
    except ValueError as error:
        raise ValueError(
            f"{place}, or what stands for it in the environment or a file: {error}"
        ) from None
