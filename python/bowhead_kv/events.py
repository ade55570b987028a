# SPDX-License-Identifier: Apache-2.0
"""Publishes what happens to an engine's blocks in the pool, for routers; docs/engines/events.md.

The messages have the form of vLLM's own KV cache events over ZeroMQ, so that a router that listens
to vLLM understands them. What an event says beyond the key of a block comes from the block's user
metadata, which block_metadata() makes when the block is stored: so any process can tell what it
evicts, also blocks that were stored before it started.

Needs pyzmq and msgspec: pip install 'bowhead_kv[events]'.
"""

import atexit
import logging
import os
import struct
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bowhead_kv._native import Events, Namespace
from bowhead_kv._types import Error, Event, EventKind

USER_BYTES_MAX = 512
"""Of the user metadata of a block."""
BATCH_EVENTS = 16
"""At most in one message: few, because the engine's threads wait for Python meanwhile."""
PERIOD_MS = 20
"""Between two readings. Being woken by each event would cost the engine's puts more."""
BUFFER_BYTES = 16 << 20
"""Of events that were not yet read: some 60,000."""
READ_MESSAGES = 10_000
"""At most in one reading."""
YIELD_S = 0.0001
"""After each message, for the engine's threads that wait for Python."""
LINGER_MS = 1000
"""How long the end of a publisher waits for its last messages to leave."""
QUEUED_MESSAGES = 1000
"""For each subscriber; one that is slower loses messages, and sees a gap in their numbers."""
REPLAY_MESSAGES = 1000
"""That are kept to be asked for again."""
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)

_HEADER = struct.Struct("<4sBBBBHI")
_MAGIC = b"BHE1"
_NO_GROUP = 0xFFFF


class BlockMetadata(NamedTuple):
    """What the user metadata of a block says."""

    hash_bytes: int
    """The block's hash is that many leading bytes of its key."""
    group: int | None
    """The KV cache group, where the engine has several."""
    parent: bytes | None
    """The hash of the block before it; None: there is none, or token_ids is empty."""
    token_ids: list[int]
    """All tokens of the block. Empty: they are not known, or did not fit."""
    lora_name: str | None


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
    if len(lora) > 255 or len(plain) + len(body) > USER_BYTES_MAX:
        return plain
    parent_bytes = len(parent or b"")
    header = _HEADER.pack(
        _MAGIC, hash_bytes, parent_bytes, width, len(lora), group_code, len(token_ids)
    )
    return header + body


class _Header(NamedTuple):
    hash_bytes: int
    parent_bytes: int
    width: int
    lora_bytes: int
    group: int | None
    tokens: int


def _parse_header(user_metadata: bytes) -> _Header | None:
    if len(user_metadata) < _HEADER.size:
        return None
    magic, hash_bytes, parent_bytes, width, lora_bytes, group_code, tokens = _HEADER.unpack_from(
        user_metadata
    )
    if magic != _MAGIC:
        return None
    group = None if group_code == _NO_GROUP else group_code
    return _Header(hash_bytes, parent_bytes, width, lora_bytes, group, tokens)


def parse_metadata(user_metadata: bytes) -> BlockMetadata | None:
    """What block_metadata() was given; None: the metadata is of another kind."""
    header = _parse_header(user_metadata)
    if header is None:
        return None
    hash_bytes, parent_bytes, width, lora_bytes, group, tokens = header
    lora_at = _HEADER.size + parent_bytes
    tokens_at = lora_at + lora_bytes
    if width > 4 or len(user_metadata) != tokens_at + width * tokens:
        return None
    ids = bytearray(4 * tokens)
    for plane in range(width):
        start = tokens_at + plane * tokens
        ids[plane::4] = user_metadata[start : start + tokens]
    token_ids = memoryview(ids).cast("I").tolist()
    lora = user_metadata[lora_at:tokens_at].decode(errors="replace")
    parent = user_metadata[_HEADER.size : lora_at]
    return BlockMetadata(hash_bytes, group, parent or None, token_ids, lora or None)


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
    """A reader of events, and what it reads of."""

    events: Events
    namespace_id: int
    locator: str


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
        convert_hash: Callable[[bytes], bytes | int] = bytes,
        log: logging.Logger,
    ) -> None:
        """endpoint: of ZeroMQ. One with * or :: and ipc:// are bound; to others it connects, as
        vLLM does. replay_endpoint: bound, where subscribers can ask for messages that they missed.
        medium: where events say that the blocks are. convert_hash: the form of hashes in events.

        Raises ImportError if pyzmq or msgspec is missing, OSError if an endpoint cannot be used.
        """
        try:
            import msgspec
            import zmq
        except ImportError as error:
            raise ImportError(
                f"events need pyzmq and msgspec, and {error.name} cannot be imported; "
                "pip install 'bowhead_kv[events]'"
            ) from error
        self._zmq = zmq
        self._pack = msgspec.msgpack.Encoder().encode
        self._medium = medium
        self._topic = topic.encode()
        self._data_parallel_rank = data_parallel_rank
        self._convert_hash = convert_hash
        self._log = log
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._attached: _Source | None = None
        self._closing = False
        self._warned: set[str] = set()
        self._sequence = 0
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=REPLAY_MESSAGES)

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
        """Publish the events of this namespace from now on, in place of an earlier one."""
        if self._pid != os.getpid():
            return
        events = ns.pool.events(capacity_bytes=BUFFER_BYTES)
        source = _Source(events, ns.id, ns.pool.locator)
        with self._lock:
            replaced, self._attached = self._attached, source
        if replaced is not None:
            replaced.events.close()
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Publishes what has happened so far, and ends. Takes at most about a second if a
        subscriber does not accept it."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._closing:
                return
            self._closing = True
        atexit.unregister(self.close)
        os.eventfd_write(self._wake, 1)
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
        while not self._closing:
            if dict(poller.poll(None if source is None else PERIOD_MS)).get(self._wake):
                os.eventfd_read(self._wake)
            with self._lock:
                attached = self._attached
            if source is not attached:
                if source is not None:
                    self._end(source, "another one was opened")
                source = attached
            if source is not None and not self._publish(source):
                source = None
            self._serve_replay()
        if source is not None and self._publish(source):
            source.events.close()
        self._context.destroy()

    def _publish(self, source: _Source) -> bool:
        """Publishes what there is to read; False: the pool was closed."""
        for _ in range(READ_MESSAGES):
            try:
                found, lost = source.events.read(BATCH_EVENTS)
            except Error as error:
                with self._lock:
                    if self._attached is source:
                        self._attached = None
                self._end(source, str(error))
                return False
            events = self._messages(found, source.namespace_id)
            if lost:
                events.append({"type": "AllBlocksCleared"})
                self._warn(
                    "lost",
                    f"{lost} events of pool {source.locator} were lost, because this process was "
                    "too busy to read them; routers were told to forget its blocks",
                )
            if events:
                self._send(events)
            if len(found) < BATCH_EVENTS:
                break
            time.sleep(YIELD_S)
        return True

    def _end(self, source: _Source, reason: str) -> None:
        self._send([{"type": "AllBlocksCleared"}])
        self._log.info(
            "pool %s: no more events (%s); routers were told to forget its blocks",
            source.locator,
            reason,
        )

    def _messages(self, found: list[Event], namespace_id: int) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        for event in found:
            if event.namespace_id != namespace_id:
                continue
            header = _parse_header(event.user_metadata)
            if header is None:
                self._warn(
                    "foreign",
                    "a block without the metadata of bowhead_kv.events is not published, nor are "
                    "others like it; it was stored by an older version or by another program",
                )
                continue
            block_hash = self._convert_hash(event.key[: header.hash_bytes])
            if event.kind is not EventKind.STORED:
                self._add_removed(messages, block_hash, header.group)
            elif header.tokens:
                block = parse_metadata(event.user_metadata)
                if block is not None:
                    messages.append(self._stored(block_hash, block))
        return messages

    def _stored(self, block_hash: bytes | int, block: BlockMetadata) -> dict[str, Any]:
        stored: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": [block_hash],
            "parent_block_hash": block.parent and self._convert_hash(block.parent),
            "token_ids": block.token_ids,
            "block_size": len(block.token_ids),
            "lora_id": None,
            "medium": self._medium,
            "lora_name": block.lora_name,
        }
        if block.group is not None:
            stored["group_idx"] = block.group
        return stored

    def _add_removed(
        self, messages: list[dict[str, Any]], block_hash: bytes | int, group: int | None
    ) -> None:
        """Adds a hash to the last message if that is of the same kind, else another message."""
        last = messages[-1] if messages else {}
        if last.get("type") == "BlockRemoved" and last.get("group_idx") == group:
            last["block_hashes"].append(block_hash)
            return
        removed: dict[str, Any] = {
            "type": "BlockRemoved",
            "block_hashes": [block_hash],
            "medium": self._medium,
        }
        if group is not None:
            removed["group_idx"] = group
        messages.append(removed)

    def _send(self, events: list[dict[str, Any]]) -> None:
        payload = self._pack([time.time(), events, self._data_parallel_rank])
        sequence, self._sequence = self._sequence, self._sequence + 1
        if self._replay_socket is not None:
            self._sent.append((sequence, payload))
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
