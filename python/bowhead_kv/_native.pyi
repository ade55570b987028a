# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias

from typing_extensions import Buffer

from bowhead_kv._types import (
    Attributes,
    BlockInfo,
    BlockMetadata,
    BlockResult,
    CheckReport,
    Codec,
    Completion,
    DeviceInfo,
    Digests,
    Event,
    GatheredRows,
    GetResult,
    HostInfo,
    Layout,
    Mapping,
    NamespaceInfo,
    NamespaceOptions,
    PartialAttention,
    PlanesResult,
    PoolInfo,
    Prefix,
    Pressure,
    RecompressReport,
    Scores,
    Status,
    StoredResult,
    TopK,
    TransfersInfo,
)
from bowhead_kv.gpu import Block, Cache

# A value or a destination: a C-contiguous buffer, a CPU tensor with DLPack, or several of them,
# which are taken as one, in order.
_Buffers: TypeAlias = Buffer | Any | Sequence[Buffer | Any]

__version__: str

def abi_version() -> int:
    """The version of the C ABI below."""

def status_name(status: int) -> str: ...
def status_text(status: int) -> str: ...
def create(
    locator: str,
    size_bytes: int,
    *,
    hosts: int = 1,
    extent_bytes: int = 0,
    min_block_bytes: int = 0,
    replace: bool = False,
    no_eviction: bool = False,
    mode: int = 0,
    heartbeat_ms: int = 0,
    dead_ms: int = 0,
    grace_ms: int = 0,
    settle_ms: int = 0,
    reclaim_ms: int = 0,
    no_reclaim: bool = False,
    evict_high_permille: int = 0,
    evict_low_permille: int = 0,
    max_bytes: int = 0,
) -> None:
    """Creates a pool at a locator, "shm:NAME" or "file:/PATH". 0 stands for a default; the
    settings are those of bh_create_options."""

def destroy(locator: str, *, force: bool = False) -> None:
    """Removes a pool; with force even if processes have it open."""

def checksum(buffer: Buffer) -> int:
    """The checksum that the pool keeps of a value."""

class Pool:
    """An open pool. All methods may be called from any thread, and release the GIL while they work
    on the pool. A child of a fork must open the pool again."""

    def __init__(
        self,
        locator: str,
        *,
        host: int | None = None,
        observe: bool = False,
        mirror_bytes: int | None = None,
    ) -> None:
        """host: a host slot; None: that of this machine, or a free one. observe: opens for reading
        only, and stores nothing in the pool, not even a count. mirror_bytes: memory that mirrors of
        other hosts' indexes may take, which make look-ups of many keys faster; None: 1 GiB; 0:
        there are none."""

    def namespace(
        self,
        name: str,
        description: str = "",
        *,
        layout: Layout | None = None,
        profile: int | None = None,
        wipe: bool = False,
    ) -> Namespace:
        """Registers a namespace, or finds a registered one. description: up to 383 bytes, all that
        distinguishes its keys. layout, profile: None: those that it is registered with; for a new
        one, opaque values and no compression. wipe: the pool overwrites values, keys and user
        metadata before their memory is free. Raises Error NAMESPACE_MISMATCH or LAYOUT_MISMATCH if
        it is registered otherwise, or without `wipe`."""

    def remove_namespace(self, name: str) -> None:
        """Removes a namespace with all its blocks."""

    def info(self) -> PoolInfo: ...
    def hosts(self) -> list[HostInfo]: ...
    def namespaces(self) -> list[NamespaceInfo]: ...
    def queue(self, *, threads: int = 1, jobs_max: int = 1024) -> Queue:
        """Opens a queue whose jobs are executed by threads of its own. jobs_max: jobs that may be
        submitted and not reported. 0 for either: its default."""

    def events(self, *, capacity_bytes: int = 0) -> Events:
        """Opens a reader, which gets the events from now on. capacity_bytes: of its buffer, 4 KiB
        to 1 GiB; 0: 4 MiB."""

    def pressure(self) -> Pressure: ...
    def blocks(self) -> Blocks:
        """The blocks of all hosts and namespaces that are stored now, in no order."""

    def check(self, *, payloads: bool = False) -> CheckReport:
        """Checks all metadata, and changes nothing; the pool may be in use meanwhile. payloads: also
        verifies every block, which takes as long as reading the pool."""

    def recompress(self, cold_ms: int) -> RecompressReport:
        """Recompresses blocks of this host, in compressed namespaces, that were not used for
        cold_ms, into as few bytes as the codec can. Call it again until it recompresses nothing."""

    def scavenge(self) -> int:
        """Finishes or undoes now what dead processes left half done, instead of when it is needed;
        returns the number of dead processes."""

    def fence(self, host: int) -> None:
        """Confirms that a host that was declared dead will not write to the memory again: its
        machine is powered off or disconnected. Bowhead cannot check this. Raises Error BUSY if the
        hosts have not declared it dead, IN_USE if a process of it runs on this machine."""

    def mapping(self) -> Mapping:
        """Where the pool is mapped, for device drivers."""

    def use_engine(
        self,
        name: str,
        *,
        request_bytes: int | None = None,
        answer_bytes: int | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Chooses where the functions of bowhead_kv.ndp run for leases of this pool: in the calling
        thread ("process", the default), on the device of the pool ("device": `bowhead device
        serve`), or on the device and, where that does not answer or has no room, in the calling
        thread ("device or process"). The answers are the same, and say which it was.
        `request_bytes`, `answer_bytes`: memory of the pool for requests under way and their answers
        (1 MiB, 4 MiB). `timeout_ms`: until a device that does not answer is lost (10,000). A device
        takes one of eight queues of the host. Raises ValueError for another name, Error with
        Status.LIMIT_REACHED if all queues are taken, Status.NO_SPACE if the pool has no space."""

    def leave(self) -> None:
        """Ends this host's membership, so that other hosts can take over its blocks at once.
        Close the pool afterwards. Raises BufferError while memoryviews, arrays or tensors of
        leases or reservations exist."""

    def close(self) -> None:
        """Closes queues and readers of events, then the pool. Waits for calls of other threads.
        Raises BufferError while memoryviews, arrays or tensors of leases or reservations exist, and
        closes nothing then. Does nothing if the pool is closed."""

    @property
    def closed(self) -> bool: ...
    @property
    def locator(self) -> str: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class Namespace:
    """A namespace of a pool. Keys are 1 to 512 bytes, given as bytes or another buffer."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def pool(self) -> Pool: ...
    def options(self) -> NamespaceOptions:
        """What it was registered with."""

    def put(
        self,
        key: Buffer,
        value: _Buffers,
        *,
        user_metadata: Buffer = b"",
        attributes: Attributes | None = None,
    ) -> None:
        """Stores a value, with up to 512 bytes of user metadata that the pool keeps and events
        carry. If the key is stored already, what is stored stays, and this succeeds."""

    def get(self, key: Buffer) -> bytes:
        """A copy of a value, verified. get_into() is faster for large values."""

    def get_into(self, key: Buffer, buffers: _Buffers) -> int:
        """Copies a value into buffers, and verifies it; returns its length in bytes. After an error
        the content of the buffers is undefined."""

    def get_planes(self, key: Buffer, planes: int, buffers: _Buffers) -> PlanesResult:
        """get_into() at the precision of the first bit-planes, of which fewer bytes are read. 1: only
        the signs; a number has at most 12, and more than it has means all. Values without planes
        are returned exactly."""

    def get_stored(self, key: Buffer, buffer: Buffer | Any) -> StoredResult:
        """Copies the stored bytes, a frame if the value is compressed, into one buffer; the length
        of the value always suffices."""

    def reserve(
        self,
        key: Buffer,
        length_bytes: int,
        *,
        user_metadata: Buffer = b"",
        attributes: Attributes | None = None,
    ) -> Reservation:
        """Reserves space for a value that the caller writes in place, so that it needs no copy. It
        is stored uncompressed, in compressed namespaces too."""

    def length(self, key: Buffer) -> int:
        """The length of a value in bytes. Does not count as use."""

    def exists(self, keys: Iterable[Buffer]) -> list[bool]:
        """Which keys are stored. Does not count as use."""

    def longest_prefix(self, keys: Iterable[Buffer]) -> int:
        """The number of leading keys that are stored without a gap; they count as used."""

    def touch(self, keys: Iterable[Buffer]) -> None:
        """Marks blocks as used now, the first most recently."""

    def remove(self, key: Buffer) -> bool:
        """Removes a block; False: nothing was stored under the key."""

    def put_batch(
        self,
        keys: Iterable[Buffer],
        values: Iterable[_Buffers],
        *,
        user_metadata: Iterable[Buffer] | None = None,
        attributes: Attributes | None = None,
    ) -> list[Status]:
        """put() for many keys, with a status for each. attributes: of all of them."""

    def get_batch(self, keys: Iterable[Buffer], buffers: Iterable[_Buffers]) -> list[GetResult]:
        """get_into() for many keys, with a result for each."""

    def remove_batch(self, keys: Iterable[Buffer]) -> list[Status]:
        """remove() for many keys, with a status for each."""

    def acquire(self, key: Buffer, ttl_ms: int = 10_000, *, stored: bool = False) -> Lease:
        """Leases an uncompressed block, to read it where it lies. ttl_ms: 1 to 600,000. stored: also
        a compressed one; the memory is then its frame (Lease.codec)."""

    def acquire_prefix(
        self, keys: Iterable[Buffer], *, group_keys: int = 1, ttl_ms: int = 10_000
    ) -> Prefix:
        """Leases the leading keys that are stored without a gap; they count as used. group_keys:
        consecutive keys that belong together, as the shares of several ranks; only whole groups are
        leased. Leases of compressed blocks give the frame (Lease.codec)."""

    def set_attributes(self, key: Buffer, attributes: Attributes) -> None:
        """Sets the attributes of a stored block, all of them."""

    def describe(self, key: Buffer) -> BlockInfo:
        """Describes a block. Does not count as use."""

    def blocks(self) -> Blocks:
        """The blocks of the namespace, of all hosts, that are stored now, in no order."""

class Blocks:
    """An iterator over the blocks that were stored when it was made. It holds some 150 bytes for
    each, its key and its user metadata."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> BlockInfo: ...
    def __length_hint__(self) -> int:
        """How many are left."""

class EventEncoder:
    """Makes the messages of bowhead_kv.events about the blocks of a namespace, without the GIL. For
    one thread at a time."""

    def __init__(self, ns: Namespace, *, medium: str, int_hashes: bool, rank: int) -> None: ...
    def read(self, events: Events, limit: int) -> tuple[bytes, int, int]:
        """Reads at most limit events. Returns the message about them, how many were read, and how
        many were lost after them. After a loss the message ends with AllBlocksCleared. A message
        without events is empty."""

    def stored(self, blocks: Blocks, limit: int) -> bytes:
        """The message that tells of at most limit of the blocks that are left in a list, parents
        first."""

    def cleared(self) -> bytes:
        """The message AllBlocksCleared."""

    @property
    def foreign(self) -> int:
        """Events of blocks without the metadata of bowhead_kv.events, which are left out."""

def parse_metadata(user_metadata: bytes) -> BlockMetadata | None:
    """What block_metadata() of bowhead_kv.events was given; None: the metadata is of another kind."""

class Lease:
    """The memory of a leased block, read-only: pass it to memoryview(), numpy.frombuffer() or
    from_dlpack(). What reads it must be done before release(), and may only trust what it read if
    release() returns True. As a context manager it releases at the end, and raises Error LAPSED if
    the block did not stay intact."""

    def release(self) -> bool:
        """Ends the lease. False: it lapsed before; discard what was computed from the memory.
        Another call returns the same."""

    def check(self) -> bool:
        """Whether the block is known to have been intact so far; the lease goes on."""

    @property
    def length_bytes(self) -> int:
        """Of the value; that of the memory is len(lease)."""

    @property
    def codec(self) -> Codec:
        """FRAME: the memory is a frame (docs/frame.md), not the value."""

    @property
    def layout(self) -> Layout:
        """Of the value."""

    @property
    def checksum(self) -> int | None:
        """checksum() of the memory; None: the block was committed without one."""

    @property
    def offset(self) -> int:
        """Of the memory in the mapping of the pool."""

    @property
    def stamp(self) -> int:
        """Of the block: no other block ever has the same."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(self, **arguments: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class Reservation:
    """Writable memory of a block that is not stored yet: pass it to memoryview(),
    numpy.frombuffer() or from_dlpack(), fill it, delete what was made from it, then commit. As a
    context manager it commits at the end, and aborts if the body raised. One that is dropped is
    aborted. commit, commit_unverified and abort raise BufferError while views of the memory exist,
    and then end nothing."""

    @property
    def present(self) -> bool:
        """The key is stored already: nothing was reserved, there is no memory, and nothing needs to
        end. The context manager then does nothing."""

    @property
    def offset(self) -> int:
        """Of the memory in the mapping of the pool."""

    def commit(self, checksum: int | None = None) -> None:
        """Stores the block. If the key was stored meanwhile, that block stays. checksum: that of the
        whole value, if the writer computed it; if it is wrong, readers find the block damaged.
        None: computes it. After an Error other than CLOSED or FORKED the reservation has ended too,
        and nothing is stored."""

    def commit_unverified(self) -> None:
        """commit() without a checksum, for bytes that this CPU cannot read back: damage goes
        undetected, and other hosts find the block some heartbeats later."""

    def abort(self) -> None:
        """Ends the reservation and stores nothing."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(self, **arguments: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class Queue:
    """Executes batches on threads of its own. A job keeps its keys and buffers alive until poll()
    has reported it or the queue is closed; do not use the buffers before. submit returns the number
    of the job, never waits, and raises Error LIMIT_REACHED while jobs_max jobs are not reported.
    Jobs of a higher priority (0 to 255) start first. All methods may be called from any thread;
    those that never wait keep the GIL."""

    def submit_put(
        self,
        ns: Namespace,
        keys: Iterable[Buffer],
        values: Iterable[_Buffers],
        *,
        user_metadata: Iterable[Buffer] | None = None,
        attributes: Attributes | None = None,
        priority: int = 0,
    ) -> int: ...
    def submit_get(
        self,
        ns: Namespace,
        keys: Iterable[Buffer],
        buffers: Iterable[_Buffers],
        *,
        priority: int = 0,
    ) -> int: ...
    def submit_remove(
        self, ns: Namespace, keys: Iterable[Buffer], *, priority: int = 0
    ) -> int: ...
    def submit_exists(
        self, ns: Namespace, keys: Iterable[Buffer], *, priority: int = 0
    ) -> int: ...
    def poll(self, limit: int = 256) -> list[Completion]:
        """Reports jobs that have ended, in that order. Never waits."""

    def cancel(self, job: int) -> bool:
        """Cancels a job that has not started: it is reported with status CANCELLED. False: it has
        started or ended, or there is no such job."""

    def drain(self, timeout_s: float) -> bool:
        """Waits until all jobs submitted so far have ended; False: some had not after that time,
        and continue."""

    def fileno(self) -> int:
        """An eventfd, readable while poll() has jobs to report, for select, epoll or asyncio. Do
        not read, write or close it."""

    def close(self) -> None:
        """Cancels the jobs that have not started, waits for the others and closes the queue.
        Nothing is reported any more."""

    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class Events:
    """A reader of events: blocks that this pool object stored, and blocks of this host that it
    removed, evicted or found damaged. Other processes and hosts report their own. A slow reader
    loses events; nothing waits for it."""

    def read(self, limit: int = 1024) -> tuple[list[Event], int]:
        """Events, oldest first, and the number of those that came after them and were lost; after a
        loss, what was built from the events must be built anew. Never waits."""

    def fileno(self) -> int:
        """An eventfd, readable while read() has something to report, for select, epoll or asyncio.
        Do not read, write or close it."""

    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

def describe_tensor(
    tensor: Any,
) -> tuple[int, tuple[int, ...], tuple[int, ...], int, int, int]:
    """The address, shape, strides in bytes, bytes of an element, DLPack device type and device id
    of a tensor in memory of any device."""

class Device:
    """A GPU, or the CPU in its place, for development and tests without one. Memory and transfers
    that were made with it keep it open inside them."""

    def __init__(self, ordinal: int = 0) -> None:
        """ordinal: of CUDA, of the GPUs that are visible to the process. Raises Error NOT_SUPPORTED
        where this build or the machine has no CUDA, NOT_FOUND where it has no such GPU."""

    @staticmethod
    def cpu() -> Device: ...
    def info(self) -> DeviceInfo: ...
    def register_pool(self, pool: Pool, *, chunk_bytes: int = 0) -> Memory:
        """Prepares the pool's memory for registration; a chunk is registered when a job first needs
        it. One is enough for all GPUs of a process. chunk_bytes: registered at once, a multiple of
        2 MiB; 0: 64 GiB."""

    def register_memory(self, buffer: Buffer) -> Memory:
        """Registers memory of the caller, such as a cache for the CPU device, and holds the buffer
        until it is closed. Its address and size are multiples of 4 KiB (MISALIGNED)."""

    def synchronize(self, stream: int = 0) -> None:
        """Waits until the work that is queued in a stream now is done."""

    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class Memory:
    """Memory that is registered for GPUs, chunk by chunk. Closing unregisters it once all transfers
    that use it are closed."""

    def ensure(self, offset: int, size_bytes: int) -> None:
        """Waits until these bytes are registered; raises Error if they cannot be, and says why."""

    def register_rest(self) -> None:
        """Registers all of it in the background."""

    def retry(self) -> None:
        """Lets chunks that were refused with LIMIT_REACHED be tried again."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def registered_bytes(self) -> int: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class Transfers:
    """Moves blocks between a paged cache and a pool. All methods may be called from any thread. A
    stream is the number of a cudaStream_t, such as torch.cuda.Stream.cuda_stream; 0: the default
    stream. Closing the pool closes it."""

    def __init__(
        self,
        pool: Pool,
        device: Device,
        memory: Memory,
        cache: Cache,
        *,
        pinned_bytes_max: int = 0,
    ) -> None:
        """memory: the pool's. pinned_bytes_max: pinned memory for jobs; 0: 1 GiB."""

    def spill(
        self,
        ns: Namespace,
        blocks: Iterable[Block],
        *,
        after: int | None = None,
        urgent: bool = False,
        path: int = 0,
        layers_at_once: int = 0,
    ) -> Job:
        """Starts to store blocks under their keys; those whose keys are stored are done. after: a
        stream whose work so far the job waits for. path: a Path. layers_at_once: not 0: it waits
        until Job.layer_ready() has named each layer. The pages belong to the job until it is
        done. Raises Error LAYOUT_MISMATCH if the namespace has another layout."""

    def restore(
        self,
        ns: Namespace,
        blocks: Iterable[Block],
        *,
        after: int | None = None,
        urgent: bool = False,
        path: int = 0,
        layers_at_once: int = 0,
        lease_ms: int = 30_000,
    ) -> Job:
        """Starts to fetch blocks into their pages. layers_at_once: not 0: so many layers at a time,
        for Job.wait_layer(). lease_ms: longer than the restore takes, at most 600,000."""

    def poll(self, limit: int = 256) -> list[Job]:
        """Finishes jobs that the GPU is through with, and reports jobs that are done, each once.
        Never waits. A job is kept alive until then, and cancelled when the transfers are closed."""

    def fileno(self) -> int:
        """An eventfd, readable when poll() may have jobs to report, for select, epoll or asyncio.
        Do not read, write or close it."""

    def info(self) -> TransfersInfo: ...
    @property
    def cache(self) -> Cache: ...
    def close(self) -> None:
        """Cancels all jobs, and waits until the GPU is through with them."""

    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class Job:
    """Blocks that are spilled or restored together. Its methods also work when the transfers are
    closed: all jobs are done then."""

    def wait(self, timeout_s: float) -> bool:
        """Waits until it is done; False: it was not after that time, and continues. 0: looks."""

    def results(self) -> list[BlockResult]:
        """Of each block, once the job is done; before, raises Error BUSY. A restored block is valid
        only if its status is OK."""

    def cancel(self) -> None:
        """Ends a job that is not done with CANCELLED; its pages are in use until it is done."""

    def wait_layer(self, layer: int, stream: int = 0) -> None:
        """Of a restore: work queued in the stream from here on waits until the layer is there."""

    def layer_ready(self, layer: int, stream: int = 0) -> None:
        """Of a spill with layers_at_once: this layer and those before it are in the pages when the
        work queued in the stream now is done."""

# ---- computations on leased blocks: bowhead_kv.ndp ----

def ndp_topk(
    leases: Iterable[Lease] | Prefix,
    queries: Any,
    k: int,
    *,
    layer: int = 0,
    first_head: int = 0,
    first_tokens: Iterable[int] | None = None,
    begin: int | Iterable[int] = 0,
    end: int | Iterable[int] | None = None,
    sinks: int | Iterable[int] = 0,
    scale: float = 0.0,
    soft_cap: float = 0.0,
    budget_bytes: float = 0.0,
    weights: Any = None,
    group: int = 0,
    rectified: bool = False,
    fewest_bytes: bool = False,
    skip_unreadable: bool = False,
) -> TopK:
    """The k best keys of each query. `leases`: leases, or a Prefix. `queries`: float32 [head][query][channel], or
    [query][channel] of one head, in CPU memory; heads are those from `first_head` on, by their
    numbers in the blocks, as is `layer`. `first_tokens`: positions of the blocks' first tokens;
    None: one block begins where the one before it ends. Visible are positions from `begin` to
    before `end`, and the first `sinks` ones before `end`: numbers, or one for each query of a head,
    as queries of several positions need. `scale` of scores, 0: 1 / sqrt(channels). `soft_cap` makes
    a score cap * tanh(score / cap), 0: none; that changes no order, and these scores are those
    before it.
    `budget_bytes` above 0: estimates, from about so many bytes for each visible token.
    `fewest_bytes`: reads compressed blocks in small steps, only where it helps, and not in one pass:
    fewer bytes where exact, more of the best keys within a budget, which each query has for itself
    then; many times as slow.
    `weights`, float32 [head][query]: each `group` queries (0: all of a head) have one answer, the sum
    of weights times scores, or, `rectified`, times scores above 0, as indexers of sparse attention
    choose tokens.
    Raises Error LAPSED if a lease did not last, DAMAGED or UNSUPPORTED_CODEC for a block that
    cannot be read unless `skip_unreadable`."""

def ndp_score(
    leases: Iterable[Lease] | Prefix,
    queries: Any,
    *,
    layer: int = 0,
    first_head: int = 0,
    first_tokens: Iterable[int] | None = None,
    begin: int | Iterable[int] = 0,
    end: int | Iterable[int] | None = None,
    sinks: int | Iterable[int] = 0,
    scale: float = 0.0,
    soft_cap: float = 0.0,
    weights: Any = None,
    group: int = 0,
    rectified: bool = False,
    skip_unreadable: bool = False,
) -> Scores:
    """Every score; arguments as for topk()."""

def ndp_attend(
    leases: Iterable[Lease] | Prefix,
    queries: Any,
    *,
    layer: int = 0,
    first_head: int = 0,
    first_tokens: Iterable[int] | None = None,
    begin: int | Iterable[int] = 0,
    end: int | Iterable[int] | None = None,
    sinks: int | Iterable[int] = 0,
    scale: float = 0.0,
    soft_cap: float = 0.0,
    skip_unreadable: bool = False,
) -> PartialAttention:
    """Attention to these blocks; arguments as for topk(). Outputs o of parts with log-sum-exps l
    give sum(exp(l - L) o) with L = log(sum(exp(l)))."""

def ndp_gather(
    leases: Iterable[Lease] | Prefix,
    tokens: Iterable[int] | Any,
    part: int,
    *,
    layer: int = 0,
    first_head: int = 0,
    heads: int = 1,
    first_tokens: Iterable[int] | None = None,
    skip_unreadable: bool = False,
) -> GatheredRows:
    """Rows of keys (part 0) or values (part 1) of the tokens at these positions, as they were
    put, without scales."""

def ndp_digest(
    leases: Iterable[Lease] | Prefix,
    page_tokens: int,
    *,
    layer: int = 0,
    first_head: int = 0,
    heads: int = 1,
    skip_unreadable: bool = False,
) -> Digests:
    """The least and the largest number of each channel of keys, in pages of so many tokens of each
    block."""
