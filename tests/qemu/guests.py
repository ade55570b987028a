# SPDX-License-Identifier: Apache-2.0
"""Scenarios in guests with emulated CXL memory.

A scenario is a function of the guests of a topology. It is called in the command that qemu/run runs
beside the guests (--host), so that it can run commands in them, stop them, end them and boot them
anew, in any order. It fails by an exception.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "qemu"))

import common  # noqa: E402
import control  # noqa: E402
import packages  # noqa: E402

DAX = "dax:/dev/dax0.0"
POOL_BYTES = 256 << 20
REFUSED = 3  # the exit code of `bowhead` if the pool or the system refuses
COMMAND_SECONDS = 120  # of one command, on a busy machine
SCENARIO_SECONDS = 600
SKIPPED = 77
PREFIX = "bowhead-qemu-test."  # of temporary folders
QEMU_FAULT = re.compile("qemu-system.*Assertion .* failed")


@dataclasses.dataclass(frozen=True)
class Scenario:
    function: object
    topology: str
    programs: tuple  # paths in the build folder, copied into the guests without debug information
    one_processor: bool = False
    named_memory: bool = False  # its file has a path that pools can be opened by
    kills_peer: bool = False  # of QEMU, by vfio-user, which QEMU 11.1 does not always survive


ALL = {}


def scenario(topology, *programs, also_with_one_processor=False, named_memory=False,
             kills_peer=False):
    """Registers a function as a scenario, with `bowhead` and other programs in the guests. With one
    processor, emulation loses atomic updates of words that guests share."""
    def register(function):
        name = function.__name__
        programs_ = ("tools/bowhead/bowhead", *programs)
        ALL[name] = Scenario(function, topology, programs_, named_memory=named_memory,
                             kills_peer=kills_peer)
        if also_with_one_processor:
            ALL[f"{name}_with_one_processor"] = Scenario(function, topology, programs_, True)
        return function
    return register


class Guest:
    """A running guest, as seen by a scenario."""

    def __init__(self, number):
        self.number = number
        self.exec_path, self.qmp_path, self.boot_path = (
            os.environ[f"{kind}{number}"] for kind in ("EXEC", "QMP", "BOOT"))
        self.shell = None

    def try_run(self, command, seconds=COMMAND_SECONDS, quiet=False):
        """Runs a shell command; returns its exit code, and its output and errors as one text."""
        start = time.monotonic()
        self.shell = self.shell or control.Shell(self.exec_path)
        done = self.shell.execute(command, seconds)
        text = (done.stdout + done.stderr).decode(errors="replace")
        if not quiet:
            code = f" -> {done.returncode}" if done.returncode else ""
            print(f"[{time.monotonic() - start:5.1f} s] guest{self.number} {command}{code}\n"
                  f"{text.rstrip()}".rstrip(), flush=True)
        return done.returncode, text

    def run(self, command, status=0, seconds=COMMAND_SECONDS, quiet=False):
        """Like try_run(), with this exit code; returns the text."""
        code, text = self.try_run(command, seconds, quiet)
        assert code == status, (f"guest{self.number}: {command}: exit code {code}, not {status}"
                                f"{': ' + text if quiet else ''}")
        return text

    def start(self, name, command):
        """Runs it in the background, under this name for end() and wait()."""
        self.run(f"rm -f /tmp/{name}.log /tmp/{name}.code; "
                 f"{{ {command}; echo $? >/tmp/{name}.code; }} >/tmp/{name}.log 2>&1 &")

    def is_running(self, name):
        return self.try_run(f"[ -e /tmp/{name}.code ]", quiet=True)[0] != 0

    def wait(self, name, status=0):
        """Waits until it has ended, with this exit code; returns its output."""
        eventually(lambda: not self.is_running(name))
        code, output = self.try_run(f"cat /tmp/{name}.log; exit $(cat /tmp/{name}.code)")
        assert code == status, f"guest{self.number}: {name}: exit code {code}, not {status}"
        return output

    def end(self, name, program, status=0):
        """Ends it by SIGTERM, also if it is just being started again."""
        eventually(lambda: self.try_run(f"killall {program}")[0] == 0 or not self.is_running(name))
        return self.wait(name, status)

    def keep_host(self, host, restart=False):
        """Makes the guest a host of the pool that stays: `bowhead host`, until end_host(). With
        `restart` it is started again when it was declared dead, as a service manager does."""
        command = f"bowhead host {DAX} --host {host}"
        if restart:
            command = f"while {command}; [ $? = {REFUSED} ]; do sleep 1; done"
        self.start("host", command)
        eventually(lambda: "is up" in self.run("cat /tmp/host.log", quiet=True))

    def end_host(self, leave=False):
        self.end("host", "bowhead")
        if leave:  # refused if it was declared dead in the meantime
            eventually(lambda: self.try_run(
                f"bowhead pool leave {DAX} --host {self.number}")[0] == 0)

    def host_info(self, host):
        """What this guest sees of a host, as in `pool info --json`; joins nothing."""
        return json.loads(self.run(f"bowhead pool info {DAX} --json", quiet=True))["hosts"][host]

    def node_shared_kib(self, node):
        """Of memory files. Free memory says less: each processor keeps freed pages for itself."""
        words = self.run(f"grep Shmem: /sys/devices/system/node/node{node}/meminfo").split()
        return int(words[3])

    def qmp(self, command, **arguments):
        return control.qmp(self.qmp_path, command, arguments)

    def stop(self):
        """Its processors stand still until go_on()."""
        self.qmp("stop")

    def go_on(self):
        self.qmp("cont")

    def kill(self):
        """As if its power failed."""
        self.qmp("quit")
        if self.shell:
            self.shell.close()
            self.shell = None

    def boot(self):
        """After kill()."""
        control.boot(self.boot_path)


def eventually(condition, seconds=COMMAND_SECONDS, pause=0.2):
    """Waits until the condition holds, and returns it."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(pause)


def fence(guest, dead, host):
    """Confirms, as a host, that a dead one has stopped. Until it was declared dead, that is
    refused."""
    eventually(lambda: guest.try_run(f"bowhead pool fence {DAX} {dead} --host {host}")[0] == 0)


def read_word(offset):
    """Eight bytes of the memory of device 0."""
    with open(os.environ["MEMORY0"], "rb") as memory:
        return int.from_bytes(os.pread(memory.fileno(), 8, offset), "little")


def together(*actions):
    """Calls all at once, returns their results."""
    with concurrent.futures.ThreadPoolExecutor(len(actions)) as threads:
        return [future.result() for future in [threads.submit(action) for action in actions]]


def run_inside(name):
    """In qemu/run's command on the host."""
    count = sum(key.startswith("EXEC") and key[4:].isdigit() for key in os.environ)
    ALL[name].function(*(Guest(number) for number in range(count)))


def fetch():
    """Fetches the guests' packages if they are not there; returns the exit status."""
    try:
        packages.ready()
    except common.Failure as failure:
        is_skip = isinstance(failure, packages.Unavailable)
        print(f"{'skipped' if is_skip else 'failed'}: {failure}")
        return SKIPPED if is_skip else failure.status
    return 0


def run(script, name, build):
    """Boots the guests and runs the scenario; returns the exit status."""
    status = fetch()
    if status:
        return status
    this = ALL[name]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
        copies = []
        for program in this.programs:
            copy = pathlib.Path(folder, pathlib.Path(program).name)
            if shutil.which("strip"):
                subprocess.run(["strip", "-o", copy, build / program], check=True)
            else:
                shutil.copy(build / program, copy)
            copies += ["--copy", str(copy)]
        host = shlex.join([sys.executable, "-B", str(script), "--inside", name])
        smp = ["--qemu-args=-smp 1,maxcpus=1"] if this.one_processor else []
        state = []
        if this.named_memory:
            memory = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", prefix=PREFIX))
            state = ["--state", memory]
        errors = stack.enter_context(tempfile.TemporaryFile("w+"))
        code = subprocess.run([ROOT / "qemu/run", this.topology, *copies, *smp, *state, "--timeout",
                               str(SCENARIO_SECONDS), "--host", host], check=False,
                              stdin=subprocess.DEVNULL,
                              stderr=errors if this.kills_peer else None,
                              env={**os.environ, "BOWHEAD": build / this.programs[0]}).returncode
        errors.seek(0)
        text = errors.read()
        print(text, end="", file=sys.stderr)
        if code != 0 and this.kills_peer and QEMU_FAULT.search(text):
            print("skipped: QEMU failed an assertion when the process of a function was killed")
            return SKIPPED
        return code
