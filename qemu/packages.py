# SPDX-License-Identifier: Apache-2.0
"""Fetches QEMU, a guest kernel and guest tools from Debian's newer suites into the cache folder.

apt resolves and downloads with a configuration, lists and an empty system of its own, so that the
host's packages are neither read nor changed and no privilege is needed; dpkg-deb unpacks. apt
verifies the signatures with the host's Debian archive keyring.

    lock        held by the run that fetches
    partial/    its work; downloads in it are used by the next run if this one is interrupted
    ready/      renamed from partial/tree when complete: the unpacked packages
"""

import concurrent.futures
import contextlib
import fcntl
import os
import pathlib
import re
import shutil
import subprocess
import sys

import common

SUITE = "trixie"
NEWER_SUITE = "trixie-backports"  # its packages are preferred
PACKAGES = ["qemu-system-x86", "linux-image-cloud-amd64", "busybox", "cxl", "daxctl", "ndctl",
            "numactl"]
QEMU_MAJOR = 11  # before it, CXL memory is emulated access by access: 100 times slower
DEFAULT_MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
LISTS_BYTES = 150e6  # of two suites, and what apt makes of them

# In apt's messages, if the mirror was not reached, a proxy refused to, or it lacks a suite.
NO_NETWORK = re.compile(
    "Temporary failure resolving|Could not (resolve|connect)|Unable to connect|"
    "Cannot initiate the connection|Connection (refused|timed out|failed)|Network is unreachable|"
    r"No route to host|does not have a Release file|\b(403|50[234]) +[A-Z]")

APT_CONFIGURATION = """
Dir::State "{0}";
Dir::State::lists "{0}/lists";
Dir::State::status "{0}/status";
Dir::Cache "{0}";
Dir::Cache::archives "{0}/archives";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Etc::sourcelist "{0}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::trusted "/dev/null";
Dir::Etc::trustedparts "/dev/null";
Acquire::Languages "none";
Acquire::Retries "2";
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
APT::Default-Release "{1}";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Debug::NoLocking "true";
"""


class Unavailable(common.Failure):
    """This host has no network or no mirror with the suites, or guests cannot run on it: tests in
    guests are skipped. Any other failure is a fault."""


def ready():
    """The folder of the unpacked packages; fetches them first if it is missing or outdated."""
    home = common.cache_home()
    if is_ready(home):
        return home / "ready"
    check_host()
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise common.Failure(f"cannot make the cache folder {home}: {error.strerror}; set "
                             "XDG_CACHE_HOME to a folder that you can write") from error
    if re.search(r'[:;"\n]', str(home)):
        raise common.Failure(f"the cache folder {home} has a colon, a semicolon, a quote or a line "
                             "feed in its path, which the loader and apt do not take; set "
                             "XDG_CACHE_HOME to another one")
    with locked(home):
        if not is_ready(home):
            fetch(home)
    return home / "ready"


def is_ready(home):
    try:
        return (home / "ready" / "request").read_text(encoding="utf-8") == request()
    except FileNotFoundError:
        return False


def request():
    return " ".join([SUITE, NEWER_SUITE, *PACKAGES]) + "\n"


def check_host():
    for tool in ("apt-get", "apt-config", "dpkg-deb"):
        if not shutil.which(tool):
            raise Unavailable(f"{tool} is missing: QEMU and the guest are made of Debian packages; "
                              "run this on Debian 12 or later")
    if os.uname().machine != "x86_64":
        raise Unavailable(f"the guest runs on x86_64, not on {os.uname().machine}")
    if not os.path.exists(KEYRING):
        raise Unavailable(f"{KEYRING} is missing, so signatures cannot be verified; run: "
                          "apt-get install debian-archive-keyring")


@contextlib.contextmanager
def locked(home):
    with open(home / "lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            common.say(f"waiting for another run, which is preparing {home}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(home):
    work = home / "partial"
    mirror = find_mirror()
    common.say(f"first run: fetching QEMU, a kernel and guest tools from {mirror} "
               f"({SUITE} and {NEWER_SUITE}) into {home}; nothing is installed on this host")
    require_space(home, LISTS_BYTES)
    configure(work, mirror)
    try:
        apt(work, mirror, "update", "--error-on=any")
        names, download_bytes, unpacked_bytes = resolve(work, mirror)
        common.say(f"downloading {common.megabytes(download_bytes)} of packages; unpacked they "
                   f"take {common.megabytes(unpacked_bytes)}")
        require_space(home, download_bytes + unpacked_bytes)
        download(work, mirror)
        common.say("unpacking")
        unpack(work, names)
    except OSError as error:
        raise common.Failure(f"{home}: {error}") from error
    (work / "tree" / "request").write_text(request(), encoding="utf-8")
    shutil.rmtree(home / "ready", ignore_errors=True)
    os.rename(work / "tree", home / "ready")
    shutil.rmtree(work)
    common.say(f"ready: {', '.join(versions(home / 'ready'))}")


def find_mirror():
    """The mirror that the host's apt uses for Debian itself."""
    mirror = os.environ.get("BOWHEAD_QEMU_MIRROR")
    if mirror:
        return mirror.rstrip("/").replace(" ", "%20")  # blanks end it in sources.list
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)",
         "Created-By: Packages"], capture_output=True, text=True, check=False)
    found = [line.split() for line in done.stdout.splitlines()]
    suites = {host_suite(), "stable", "oldstable", "testing", "unstable", "sid"}
    mirrors = [words[0].rstrip("/") for words in found
               if len(words) == 3 and words[1] in suites and words[2] == "main"]
    # Other vendors also name their suites after Debian's.
    return next((uri for uri in mirrors if uri.endswith("/debian")), DEFAULT_MIRROR)


def host_suite():
    text = pathlib.Path("/etc/os-release").read_text(encoding="utf-8")
    match = re.search(r'(?m)^VERSION_CODENAME="?([\w.-]+)', text)
    return match.group(1) if match else ""


def require_space(home, count):
    free = shutil.disk_usage(home).free
    if free < count:
        raise common.Failure(f"no space in {home}: {common.megabytes(count)} are needed, "
                             f"{common.megabytes(free)} are free; free some or set XDG_CACHE_HOME "
                             "to a folder on a larger file system")


def configure(work, mirror):
    for folder in ("lists/partial", "archives/partial", "no-archives/partial"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    # The host's proxies and certificates.
    acquire = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True,
                             check=True).stdout
    (work / "apt.conf").write_text(acquire + APT_CONFIGURATION.format(work, NEWER_SUITE),
                                   encoding="utf-8")
    (work / "status").write_text("", encoding="utf-8")
    (work / "sources.list").write_text(
        "".join(f"deb [signed-by={KEYRING}] {mirror} {suite} main\n"
                for suite in (SUITE, NEWER_SUITE)), encoding="utf-8")


@contextlib.contextmanager
def apt_process(work, tool, *arguments, **options):
    environment = {**os.environ, "APT_CONFIG": str(work / "apt.conf"), "LC_ALL": "C.UTF-8"}
    with subprocess.Popen([tool, *arguments], env=environment, stdin=subprocess.DEVNULL,
                          **options) as process:
        try:
            yield process
        except BaseException:
            process.terminate()  # what ended this program may not end apt, and its end is awaited
            raise


def apt(work, mirror, *arguments, tool="apt-get"):
    """Runs apt and returns its output."""
    with apt_process(work, tool, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                     text=True) as process:
        output, errors = process.communicate()
    if process.returncode:
        raise apt_failure(mirror, arguments[0], errors)
    return output


def apt_failure(mirror, action, errors):
    lines = [line for line in errors.splitlines() if line.startswith(("E:", "W:"))][-6:]
    kind = Unavailable if NO_NETWORK.search(errors) else common.Failure
    return kind("\n  ".join(
        [f"apt-get {action} failed with {mirror}:", *lines])
        + "\nCheck the network and the mirror (apt's sources, or BOWHEAD_QEMU_MIRROR), then run "
        "this again: what was downloaded is kept.")


def resolve(work, mirror):
    """The file names of the packages, the bytes to download, the bytes when unpacked."""
    # apt leaves out what is already there; elsewhere nothing is.
    uris = apt(work, mirror, "install", "--print-uris", "--yes",
               "-o", f"Dir::Cache::archives={work}/no-archives", *PACKAGES)
    found = re.findall(r"(?m)^'\S+' (([^\s_]+)_(\S+)_\w+\.deb) (\d+)", uris)
    if not found:
        raise common.Failure(f"apt found no packages for {' '.join(PACKAGES)} at {mirror}")
    version = {name: text for _, name, text, _ in found}["qemu-system-x86"]
    major = re.match(r"(?:\d+%3a)?(\d+)", version)
    if not major or int(major.group(1)) < QEMU_MAJOR:
        raise common.Failure(f"{mirror} has QEMU {version} at most; {QEMU_MAJOR} or later is "
                             f"needed: use a mirror with a current {NEWER_SUITE}")
    installed = apt(work, mirror, "show", "--no-all-versions", *(name for _, name, _, _ in found),
                    tool="apt-cache")
    kilobytes = re.findall(r"(?m)^Installed-Size: (\d+)", installed)
    download_bytes = sum(int(size) for _, _, _, size in found)
    return [file for file, _, _, _ in found], download_bytes, sum(map(int, kilobytes)) * 1024


def download(work, mirror):
    read_end, write_end = os.pipe()
    with open(work / "errors", "w+", encoding="utf-8") as errors:
        with apt_process(work, "apt-get", "install", "--download-only", "--yes", "-q=2",
                         "-o", f"APT::Status-Fd={write_end}", *PACKAGES, pass_fds=[write_end],
                         stdout=subprocess.DEVNULL, stderr=errors) as process:
            os.close(write_end)
            with open(read_end, encoding="utf-8", errors="replace") as status:
                show_progress(status)
        errors.seek(0)
        if process.returncode:
            raise apt_failure(mirror, "install --download-only", errors.read())


def show_progress(status):
    """Shows the percentages of apt's status lines: in place on a terminal, else now and then."""
    terminal = sys.stderr.isatty()
    shown = 0
    for line in status:
        match = re.match(r"dlstatus:\d+:([\d.]+):", line)
        percent = int(float(match.group(1))) if match else 0
        if percent >= shown + (1 if terminal else 25):
            shown = percent
            line = f"== {percent} % downloaded"
            print(f"\r{line}" if terminal else line, file=sys.stderr, flush=True,
                  end="" if terminal else "\n")
    if terminal and shown:
        print(file=sys.stderr)


def unpack(work, names):
    tree = work / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    # Packages name files below /lib and /usr/lib alike, and expect these links to be there.
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / "usr" / name).mkdir(parents=True)
        (tree / name).symlink_to(f"usr/{name}")

    def extract(package):
        subprocess.run(["dpkg-deb", "--extract", package, tree], check=True, capture_output=True,
                       text=True)

    packages = [work / "archives" / name for name in sorted(names)]
    try:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(extract, packages))
    except subprocess.CalledProcessError as error:
        raise common.Failure(f"{error.cmd[2]} could not be unpacked: {error.stderr.strip()}") \
            from error
    named = [name.replace("%3a", ":").split("_") for name in sorted(names)]
    (tree / "versions").write_text("".join(f"{words[0]} {words[1]}\n" for words in named),
                                   encoding="utf-8")
    for unused in ("doc", "info", "locale", "man"):
        shutil.rmtree(tree / "usr" / "share" / unused, ignore_errors=True)


def versions(tree):
    """The packages in `tree` that were asked for, with their versions."""
    lines = (tree / "versions").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.split()[0] in PACKAGES]
