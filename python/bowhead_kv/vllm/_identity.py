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


def identity(fields: Mapping[str, Any], *, name: str | None = None) -> Identity:
    """The namespace for blocks with these fields. Any difference makes another namespace.

    name: the name that the configuration asks for. The pool refuses it if it is registered with
    another description. Default: a name made from the fields, which no other fields have."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()
    model = str(fields["model"]).encode("ascii", "backslashreplace").decode()
    summary = ", ".join(
        f"{key} {fields[key]}" for key in ("dtype", "block_tokens", "ranks") if key in fields
    )
    tail = f"; {summary}; sha256 {digest[:32]}"
    description = f"vLLM {model[-(370 - len(tail)) :]}{tail}"
    return Identity(name or f"vllm-{digest[:24]}", description)
