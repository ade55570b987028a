# SPDX-License-Identifier: Apache-2.0
"""Publishes what happens to an engine's blocks in the pool, for routers; docs/engines/events.md.

The messages have the form of vLLM's own KV cache events over ZeroMQ, so that a router that listens
to vLLM understands them. What an event says beyond the key of a block comes from the block's user
metadata, which block_metadata() makes when the block is stored: so any process can tell what it
evicts, also blocks that were stored before it started.

Reading and encoding are native code, which needs Python's lock for a moment in each message only.
Needs pyzmq: pip install 'bowhead_kv[events]'.
"""

import atexit
import errno
import logging
import os
import struct
import threading
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from bowhead_kv._native import EventEncoder, Events, Namespace, parse_metadata
from bowhead_kv._types import BlockMetadata, Error

__all__ = ["BlockMetadata", "Publisher", "block_metadata", "parse_metadata", "rank_endpoint"]

USER_BYTES_MAX = 512
"""Of the user metadata of a block."""
MESSAGE_EVENTS = 512
"""At most in one message."""
PERIOD_MS = 20
"""Between two readings. Being woken by each event would cost the engine's puts more."""
BUFFER_BYTES = 16 << 20
"""Of events that were not yet read: some 60,000."""
READ_MESSAGES = 10_000
"""At most in one reading."""
LINGER_MS = 1000
"""How long the end of a publisher waits for its last messages to leave."""
QUEUED_MESSAGES = 1000
"""For each subscriber; one that is slower loses messages, and sees a gap in their numbers."""
PORT_MAX = 65535
REPLAY_MESSAGES = 1000
"""That are kept to be asked for again."""
REPLAY_BYTES = 64 << 20
"""Of these messages at most."""
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)

_HEADER = struct.Struct("<4sBBBBHI")
_MAGIC = b"BHE1"
_NO_GROUP = 0xFFFF


def block_metadata(
    *,
    hash_bytes: int,
    group: int | None = None,
    parent: bytes | None = None,
    token_ids: Sequence[int] = (),
    lora_name: str | None = None,
) -> bytes:
    """The user metadata of a block, for put and put_batch. hash_bytes: that many leading bytes of
    its key are the block's hash. parent: the hash of the block before it. If token ids, parent and
    adapter do not fit into USER_BYTES_MAX, it says only which part of the key is the hash: then the
    block is published when it is removed, but not when it is stored."""
    group_code = _NO_GROUP if group is None else group
    plain = _HEADER.pack(_MAGIC, hash_bytes, 0, 0, 0, group_code, 0)
    if not token_ids:
        return plain
    # One plane for each byte of an id, as many as the largest id needs.
    tokens = array("I", token_ids).tobytes()
    width = max(1, (max(token_ids).bit_length() + 7) // 8)
    planes = [tokens[plane::4] for plane in range(width)]
    lora = (lora_name or "").encode()
    body = b"".join([parent or b"", lora, *planes])
    parent_bytes = len(parent or b"")
    if max(parent_bytes, len(lora)) > 255 or len(plain) + len(body) > USER_BYTES_MAX:
        return plain
    header = _HEADER.pack(
        _MAGIC, hash_bytes, parent_bytes, width, len(lora), group_code, len(token_ids)
    )
    return header + body


def rank_endpoint(endpoint: str, rank: int) -> str:
    """The endpoint of one of several processes that were given the same: tcp ports count up from
    it, other addresses get the rank as their end."""
    if rank == 0:
        return endpoint
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}.{rank}"
    address, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        raise ValueError(f"the endpoint {endpoint!r} has no port; set it like tcp://*:5557")
    return f"{address}:{int(port) + rank}"


class _Source(NamedTuple):
    """A namespace whose blocks are published."""

    ns: Namespace
    events: Events
    encoder: EventEncoder


class Publisher:
    """Publishes the events of a namespace, from a thread of its own, until close() or the end of
    the process. In the child of a fork it does nothing."""

    def __init__(
        self,
        endpoint: str,
        *,
        medium: str = "BOWHEAD",
        topic: str = "",
        replay_endpoint: str | None = None,
        data_parallel_rank: int = 0,
        int_hashes: bool = False,
        log: logging.Logger,
    ) -> None:
        """endpoint: of ZeroMQ. One with * or :: and ipc:// are bound; to others it connects, as
        vLLM does. replay_endpoint: bound, where subscribers can ask for messages that they missed.
        medium: where events say that the blocks are. int_hashes: hashes are
        integers, the last 8 bytes, big-endian, in place of bytes.

        Raises ImportError if pyzmq is missing, OSError if an endpoint cannot be used.
        """
        try:
            import zmq
        except ImportError as error:
            raise ImportError(
                "events need pyzmq, which cannot be imported; pip install 'bowhead_kv[events]'"
            ) from error
        self._zmq = zmq
        self._medium = medium
        self._topic = topic.encode()
        self._data_parallel_rank = data_parallel_rank
        self._int_hashes = int_hashes
        self._log = log
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._attached: _Source | None = None
        self._closing = False
        self._warned: set[str] = set()
        self._sequence = 0
        self._sent: deque[tuple[int, bytes]] = deque()
        self._sent_bytes = 0

        self._context = zmq.Context()
        try:
            self._publish_socket = self._open(zmq.PUB, endpoint, bind=_is_bound(endpoint))
            self._replay_socket = (
                self._open(zmq.ROUTER, replay_endpoint, bind=True) if replay_endpoint else None
            )
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="bowhead-events", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _open(self, kind: int, endpoint: str, *, bind: bool) -> Any:
        port = endpoint.rpartition(":")[2]
        if endpoint.startswith("tcp://") and port.isdigit() and not 1 <= int(port) <= PORT_MAX:
            # ZeroMQ would take the port that is left of its lower 16 bits.
            raise OSError(
                errno.EINVAL,
                f"events cannot be published at {endpoint}: set its port to 1 to {PORT_MAX}, less "
                "the ranks that are added",
            )
        made = self._context.socket(kind)
        made.set_hwm(QUEUED_MESSAGES)
        made.setsockopt(self._zmq.LINGER, LINGER_MS)
        try:
            if bind:
                made.bind(endpoint)
            else:
                made.connect(endpoint)
        except self._zmq.ZMQError as error:
            raise OSError(
                error.errno, f"events cannot be published at {endpoint}: {error.strerror}"
            ) from error
        return made

    def attach(self, ns: Namespace) -> None:
        """Publish what is stored in this namespace, and what happens to its blocks from now on, in
        place of an earlier one. After close() it does nothing."""
        if self._pid != os.getpid():
            return
        events = ns.pool.events(capacity_bytes=BUFFER_BYTES)
        encoder = EventEncoder(
            ns,
            medium=self._medium,
            int_hashes=self._int_hashes,
            rank=self._data_parallel_rank,
        )
        source = _Source(ns, events, encoder)
        with self._lock:
            if self._closing:
                replaced = source
            else:
                replaced, self._attached = self._attached, source
                os.eventfd_write(self._wake, 1)
        if replaced is not None:
            replaced.events.close()

    def close(self) -> None:
        """Publishes what has happened so far, and ends. Takes at most about a second if a
        subscriber does not accept it."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._closing:
                return
            self._closing = True
            os.eventfd_write(self._wake, 1)
        atexit.unregister(self.close)
        self._thread.join()
        os.close(self._wake)

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # The thread

    def _run(self) -> None:
        poller = self._zmq.Poller()
        poller.register(self._wake, self._zmq.POLLIN)
        if self._replay_socket is not None:
            poller.register(self._replay_socket, self._zmq.POLLIN)
        source: _Source | None = None
        closing = False
        while not closing:
            if dict(poller.poll(None if source is None else PERIOD_MS)).get(self._wake):
                os.eventfd_read(self._wake)
            with self._lock:
                attached, closing = self._attached, self._closing
            if source is not attached:
                if source is not None:
                    self._end(source, "another one was opened")
                source = attached
                if source is not None and not self._announce(source):
                    source = None
            if source is not None and not self._publish(source):
                source = None
            self._serve_replay()
        if source is not None:
            source.events.close()
        self._context.destroy()

    def _announce(self, source: _Source) -> bool:
        """Publishes what is stored now; what happens meanwhile waits in the reader, and follows.
        False: the pool was closed."""
        try:
            blocks = source.ns.blocks()
        except Error as error:
            return self._end(source, str(error))
        while blocks.__length_hint__():
            self._send(source.encoder.stored(blocks, MESSAGE_EVENTS))
        return True

    def _publish(self, source: _Source) -> bool:
        """Publishes the events that there are to read; False: the pool was closed."""
        for _ in range(READ_MESSAGES):
            try:
                payload, count, lost = source.encoder.read(source.events, MESSAGE_EVENTS)
            except Error as error:
                return self._end(source, str(error))
            self._send(payload)
            if lost:
                self._warn(
                    "lost",
                    f"{lost} events of pool {source.ns.pool.locator} were lost, because this "
                    "process was too busy to read them; routers were told what is stored instead",
                )
                if not self._announce(source):
                    return False
                continue
            if count < MESSAGE_EVENTS:
                break
        if source.encoder.foreign:
            self._warn(
                "foreign",
                "a block without the metadata of bowhead_kv.events is not published, nor are "
                "others like it; it was stored by an older version or by another program",
            )
        return True

    def _end(self, source: _Source, reason: str) -> bool:
        with self._lock:
            if self._attached is source:
                self._attached = None
        self._send(source.encoder.cleared())
        self._log.info(
            "pool %s: no more events (%s); routers were told to forget its blocks",
            source.ns.pool.locator,
            reason,
        )
        return False

    def _send(self, payload: bytes) -> None:
        if not payload:
            return
        sequence, self._sequence = self._sequence, self._sequence + 1
        if self._replay_socket is not None:
            self._sent.append((sequence, payload))
            self._sent_bytes += len(payload)
            while self._sent_bytes > REPLAY_BYTES or len(self._sent) > REPLAY_MESSAGES:
                self._sent_bytes -= len(self._sent.popleft()[1])
        self._publish_socket.send_multipart([self._topic, sequence.to_bytes(8, "big"), payload])

    def _serve_replay(self) -> None:
        """Answers one request for messages that a subscriber missed."""
        if self._replay_socket is None or not self._replay_socket.poll(0):
            return
        request = self._replay_socket.recv_multipart()
        if len(request) != 3 or len(request[2]) != 8:
            self._warn("replay", f"a request for a replay has the wrong form: {request[1:]!r}")
            return
        client, _, first = request
        for sequence, payload in self._sent:
            if sequence >= int.from_bytes(first, "big"):
                number = sequence.to_bytes(8, "big")
                self._replay_socket.send_multipart([client, b"", self._topic, number, payload])
        self._replay_socket.send_multipart([client, b"", b"", END_OF_REPLAY, b""])

    def _warn(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            self._log.warning("%s", text)


def _is_bound(endpoint: str) -> bool:
    return "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc://")
