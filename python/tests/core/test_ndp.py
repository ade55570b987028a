# SPDX-License-Identifier: Apache-2.0
"""Computations on leased blocks against numpy, for compressed blocks and others."""

import contextlib
import os
import subprocess
from collections.abc import Iterator

import bowhead_kv as bk
import numpy as np
import pytest
from bowhead_kv import ndp

LAYERS, HEADS, CHANNELS, TOKENS = 2, 3, 64, (300, 40)


def bf16(count: int, seed: int) -> np.ndarray:
    """Numbers as float32 that bf16 has."""
    numbers = np.random.default_rng(seed).normal(size=count).astype(np.float32)
    return (numbers.view(np.uint32) & 0xFFFF0000).view(np.float32)


class Sequence:
    """Blocks, leased, and the same as [layer][part][head][token][channel]."""

    def __init__(self, pool: bk.Pool, order: bk.Order, profile: bk.Profile) -> None:
        layout = bk.Layout(
            number_format=bk.NumberFormat.BF16,
            order=order,
            parts=2,
            layers=LAYERS,
            heads=HEADS,
            key_channels=CHANNELS,
            value_channels=CHANNELS,
        )
        name = f"{order.name}-{profile.name}"
        ns = pool.namespace(name, layout=layout, profile=profile)
        self.ns = ns
        values = []
        for block, tokens in enumerate(TOKENS):
            shape = (LAYERS, 2, HEADS, tokens, CHANNELS)
            value = bf16(int(np.prod(shape)), block).reshape(shape)
            values.append(value)
            if order is bk.Order.TOKENS_FIRST:
                value = value.swapaxes(2, 3)
            bits = (np.ascontiguousarray(value).view(np.uint32) >> 16).astype(np.uint16)
            ns.put(f"b{block}".encode(), bits)
        self.values = np.concatenate(values, axis=3)
        keys = [f"b{block}".encode() for block in range(len(TOKENS))]
        self.leases = [ns.acquire(key, 60_000, stored=True) for key in keys]


@pytest.fixture(
    params=[
        (bk.Order.HEADS_FIRST, bk.Profile.NONE),
        (bk.Order.HEADS_FIRST, bk.Profile.FAST),
        (bk.Order.TOKENS_FIRST, bk.Profile.FAST),
    ],
    ids=lambda param: f"{param[0].name}-{param[1].name}",
)
def sequence(request: pytest.FixtureRequest, pool: bk.Pool) -> Sequence:
    return Sequence(pool, *request.param)


def queries_for(heads: int = 2, count: int = 4) -> np.ndarray:
    return bf16(heads * count * CHANNELS, 99).reshape(heads, count, CHANNELS)


def scores_of(sequence: Sequence, queries: np.ndarray) -> np.ndarray:
    keys = sequence.values[1, 0, 1:].astype(np.float64)
    return np.einsum("hqc,htc->hqt", queries.astype(np.float64), keys) / np.sqrt(CHANNELS)


def test_topk_and_scores(sequence):
    queries = queries_for()
    wanted = scores_of(sequence, queries)
    best = ndp.topk(sequence.leases, queries, 7, layer=1, first_head=1)
    order = np.argsort(-wanted, axis=2)[:, :, :7]
    assert (np.asarray(best.tokens) == order).all()
    assert np.asarray(best.scores) == pytest.approx(np.take_along_axis(wanted, order, 2), abs=1e-3)
    assert (np.asarray(best.counts) == 7).all()
    assert best.left_out == []
    assert 0 < best.read_bytes <= best.stored_bytes
    scores = ndp.score(sequence.leases, queries, layer=1, first_head=1, scale=1.0)
    assert np.asarray(scores.scores) == pytest.approx(wanted * np.sqrt(CHANNELS), abs=1e-2)


def test_windows_and_positions(sequence):
    queries = queries_for()
    best = ndp.topk(
        sequence.leases, queries[0], 9, first_tokens=[1000, 0], begin=1290, end=1293, sinks=2
    )
    tokens = np.asarray(best.tokens)
    assert tokens.shape == (1, 4, 9)
    assert (np.asarray(best.counts) == 5).all()
    assert set(np.unique(tokens)) == {0, 1, 1290, 1291, 1292, 2**32 - 1}
    for fewest in (False, True):
        near = ndp.topk(
            sequence.leases, queries[0], 9, budget_bytes=24, fewest_bytes=fewest
        )
        assert (np.asarray(near.counts) == 9).all()


def test_each_query_has_its_own_view(sequence):
    """As of a draft, whose queries are those of several positions."""
    queries = queries_for()
    ends = [310, 311, 312, 313]
    best = ndp.topk(sequence.leases, queries, 400, begin=300, end=ends, sinks=[0, 0, 1, 1])
    assert (np.asarray(best.counts) == [10, 11, 13, 14]).all()
    part = ndp.attend(sequence.leases, queries, end=ends, soft_cap=2.0)
    for query, end in enumerate(ends):
        alone = ndp.attend(
            sequence.leases, queries[:, query : query + 1].copy(), end=end, soft_cap=2.0
        )
        assert np.asarray(part.outputs)[:, query] == pytest.approx(
            np.asarray(alone.outputs)[:, 0], abs=1e-3
        )
    with pytest.raises(ValueError, match="one for each"):
        ndp.topk(sequence.leases, queries, 1, end=[1, 2])
    with pytest.raises(TypeError, match="begin"):
        ndp.topk(sequence.leases, queries, 1, begin="first")


def test_sums_of_queries(sequence):
    queries = queries_for()
    weights = bf16(8, 5).reshape(2, 4)
    scores = np.asarray(ndp.score(sequence.leases, queries, layer=1, first_head=1).scores)
    wanted = np.einsum("hq,hqt->ht", weights, np.maximum(scores, 0))
    sums = ndp.score(
        sequence.leases, queries, layer=1, first_head=1, weights=weights, rectified=True
    )
    assert np.asarray(sums.scores)[:, 0] == pytest.approx(wanted, abs=1e-3)
    best = ndp.topk(
        sequence.leases, queries, 3, layer=1, first_head=1, weights=weights, rectified=True
    )
    assert np.asarray(best.tokens).shape == (2, 1, 3)
    assert (np.asarray(best.tokens)[:, 0, 0] == np.argmax(wanted, axis=1)).all()
    halves = ndp.topk(sequence.leases, queries, 3, weights=weights, group=2, end=[100, 200])
    assert np.asarray(halves.tokens).shape == (2, 2, 3)
    for wrong, match in [
        ({"weights": weights[0]}, "weights"),
        ({"weights": weights, "group": 3}, "divide"),
        ({"rectified": True}, "weights"),
        ({"group": 2}, "weights"),
    ]:
        with pytest.raises((ValueError, TypeError), match=match):
            ndp.topk(sequence.leases, queries, 1, **wrong)


def test_attention(sequence):
    queries = queries_for()
    part = ndp.attend(sequence.leases, queries, layer=1, first_head=1)
    scores = scores_of(sequence, queries)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    values = sequence.values[1, 1, 1:].astype(np.float64)
    assert np.asarray(part.outputs) == pytest.approx(
        np.einsum("hqt,htc->hqc", weights, values), abs=2e-2
    )
    assert np.asarray(part.log_sum_exps) == pytest.approx(
        np.log(np.exp(scores).sum(axis=2)), abs=1e-3
    )


def test_rows_and_bounds(sequence):
    rows = ndp.gather(sequence.leases, [339, 0, 339], 1, layer=1, first_head=1, heads=2)
    found = np.asarray(rows.rows).view(np.uint16).astype(np.uint32) << 16
    wanted = sequence.values[1, 1, 1:][:, [339, 0, 339]]
    assert (found.view(np.float32) == wanted).all()
    by_array = ndp.gather(sequence.leases, np.array([339, 0], np.uint32), 1, layer=1, first_head=1)
    assert (np.asarray(by_array.rows) == np.asarray(rows.rows)[:1, :2]).all()
    bounds = ndp.digest(sequence.leases, 100, layer=1, first_head=1, heads=2)
    keys = sequence.values[1, 0, 1:]
    pages = [(0, 100), (100, 200), (200, 300), (300, 340)]
    for page, (begin, end) in enumerate(pages):
        assert (np.asarray(bounds.least)[:, page] == keys[:, begin:end].min(axis=1)).all()
        assert (np.asarray(bounds.largest)[:, page] == keys[:, begin:end].max(axis=1)).all()


def test_a_prefix_has_its_leases(sequence):
    with sequence.ns.acquire_prefix([b"b0", b"b1", b"b2"]) as prefix:
        best = ndp.topk(prefix, queries_for(), 3)
    assert (np.asarray(best.counts) == 3).all()


def test_a_block_that_did_not_stay(sequence):
    queries = queries_for()
    assert sequence.leases[1].check()
    sequence.ns.remove(b"b1")
    assert not sequence.leases[1].check()
    with pytest.raises(bk.Error) as error:
        ndp.topk(sequence.leases, queries, 7)
    assert error.value.status is bk.Status.LAPSED
    assert not sequence.leases[1].release()
    with pytest.raises(bk.Error) as error:
        ndp.topk(sequence.leases, queries, 7)
    assert error.value.status is bk.Status.CLOSED
    ndp.topk(sequence.leases[:1], queries, 7)


def test_leases_of_a_closed_pool(locator):
    pool = bk.Pool(locator)
    leases = Sequence(pool, bk.Order.HEADS_FIRST, bk.Profile.FAST).leases
    pool.close()
    with pytest.raises(bk.Error) as error:
        ndp.topk(leases, queries_for(), 7)
    assert error.value.status is bk.Status.CLOSED


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"queries": queries_for().astype(np.float64)}, TypeError, "float32"),
        ({"queries": queries_for()[:, :, ::2]}, TypeError, "contiguous"),
        ({"queries": queries_for()[0, 0]}, TypeError, "float32"),
        ({"queries": bf16(2 * 4 * 32, 1).reshape(2, 4, 32)}, ValueError, "32 channels"),
        ({"queries": None}, TypeError, "queries"),
        ({"queries": np.zeros((2, 0, CHANNELS), np.float32)}, ValueError, "0 queries"),
        ({"queries": np.zeros((2, 1025, CHANNELS), np.float32)}, ValueError, "1025 queries"),
        ({"queries": np.zeros((9, 1, CHANNELS), np.float32)}, ValueError, "heads"),
        ({"queries": np.zeros((2, 1024, CHANNELS), np.float32), "k": 1 << 20}, ValueError, "k"),
        ({"leases": []}, ValueError, "empty"),
        ({"leases": None}, TypeError, "leases"),
        ({"leases": ["x"]}, TypeError, r"leases\[0\]"),
        ({"k": 0}, ValueError, "k"),
        ({"k": 1 << 21}, ValueError, "k"),
        ({"k": -1}, (ValueError, OverflowError), "k"),
        ({"layer": 2}, bk.Error, "layer 2"),
        ({"first_head": 2}, bk.Error, "heads"),
        ({"first_tokens": [0]}, ValueError, "first_tokens"),
        ({"first_tokens": [0, 299]}, bk.Error, "both hold"),
        ({"end": 0}, ValueError, "end"),
        ({"scale": -1.0}, bk.Error, "scale"),
        ({"budget_bytes": -1.0}, bk.Error, "bytes"),
    ],
)
def test_wrong_arguments(pool, arguments, error, text):
    sequence = Sequence(pool, bk.Order.HEADS_FIRST, bk.Profile.NONE)
    all_arguments = {"leases": sequence.leases, "queries": queries_for(), "k": 1} | arguments
    with pytest.raises(error, match=text):
        ndp.topk(all_arguments.pop("leases"), all_arguments.pop("queries"), **all_arguments)


@contextlib.contextmanager
def device(locator: str) -> Iterator[None]:
    """The device of a pool."""
    serve = subprocess.Popen(
        [os.environ["BOWHEAD_PROGRAM"], "device", "serve", locator],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert serve.stdout is not None and "is up" in serve.stdout.readline()
        yield
    finally:
        serve.terminate()
        serve.wait()


def test_engines(sequence: Sequence, pool: bk.Pool) -> None:
    queries = queries_for()
    here = ndp.topk(sequence.leases, queries, 5)
    assert here.engine == "process" and here.engine_ns > 0 and here.modelled_ns == 0
    pool.use_engine("device")
    with pytest.raises(bk.Error) as raised:
        ndp.topk(sequence.leases, queries, 5)
    assert raised.value.status is bk.Status.DEVICE_LOST
    pool.use_engine("device or process")
    assert ndp.topk(sequence.leases, queries, 5).engine == "process"
    pool.use_engine("process")
    assert ndp.topk(sequence.leases, queries, 5).engine == "process"
    with pytest.raises(ValueError, match="'gpu': give 'process', 'device'"):
        pool.use_engine("gpu")
    with pytest.raises(bk.Error):
        pool.use_engine("device", request_bytes=1 << 60)


@pytest.mark.skipif("BOWHEAD_PROGRAM" not in os.environ, reason="BOWHEAD_PROGRAM is not set")
def test_device(sequence: Sequence, pool: bk.Pool) -> None:
    queries = queries_for()
    here = ndp.topk(sequence.leases, queries, 5)
    with device(pool.locator):
        pool.use_engine("device", answer_bytes=1 << 20, timeout_ms=5000)
        there = ndp.topk(sequence.leases, queries, 5)
        assert there.engine == "device" and there.engine_ns > 0
        for name in ("tokens", "scores", "counts"):
            np.testing.assert_array_equal(getattr(there, name), getattr(here, name))
        pool.leave()
