# SPDX-License-Identifier: Apache-2.0
"""vLLM's hints of a request, for tests."""

from typing import Any

import pytest


def envelope(*payloads: Any, type_: str = "bowhead.keep", version: str = "1") -> Any:
    """A KvHintsEnvelope with an action for each payload. Skips the test where vLLM has none."""
    kv_hints = pytest.importorskip("vllm.v1.kv_hints", reason="vLLM before 0.31 has no hints")
    actions = [kv_hints.KvHintAction("1", type_, version, payload) for payload in payloads]
    return kv_hints.KvHintsEnvelope("1", "message", actions)
