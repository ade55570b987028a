# SPDX-License-Identifier: Apache-2.0
"""The namespace of an engine's blocks: a fingerprint of all that their bytes depend on."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Identity:
    """A namespace's name and description."""

    name: str
    description: str


def identity(fields: Mapping[str, Any]) -> Identity:
    """The namespace for blocks with these fields. Any difference makes another name and another
    description, and the pool refuses a name that is registered with another description."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()
    model = str(fields["model"]).encode("ascii", "backslashreplace").decode()
    summary = ", ".join(
        f"{key} {fields[key]}" for key in ("dtype", "block_tokens", "ranks") if key in fields
    )
    tail = f"; {summary}; sha256 {digest[:32]}"
    description = f"vLLM {model[-(370 - len(tail)) :]}{tail}"
    return Identity(f"vllm-{digest[:24]}", description)
