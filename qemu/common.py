# SPDX-License-Identifier: Apache-2.0
"""Shared by the programs in qemu/: failures with an exit status, messages, the cache folder."""

import os
import pathlib
import signal
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent

USAGE = 2  # wrong arguments
TIMED_OUT = 124  # as timeout(1)
NOT_STARTED = 125  # no packages, no space, QEMU refused its arguments, the system something else
GUEST_DIED = 126  # a guest ended without an exit code: a kernel panic, QEMU killed


class Failure(Exception):
    """Ends the program with `status`, after `message` is printed."""

    def __init__(self, message, status=NOT_STARTED):
        super().__init__(message)
        self.status = status


def exit_status(name, main):
    """Calls main() of the program `name`. Prints its failure, or the system's, without a
    traceback."""
    try:
        status = main()
        sys.stdout.flush()
        return status
    except Failure as failure:
        message, status = failure, failure.status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        end_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        end_output()
        message, status = explained(error), NOT_STARTED
    except subprocess.CalledProcessError as error:
        message, status = f"{error} {error.stderr or ''}".strip(), NOT_STARTED
    print(f"{name}: {message}", file=sys.stderr)
    return status


def end_output():
    """Writes what is left, or drops it: at the exit it would be an error once more."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def explained(error):
    """The text of an OSError, without its number."""
    text = error.strerror or str(error)
    return f"{error.filename}: {text}" if error.filename else text


def say(message):
    """Progress goes to standard error: standard output is the guest's."""
    print(f"== {message}", file=sys.stderr, flush=True)


def cache_home():
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(base).expanduser().absolute() / "bowhead" / "qemu"


def megabytes(count):
    return f"{count / 1e6:.0f} MB"
