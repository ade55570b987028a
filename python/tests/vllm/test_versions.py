# SPDX-License-Identifier: Apache-2.0
"""The releases of vLLM that are supported, and the refusal of others."""

import subprocess
import sys

import pytest
import vllm
from bowhead_kv.vllm import _versions


@pytest.mark.parametrize("version", ["0.29.0", "0.34.0", "0.3.3", "1.32.0", "0.330.0", "dev"])
def test_other_release_is_refused_by_name(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", version)
    with pytest.raises(ImportError) as refused:
        _versions.check()
    assert str(refused.value) == (
        f"bowhead_kv.vllm does not support vLLM {version}: its interfaces for connectors change "
        "between releases. Install vLLM 0.30, 0.31, 0.32 or 0.33, or a version of bowhead_kv that "
        "names yours"
    )


@pytest.mark.parametrize("version", ["0.30.0", "0.31.2", "0.32.0+cpu", "0.33.1.dev4+g0123abc"])
def test_patches_and_builds_of_a_release_are_accepted(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "__version__", version)
    _versions.check()


@pytest.mark.parametrize("module", ["connector", "tier"])
def test_plug_ins_of_another_release_cannot_be_imported(module: str) -> None:
    """vLLM imports the module that its configuration names: it must fail there, not later."""
    script = (
        f"import vllm; vllm.__version__ = '0.29.0'; import bowhead_kv.vllm.{module}"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith(
        "ImportError: bowhead_kv.vllm does not support vLLM 0.29.0"
    )


def test_installed_release_is_supported() -> None:
    assert _versions.release() in _versions.SUPPORTED
