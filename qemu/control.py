# SPDX-License-Identifier: Apache-2.0
"""Control of running guests by the sockets that qemu/run makes: QEMU's QMP, commands in the guest,
and another boot. For qemu/qmp, qemu/exec, qemu/boot and tests."""

import base64
import json
import os
import secrets
import socket
import subprocess


class Refused(Exception):
    """QEMU refused a command of QMP."""


def qmp(path, command, arguments=None):
    """Returns what the command returns. Raises OSError if QEMU has ended."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.fspath(path))
        stream = connection.makefile("rw", encoding="utf-8")
        stream.readline()  # the greeting
        for request in ({"execute": "qmp_capabilities"},
                        {"execute": command, "arguments": arguments or {}}):
            stream.write(json.dumps(request) + "\n")
            stream.flush()
            answer = {}
            while not {"return", "error"} & answer.keys():  # others are events
                line = stream.readline()
                if not line.endswith("\n"):
                    if command == "quit":  # it ends QEMU, perhaps before it answers
                        return {}
                    raise ConnectionResetError("QEMU ended before it answered")
                answer = json.loads(line)
    if "error" in answer:
        raise Refused(f"{command}: {answer['error']['desc']}")
    return answer["return"]


def boot(path):
    """Boots the guest anew, as if its power had failed for a moment, or after its end, and waits
    until it is ready. Raises OSError if it ends before. A reset by QMP does not do: QEMU keeps the
    decoders of CXL memory over it, and the kernel then makes no region."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.fspath(path))
        if not connection.recv(1):
            raise ConnectionResetError("the guest ended while it booted")


class Shell:
    """A connection to a guest that runs commands, one at a time; the guest serves one connection
    at a time. It polls while there is none, so keep it. After an OSError it cannot be used."""

    def __init__(self, path):
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(os.fspath(path))
        self.stream = self.connection.makefile("rb")

    def execute(self, command, timeout_seconds=None):
        """Runs a shell command once the guest has booted. Returns its exit code and output, as
        bytes. Raises OSError if the guest ends or takes longer."""
        token = secrets.token_hex(8).encode()
        self.connection.settimeout(timeout_seconds)
        self.connection.sendall(token + b" " + base64.b64encode(os.fsencode(command)) + b"\n")
        line = b""
        while not line.startswith(token):  # answers to those that did not wait for them
            line = self.stream.readline()
            if not line.endswith(b"\n"):
                raise ConnectionResetError("the guest ended before it had answered")
        _, status, *outputs = line[:-1].split(b" ")
        output, errors = map(base64.b64decode, outputs)
        return subprocess.CompletedProcess(command, int(status), output, errors)

    def close(self):
        self.stream.close()
        self.connection.close()
