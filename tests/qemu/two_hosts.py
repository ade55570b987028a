# SPDX-License-Identifier: Apache-2.0
"""Scenarios of two guests that are two hosts of one pool."""

import json
import time

from guests import DAX, POOL_BYTES, REFUSED, eventually, fence, scenario, together

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def create_pool(guest, *options, dead_ms=6000):
    """By default twice the usual time, since the processors may be busy with other work."""
    guest.run(" ".join((f"bowhead pool create {DAX} --size {POOL_BYTES} --hosts 2",
                        f"--dead-ms {dead_ms}", *options)))


def put_from_each(guests, count=50):
    for number, guest in enumerate(guests):
        guest.run(f"pool_worker put {DAX} --host {number} --first {number * count} "
                  f"--count {count}")


def get(guest, host, count=100, first=0):
    guest.run(f"pool_worker get {DAX} --host {host} --first {first} --count {count}")


@scenario("two-guests", "tests/qemu/pool_worker", also_with_one_processor=True)
def killed_host_is_succeeded(first, second):
    """Each host finds the other's blocks. One loses its power: its blocks are served without a
    pause, and it joins again once an operator has confirmed that its former life is over."""
    create_pool(first, "--no-evict")
    first.keep_host(0)
    second.keep_host(1)
    put_from_each((first, second))
    together(lambda: get(first, 0), lambda: get(second, 1))
    second.kill()
    get(first, 0)
    eventually(lambda: first.host_info(1)["state"] == "ended")
    eventually(lambda: first.host_info(1)["extents_owned"] == 0)
    get(first, 0)
    second.boot()
    refused = second.run(f"pool_worker get {DAX} --host 1", status=1)
    assert "pool fence" in refused
    fence(first, dead=1, host=0)
    second.keep_host(1)
    get(second, 1)
    second.run(f"pool_worker put {DAX} --host 1 --first 100 --count 20")
    get(first, 0, count=120)
    assert "0 wrong" in first.run(f"bowhead pool check {DAX} --payload")


@scenario("two-guests", "tests/qemu/pool_worker", also_with_one_processor=True)
def stopped_host_is_fenced(first, second):
    """One host stands still for longer than `dead_ms`, in the middle of its work."""
    create_pool(first, "--no-evict")
    first.keep_host(0)
    second.keep_host(1)
    second.run(f"pool_worker put {DAX} --host 1 --count 20")
    second.start("work", f"pool_worker work {DAX} --host 1")
    time.sleep(2)
    second.stop()
    eventually(lambda: first.host_info(1)["state"] == "ended")
    get(first, 0, count=20)
    second.go_on()
    assert "was declared dead" in second.wait("host", status=REFUSED)
    second.keep_host(1)
    report = json.loads(second.end("work", "pool_worker"))
    assert report["fenced"] > 0 and report["opened"] > 1 and report["faults"] == 0
    assert first.host_info(1)["incarnation"] > 1
    get(second, 1, count=20)
    assert "0 wrong" in first.run(f"bowhead pool check {DAX} --payload")


@scenario("two-guests", "tests/qemu/pool_worker")
def clocks_jump(first, second):
    """The clocks of both are set back and forth while they work: no life of a host ends."""
    create_pool(first, dead_ms=30000)
    for number, guest in enumerate((first, second)):
        guest.start("work", f"pool_worker work {DAX} --host {number}")
    for years in ((2040, 1975), (1975, 2037), (2031, 2031), (2000, 1999)):
        together(*(lambda guest=guest, year=year: guest.run(f"date -s {year}-01-02")
                   for guest, year in zip((first, second), years)))
        time.sleep(2)
    for guest in (first, second):
        report = json.loads(guest.end("work", "pool_worker"))
        assert report["stored"] > 0 and report["read"] > 0 and report["faults"] == 0
        assert report["fenced"] == 0
    assert "0 wrong" in first.run(f"bowhead pool check {DAX} --payload")


def is_refused_as_host_0(first, second):
    """If not, `first` stood still for the three heartbeats that `second` watched, as it may on a
    busy machine: then it must find that out."""
    code, output = second.try_run(f"bowhead put {DAX} key /etc/passwd --host 0")
    if code == REFUSED:
        assert "another machine, or a copy of this one, runs as host slot 0" in output
        return True
    first.wait("host", REFUSED)
    first.keep_host(0)
    return False


@scenario("two-guests", "tests/qemu/pool_worker")
def equal_machine_and_boot_ids(first, second):
    """The guests have one machine id already. A host that runs keeps its slot against a machine
    with all of its ids; of two that want one slot at once, at most one gets it."""
    create_pool(first)
    for guest in (first, second):
        guest.run("echo 11111111-2222-3333-4444-555555555555 >/tmp/boot_id; "
                  f"mount --bind /tmp/boot_id {BOOT_ID}; cat {BOOT_ID} /etc/machine-id")
    for _ in range(2):
        together(*(lambda guest=guest: guest.start("host", f"bowhead host {DAX} --host 0")
                   for guest in (first, second)))
        # Each is up, or has given up.
        for guest in (first, second):
            eventually(lambda: guest.run("cat /tmp/host.log", quiet=True))
        up = [guest for guest in (first, second) if guest.is_running("host")]
        assert len(up) < 2
        for guest in up:
            guest.end_host()
            guest.run(f"bowhead pool leave {DAX} --host 0")
    first.keep_host(0)
    assert any(is_refused_as_host_0(first, second) for _ in range(3))
    second.start("host", f"bowhead host {DAX}")  # takes another slot
    eventually(lambda: first.host_info(1)["state"] == "live")
    put_from_each((first, second))
    together(lambda: get(first, 0), lambda: get(second, 1))
    for guest in (first, second):
        guest.end_host()


@scenario("two-guests")
def litmus_between_guests(first, second):
    """Emulated memory is coherent, so no primitive may show stale reads: this shows that the test
    works between two machines, and nothing about a flush."""
    create_pool(first)
    reports = together(*(
        lambda guest=guest, side=side: json.loads(guest.run(
            f"bowhead litmus {DAX} --host {side} --seconds 5 --json"))
        for guest, side in ((first, "A"), (second, "B"))))
    for report in reports:
        assert not report["one_machine"] and report["safe_in_use"] and report["recommended"]
        for primitive in report["primitives"]:
            assert primitive["stale"] == 0
            assert all(pattern["rounds"] > 0 for pattern in primitive["patterns"])


@scenario("two-guests")
def replay_with_hits_of_the_other_host(first, second):
    """Both replay the same requests, one after the other and then at once. The one that comes later
    finds the other's blocks, also by its mirror of the other's change log."""
    create_pool(first)
    for number, guest in enumerate((first, second)):
        guest.keep_host(number)

    def replay(guest, requests, seed=1):
        return json.loads(guest.run(
            f"bowhead replay --pool {DAX} --host {guest.number} --requests {requests} "
            f"--seed {seed} --block-bytes 32K --json", seconds=300))

    reports = [replay(first, 60), replay(second, 60)]
    assert reports[1]["blocks_hit_elsewhere"] > 0
    second.start("replay", f"bowhead replay --pool {DAX} --host 1 --requests 300 --seed 2 "
                 "--block-bytes 32K --json")
    eventually(lambda: second.host_info(1)["mirrored_hosts"] > 0)
    reports.append(replay(first, 100, seed=2))
    reports.append(json.loads(second.wait("replay")))
    for report in reports:
        assert report["good"] and report["bytes_verified"] > 0 and report["wrong_bytes"] == 0
    assert sum(report["blocks_hit_elsewhere"] for report in reports[2:]) > 0
