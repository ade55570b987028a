# SPDX-License-Identifier: Apache-2.0
"""The plain types of the package: statuses, errors, layouts and descriptions.

The native module makes their instances, so each field has the name and the order of the member of
the C struct that it comes from (bowhead.h); python/tests/core/test_types.py compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from bowhead_kv._native import Lease


class Status(IntEnum):
    """What a call, or an item of a batch, ended with; ``status.text`` is its meaning."""

    OK = 0
    NOT_FOUND = 1
    NO_SPACE = 2
    INVALID_ARGUMENT = 3
    KEY_TOO_LONG = 4
    VALUE_TOO_LARGE = 5
    BUFFER_TOO_SMALL = 6
    LAPSED = 7
    BUSY = 8
    FORKED = 9
    NO_SUCH_POOL = 10
    NOT_A_POOL = 11
    POOL_EXISTS = 12
    TOO_SMALL = 13
    MISALIGNED = 14
    VERSION_UNKNOWN = 15
    DAMAGED = 16
    NAMESPACE_MISMATCH = 17
    LIMIT_REACHED = 18
    HOST_ID_IN_USE = 19
    HOST_FENCED = 20
    HOST_ID_CONFLICT = 21
    NOT_SUPPORTED = 22
    SYSTEM = 23
    BAD_LOCATOR = 24
    BAD_TRACE = 25
    IN_USE = 26
    CLOSED = 27
    UNSUPPORTED_CODEC = 28
    COPY_ONLY = 29
    GPU_LOST = 30
    CANCELLED = 31
    CODED = 32
    INDEX_FULL = 33
    MEDIA_ERROR = 34
    READ_ONLY = 35
    MEDIUM_FULL = 36
    LAYOUT_MISMATCH = 37
    NAMESPACE_GONE = 38
    DEVICE_LOST = 39
    TIMED_OUT = 40

    @property
    def text(self) -> str:
        """The meaning of the status, in a sentence."""
        from bowhead_kv import _native

        return _native.status_text(self)


class Error(Exception):
    """A call that failed. ``str(error)`` says what is wrong and what to do."""

    status: Status
    text: str

    def __init__(self, status: int, text: str = "") -> None:
        self.status = Status(status)
        self.text = text or self.status.text
        super().__init__(self.status, self.text)

    def __str__(self) -> str:
        return self.text


class GetResult(NamedTuple):
    """The result of an item of :meth:`Namespace.get_batch`."""

    status: Status
    length_bytes: int
    """Of the value, with OK and BUFFER_TOO_SMALL; else 0. A value shorter than its buffers is OK,
    and leaves their rest as it was: compare the lengths."""


class Completion(NamedTuple):
    """A job of a :class:`Queue` that has ended."""

    job: int
    """The number that submit returned."""
    operation: str
    """"put", "get", "remove" or "exists"."""
    status: Status
    """Of the whole job; CANCELLED: nothing was done."""
    failed: int
    """Items whose status is not OK; for "exists", keys that are not stored."""
    statuses: list[Status]
    """Of each item; empty for "exists"."""
    lengths: list[int]
    """For "get": length_bytes of each item, as in GetResult; else empty."""
    present: list[bool]
    """For "exists": whether each key is stored; else empty."""


class EventKind(IntEnum):
    """What happened to a block."""

    STORED = 1
    REMOVED = 2
    """Alone or with its namespace."""
    EVICTED = 3
    DAMAGED = 4
    """It was found damaged, and was dropped."""


class Event(NamedTuple):
    """A block that was stored, or that is stored no more."""

    kind: EventKind
    namespace_id: int
    key: bytes
    user_metadata: bytes
    length_bytes: int
    """Of the value."""
    stamp: int
    """Of the block."""


class BlockMetadata(NamedTuple):
    """What the user metadata of a block says, if block_metadata() of bowhead_kv.events made it."""

    hash_bytes: int
    """The block's hash is that many leading bytes of its key."""
    group: int | None
    """The KV cache group, where the engine has several."""
    parent: bytes | None
    """The hash of the block before it; None: there is none, or token_ids is empty."""
    token_ids: list[int]
    """All tokens of the block. Empty: they are not known, or did not fit."""
    lora_name: str | None


class Profile(IntEnum):
    """How hard puts compress."""

    NONE = 0
    FAST = 1
    BALANCED = 2
    DENSE = 3


class NumberFormat(IntEnum):
    BF16 = 1
    FP16 = 2
    FP8_E4M3 = 3
    FP8_E5M2 = 4
    INT8 = 5
    BYTES = 6
    """Opaque values."""
    FP32 = 7


class Codec(IntEnum):
    """How the stored bytes of a block encode its value."""

    RAW = 0
    """They are the value."""
    FRAME = 1
    """They are a frame (docs/frame.md)."""


class Order(IntEnum):
    """The order of the rows of a layer's K or V; a row is one token of one head."""

    HEADS_FIRST = 0
    TOKENS_FIRST = 1


class Scales(IntEnum):
    """The numbers that one scale applies to."""

    NONE = 0
    PER_TOKEN = 1
    PER_ROW = 2
    PER_CHANNEL = 3


class ScalePlace(IntEnum):
    """Where the scales lie."""

    ELSEWHERE = 0
    BEHIND_ROW = 1
    BEHIND_PART = 2


class Rotary(IntEnum):
    """Pairs of channels that rotary position embedding turns together."""

    NONE = 0
    HALVES = 1
    INTERLEAVED = 2


class Pins(IntFlag):
    """What eviction may do with a block."""

    NONE = 0
    SOFT = 1
    """It may evict it if it finds no other, among some thousand at a time."""
    HARD = 2
    """It must not evict it."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of the tensor in a value, as ``bh_kv_layout`` in include/bowhead/format/tensor.h:
    layer after layer; in each its parts, K before V; in each part its rows, in ``order``."""

    number_format: int = NumberFormat.BYTES
    order: int = Order.HEADS_FIRST
    parts: int = 0
    """2: K and V. 1: keys only, of which the first value_channels are the values (MLA)."""
    scales: int = Scales.NONE
    scale_format: int = 0
    scale_place: int = ScalePlace.ELSEWHERE
    rotary: int = Rotary.NONE
    layers: int = 0
    heads: int = 0
    key_channels: int = 0
    value_channels: int = 0
    block_tokens: int = 0
    rotary_first: int = 0
    rotary_channels: int = 0
    rotary_base_thousandths: int = 0
    first_layer: int = 0
    model_layers: int = 0
    first_head: int = 0
    model_heads: int = 0


@dataclass(frozen=True, kw_only=True)
class Attributes:
    """What can be changed about a block while it is stored. Eviction heeds pins and expires_unix_s;
    the rest is kept for readers."""

    priority: int = 0
    """0 to 255; higher: to be kept longer."""
    pins: int = Pins.NONE
    forks: int = 0
    """Sequences that refer to the block, at most 65,535."""
    parity_group: int = 0
    expires_unix_s: int = 0
    """When its time to live ends, in seconds since 1970; 0: never."""
    next_use_unix_s: int = 0
    """When it is expected to be used next; 0: unknown."""
    group: int = 0
    """Blocks that belong together, as a session; 0: none."""


@dataclass(frozen=True, kw_only=True)
class BlockInfo:
    """A stored block."""

    namespace_id: int
    key: bytes
    length_bytes: int
    """Of the value."""
    stored_bytes: int
    """Fewer than length_bytes if the block is compressed."""
    offset: int
    """Of the stored bytes in the mapping of the pool."""
    stamp: int
    """No other block ever has the same."""
    user_metadata: bytes
    attributes: Attributes


@dataclass(frozen=True, kw_only=True)
class PlanesResult:
    """What :meth:`Namespace.get_planes` copied."""

    length_bytes: int
    """Of the value."""
    read_bytes: int
    """Read from the pool."""


@dataclass(frozen=True, kw_only=True)
class StoredResult:
    """What :meth:`Namespace.get_stored` copied."""

    stored_bytes: int
    """Copied to the start of the buffer."""
    length_bytes: int
    """Of the value."""
    codec: Codec


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """The leased blocks of a prefix. As a context manager it releases them at the end, and raises
    Error LAPSED if one of them did not stay intact."""

    leases: list[Lease]
    """Of the first keys, in their order."""
    length_bytes: int
    """Of their values together."""
    stored_bytes: int
    restore_ns: int
    """Estimated time to get the values, by the gets of this pool object so far."""

    def release(self) -> bool:
        """Ends the leases. False: one lapsed before."""
        return all([lease.release() for lease in self.leases])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, type: object, value: object, traceback: object) -> None:
        if not self.release() and value is None:
            raise Error(Status.LAPSED)


@dataclass(frozen=True, kw_only=True)
class _OfBlocks:
    """What a computation on leased blocks read. Arrays in these classes own their memory: pass them
    to numpy.asarray() or from_dlpack()."""

    left_out: list[int]
    """Numbers of leases whose block could not be read, and is missing for some heads."""
    stored_bytes: int
    """Of the leased blocks."""
    read_bytes: int
    """Bytes of them that were read."""
    engine: str
    """That carried it out: "process" or "device"."""
    engine_ns: int
    """Time that this took, without the way there and back."""
    modelled_ns: int
    """Time that it would take on the hardware that the device models; 0: it models none."""


@dataclass(frozen=True, kw_only=True)
class TopK(_OfBlocks):
    """The best keys of each query, the best first."""

    tokens: Any
    """uint32 [head][query][k]: positions; behind those that were found 2^32 - 1."""
    scores: Any
    """float32 [head][query][k]; behind those that were found negative infinity."""
    counts: Any
    """uint32 [head][query]: how many were found."""


@dataclass(frozen=True, kw_only=True)
class Scores(_OfBlocks):
    """Every score."""

    scores: Any
    """float32 [head][query][token]: the tokens of all blocks in the order of the leases; negative
    infinity for those that are not visible or left out."""


@dataclass(frozen=True, kw_only=True)
class PartialAttention(_OfBlocks):
    """Attention to some blocks; parts are merged by their log-sum-exps."""

    outputs: Any
    """float32 [head][query][channel]"""
    log_sum_exps: Any
    """float32 [head][query]; negative infinity where no token is visible."""


@dataclass(frozen=True, kw_only=True)
class GatheredRows(_OfBlocks):
    """Rows of tokens."""

    rows: Any
    """uint8 [head][token][byte]; zeros where the block was left out."""


@dataclass(frozen=True, kw_only=True)
class Digests(_OfBlocks):
    """The bounds of keys in pages."""

    least: Any
    """float32 [head][page][channel], pages in the order of the leases; NaN where the block was left
    out."""
    largest: Any


@dataclass(frozen=True, kw_only=True)
class Pressure:
    """How full a pool is for this host."""

    saturated: bool
    """A put through this pool object found no space within the last second: stop offering values
    for a while."""
    used_permille: int
    """Of the space of this host."""
    index_permille: int
    """Of the index entries that this host can use."""


@dataclass(frozen=True, kw_only=True)
class PoolInfo:
    """A pool's settings, and sums over all its hosts since it was created."""

    format_version: int
    pool_id: str
    created_unix_ns: int
    size_bytes: int
    payload_bytes: int
    metadata_bytes: int
    extent_bytes: int
    extent_count: int
    min_block_bytes: int
    evict_high_permille: int
    evict_low_permille: int
    hosts: int
    second_superblock: int
    used_bytes: int
    blocks: int
    puts: int
    puts_present: int
    hits: int
    hits_elsewhere: int
    misses: int
    bytes_in: int
    bytes_out: int
    evictions: int
    removals: int
    moves: int
    recompressed: int
    damaged: int
    scavenged: int
    no_space: int
    heartbeat_ms: int
    dead_ms: int
    grace_ms: int
    settle_ms: int
    reclaim_ms: int
    max_bytes: int
    compat: int
    incompat: int
    ro_compat: int


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What :meth:`Pool.check` found."""

    findings: int
    """Faults."""
    data_lost: int
    """Of those: stored blocks that cannot be returned."""
    not_checked: int
    """Parts that could not be checked from this process."""
    blocks_checked: int
    bytes_checked: int
    """Of their payloads."""
    blocks_unverified: int
    """Committed without a checksum."""
    finding_texts: list[str]
    """A sentence for each fault."""
    not_checked_texts: list[str]
    """A sentence for each part that was not checked."""


@dataclass(frozen=True, kw_only=True)
class RecompressReport:
    """What a pass of :meth:`Pool.recompress` did."""

    cold_blocks: int
    """Blocks that were tried."""
    recompressed: int
    """Of those: stored again in fewer bytes."""
    before_bytes: int
    """Stored bytes of the recompressed blocks, before."""
    after_bytes: int


@dataclass(frozen=True, kw_only=True)
class Mapping:
    """Where the pool is mapped in this process, until it is closed."""

    address: int
    """Of its first byte. Memory that this host does not own is mapped read-only: a driver must pin
    it as read-only memory, or not at all."""
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class HostInfo:
    """A host slot of a pool."""

    slot: int
    state: str
    """"free", "joining", "live", "left", "ended" or "damaged"."""
    incarnation: int
    processes_live: int
    extents_owned: int
    extents_free: int
    extents_custody: int
    leases_active: int
    duties_late_ms: int
    heartbeat: int
    features: int
    format_version: int


@dataclass(frozen=True, kw_only=True)
class NamespaceOptions:
    """What a namespace was registered with."""

    profile: int
    """A Profile."""
    layout: Layout
    wipe: bool = False
    """What it stored is overwritten before the memory is free."""


@dataclass(frozen=True, kw_only=True)
class NamespaceInfo:
    """A registered namespace and the space of its blocks."""

    profile: int
    """A Profile."""
    id: int
    name: str
    description: str
    layout: Layout
    blocks: int
    value_bytes: int
    stored_bytes: int
    block_bytes: int
    hits: int
    misses: int
    evictions: int
    wipe: bool
    """What it stored is overwritten before the memory is free."""


class Path(IntEnum):
    """How a job moves bytes."""

    CHOOSE = 0
    """The way that is expected to be faster."""
    KERNEL = 1
    COPIES = 2
    """By the copy engines."""


class Staging(IntEnum):
    """Why a block went through a pinned buffer."""

    NONE = 0
    """It did not; or it was not moved at all."""
    NOT_YET = 1
    """Its memory in the pool is being registered."""
    NOT_REACHED = 2
    """Its memory in the pool cannot be registered (TransfersInfo.refusal)."""
    NO_LEASE = 3
    """Its host died, or the lease table is full."""
    COMPRESSED = 4


class BlockResult(NamedTuple):
    """The result of a block of a :class:`bowhead_kv.gpu.Job`."""

    status: Status
    staging: int
    """A Staging."""


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """A GPU, or the CPU in its place."""

    is_cpu: bool
    memory_bytes: int
    decodes_lz4: bool
    registers_read_only: bool
    """Memory that cannot be pinned for writing can be registered for restores."""
    name: str
    link: str
    """To the host, such as "32.0 GT/s x16"."""
    driver: str
    """The newest CUDA that it knows, such as "13.0"."""
    pin_fault: str
    """Of the CPU device: why memory that it registers is not pinned; empty: it is."""


@dataclass(frozen=True, kw_only=True)
class TransfersInfo:
    """Blocks that were moved so far, by the way that they took."""

    straight_blocks: int
    not_yet_blocks: int
    not_reached_blocks: int
    no_lease_blocks: int
    compressed_blocks: int
    refusal: str
    """Why the memory of the last block of NOT_REACHED is not registered; empty: there was none."""
    costs_assumed: str
    """Why the costs of kernels and copies could not be measured; empty: they were."""
