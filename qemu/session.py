# SPDX-License-Identifier: Apache-2.0
"""One run: starts the guests and the host's command, serves them until they end, leaves nothing."""

import contextlib
import os
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
import tty

import common
import initramfs
import machine
import packages

ESCAPE = b"\x1d"  # Ctrl-]
PIPE_BYTES = 65536  # that a pipe can hold
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}  # end a run
IDLE = ["sleep", "infinity"]  # guests that serve the host's command


class Session:
    """`options` are those of qemu/run; see there."""

    def __init__(self, topology, options):
        self.topology = topology
        self.options = options
        self.selector = selectors.DefaultSelector()
        self.tree = None  # of the packages
        self.base = None  # the first part of all guests' initramfs
        self.guests = []
        self.memory = None
        self.host_process = None
        self.host_output = None
        self.host_pipe = None  # with that output, until its end
        self.host_runs = False
        self.folder = None  # of the guests' sockets

    def run(self):
        """Returns the first exit status that is not 0, of the guests and the host's command."""
        self.tree = packages.ready()
        self.base = initramfs.base(self.tree)
        self.memory = machine.Memory(self.topology.memories, self.options.state)
        terminal = None
        try:
            self.folder = tempfile.mkdtemp(prefix="bowhead-qemu.")
            for number in range(self.topology.guests):
                self.guests.append(self._start_guest(number))
                if not self.options.command:
                    self._offer_boot(number)
            if self.options.interactive:
                terminal = self._attach_terminal()
            return self._serve()
        finally:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            self._clean_up(terminal)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _clean_up(self, terminal):
        if terminal:
            with contextlib.suppress(termios.error):  # it has gone
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, terminal)
        for guest in self.guests:
            guest.kill()
        self._kill_host_command()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start_guest(self, number):
        prefix = f"guest{number}: " if self._has_several_sources() else ""
        guest = machine.Guest(number, {"stdout": machine.Output(sys.stdout, prefix),
                                       "stderr": machine.Output(sys.stderr, prefix)})
        if self.options.verbose:
            guest.console_output = machine.Output(sys.stderr, f"console{number}: ")
        settings = {"GUEST": number, "GUESTS": self.topology.guests,
                    "SETUP": self.topology.setup if self.options.setup else ""}
        command = self.options.command or IDLE
        if self.options.interactive and number == 0:
            size = shutil.get_terminal_size()
            settings |= {"ROWS": size.lines, "COLUMNS": size.columns}
            command = None
        data = self.base + initramfs.overlay(self.tree, self.options.copy, settings, command)
        archive = machine.anonymous_file("initramfs", data)
        arguments = [*machine.ACCELERATORS[self.options.accelerator], *machine.MACHINE,
                     "-kernel", initramfs.kernel(self.tree), "-initrd", f"/proc/self/fd/{archive}",
                     "-qmp", f"unix:{self._socket_value('qmp', number)},server=on,wait=off",
                     "-chardev", "socket,id=commands,server=on,wait=off,"
                     f"path={self._socket_value('exec', number)}",
                     "-device", "virtserialport,chardev=commands,name=commands",
                     *self.topology.arguments(self.memory.paths()), *self.options.qemu_args]
        guest.start(self.tree, arguments, [archive, *self.memory.descriptors.values()])
        os.close(archive)
        for name, channel in guest.channels.items():
            self.selector.register(channel, selectors.EVENT_READ,
                                   lambda source, guest=guest, name=name:
                                   self._receive(source, guest, name))
        return guest

    def _offer_boot(self, number):
        """Who connects to the socket boots the guest anew."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._socket("boot", number))
        listener.listen()
        self.selector.register(listener, selectors.EVENT_READ,
                               lambda source: self._boot_again(number, source.accept()[0]))

    def _boot_again(self, number, connection):
        old = self.guests[number]
        old.kill()
        for channel in old.channels.values():
            self._close(channel)
        for kind in ("qmp", "exec"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._socket(kind, number))
        self.guests[number] = self._start_guest(number)
        self.guests[number].awaited_by = connection

    def _has_several_sources(self):
        return self.topology.guests > 1 or bool(self.options.host)

    def _socket(self, kind, number):
        return os.path.join(self.folder, f"{kind}{number}")

    def _socket_value(self, kind, number):
        """As a value in QEMU's options, which commas separate."""
        return self._socket(kind, number).replace(",", ",,")

    def _serve(self):
        timeout = self.options.timeout
        deadline = time.monotonic() + timeout if timeout else None
        while self._is_running():
            left = deadline - time.monotonic() if deadline else None
            if left is not None and left <= 0:
                return self._time_out(timeout)
            for key, _ in self.selector.select(left):
                key.data(key.fileobj)
        codes = [guest.exit_code for guest in self.guests]
        if self.host_process and not self.host_runs:  # qemu/shell does not wait for it
            self._end_host_output()
            status = self.host_process.wait()
            status = status if status >= 0 else 128 - status
            codes = [*codes, status] if self.options.command else [status]
        return next((code for code in codes if code), 0)

    def _is_running(self):
        if self.options.interactive:
            return self.guests[0].exit_code is None
        if self.options.command:
            return self.host_runs or any(guest.channels for guest in self.guests)
        if self.host_process:
            return self.host_runs
        return all(guest.exit_code is None for guest in self.guests)

    def _time_out(self, timeout):
        for guest in self.guests:
            if guest.exit_code is None:
                guest.fail(f"no exit code after {timeout:g} s (--timeout)", common.TIMED_OUT)
        if self.host_process and self.host_process.poll() is None:
            common.say(f"the host's command still runs after {timeout:g} s (--timeout)")
        return common.TIMED_OUT

    def _receive(self, source, guest, name):
        if source.fileno() < 0:  # closed since select() returned
            return
        data = read(source)
        guest.receive(name, data)
        if not data:
            self._close(source)
            del guest.channels[name]
            if not guest.channels:
                guest.ended()
        elif self.options.host and not self.host_process and all(
                each.ready for each in self.guests):
            self._start_host_command()

    def _close(self, source):
        self.selector.unregister(source)
        source.close()

    def _start_host_command(self):
        environment = dict(os.environ)
        for name, path in self.memory.paths_for_others().items():
            environment[name.upper()] = path
        for guest in self.guests:
            for kind in ("qmp", "exec", "boot"):
                environment[f"{kind.upper()}{guest.number}"] = self._socket(kind, guest.number)
        self.host_output = machine.Output(sys.stdout, "host: ")
        self.host_pipe, theirs = os.pipe()  # programs can open a pipe as /dev/stdout
        os.set_blocking(self.host_pipe, False)
        self.host_process = subprocess.Popen(
            [*machine.DIE_WITH_PARENT, "/bin/sh", "-c", self.options.host], env=environment,
            stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, start_new_session=True)
        os.close(theirs)
        self.host_runs = True
        self.selector.register(self.host_pipe, selectors.EVENT_READ, self._receive_from_host)
        self.selector.register(os.pidfd_open(self.host_process.pid), selectors.EVENT_READ,
                               self._end_host_command)

    def _receive_from_host(self, pipe):
        data = os.read(pipe, PIPE_BYTES)
        self.host_output(data)
        if not data:
            self.selector.unregister(pipe)
            os.close(pipe)
            self.host_pipe = None

    def _end_host_command(self, process):
        """Its output may go on: from a process that it left behind."""
        self.selector.unregister(process)
        os.close(process)
        self.host_runs = False

    def _end_host_output(self):
        if self.host_pipe is not None:
            with contextlib.suppress(BlockingIOError):
                self.host_output(os.read(self.host_pipe, PIPE_BYTES))
            self.host_output(b"")

    def _kill_host_command(self):
        if self.host_process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.host_process.pid, signal.SIGKILL)
            self.host_process.wait()

    def _attach_terminal(self):
        """Connects the terminal to the console of guest 0; returns its attributes until then."""
        guest = self.guests[0]
        guest.console_output = machine.Output(sys.stdout)

        def receive(_):
            data = os.read(sys.stdin.fileno(), 4096)
            if not data or ESCAPE in data:
                guest.exit_code = 0
                guest.kill()
            elif "console" in guest.channels:
                with contextlib.suppress(OSError):  # QEMU has ended
                    guest.channels["console"].sendall(data)

        before = termios.tcgetattr(sys.stdin)
        tty.setraw(sys.stdin)
        self.selector.register(sys.stdin, selectors.EVENT_READ, receive)
        return before


def read(source):
    try:
        return source.recv(65536)
    except ConnectionResetError:
        return b""


def split_arguments(text):
    """The words of --qemu-args."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise common.Failure(f"--qemu-args {text!r}: {error}", common.USAGE) from error
