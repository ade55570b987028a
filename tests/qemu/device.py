# SPDX-License-Identifier: Apache-2.0
"""Scenarios of a guest that asks a device, which is a process of this host."""

import json
import os
import signal
import subprocess
import time

from guests import DAX, POOL_BYTES, eventually, read_word, scenario

PROGRESS_AT = 400 << 20  # behind the pool
DEAD_MS = 60_000  # a host whose one process is killed and started anew stays alive
# Sums depend on the instruction set in their last bits, and answers are compared as bytes.
ISA = "BOWHEAD_ISA=scalar"
AT_ONCE = 10  # requests of the worker


class DeviceProcess:
    """`bowhead device serve` of this host, on the memory of device 0, as host 1 of the pool."""

    def __init__(self):
        self.locator = f"file:{os.path.realpath(os.environ['MEMORY0'])}"
        self.process = None
        self.start()

    def start(self):
        program = os.environ["BOWHEAD"]
        self.process = subprocess.Popen(
            ["env", ISA, program, "device", "serve", self.locator, "--host", "1"],
            stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert "the device is up" in line, line

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def progress():
    """Right answers and lost requests that `device_worker` has counted so far."""
    return read_word(PROGRESS_AT), read_word(PROGRESS_AT + 8)


def wait_for_answers(guest, count):
    wanted = progress()[0] + count
    try:
        eventually(lambda: progress()[0] >= wanted, pause=0.01)
    except AssertionError:
        guest.run("cat /tmp/ask.log")
        raise


def best_keys(guest, *options):
    """The answer of `bowhead topk` about blocks of the worker."""
    return json.loads(guest.run(
        f"{ISA} bowhead topk {DAX} 'block 0' 'block 1' --namespace plain --host 0 --json "
        f"{' '.join(options)}", quiet=True))


@scenario("guest-and-host", "tests/qemu/device_worker", named_memory=True)
def device_beside_a_guest(guest):
    """A guest asks a process of the host, over queue pairs in the memory that they share. Each
    answer is compared with that of the guest. The process is killed under load and started anew, at
    once and after a while: no answer is wrong, and they come again."""
    guest.run(f"bowhead pool create {DAX} --size {POOL_BYTES} --hosts 2 --dead-ms {DEAD_MS}")
    device = DeviceProcess()
    guest.start("ask", f"{ISA} device_worker {DAX} --host 0 --progress-at {PROGRESS_AT}")
    eventually(lambda: progress()[0] > 0 or not guest.is_running("ask"))
    assert guest.is_running("ask"), guest.wait("ask")
    here, there = best_keys(guest), best_keys(guest, "--device")
    assert here["queries"] == there["queries"] and there["device"] and not here["device"]
    for seconds in (0, 0, 0, 3):
        lost = progress()[1]
        device.kill()
        time.sleep(seconds)
        start = time.monotonic()
        device.start()
        wait_for_answers(guest, 2 * AT_ONCE)  # the first may be those of the killed process
        print(f"after {seconds} s without a device: answers within {time.monotonic() - start:.2f} s "
              f"of its start, {progress()[1] - lost} requests lost")
    assert progress()[1] > 0  # in the three seconds
    report = json.loads(guest.end("ask", "device_worker"))
    assert report["at_once"] == AT_ONCE
    print(f"{report['right']} right answers, {report['lost']} lost requests")
    device.kill()
    assert "0 wrong" in guest.run(f"bowhead pool check {DAX} --payload --host 0")
