# SPDX-License-Identifier: Apache-2.0
"""Shared by the programs in qemu/: failures with an exit status, messages, the cache folder."""

import os
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent

USAGE = 2  # wrong arguments
TIMED_OUT = 124  # as timeout(1)
NOT_STARTED = 125  # no guest ran: no packages, no space, QEMU refused its arguments
GUEST_DIED = 126  # a guest ended without an exit code: a kernel panic, QEMU killed


class Failure(Exception):
    """Ends the program with `status`, after `message` is printed."""

    def __init__(self, message, status=NOT_STARTED):
        super().__init__(message)
        self.status = status


def say(message):
    """Progress goes to standard error: standard output is the guest's."""
    print(f"== {message}", file=sys.stderr, flush=True)


def cache_home():
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(base).expanduser().absolute() / "bowhead" / "qemu"


def megabytes(count):
    return f"{count / 1e6:.0f} MB"
