# SPDX-License-Identifier: Apache-2.0
import gc
import select

import bowhead_kv as bk
import pytest
from bowhead_kv import EventKind, Status


@pytest.fixture
def events(pool):
    with pool.events() as opened:
        yield opened


def test_what_happens_to_a_block(events, ns):
    ns.put(b"1", b"value", user_metadata=b"parent")
    ns.put(b"1", b"other")  # is stored: no event
    assert select.select([events], [], [], 30)[0]
    found, lost = events.read()
    assert lost == 0
    stamp = ns.describe(b"1").stamp
    assert found == [(EventKind.STORED, ns.id, b"1", b"parent", 5, stamp)]
    assert found[0].kind is EventKind.STORED
    assert not select.select([events], [], [], 0)[0]
    ns.remove(b"1")
    ns.put_batch([b"2", b"3"], [b"two", b"three"])
    found, lost = events.read(2)
    assert [(event.kind, event.key) for event in found] == [
        (EventKind.REMOVED, b"1"),
        (EventKind.STORED, b"2"),
    ]
    found, lost = events.read()
    assert [(event.kind, event.key) for event in found] == [(EventKind.STORED, b"3")]
    assert events.read() == ([], 0)


def test_evictions(make_pool):
    with bk.Pool(make_pool(16 << 20)) as pool, pool.events() as events:
        ns = pool.namespace("test")
        for i in range(64):
            ns.put(b"%d" % i, bytes(1 << 20), user_metadata=b"block %d" % i)
        found, lost = events.read()
        evicted = [event for event in found if event.kind is EventKind.EVICTED]
        assert lost == 0
        assert len(evicted) == pool.info().evictions > 0
        assert all(event.user_metadata == b"block " + event.key for event in evicted)
        stored = {event.key for event in found} - {event.key for event in evicted}
        assert ns.exists(sorted(stored)) == [True] * pool.info().blocks


def test_a_slow_reader_is_told_what_it_lost(pool, ns):
    with pool.events(capacity_bytes=4096) as events:
        for i in range(1000):
            ns.put(b"%d" % i, b"value")
        seen, lost = events.read()
        assert 0 < len(seen) < 1000
        assert len(seen) + lost == 1000


def test_closing(pool, ns, in_child):
    events = pool.events()
    with pytest.raises(bk.Error) as caught:
        pool.events(capacity_bytes=1)
    assert caught.value.status is Status.INVALID_ARGUMENT
    ns.put(b"1", b"value")

    def body():
        with pytest.raises(bk.Error, match="opened before fork"):
            events.read()
        pool.close()

    in_child(body)
    assert len(events.read()[0]) == 1
    with pytest.raises(bk.Error, match="open queues or readers of events"):
        pool.leave()
    dropped = pool.events()
    del dropped
    gc.collect()
    pool.close()
    assert events.closed
    events.close()
    for call in (events.read, events.fileno):
        with pytest.raises(bk.Error, match="reader of events .* is closed"):
            call()


def test_attributes_of_a_put(ns):
    wanted = bk.Attributes(priority=7, pins=bk.Pins.SOFT, group=2**60, next_use_unix_s=2**31)
    ns.put(b"1", b"value", attributes=wanted)
    ns.put_batch([b"2", b"3"], [b"value"] * 2, attributes=wanted)
    ns.put_batch([b"4", b"5"], [b"value"] * 2, user_metadata=[b"a", b"b"], attributes=wanted)
    with ns.pool.queue() as queue:
        queue.submit_put(ns, [b"6", b"7"], [b"value"] * 2, attributes=wanted)
        assert queue.drain(30)
    for key in (b"1", b"2", b"3", b"4", b"5", b"6", b"7"):
        assert ns.describe(key).attributes == wanted
    assert ns.describe(b"5").user_metadata == b"b"
    ns.put(b"8", b"value")
    assert ns.describe(b"8").attributes == bk.Attributes()
    ns.set_attributes(b"8", wanted)
    assert ns.describe(b"8").attributes == wanted
    with pytest.raises(TypeError, match="attributes is a dict; pass a bowhead_kv.Attributes"):
        ns.put(b"9", b"value", attributes={})
    with pytest.raises(ValueError, match="pins is -1"):
        ns.put(b"9", b"value", attributes=bk.Attributes(pins=-1))
    with pytest.raises(bk.Error) as caught:
        ns.put(b"9", b"value", attributes=bk.Attributes(priority=256))
    assert caught.value.status is Status.INVALID_ARGUMENT


def test_a_pinned_block_is_not_evicted(make_pool):
    with bk.Pool(make_pool(16 << 20)) as pool:
        ns = pool.namespace("test")
        ns.put(b"pinned", bytes(1 << 20), attributes=bk.Attributes(pins=bk.Pins.HARD))
        for i in range(64):
            ns.put(b"%d" % i, bytes(1 << 20))
        assert ns.exists([b"pinned", b"0"]) == [True, False]


def test_pressure(make_pool):
    with bk.Pool(make_pool(16 << 20, no_eviction=True)) as pool:
        ns = pool.namespace("test")
        before = pool.pressure()
        assert before.saturated is False
        statuses = ns.put_batch([b"%d" % i for i in range(20)], [bytes(1 << 20)] * 20)
        assert Status.NO_SPACE in statuses
        after = pool.pressure()
        assert after.saturated is True
        assert after.used_permille > before.used_permille
