# SPDX-License-Identifier: Apache-2.0
"""Scenarios of a guest that asks a device, which is a process of this host."""

import json
import os
import signal
import subprocess
import tempfile
import time

from guests import DAX, POOL_BYTES, PREFIX, REFUSED, control, eventually, read_word, scenario

PROGRESS_AT = 400 << 20  # behind the pool
DEAD_MS = 60_000  # a host whose one process is killed and started anew stays alive
# Sums depend on the instruction set in their last bits, and answers are compared as bytes.
ISA = "BOWHEAD_ISA=scalar"
AT_ONCE = 10  # requests of the worker


class DeviceProcess:
    """`bowhead device` of this host, as host 1 of the pool."""

    def __init__(self, *words):
        self.words = words
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ["env", ISA, os.environ["BOWHEAD"], "device", *self.words, "--host", "1"],
            stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert "the device is up" in line or "waits for a machine" in line, line

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def shared_memory():
    """The locator of the memory of device 0 on this host."""
    return f"file:{os.path.realpath(os.environ['MEMORY0'])}"


def progress():
    """Right answers and lost requests that `device_worker` has counted so far."""
    return read_word(PROGRESS_AT), read_word(PROGRESS_AT + 8)


def start_worker(guest):
    guest.start("ask", f"{ISA} device_worker {DAX} --host 0 --progress-at {PROGRESS_AT}")
    eventually(lambda: progress()[0] > 0 or not guest.is_running("ask"))
    assert guest.is_running("ask"), guest.wait("ask")


def end_worker(guest):
    report = json.loads(guest.end("ask", "device_worker"))
    assert report["at_once"] == AT_ONCE
    print(f"{report['right']} right answers, {report['lost']} lost requests")


def wait_for_answers(guest, count=2 * AT_ONCE):
    """The first ones may be those of a process that was killed."""
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
    create_pool(guest)
    device = DeviceProcess("serve", shared_memory())
    start_worker(guest)
    here, there = best_keys(guest), best_keys(guest, "--device")
    assert here["queries"] == there["queries"] and there["device"] and not here["device"]
    for seconds in (0, 0, 0, 3):
        lost = progress()[1]
        device.kill()
        time.sleep(seconds)
        start = time.monotonic()
        device.start()
        wait_for_answers(guest)
        print(f"after {seconds} s without a device: answers {time.monotonic() - start:.2f} s after "
              f"its start, {progress()[1] - lost} requests lost")
    assert progress()[1] > 0  # in the three seconds
    end_worker(guest)
    device.kill()
    assert "0 wrong" in guest.run(f"bowhead pool check {DAX} --payload --host 0")


class Card:
    """The device as a PCI function of the guest: plugged in and out."""

    def __init__(self, guest, path):
        self.guest, self.path = guest, path
        self.count = 0

    def function(self):
        """Its name in the guest; "" if it is not there."""
        command = "cd /sys/bus/pci/devices && grep -lx 0x10f8 */device | cut -d/ -f1"
        return self.guest.try_run(command, quiet=True)[1].strip()

    def plug(self):
        self.count += 1
        eventually(self.is_added)
        eventually(self.function)

    def is_added(self):
        try:
            self.guest.qmp("device_add", driver="vfio-user-pci", bus="card0", rombar=0,
                           id=f"card{self.count}", socket={"type": "unix", "path": self.path})
        except control.Refused as refused:  # the one before is still there
            print(refused)
            return False
        return True

    def unplug(self):
        self.guest.qmp("device_del", id=f"card{self.count}")
        eventually(lambda: not self.function())


class CardOfAProcess(Card):
    """A function that the guest's kernel gives to one process, by vfio."""

    def __init__(self, guest, path):
        super().__init__(guest, path)
        guest.run("cd /lib/modules; for module in irqbypass vfio vfio_iommu_type1 vfio_pci_core "
                  "vfio_pci; do insmod $module.ko || exit; done")

    def plug(self):
        super().plug()
        name = self.function()
        self.guest.run(f"echo vfio-pci >/sys/bus/pci/devices/{name}/driver_override && "
                       f"echo {name} >/sys/bus/pci/drivers_probe")

    def interrupts(self):
        """How many came, of the function that is there."""
        text = self.guest.try_run("grep vfio-msix /proc/interrupts", quiet=True)[1]
        return sum(int(word) for word in text.split() if word.isdigit())


def create_pool(guest):
    guest.run(f"bowhead pool create {DAX} --size {POOL_BYTES} --hosts 2 --dead-ms {DEAD_MS}")


def wait_for_lost_requests():
    lost = progress()[1]
    eventually(lambda: progress()[1] > lost)


@scenario("card-and-host", "tests/qemu/device_worker", named_memory=True, kills_peer=True)
def device_as_a_card(guest):
    """The device is a PCI function of the guest, which the guest's driver finds and enables. Its
    process is killed under load: the guest goes on without it, and with another one that is plugged
    in, and then with a device that is no function. No answer is wrong."""
    create_pool(guest)
    assert "start it" in guest.run(f"bowhead device ping {DAX} --host 0", REFUSED)
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        device = DeviceProcess("pci", f"{folder}/card")
        card = Card(guest, f"{folder}/card")
        card.plug()
        start_worker(guest)
        here, there = best_keys(guest), best_keys(guest, "--device")
        assert here["queries"] == there["queries"] and there["device"]
        guest.run(f"bowhead device ping {DAX} --host 0")
        device.kill()
        wait_for_lost_requests()
        card.unplug()
        device.start()
        start = time.monotonic()
        card.plug()
        wait_for_answers(guest)
        print(f"answers {time.monotonic() - start:.1f} s after a new function was to be plugged in")
        device.kill()
        wait_for_lost_requests()
        assert "does not answer" in guest.run(f"bowhead device ping {DAX} --host 0", REFUSED)
        device = DeviceProcess("serve", shared_memory())
        wait_for_answers(guest)
        end_worker(guest)
        device.kill()
    assert "0 wrong" in guest.run(f"bowhead pool check {DAX} --payload --host 0")


@scenario("card-and-iommu", "tests/qemu/device_worker")
def device_as_a_card_with_interrupts(guest):
    """The function is that of one process of the guest, by vfio and through an IOMMU. Answers come
    late, so the process sleeps until an interrupt says that they are there."""
    create_pool(guest)
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        device = DeviceProcess("pci", f"{folder}/card", "--interrupts", "--inject", "delay:5")
        card = CardOfAProcess(guest, f"{folder}/card")
        card.plug()
        start_worker(guest)
        before, count = progress()[0], card.interrupts()
        eventually(lambda: card.interrupts() > count + 20)
        print(f"{card.interrupts() - count} interrupts for {progress()[0] - before} answers")
        # Another process is served by the device that this one has enabled.
        here, there = best_keys(guest), best_keys(guest, "--device")
        assert here["queries"] == there["queries"] and there["device"]
        end_worker(guest)
        # The first process has let the function go, and the device has ended; another takes it.
        guest.run(f"bowhead device ping {DAX} --host 0")
        assert "0 wrong" in guest.run(f"bowhead pool check {DAX} --payload --host 0")
        guest.kill()  # first: QEMU 11.1 fails when the process of such a function ends
        device.kill()
