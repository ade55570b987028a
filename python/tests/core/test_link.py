# SPDX-License-Identifier: Apache-2.0
import logging

import bowhead_kv as bk
import pytest
from bowhead_kv import Status
from bowhead_kv.config import Config
from bowhead_kv.link import PoolLink

log = logging.getLogger("test")


@pytest.fixture
def connect(caplog):
    """Makes links that are closed after the test."""
    made = []

    def make(
        locator: str, description: str = "of the tests", on_open=None, **settings
    ) -> PoolLink:
        config = Config(locator=locator, **settings)
        link = PoolLink(
            config, namespace="test", description=description, log=log, on_open=on_open
        )
        made.append(link)
        return link

    yield make
    for link in made:
        link.close()
        assert link.ns() is None


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "test"]


def test_the_first_look_opens(connect, locator, caplog):
    link = connect(locator)
    ns = link.ns()
    ns.put(b"key", b"value")
    assert link.ns() is ns
    assert ns.name == "test"
    assert connect(locator, namespace="configured").ns().name == "configured"
    assert warnings(caplog) == []


def test_a_pool_that_comes_later(connect, locator, caplog, until):
    bk.destroy(locator)
    link = connect(locator)
    for _ in range(100):
        assert link.ns() is None
    assert len(warnings(caplog)) == 1
    assert "NO_SUCH_POOL" in warnings(caplog)[0]
    bk.create(locator, 64 << 20)
    until(link.ns)
    until(lambda: len(warnings(caplog)) == 2)  # the thread that opened warns after it
    assert "is open again" in warnings(caplog)[1]


def test_a_pool_that_goes_and_comes_back(connect, locator, caplog, until):
    link = connect(locator)
    for _ in range(2):
        caplog.clear()
        until(link.ns)
        ns = link.ns()
        bk.destroy(locator, force=True)
        for _ in range(10):
            with pytest.raises(bk.Error) as caught:
                ns.put(b"key", b"value")
            link.fault(caught.value, ns)
        assert ns.pool.closed
        assert link.ns() is None
        lost = [text for text in warnings(caplog) if "destroyed" in text]
        assert len(lost) == 1
        bk.create(locator, 64 << 20)
        until(link.ns)
        link.ns().put(b"key", b"value")


def test_an_opening_that_fails_is_tried_again(connect, locator, caplog, until):
    failures = [OSError(24, "Too many open files"), MemoryError()]

    def on_open(ns: bk.Namespace) -> None:
        if failures:
            raise failures.pop(0)

    link = connect(locator, on_open=on_open)
    assert link.ns() is None
    until(link.ns)
    until(lambda: len(warnings(caplog)) == 2)
    first, last = warnings(caplog)
    assert "Too many open files (OSError)" in first and "is open again" in last


def test_a_namespace_that_was_removed(connect, locator, until):
    link = connect(locator)
    ns = link.ns()
    ns.pool.remove_namespace("test")
    with pytest.raises(bk.Error) as caught:
        ns.put(b"key", b"value")
    assert link.fault(caught.value) is True
    until(link.ns)
    link.ns().put(b"key", b"value")


def test_a_fault_of_an_item_keeps_the_pool_and_warns_once(connect, locator, caplog):
    link = connect(locator)
    ns = link.ns()
    for _ in range(10):
        assert link.fault(Status.NO_SPACE, ns) is False
        assert link.fault(Status.BUSY, ns) is False
    assert link.ns() is ns
    assert len(warnings(caplog)) == 2
    assert locator in warnings(caplog)[0]


def test_a_late_fault_of_an_old_handle_is_ignored(connect, locator, until):
    link = connect(locator)
    old = link.ns()
    assert link.fault(Status.MEDIA_ERROR, old) is True
    until(link.ns)
    assert link.fault(Status.CLOSED, old) is False
    assert link.ns() is not None


def test_a_lease_in_use_does_not_stop_the_link(connect, locator, until):
    link = connect(locator)
    ns = link.ns()
    ns.put(b"key", b"value")
    view = memoryview(ns.acquire(b"key"))
    assert link.fault(Status.HOST_FENCED, ns) is True
    until(link.ns)
    assert bytes(view) == b"value"


def test_another_models_namespace_is_never_used(connect, locator, caplog):
    connect(locator, description="model A").ns().put(b"key", b"value")
    link = connect(locator, description="model B")
    for _ in range(10):
        assert link.ns() is None
    assert len(warnings(caplog)) == 1
    assert "the pool will not be used" in warnings(caplog)[0]


def test_the_child_of_a_fork(connect, locator, in_child):
    link = connect(locator)
    ns = link.ns()
    ns.put(b"key", b"value")

    def body():
        mine = link.ns()
        assert mine is not ns
        assert mine.get(b"key") == b"value"
        link.close()

    in_child(body)
    assert link.ns() is ns
    assert ns.get(b"key") == b"value"
