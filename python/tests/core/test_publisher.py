# SPDX-License-Identifier: Apache-2.0
"""bowhead_kv.events against a ZeroMQ subscriber that decodes what docs/engines/events.md says."""

import logging
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import bowhead_kv as bk
import pytest
from bowhead_kv import events as published
from bowhead_kv.config import Config
from bowhead_kv.link import PoolLink

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed")
msgspec = pytest.importorskip("msgspec", reason="msgspec is not installed")

log = logging.getLogger("bowhead.test")


class Subscriber:
    """A router: receives messages and checks their form."""

    made: ClassVar[list["Subscriber"]] = []

    def __init__(self, endpoint: str, topic: bytes = b"") -> None:
        self.made.append(self)
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, topic)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.connect(endpoint)
        self.sequences: list[int] = []

    def batch(self, timeout_ms: int = 20_000) -> list[dict[str, Any]]:
        assert self.socket.poll(timeout_ms), "no message came"
        topic, sequence, payload = self.socket.recv_multipart()
        self.sequences.append(int.from_bytes(sequence, "big"))
        sent_s, events, rank = msgspec.msgpack.decode(payload)
        assert abs(time.time() - sent_s) < 60 and rank == 0
        return events

    def until(self, type_: str) -> list[dict[str, Any]]:
        """Events up to the first message that has one of this type."""
        events: list[dict[str, Any]] = []
        while not any(event["type"] == type_ for event in events):
            events += self.batch()
        return events

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture(autouse=True)
def _no_router_outlives_its_test() -> Iterator[None]:
    """Terminating a context blocks while a socket is open, as a failed test may leave one."""
    yield
    while Subscriber.made:
        Subscriber.made.pop().close()


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/events"


Start = Callable[..., published.Publisher]


@pytest.fixture
def start(endpoint: str) -> Iterator[Start]:
    made: list[published.Publisher] = []

    def make(**options: Any) -> published.Publisher:
        made.append(published.Publisher(endpoint, log=log, **options))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()


@pytest.fixture
def router(endpoint: str, start: Start) -> Iterator[Subscriber]:
    subscriber = Subscriber(endpoint)
    yield subscriber
    subscriber.close()


def join(ns: bk.Namespace, router: Subscriber) -> None:
    """Waits until the subscription has arrived: before, ZeroMQ drops what is published."""
    described = published.block_metadata(hash_bytes=4, token_ids=[0])
    while True:
        ns.put(b"join", b"value", user_metadata=described)
        ns.remove(b"join")
        if router.socket.poll(50):
            break
    while router.socket.poll(100):
        router.batch()


def hashed(number: int) -> bytes:
    return number.to_bytes(32, "big")


def put(ns: bk.Namespace, number: int, value: bytes = b"value", **changes: Any) -> None:
    described = {
        "hash_bytes": 32,
        "parent": hashed(number - 1) if number else None,
        "token_ids": [number, 1, 0, 150_000],
    }
    metadata = published.block_metadata(**(described | changes))
    ns.put(hashed(number) + b"rank", value, user_metadata=metadata)


@pytest.mark.parametrize(
    "described",
    [
        {"token_ids": list(range(16))},
        {"token_ids": [0] * 16},
        {"token_ids": [2**32 - 1] * 16, "parent": b"p" * 32, "lora_name": "an adapter: ä"},
        {"token_ids": [150_000] * 128, "parent": b"p" * 32, "group": 3},
        {"token_ids": [65_535] * 200, "parent": b"p" * 32},
        {"group": 0},
    ],
)
def test_metadata_comes_back(described: dict[str, Any]) -> None:
    described = {"hash_bytes": 32} | described
    made = published.block_metadata(**described)
    assert len(made) <= 512
    block = published.parse_metadata(made)
    assert block is not None
    whole = {"group": None, "parent": None, "token_ids": [], "lora_name": None} | described
    assert block._asdict() == whole


@pytest.mark.parametrize(
    "described",
    [
        {"token_ids": [150_000] * 256},
        {"token_ids": [1] * 16, "lora_name": "x" * 256},
        {"token_ids": [1], "parent": b"p" * 256},
        {"token_ids": []},
    ],
)
def test_what_does_not_fit_is_left_out(described: dict[str, Any]) -> None:
    described = {"hash_bytes": 32, "parent": b"p" * 32} | described
    block = published.parse_metadata(published.block_metadata(**described))
    assert block == (32, None, None, [], None)


def test_metadata_of_others_is_told_apart() -> None:
    whole = published.block_metadata(hash_bytes=32, token_ids=[1, 2, 3, 4])
    endless = whole[:6] + b"\0\0" + whole[8:10] + b"\xff" * 4  # ids of no bytes each
    broken = published.block_metadata(hash_bytes=32, token_ids=[1], lora_name="ä")
    broken = broken.replace("ä".encode(), b"\xc3x")
    for other in (b"", b"BHE1", whole[:-1], whole + b"x", b"BHE2" + whole[4:], endless, broken):
        assert published.parse_metadata(other) is None


def test_stored_and_removed(start: Start, router: Subscriber, ns: bk.Namespace) -> None:
    start(medium="POOL").attach(ns)
    join(ns, router)
    put(ns, 0)
    put(ns, 7, lora_name="adapter", group=2)
    put(ns, 8, token_ids=[])  # not known: nothing to say when it is stored
    ns.put(b"other", b"value", user_metadata=b"of another program")
    ns.remove(b"other")
    other = ns.pool.namespace("other")
    put(other, 9)
    for number in (0, 8, 7):
        ns.remove(hashed(number) + b"rank")
    events: list[dict[str, Any]] = []
    gone: list[bytes] = []
    while hashed(7) not in gone:
        found = router.batch()
        for event in found:
            if event["type"] == "BlockRemoved":
                gone += event["block_hashes"]
        events += found
    plain = {"parent_block_hash": None, "lora_id": None, "medium": "POOL", "lora_name": None}
    first = {"type": "BlockStored", "block_hashes": [hashed(0)], "block_size": 4}
    second = {"parent_block_hash": hashed(6), "lora_name": "adapter", "group_idx": 2}
    assert events[0] == plain | first | {"token_ids": [0, 1, 0, 150_000]}
    assert events[1] == events[0] | second | {
        "block_hashes": [hashed(7)], "token_ids": [7, 1, 0, 150_000]
    }
    removed = [(h, e.get("group_idx")) for e in events[2:] for h in e["block_hashes"]]
    assert removed == [(hashed(0), None), (hashed(8), None), (hashed(7), 2)]
    assert all(event["medium"] == "POOL" for event in events)
    first_seen = router.sequences[0]
    assert router.sequences == list(range(first_seen, first_seen + len(router.sequences)))


def test_evictions_are_published(
    start: Start, router: Subscriber, make_pool: Callable[..., str]
) -> None:
    with bk.Pool(make_pool(16 << 20)) as pool:
        ns = pool.namespace("test")
        publisher = start()
        publisher.attach(ns)
        join(ns, router)
        present: set[bytes] = set()
        for number in range(64):
            put(ns, number, bytes(1 << 20))
        publisher.close()  # publishes the rest
        while router.socket.poll(1000):
            for event in router.batch():
                if event["type"] == "BlockStored":
                    present |= set(event["block_hashes"])
                else:
                    assert event["type"] == "BlockRemoved"
                    present -= set(event["block_hashes"])
        assert pool.info().evictions > 0
        keys = [hashed(number) + b"rank" for number in range(64)]
        assert {key[:32] for key, is_there in zip(keys, ns.exists(keys)) if is_there} == present


def test_what_is_stored_is_announced_with_parents_first(
    start: Start, router: Subscriber, ns: bk.Namespace
) -> None:
    numbers = list(range(2000))
    random.Random(1).shuffle(numbers)
    for number in numbers:
        put(ns, number)
    put(ns, 5000, parent=hashed(5001))  # a circle
    put(ns, 5001, parent=hashed(5000))
    put(ns, 6000, parent=hashed(6000))
    put(ns, 7000, token_ids=[])
    ns.put(b"foreign", b"value")
    other = ns.pool.namespace("other")
    publisher = start()
    publisher.attach(other)
    join(other, router)
    put(other, 8000)
    publisher.attach(ns)
    router.until("AllBlocksCleared")
    seen: dict[bytes, bytes | None] = {}
    while router.socket.poll(500):
        for event in router.batch():
            assert event["type"] == "BlockStored"
            seen[event["block_hashes"][0]] = event["parent_block_hash"]
    assert sorted(seen) == [hashed(number) for number in [*range(2000), 5000, 5001, 6000]]
    order = list(seen)
    assert order.index(hashed(0)) < order.index(hashed(1999))
    before: set[bytes | None] = {None}
    for block_hash, parent in seen.items():
        assert parent in before or block_hash in (hashed(5000), hashed(5001), hashed(6000))
        before.add(block_hash)


def test_hashes_in_another_form(start: Start, router: Subscriber, ns: bk.Namespace) -> None:
    start(int_hashes=True).attach(ns)
    join(ns, router)
    put(ns, 2**70 + 5, token_ids=[1])
    (event,) = router.batch()
    assert (event["block_hashes"], event["parent_block_hash"]) == ([5], 4)


def test_a_router_is_filled_again_after_a_loss(
    start: Start,
    router: Subscriber,
    ns: bk.Namespace,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(published, "BUFFER_BYTES", 4096)
    start().attach(ns)
    join(ns, router)
    for number in (12, 11, 10):
        put(ns, number)
    while not any("were lost" in record.message for record in caplog.records):
        ns.put_batch([b"lost %d" % number for number in range(1000)], [b"value"] * 1000)
        ns.remove_batch([b"lost %d" % number for number in range(1000)])
    put(ns, 13)
    present: list[bytes] = []
    while router.socket.poll(500):
        for event in router.batch():
            if event["type"] == "AllBlocksCleared":
                present = []
            elif event["type"] == "BlockStored" and event["block_hashes"][0] not in present:
                present += event["block_hashes"]
    assert present == [hashed(number) for number in (10, 11, 12, 13)]  # parents first
    assert sum("were lost" in record.message for record in caplog.records) == 1


def test_closed_pool_is_cleared_and_another_attached(
    start: Start, router: Subscriber, locator: str
) -> None:
    publisher = start()
    link = PoolLink(
        Config(locator=locator),
        namespace="test",
        description="a test",
        log=log,
        on_open=publisher.attach,
    )
    ns = link.ns()
    assert ns is not None
    join(ns, router)
    put(ns, 1)
    assert router.until("BlockStored")[-1]["block_hashes"] == [hashed(1)]
    assert link.fault(bk.Status.MEDIA_ERROR, ns)
    assert router.until("AllBlocksCleared")
    end_s = time.monotonic() + 30
    while (again := link.ns()) is None:
        assert time.monotonic() < end_s
        time.sleep(0.05)
    assert router.until("BlockStored")[-1]["block_hashes"] == [hashed(1)]
    put(again, 2)
    assert router.until("BlockStored")[-1]["block_hashes"] == [hashed(2)]
    link.close()
    assert router.until("AllBlocksCleared")


def test_missed_messages_are_sent_again(
    start: Start, router: Subscriber, ns: bk.Namespace, tmp_path: Path
) -> None:
    replay = f"ipc://{tmp_path}/replay"
    start(replay_endpoint=replay, topic="kv@here").attach(ns)
    join(ns, router)
    put(ns, 1)
    (event,) = router.batch()
    number = router.sequences[-1]
    asking = router.context.socket(zmq.REQ)
    asking.setsockopt(zmq.RCVTIMEO, 20_000)
    asking.connect(replay)
    asking.send(number.to_bytes(8, "big"))
    topic, sequence, payload = asking.recv_multipart()
    assert (topic, int.from_bytes(sequence, "big")) == (b"kv@here", number)
    assert msgspec.msgpack.decode(payload)[1] == [event]


def test_endpoints(endpoint: str, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    assert published.rank_endpoint("tcp://*:5557", 0) == "tcp://*:5557"
    assert published.rank_endpoint("tcp://*:5557", 3) == "tcp://*:5560"
    assert published.rank_endpoint("ipc:///run/kv", 3) == "ipc:///run/kv.3"
    with pytest.raises(ValueError, match="'tcp://host' has no port"):
        published.rank_endpoint("tcp://host", 1)
    with pytest.raises(OSError, match="cannot be published at ipc:///no such folder/kv"):
        published.Publisher("ipc:///no such folder/kv", log=log)
    for wrong in ("tcp://*:0", published.rank_endpoint("tcp://*:65535", 1), "tcp://host:99999"):
        with pytest.raises(OSError, match="set its port to 1 to 65535"):
            published.Publisher(wrong, log=log)
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(ImportError, match="pyzmq, which cannot be imported; pip"):
        published.Publisher(endpoint, log=log)


def test_program_of_the_page(endpoint: str, make_pool: Callable[..., str]) -> None:
    page = (Path(__file__).parents[3] / "docs/engines/events.md").read_text()
    program = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    program = program.replace("shm:demo", make_pool(16 << 20)).replace("tcp://*:5557", endpoint)
    program = program.replace("1 << 30", "64 << 20, replace=True")
    router = Subscriber(endpoint)
    wait = "    import time; time.sleep(1)  # the subscription arrives\n"
    program = program.replace("    ns.put", wait + "    ns.put")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    (event,) = router.batch()
    router.close()
    assert (event["block_hashes"], event["token_ids"]) == ([b"12345"], [1, 2, 3, 4])


PROCESS = """
import logging, os, sys
import bowhead_kv as bk
from bowhead_kv.events import Publisher, block_metadata
pool = bk.Pool(sys.argv[1])
ns = pool.namespace("test", "of the tests")
publisher = Publisher(sys.argv[2], log=logging.getLogger())
publisher.attach(ns)
if os.fork() == 0:
    publisher.attach(ns)
    publisher.close()
    sys.exit(0)  # runs the exit handlers of the parent in the child
os.wait()
sys.stdin.read()
metadata = block_metadata(hash_bytes=4, token_ids=[7])
for number in range(1000):
    ns.put(b"%04d" % number, b"value", user_metadata=metadata)
"""


def test_process_that_publishes_ends_cleanly(locator: str, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/process"
    router = Subscriber(endpoint)
    with subprocess.Popen(
        [sys.executable, "-c", PROCESS, locator, endpoint],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        with bk.Pool(locator) as pool:
            deadline_s = time.monotonic() + 20
            while not pool.namespaces() and time.monotonic() < deadline_s:
                time.sleep(0.05)
        time.sleep(1)  # the subscription arrives
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, b"")
    seen: list[bytes] = []
    while router.socket.poll(500):
        seen += [h for event in router.batch() for h in event["block_hashes"]]
    router.close()
    assert seen == [b"%04d" % number for number in range(1000)]


def test_a_namespace_that_comes_after_the_end(start: Start, ns: bk.Namespace) -> None:
    """A closed descriptor is not written to: its number may belong to another file by then."""
    publisher = start()
    publisher.close()
    counter = os.eventfd(0, os.EFD_NONBLOCK)
    os.dup2(counter, publisher._wake)
    try:
        publisher.attach(ns)
        with pytest.raises(BlockingIOError):
            os.eventfd_read(counter)
    finally:
        os.close(counter)
        os.close(publisher._wake)


def test_a_short_life(
    start: Start,
    ns: bk.Namespace,
    monkeypatch: pytest.MonkeyPatch,
    until: Callable[[Callable[[], object]], None],
) -> None:
    """Blocks stored just before close() are published, even if the thread starts only then."""
    sent: list[bytes] = []
    made: list[published.Publisher] = []
    poller = zmq.Poller

    def late() -> Any:
        until(lambda: made and made[0]._closing)
        return poller()

    monkeypatch.setattr(zmq, "Poller", late)
    monkeypatch.setattr(published.Publisher, "_send", lambda self, payload: sent.append(payload))
    made.append(start())
    made[0].attach(ns)
    ns.put(b"last", b"value", user_metadata=published.block_metadata(hash_bytes=4, token_ids=[7]))
    made[0].close()
    assert b"BlockStored" in b"".join(sent)
