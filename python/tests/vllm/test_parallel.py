# SPDX-License-Identifier: Apache-2.0
"""Engines of several ranks on a pool: what ranks, stages and replicas share, and what not."""

import pytest
from bowhead_kv.vllm.connector import engine_identity
from bowhead_kv.vllm.tier import tier_identity
from driver import (
    BLOCK_TOKENS,
    PROMPT_BLOCKS,
    ROW_BYTES,
    ConnectorDriver,
    kv_cache_config,
    offloading_spec,
    vllm_config,
)

STAGES = [["layer.0", "layer.1"], ["layer.2", "layer.3"]]
FULL = PROMPT_BLOCKS * BLOCK_TOKENS


def served(driver: ConnectorDriver) -> list[int]:
    """Serves two prompts of other beginnings, and checks all pages: the tokens loaded."""
    loaded = driver.serve([1, 2])
    driver.close()
    assert driver.counts["served"] > 0
    assert driver.counts["wrong"] == 0
    return loaded


def test_stages_of_a_pipeline_load_their_own_layers(locator: str) -> None:
    settings = {"locator": locator}
    assert served(ConnectorDriver(settings, stages=STAGES)) == [0, 0]
    again = ConnectorDriver(settings, stages=STAGES, seed=1)
    assert served(again) == [FULL, FULL]
    assert again.counts["loaded"] == 2 * PROMPT_BLOCKS * 4


def test_stages_with_workers_each(locator: str) -> None:
    settings = {"locator": locator}
    assert served(ConnectorDriver(settings, stages=STAGES, tensor=2)) == [0, 0]
    assert served(ConnectorDriver(settings, stages=STAGES, tensor=2, seed=1)) == [FULL, FULL]
    # Another split of the same number of ranks is another engine.
    four = [[f"layer.{i}"] for i in range(4)]
    assert served(ConnectorDriver(settings, stages=four)) == [0, 0]


def test_stages_cut_elsewhere_never_meet(locator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both cuts give the second rank one layer, a value of the same length, but not the same."""
    settings = {"locator": locator}
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "1,1,2")
    cut = [["layer.0"], ["layer.1"], ["layer.2", "layer.3"]]
    assert served(ConnectorDriver(settings, stages=cut)) == [0, 0]
    assert served(ConnectorDriver(settings, stages=cut)) == [FULL, FULL]
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "2,1,1")
    cut = [["layer.0", "layer.1"], ["layer.2"], ["layer.3"]]
    assert served(ConnectorDriver(settings, stages=cut)) == [0, 0]


def test_replicas_of_data_parallelism_share(locator: str) -> None:
    settings = {"locator": locator}
    stages = [["layer.0", "layer.1"]]
    first = ConnectorDriver(settings, stages=stages, tensor=2, data_parallel_rank=0)
    second = ConnectorDriver(settings, stages=stages, tensor=2, data_parallel_rank=1, seed=1)
    assert first.serve([1, 2]) == [0, 0]
    assert second.serve([2, 3]) == [FULL, 0]
    assert first.serve([3]) == [FULL]
    for driver in (first, second):
        driver.close()
        assert driver.counts["wrong"] == 0


def test_namespace_of_the_connector_depends_on_ranks_but_not_on_the_replica() -> None:
    config = kv_cache_config(["layer.0"])

    def name(**parallel: int) -> str:
        return engine_identity(vllm_config({}, **parallel), config, None, None).name

    assert name(data_parallel_rank=1) == name()
    assert name(rank=1, tensor=2) == name(rank=0, tensor=2)
    assert len({name(), name(tensor=2), name(pipeline=2), name(tensor=2, pipeline=2)}) == 4
    assert name(tensor=4, pipeline=1) != name(tensor=2, pipeline=2)


def test_namespace_of_the_tier_depends_on_ranks_but_not_on_the_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def name(**parallel: int) -> str:
        return tier_identity(offloading_spec(**parallel), ROW_BYTES, None).name

    replica = {"data_parallel_index": 1, "data_parallel_size": 2, "data_parallel_rank_local": 1}
    assert name(**replica) == name()
    stages = {"world_size": 2, "pp_size": 2}
    workers = {"world_size": 2, "tp_size": 2}
    assert len({name(), name(**stages), name(**workers)}) == 3
    even = name(**stages)
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "1,3")
    assert name(**stages) != even
    # vLLM's claim that a row does not depend on the ranks holds for its canonical form.
    claimed = {"is_parallelism_agnostic": True}
    assert name(**workers, **claimed) != name(**claimed)

    def canonical(**parallel: int) -> str:
        spec = offloading_spec(**parallel, **claimed, canonical=True)
        return tier_identity(spec, ROW_BYTES, None).name

    assert canonical(**workers) == canonical() != name(**claimed)
