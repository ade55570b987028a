# SPDX-License-Identifier: Apache-2.0
"""Guests as processes: the memory of their CXL devices, QEMU's command line, its channels.

Nothing outlives the run: memory is in anonymous files, and the kernel kills QEMU with its parent.
"""

import collections
import contextlib
import fcntl
import os
import socket
import subprocess
import sys

import common
import initramfs

KERNEL_ARGUMENTS = ("console=ttyS0 quiet panic=-1 nokaslr mitigations=off raid=noautodetect "
                    "tsc=reliable no_timer_check random.trust_cpu=on rcupdate.rcu_expedited=1 "
                    "audit=0 nowatchdog lsm=capability cryptomgr.notests=1")
# Without hypervisor=off, kernels refuse to make regions: they cannot flush a virtual machine's
# caches.
ACCELERATORS = {"tcg": ["-accel", "tcg,thread=multi", "-cpu", "max,hypervisor=off"],
                "kvm": ["-accel", "kvm", "-cpu", "host,hypervisor=off"]}
# If QEMU knows that there can be one processor only, it does not make atomic operations atomic
# against other processes; a second one that is absent is enough.
# Only with slots for more memory does QEMU describe NUMA nodes, of which CXL memory is one.
MACHINE = ["-smp", "1,maxcpus=2", "-m", "1G,slots=4,maxmem=8G", "-nodefaults",
           "-no-user-config", "-display", "none", "-no-reboot", "-append", KERNEL_ARGUMENTS]
PORTS = ("control", "stdout", "stderr")
CONSOLE_LINES = 25  # shown of a guest that failed
# Before a command: the kernel kills it when this process ends, however it ends.
DIE_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]


def anonymous_file(name, data):
    descriptor = os.memfd_create(name)
    with open(descriptor, "wb", closefd=False) as stream:
        stream.write(data)
    return descriptor


class Memory:
    """Files with the memory of CXL devices: anonymous, or kept in the folder `state`."""

    def __init__(self, sizes, state=None):
        self.descriptors = {}
        try:
            if state:
                self._lock(state)
            for name, size in sizes.items():
                self.descriptors[name] = self._open(name, size, state)
        except OSError as error:
            raise common.Failure(f"--state {state}: {error.strerror}") from error

    def _lock(self, state):
        state.mkdir(parents=True, exist_ok=True)
        self.lock = os.open(state, os.O_RDONLY)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise common.Failure(f"--state {state}: another run uses this folder") from None

    @staticmethod
    def _open(name, size, state):
        if not state:
            descriptor = os.memfd_create(name)
        else:
            descriptor = os.open(state / name, os.O_RDWR | os.O_CREAT, 0o600)
            if os.fstat(descriptor).st_size not in (0, size):
                raise common.Failure(f"--state {state}: {name} has another size than the {size} "
                                     "bytes of this topology; use a folder for each topology")
        os.ftruncate(descriptor, size)
        if state:
            os.posix_fallocate(descriptor, 0, size)  # a full disk would be SIGBUS later, in QEMU
        return descriptor

    def paths(self):
        """Paths of the files, for processes that inherit the descriptors."""
        return {name: f"/proc/self/fd/{number}" for name, number in self.descriptors.items()}

    def paths_for_others(self):
        """Paths of the files for any process, as long as this one runs."""
        return {name: f"/proc/{os.getpid()}/fd/{number}"
                for name, number in self.descriptors.items()}


class Output:
    """A stream of this program that several sources share: with a prefix, whole lines only."""

    def __init__(self, stream, prefix=""):
        self.stream = stream.buffer
        self.prefix = prefix.encode()
        self.partial = b""

    def __call__(self, data):
        """Takes the data that arrived, empty at the end."""
        if self.prefix:
            lines = (self.partial + data).split(b"\n")
            self.partial = lines.pop()
            if self.partial and not data:
                lines.append(self.partial)
            data = b"".join(self.prefix + line + b"\n" for line in lines)
        self.stream.write(data)
        self.stream.flush()


class Guest:
    """One QEMU. `ready` follows what the guest reports. `exit_code` is set when the guest has
    reported it and all output has arrived, or else by fail(); then `failure` says why."""

    def __init__(self, number, outputs):
        self.number = number
        self.console = collections.deque(maxlen=CONSOLE_LINES)
        self.console_partial = b""
        self.console_output = None  # called with all that the console shows
        self.errors = b""  # that QEMU printed
        self.outputs = outputs  # by port: called with what arrives
        self.received = {name: 0 for name in outputs}  # bytes
        self.reports = b""
        self.reported = None  # the exit code and, by port, the bytes sent
        self.process = None
        self.channels = {}
        self.ready = False
        self.awaited_by = None  # a connection, answered when the guest is ready, closed if it fails
        self.exit_code = None
        self.failure = None
        self.panic = None  # the kernel's line

    def start(self, tree, arguments, inherited):
        """Starts QEMU of `tree`; `inherited` are descriptors that the arguments name."""
        ends = {name: socket.socketpair() for name in ("console", *PORTS, "errors")}
        self.channels = {name: ours for name, (ours, _) in ends.items()}
        theirs = {name: end for name, (_, end) in ends.items()}
        channels = ["-serial", "chardev:console", "-device", "virtio-serial-pci"]
        for name in ("console", *PORTS):
            channels += ["-chardev", f"socket,id={name},fd={theirs[name].fileno()}"]
            if name != "console":
                channels += ["-device", f"virtserialport,chardev={name},name={name}"]
        libraries = tree / initramfs.LIBRARIES
        command = [*DIE_WITH_PARENT, tree / initramfs.LOADER, "--library-path", libraries,
                   tree / "usr/bin/qemu-system-x86_64", "-L", tree / "usr/share/qemu",
                   "-L", tree / "usr/share/seabios", *channels, *arguments]
        # A session of its own: Ctrl-C on the terminal is for this program alone.
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=theirs["errors"], stderr=theirs["errors"],
            pass_fds=[*inherited, *(end.fileno() for end in theirs.values())],
            start_new_session=True,
            env={**os.environ, "QEMU_MODULE_DIR": str(libraries / "qemu")})
        for end in theirs.values():
            end.close()

    def receive(self, name, data):
        """Takes what arrived on a channel, empty at its end."""
        if name == "console":
            if self.console_output:
                self.console_output(data)
            *lines, self.console_partial = (self.console_partial + data).split(b"\n")
            self.console.extend(lines)
            self.panic = self.panic or next(
                (line for line in lines if b"Kernel panic" in line), None)
        elif name == "errors":
            self.errors += data
        elif name == "control":
            *lines, self.reports = (self.reports + data).split(b"\n")
            for line in lines:
                self._report(line.decode())
        else:
            self.received[name] += len(data)
            self.outputs[name](data)
        if self.reported and self.exit_code is None:
            code, sent = self.reported
            # More, if a process in the background went on writing.
            if all(self.received[port] >= count for port, count in sent.items()):
                self.exit_code = code
                self.kill()

    def _report(self, line):
        if line == "READY":
            self.ready = True
            self._answer(b"+")
        elif line.startswith("EXITCODE="):
            code, *sent = map(int, line.removeprefix("EXITCODE=").split())
            if len(sent) == 2:
                self.reported = code, dict(zip(("stdout", "stderr"), sent))
            else:
                self.fail("the guest could not count its output: the command unmounted debugfs",
                          common.GUEST_DIED)
                self.kill()
        elif line == "SETUP_FAILED":
            self.fail("the CXL memory could not be set up", common.NOT_STARTED)
            self.kill()

    def ended(self):
        """All channels are closed."""
        status = self.process.wait()
        self._answer(b"")
        if self.exit_code is not None:
            return
        if status > 0 and not self.console and not self.ready:
            self.fail(f"QEMU did not start (status {status}){self._errors()}", common.NOT_STARTED)
        else:
            reason = f"QEMU ended with status {status}"
            if self.panic:
                reason = self.panic.decode(errors="replace").strip()
            elif status < 0:
                reason = f"signal {-status} ended QEMU"
            lost = "all of its output arrived" if self.reported else "it reported an exit code"
            self.fail(f"the guest ended before {lost}: {reason}{self._errors()}",
                      common.GUEST_DIED)

    def _errors(self):
        """The lines that QEMU printed, each after a line feed."""
        lines = self.errors.decode(errors="replace").splitlines()
        return "".join(f"\n   {line}" for line in lines)

    def _answer(self, data):
        if self.awaited_by:
            with contextlib.suppress(OSError):  # it has gone
                self.awaited_by.sendall(data)
            self.awaited_by.close()
            self.awaited_by = None

    def fail(self, reason, status):
        if self.failure:
            return
        self.failure = reason
        self.exit_code = status
        common.say(f"guest{self.number}: {reason}")
        lines = [*self.console, self.console_partial]
        lines = [line.decode(errors="replace").rstrip("\r") for line in lines]
        lines = [line for line in lines if line]
        if lines:
            common.say(f"guest{self.number}: the last lines of its console:")
            print("\n".join(f"   {line}" for line in lines), file=sys.stderr, flush=True)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
