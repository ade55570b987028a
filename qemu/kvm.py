# SPDX-License-Identifier: Apache-2.0
"""Whether guests can run under KVM. TCG, which interprets, always works and is the default.

Under KVM, programs that access CXL memory with vector instructions can be killed by SIGILL, where
QEMU emulates each access. So the probe boots a guest for each way in which QEMU offers the memory,
mapped and emulated, and runs guest/dax.c in it.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import common
import packages
import session
import topologies

DEVICE = "/dev/kvm"
PROBED = {False: "one-volatile", True: "interleaved"}  # by Topology.interleaved
TIMEOUT_SECONDS = 60


def accelerator(topology):
    """kvm where an earlier probe succeeded on this host, or else tcg."""
    try:
        results = json.loads(results_path().read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return "tcg"
    works = results.get("host") == host() and results.get(PROBED[topology.interleaved])
    return "kvm" if works and os.access(DEVICE, os.R_OK | os.W_OK) else "tcg"


def results_path():
    return common.cache_home() / "kvm.json"


def host():
    """Changes when the kernel or the processor of this host does, or QEMU."""
    models = [line for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
              if line.startswith(("model name", "flags"))][:2]
    text = "\n".join([os.uname().release, *models, *packages.versions(packages.ready())])
    return hashlib.sha256(text.encode()).hexdigest()


def probe():
    """Prints and remembers what works."""
    results = {"host": host()}
    if not os.path.exists(DEVICE):
        print(f"KVM is not used: this host has no {DEVICE}")
    elif not os.access(DEVICE, os.R_OK | os.W_OK):
        print(f"KVM is not used: {DEVICE} may not be opened; as root, run: adduser "
              f"{os.environ.get('USER', 'USER')} kvm")
    else:
        with tempfile.TemporaryDirectory(prefix="bowhead-qemu.") as folder:
            program = compile_dax(pathlib.Path(folder))
            works = True
            for name in PROBED.values():  # what fails on the first fails on the second
                works = works and boot(name, program)
                results[name] = works
                used = "is used" if results[name] else "is not used: the probe failed"
                print(f"{name} and topologies like it: KVM {used}")
    results_path().write_text(json.dumps(results) + "\n", encoding="utf-8")


def compile_dax(folder):
    """Compiles guest/dax.c and returns the path of the program, which is called dax."""
    compiler = shutil.which("cc")
    if not compiler:
        raise common.Failure("no C compiler to build the guest's test program with; run: "
                             "apt-get install gcc libc6-dev")
    program = folder / "dax"
    subprocess.run([compiler, "-O2", "-o", program, common.FOLDER / "guest" / "dax.c"], check=True)
    return program


def boot(name, program):
    common.say(f"booting {name} under KVM, {TIMEOUT_SECONDS} s at most")
    options = argparse.Namespace(
        accelerator="kvm", command=["dax", "check", "/dev/dax0.0"], copy=[(program, None)],
        host=None, interactive=False, qemu_args=[], setup=True, state=None,
        timeout=TIMEOUT_SECONDS, verbose=False)
    return session.Session(topologies.ALL[name], options).run() == 0
