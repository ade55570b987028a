# SPDX-License-Identifier: Apache-2.0
"""Scenarios of one guest with CXL memory of its own."""

import json
import re

from guests import DAX, POOL_BYTES, REFUSED, eventually, read_word, scenario

PROGRESS_AT = 400 << 20  # behind the pool
PERSISTENT_START = 0xA00000  # of the device in the memory file: docs/qemu.md


def media_contract(guest, medium, skipped):
    """Runs the contract suite; these cases are skipped, and no others."""
    output = guest.run(f"BOWHEAD_TEST_MEDIUM={medium} media_on_device", seconds=300)
    assert int(re.search(r"\[  PASSED  \] (\d+) tests", output).group(1)) > 20
    found = re.findall(r"(?m)^\[  SKIPPED \] Given/MediaContract\.(\w+)/given$", output)
    assert set(found) == set(skipped)


@scenario("one-volatile", "tests/media/media_on_device")
def media_contract_on_dax(guest):
    media_contract(guest, DAX, skipped=["AFaultOfTheSystemLeavesNothing"])


@scenario("one-volatile", "tests/media/media_on_device")
def media_contract_on_node(guest):
    """The node has all of the CXL memory, and no processor; its memory is free again afterwards."""
    guest.run("cxl-setup node")
    media_contract(guest, "numa:1", skipped=[])
    assert guest.node_shared_kib(1) == 0
    refused = guest.run("bowhead pool create numa:1/large --size 600M", status=3)
    assert "free" in refused
    guest.run("bowhead pool create numa:1/kv --size 400M")
    assert 0 <= guest.node_shared_kib(1) - (400 << 10) < 64
    # The node fills up.
    refused = guest.run("bowhead pool create numa:1/other --size 400M", status=3)
    assert "free" in refused
    guest.run("echo hello | bowhead put numa:1/kv greeting; bowhead pool check numa:1/kv --payload")
    guest.run("bowhead pool info numa:1/other", status=3)
    guest.run("bowhead pool destroy numa:1/kv")
    assert guest.node_shared_kib(1) == 0


@scenario("one-volatile", "tests/qemu/pool_worker", "tests/api/api_c_program")
def pool_on_dax(guest):
    guest.run(f"bowhead pool create {DAX} --size {POOL_BYTES}")
    guest.run(f"pool_worker put {DAX}")
    guest.run(f"pool_worker get {DAX}")
    assert "100 blocks checked" in guest.run(f"bowhead pool check {DAX} --payload")
    guest.run(f"echo hello | bowhead put {DAX} greeting")
    assert guest.run(f"bowhead get {DAX} greeting") == "hello\n"
    assert "holds a pool" in guest.run(f"bowhead pool create {DAX} --size {POOL_BYTES}", status=3)
    guest.run(f"bowhead pool destroy {DAX}")
    guest.run(f"bowhead pool info {DAX}", status=3)
    guest.run(f"api_c_program {DAX}")


@scenario("two-devices", "tests/qemu/pool_worker")
def pool_on_joined_devices(guest):
    """Both devices whole, as one pool, which neither of them is alone."""
    second = "dax:/dev/dax1.0"
    joined = f"{DAX}+{second}"
    assert "1022.00 MiB" in guest.run(f"bowhead pool create {joined}")
    guest.run(f"pool_worker put {joined}")
    guest.run(f"pool_worker get {joined}")
    guest.run(f"bowhead pool check {joined} --payload")
    for locator in (DAX, second, f"{second}+{DAX}"):
        guest.run(f"bowhead pool info {locator}", status=3)
    assert "holds a pool" in guest.run(f"bowhead pool create {second} --size 64M", status=3)
    guest.run(f"bowhead pool destroy {joined}")
    guest.run(f"bowhead pool create {second} --size 64M")


@scenario("one-persistent", "tests/qemu/pool_worker")
def persistent_device_keeps_what_was_put(guest):
    """The power fails in the middle of puts, three times."""
    guest.run(f"bowhead pool create {DAX} --size {POOL_BYTES} --no-evict")
    stored = 0
    for more in (1, 100, 40):
        guest.start("put", f"pool_worker put {DAX} --first {stored} --count 1000000 "
                    f"--progress-at {PROGRESS_AT}")
        before = stored
        eventually(lambda: read_word(PERSISTENT_START + PROGRESS_AT) >= before + more)
        guest.kill()
        stored = read_word(PERSISTENT_START + PROGRESS_AT)
        guest.boot()
        guest.run(f"bowhead pool check {DAX} --payload")
        guest.run(f"pool_worker get {DAX} --count {stored}")


def block_offset(guest, key):
    """Of its payload in the pool, which begins where the device does."""
    blocks = json.loads(guest.run(f"bowhead ls {DAX} --json", quiet=True))["blocks"]
    return next(block["offset"] for block in blocks if block["key"] == key)


@scenario("one-volatile", "tests/qemu/pool_worker")
def poison_of_the_device(guest):
    """Reading what QEMU calls poisoned returns the data: so the blocks are right, and `check`
    cannot see it. The device lists it."""
    guest.run(f"bowhead pool create {DAX} --size {POOL_BYTES}")
    guest.run(f"pool_worker put {DAX}")
    offset = block_offset(guest, "key-5")
    guest.qmp("cxl-inject-poison", path="/machine/peripheral/device0", start=offset, length=64)
    errors = guest.run("cxl list -m mem0 --media-errors")
    assert f'"offset":{offset}' in errors
    guest.run(f"pool_worker get {DAX}")
    guest.run(f"pool_worker put {DAX} --first 100 --count 20")
    assert "0 wrong" in guest.run(f"bowhead pool check {DAX} --payload")


@scenario("one-volatile", "tests/qemu/pool_worker")
def memory_error_reported_by_the_kernel(guest):
    """SIGBUS in `check` and in gets: the blocks whose memory it is are named and are gone, and can
    be put again; all others are served, also to other processes."""
    guest.run(f"bowhead pool create {DAX} --size {POOL_BYTES}")
    guest.run(f"pool_worker put {DAX} --count 40")
    message = guest.run(f"pool_worker poison {DAX} --first 5 --count 35")
    assert re.search(r"the memory of block 'key-5' \(\d+ bytes\) failed", message), message
    assert "Sending SIGBUS to pool_worker" in guest.run("dmesg | grep 'Memory failure'")
    guest.run(f"pool_worker get {DAX} --count 40")
    assert "40 blocks checked" in guest.run(f"bowhead pool check {DAX} --payload")


@scenario("one-volatile", "tests/qemu/pool_worker")
def containers_with_device_nodes_of_their_own(guest):
    """Processes that open a device by different nodes see none of each other's locks. In a pool of
    one host the second is refused while the first lives; in one of several it is another host."""
    other = "dax:/dev/dax-of-container"
    guest.run("cp -a /dev/dax0.0 /dev/dax-of-container")
    guest.run(f"bowhead pool create {DAX} --size {POOL_BYTES}")
    guest.run(f"pool_worker put {DAX} --count 20")
    guest.start("first", f"bowhead host {DAX}")
    eventually(lambda: "is up" in guest.run("cat /tmp/first.log", quiet=True))
    for command, code in ((f"pool_worker put {other} --first 20 --count 5", 1),
                          (f"bowhead host {other}", REFUSED),
                          (f"bowhead pool repair {other}", REFUSED)):
        assert "another node of the device" in guest.run(command, code)
    for command in (f"bowhead pool destroy {other}",
                    f"bowhead pool create {other} --size {POOL_BYTES} --force"):
        assert "its heartbeat moves" in guest.run(command, REFUSED)
    guest.run(f"pool_worker put {DAX} --first 20 --count 5")
    # The one that came later keeps the pool as well as the one that opened it.
    guest.start("later", f"bowhead host {DAX}")
    eventually(lambda: "is up" in guest.run("cat /tmp/later.log", quiet=True))
    guest.run("kill -9 $(pidof bowhead | tr ' ' '\\n' | sort -n | head -n 1)")
    assert guest.wait("first", 137) is not None and guest.is_running("later")
    assert "another node of the device" in guest.run(f"pool_worker put {other} --count 1", 1)
    guest.run("killall -9 bowhead")
    eventually(lambda: guest.try_run("pidof bowhead", quiet=True)[0] != 0)
    # It did not close the pool, and is seen to be gone.
    guest.run(f"pool_worker put {other} --first 25 --count 5")
    guest.run(f"pool_worker get {DAX} --count 30")
    assert "30 blocks checked" in guest.run(f"bowhead pool check {other} --payload")
    guest.run(f"bowhead pool create {DAX} --size {POOL_BYTES} --hosts 2 --force")
    guest.start("first", f"bowhead host {DAX} --host 0")
    eventually(lambda: "is up" in guest.run("cat /tmp/first.log", quiet=True))
    guest.run(f"pool_worker put {other} --host 0", 1)
    guest.run(f"pool_worker put {other} --host 1 --count 20")
    guest.run(f"pool_worker get {DAX} --host 0 --count 20")
    assert "as host 0: its heartbeat moves" in guest.run(f"bowhead pool destroy {other}", REFUSED)
    guest.end("first", "bowhead")
    guest.run(f"bowhead pool destroy {other}")


def poisoned(guest, name):
    """The bytes of devices that `bowhead devices --watch --json` reported as poisoned so far."""
    lines = guest.run(f"cat /tmp/{name}.log", quiet=True).splitlines(keepends=True)
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event["media_error"]["device_offset"] for event in events if event["event"] == "poison"]


@scenario("one-volatile", "tests/qemu/pool_worker")
def devices_are_named_and_set_up(guest):
    """`bowhead devices` and `doctor` on memory without a region, and with one that `devices setup`
    made; a pool lies there."""
    def devices():
        return json.loads(guest.run("bowhead devices --json", quiet=True))

    def problems(status):
        report = json.loads(guest.run("bowhead doctor --json", status, quiet=True))
        return [one for one in report["findings"] if one["level"] == "problem"]

    guest.run("daxctl disable-device dax0.0 && cxl disable-region region0 && "
              "cxl destroy-region region0")
    before = devices()
    assert [one["name"] for one in before["memory_devices"]] == ["mem0"]
    assert before["regions"] == before["dax_devices"] == []
    assert "bowhead devices setup mem0" in [one["mend"] for one in problems(1)]
    assert "mem7" in guest.run("bowhead devices setup mem7", 2)
    assert "region" in guest.run("bowhead devices setup --dry-run")
    assert devices()["decoders"] == before["decoders"] and not devices()["regions"]
    guest.run("bowhead devices setup")
    after = devices()
    (region,), (dax,) = after["regions"], after["dax_devices"]
    assert region["committed"] and region["devices"] == ["mem0"]
    assert dax["mode"] == "devdax" and dax["can_open"] and dax["region"] == region["name"]
    assert dax["size_bytes"] == before["memory_devices"][0]["volatile_bytes"]
    assert not [one for one in problems(0) if one["subject"] in ("mem0", dax["name"])]
    guest.run("bowhead devices setup")  # nothing is left to do
    guest.run(f"bowhead pool create dax:{dax['path']} --size {POOL_BYTES}")
    guest.run(f"pool_worker put dax:{dax['path']}")
    guest.run(f"pool_worker get dax:{dax['path']}")
    # The device may report the first damage before the command watches; the second, while it does.
    guest.start("watch", "bowhead devices --watch --json")
    for offsets in ([1 << 20], [1 << 20, 2 << 20]):
        guest.qmp("cxl-inject-poison", path="/machine/peripheral/device0", start=offsets[-1],
                  length=64)
        eventually(lambda offsets=offsets: poisoned(guest, "watch") == offsets)
    guest.end("watch", "bowhead")
    errors = devices()["media_errors"]
    assert [(one["device"], one["size_bytes"]) for one in errors] == [("mem0", 64)] * 2


@scenario("one-volatile", "tests/qemu/pool_worker")
def memory_with_a_pool_becomes_no_node(guest):
    """The region is made anew, as on another host of shared memory, while kmem is loaded, which
    would take the memory at once."""
    def forget_region():
        guest.run("daxctl disable-device dax0.0 && cxl disable-region region0 && "
                  "cxl destroy-region region0")

    guest.run(f"bowhead pool create {DAX} --size {POOL_BYTES}")
    guest.run(f"pool_worker put {DAX}")
    guest.run("insmod /lib/modules/kmem.ko")
    forget_region()
    assert "holds a pool" in guest.run("bowhead devices setup --node", REFUSED)
    guest.run(f"pool_worker get {DAX}")
    guest.run(f"bowhead pool destroy {DAX}")
    forget_region()
    guest.run("bowhead devices setup --node --dry-run >/tmp/setup.sh && sh /tmp/setup.sh")
    guest.run("bowhead pool create numa:1/kv --size 400M")
    guest.run("cd /sys/bus && [ $(cat dax/drivers_autoprobe) = 1 ]")


@scenario("hot-plug", "tests/qemu/pool_worker")
def plugged_device_grows_a_pool_in_use(guest):
    """A second device comes while two hosts use the pool, takes blocks, is drained, and goes."""
    second = "dax:/dev/dax1.0"

    def info():
        return json.loads(guest.run(f"bowhead pool info {DAX} --json", quiet=True))

    def put(name):
        """False: no room."""
        code, _ = guest.try_run(f"head -c 16000000 /dev/urandom >/tmp/{name}; "
                                f"bowhead put {DAX} {name} /tmp/{name} --host 0")
        assert code in (0, REFUSED)
        return code == 0

    def get(names):
        for name in names:
            guest.run(f"bowhead get {DAX} {name} --host 1 | cmp - /tmp/{name}")

    guest.run(f"bowhead pool create {DAX} --size 256M --max-size 4G --hosts 2 --no-evict "
              "--dead-ms 10000")
    guest.keep_host(0)
    guest.start("second", f"bowhead host {DAX} --host 1")
    eventually(lambda: "is up" in guest.run("cat /tmp/second.log", quiet=True))
    guest.run(f"pool_worker put {DAX} --host 0 --count 20")
    names = []
    while put(f"large-{len(names)}"):
        names.append(f"large-{len(names)}")
    guest.run(f"bowhead pool grow {DAX} {second} --host 0", REFUSED)  # there is no such device
    guest.qmp("device_add", driver="cxl-type3", bus="rp1", **{"volatile-memdev": "memory1"},
              id="device1", sn=2)
    eventually(lambda: guest.try_run("[ -e /sys/bus/cxl/devices/mem1 ]", quiet=True)[0] == 0)
    guest.run("cxl-setup volatile")
    before = info()
    assert "holds a pool" in guest.run(f"bowhead pool grow {DAX} {DAX} --host 0", REFUSED)
    # By a name that no process finds afterwards, as on another machine: they know it by its label.
    guest.run("cp -a /dev/dax1.0 /dev/dax-elsewhere")
    guest.run(f"bowhead pool grow {DAX} +dax:/dev/dax-elsewhere --host 0; rm /dev/dax-elsewhere")
    after = info()
    assert after["payload_bytes"] > before["payload_bytes"] + (300 << 20)
    assert [one["state"] for one in after["sets"]] == ["used"]
    assert "first medium" in guest.run(f"bowhead pool info {second}", REFUSED)
    for name in ("grown-0", "grown-1"):
        names.append(name)
        assert put(name)
    get(names)
    guest.run(f"pool_worker get {DAX} --host 1 --count 20")
    for name in names[:3]:
        guest.run(f"bowhead rm {DAX} {name} --host 0")
    names = names[3:]
    guest.run(f"bowhead pool drain {DAX} 1 --host 0")
    guest.run(f"bowhead pool shrink {DAX} 1 --host 1")
    assert "holds no pool" in guest.run(f"bowhead pool info {second}", REFUSED)
    assert info()["sets"] == []
    get(names)
    guest.run(f"pool_worker get {DAX} --host 0 --count 20")
    assert "0 wrong" in guest.run(f"bowhead pool check {DAX} --payload")
    guest.run("daxctl disable-device dax1.0 && cxl disable-region region1 && "
              "cxl destroy-region region1 && cxl disable-memdev mem1")
    guest.qmp("device_del", id="device1")
    eventually(lambda: guest.try_run("[ -e /sys/bus/cxl/devices/mem1 ]", quiet=True)[0] != 0)
    get(names)
