# SPDX-License-Identifier: Apache-2.0
"""Programs that would end the process if the package were wrong; each runs in one of its own."""

import subprocess
import sys

import pytest

CLOSED_BY_THREADS = """
import random, sys, threading, time
import bowhead_kv as bk

pools = [bk.Pool(sys.argv[1]) for _ in range(4)]
queues, readers = [], []
end_s = time.monotonic() + 3

def use(pool, choose):
    ns = pool.namespace("test")
    key = b"%d" % choose.randrange(50)
    operation = choose.randrange(9)
    if operation == 0:
        ns.put(key, bytes(choose.randrange(1, 100_000)))
    elif operation == 1:
        with ns.acquire(key) as lease:
            sum(memoryview(lease)[:100])
    elif operation == 2:
        with ns.reserve(key, choose.randrange(1, 100_000)) as space:
            if not space.present:
                memoryview(space)[0] = 1
    elif operation == 3:
        list(pool.blocks())
    elif operation == 4:
        queue = pool.queue(threads=2)
        queues.append(queue)
        for _ in range(20):
            queue.submit_get(ns, [key], [bytearray(100_000)])
    elif operation == 5 and queues:
        queues.pop().close()
    elif operation == 6:
        readers.append(pool.events())
    elif operation == 7 and readers:
        choose.choice(readers).read()
        readers.pop()
    else:
        ns.remove(key)

def run(seed):
    choose = random.Random(seed)
    while time.monotonic() < end_s:
        at = choose.randrange(len(pools))
        try:
            if choose.random() < 0.1:
                closing, pools[at] = pools[at], bk.Pool(sys.argv[1])
                closing.close()
            else:
                use(pools[at], choose)
        except (bk.Error, BufferError, IndexError):
            pass

threads = [threading.Thread(target=run, args=[seed]) for seed in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
queues.clear()
readers.clear()
for pool in pools:
    pool.close()
with bk.Pool(sys.argv[1]) as pool:
    assert pool.check(payloads=True).findings == 0
    assert pool.hosts()[0].leases_active == 0
    assert pool.hosts()[0].processes_live == 1
"""

CLOSED_BY_THE_GARBAGE_COLLECTOR = """
import gc, sys
import bowhead_kv as bk

class Closes:
    def __init__(self, thing):
        self.thing, self.itself = thing, self

    def __del__(self):
        self.thing.close()

pool = bk.Pool(sys.argv[1])
ns = pool.namespace("test")
for _ in range(50):
    queue = pool.queue()
    events = pool.events()
    for number in range(100):
        queue.submit_put(ns, [b"%d" % number], [b"value"])
    assert queue.drain(30)
    gc.collect()
    Closes(queue)
    gc.set_threshold(1)
    ended = queue.poll()
    gc.set_threshold(0)
    assert len(ended) == 100 and queue.closed
    ns.remove_batch([b"%d" % number for number in range(100)])
    Closes(events)
    gc.set_threshold(1)
    found, lost = events.read()
    gc.set_threshold(0)
    assert len(found) == 200 and events.closed
"""

NOT_INITIALIZED = """
import warnings
from bowhead_kv import _native

warnings.simplefilter("ignore")
classes = [thing for thing in vars(_native).values() if isinstance(thing, type)]
assert len(classes) > 5
for made in [type.__new__(type) for type in classes]:
    for name in dir(made):
        try:
            getattr(made, name)()
        except Exception:
            pass
    for use in (memoryview, repr, iter, next, len):
        try:
            use(made)
        except Exception:
            pass
"""

SUBINTERPRETER = """
import sys
import bowhead_kv as bk
import _xxsubinterpreters as interpreters

pool = bk.Pool(sys.argv[1])
ns = pool.namespace("test")
other = interpreters.create()
try:
    interpreters.run_string(other, "import bowhead_kv")
    sys.exit("it was imported")
except interpreters.RunFailedError as error:
    assert "cannot be used in a subinterpreter" in str(error), error
interpreters.destroy(other)
ns.put(b"key", b"value")
assert ns.get_batch([b"key"], [bytearray(5)]) == [(bk.Status.OK, 5)]
"""

FORKED_WHILE_IN_USE = """
import gc, os, signal, sys, threading
import bowhead_kv as bk

pool = bk.Pool(sys.argv[1])
ns = pool.namespace("test")
ns.put(b"key", b"value")
queue, events = pool.queue(), pool.events()
lease, space = ns.acquire(b"key"), ns.reserve(b"new", 5)
view = memoryview(space)
ended = False

def use():
    while not ended:
        try:
            ns.get(b"key")
            queue.submit_get(ns, [b"key"], [bytearray(5)])
            queue.poll()
            events.read()
        except bk.Error:
            pass

threads = [threading.Thread(target=use) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # no call may wait for a lock of the parent
        for call in (queue.poll, events.read, lease.release, space.commit, ns.blocks):
            try:
                call()
                os._exit(1)
            except bk.Error as error:
                assert error.status is bk.Status.FORKED
            except BufferError:
                pass
        view.release()
        queue.close()
        events.close()
        pool.close()
        gc.collect()
        with bk.Pool(sys.argv[1]) as again:
            assert again.namespace("test").get(b"key") == b"value"
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
ended = True
for thread in threads:
    thread.join()
view[:] = b"value"
del view
space.commit()
assert ns.get(b"new") == b"value" and lease.release()
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(CLOSED_BY_THREADS, id="closed-by-threads"),
        pytest.param(CLOSED_BY_THE_GARBAGE_COLLECTOR, id="closed-by-the-garbage-collector"),
        pytest.param(NOT_INITIALIZED, id="not-initialized"),
        pytest.param(FORKED_WHILE_IN_USE, id="forked-while-in-use"),
        pytest.param(
            SUBINTERPRETER,
            id="subinterpreter",
            marks=pytest.mark.skipif(
                sys.version_info >= (3, 13), reason="Python 3.13 has no _xxsubinterpreters"
            ),
        ),
    ],
)
def test_the_process_survives(program, locator):
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program, locator],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
