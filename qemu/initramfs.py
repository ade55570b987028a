# SPDX-License-Identifier: Apache-2.0
"""The guest's file system: an initramfs made of Debian's packages, and a second archive that is
appended for each run with the guest's programs of this folder, the command and the copied files."""

import hashlib
import io
import lzma
import os
import pathlib
import re
import shlex
import stat
import subprocess

import common
import packages

TOOLS = ["busybox", "cxl", "daxctl", "ndctl", "numactl"]
MODULES = ["cxl_acpi", "cxl_pci", "cxl_mem", "cxl_pmem", "cxl_port", "libnvdimm", "nd_pmem",
           "device_dax", "dax_pmem", "dax_hmem", "dax_cxl", "virtio_pci", "virtio_console"]
# In /lib/modules for insmod. kmem, loaded earlier, would turn CXL memory into system memory.
MODULES_ON_DEMAND = ["kmem", "uio", "uio_pci_generic", "vfio_iommu_type1", "vfio_pci", "virtio_blk"]
LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = "usr/lib64/ld-linux-x86-64.so.2"
MERGED = ["bin", "sbin", "lib", "lib64"]  # links to the folders of that name in /usr
HIDDEN = ["dev", "proc", "run", "sys", "tmp"]  # guest/init mounts file systems there
HOST_FOLDER = "host"  # of the copied files, the command's working directory
MACHINE_ID = "b0bea0b0bea0b0bea0b0bea0b0bea0b0"  # all guests are clones of one image


class Archive:
    """A cpio archive in the format newc, written to `stream`."""

    def __init__(self, stream):
        self.stream = stream
        self.folders = set()
        self.count = 0

    def _entry(self, path, mode, data, device=(0, 0)):
        self.count += 1
        name = os.fsencode(path) + b"\0"
        fields = [self.count, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name), 0]
        header = b"070701" + b"".join(b"%08x" % field for field in fields) + name
        for part in (header, data):
            self.stream.write(part + b"\0" * (-len(part) % 4))

    def folder(self, path):
        """Adds the folder with those above it, unless they are there."""
        if path in self.folders or path in ("", "."):
            return
        self.folder(os.path.dirname(path))
        self.folders.add(path)
        self._entry(path, stat.S_IFDIR | 0o755, b"")

    def file(self, path, data, mode=0o644):
        self.folder(os.path.dirname(path))
        self._entry(path, stat.S_IFREG | mode, data)

    def link(self, path, target):
        self.folder(os.path.dirname(path))
        self._entry(path, stat.S_IFLNK | 0o777, os.fsencode(target))

    def character_device(self, path, major, minor):
        self.folder(os.path.dirname(path))
        self._entry(path, stat.S_IFCHR | 0o600, b"", (major, minor))

    def end(self):
        self._entry("TRAILER!!!", 0, b"")


def base(tree):
    """The archive made of the packages in `tree`; kept there until this file changes."""
    source = pathlib.Path(__file__).read_bytes()
    path = tree / f"initramfs-{hashlib.sha256(source).hexdigest()[:12]}.cpio"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        common.say("making the guest's initramfs")
    stream = io.BytesIO()
    write_base(Archive(stream), tree)
    # Other runs may do the same: each writes a file of its own and renames it.
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(stream.getvalue())
    for old in tree.glob("initramfs-*.cpio"):
        old.unlink(missing_ok=True)
    os.rename(temporary, path)
    return stream.getvalue()


def write_base(archive, tree):
    for name in MERGED:
        archive.folder(f"usr/{name}")
        archive.link(name, f"usr/{name}")
    for name in (*HIDDEN, "etc", "var", HOST_FOLDER):
        archive.folder(name)
    archive.character_device("dev/console", 5, 1)  # the kernel opens it for /init
    archive.character_device("dev/null", 1, 3)
    archive.file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n")
    archive.file("etc/group", b"root:x:0:\n")
    archive.file("etc/machine-id", f"{MACHINE_ID}\n".encode())

    libraries = set()
    for tool in TOOLS:
        archive.file(f"usr/bin/{tool}", (tree / "usr/bin" / tool).read_bytes(), 0o755)
        libraries |= libraries_of(tree, f"usr/bin/{tool}")
    for applet in loaded(tree, tree / "usr/bin/busybox", "--list").split():
        archive.link(f"usr/bin/{applet}", "busybox")
    archive.file(LOADER, (tree / LOADER).read_bytes(), 0o755)
    for library in sorted(libraries):
        archive.file(library, (tree / library).read_bytes(), 0o755)
    write_modules(archive, tree)
    archive.end()


def loaded(tree, *arguments):
    """Runs the loader of `tree` with the libraries there and returns the output."""
    done = subprocess.run([tree / LOADER, "--library-path", tree / LIBRARIES, *arguments],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        raise common.Failure(f"{tree / LOADER} failed on {arguments}: {done.stderr.strip()}; "
                             f"delete {tree}, so that the next run fetches it anew")
    return done.stdout


def libraries_of(tree, program):
    output = loaded(tree, "--list", tree / program)
    names = re.findall(r"(?m)^\s*([^\s/]+) => /\S+", output)
    return {f"{LIBRARIES}/{name}" for name in names}


def kernel(tree):
    """The kernel image: newer packages have it beside the modules, older ones in /boot."""
    found = [*tree.glob("usr/lib/modules/*/vmlinuz"), *tree.glob("boot/vmlinuz-*")]
    if not found:
        raise common.Failure(f"no kernel in {tree}: {', '.join(packages.PACKAGES)} brought none")
    return found[0]


def write_modules(archive, tree):
    """Adds the decompressed modules, and the list of those to load, in order of dependency."""
    folder = next(tree.glob("usr/lib/modules/*/modules.builtin")).parent
    built_in = {module_name(line) for line in
                (folder / "modules.builtin").read_text(encoding="utf-8").splitlines()}
    files = {module_name(path.name): path for path in folder.rglob("*.ko*")}
    order = []

    def add(name):
        if name in built_in or name in order:
            return
        if name not in files:
            raise common.Failure(f"the kernel in {tree} has no module {name}")
        data = files[name].read_bytes()
        if files[name].suffix == ".xz":
            data = lzma.decompress(data)
        depends = re.search(rb"\0depends=([^\0]*)\0", data)
        for needed in depends.group(1).decode().split(",") if depends else []:
            if needed:
                add(module_name(needed))
        archive.file(f"usr/lib/modules/{name}.ko", data)
        order.append(name)

    for name in MODULES:
        add(name)
    order_text = "".join(f"{name}\n" for name in order)
    for name in MODULES_ON_DEMAND:
        add(name)
    archive.file("usr/lib/modules/order", order_text.encode())


def module_name(path):
    return os.path.basename(path).split(".ko")[0].replace("-", "_")


def overlay(tree, copies, settings, command):
    """The archive of one run: `copies` are pairs of a path here and a path in the guest or None;
    `settings` become variables of /init; `command` is a list of words, or None for a shell."""
    stream = io.BytesIO()
    archive = Archive(stream)
    for name in ("init", "cxl-setup"):
        path = name if name == "init" else f"usr/bin/{name}"
        archive.file(path, (common.FOLDER / "guest" / name).read_bytes(), 0o755)
    lines = [f"{name}={shlex.quote(str(value))}\n" for name, value in settings.items()]
    archive.file("etc/guest", "".join(lines).encode())
    if command:
        archive.file("etc/command", os.fsencode(f"exec {shlex.join(command)}\n"))
    libraries = set()
    for here, there in copies:
        there = there or f"{HOST_FOLDER}/{here.name}"
        if there.split("/")[0] in MERGED:
            there = f"usr/{there}"  # a folder would replace the link
        libraries |= copy(archive, here, there)
    add_libraries(archive, tree, libraries)
    archive.end()
    return stream.getvalue()


def add_libraries(archive, tree, host_paths):
    """Adds the libraries of the guest's Debian in place of the host's, where it has them: they are
    newer and compatible, and those of the C library must be of one version."""
    of_guest = set()
    for path in sorted(host_paths):
        name = f"{LIBRARIES}/{path.name}"
        if (tree / name).exists():
            of_guest |= {name} | libraries_of(tree, name)
        else:
            archive.file(name, path.read_bytes(), 0o755)
    for name in sorted(of_guest):
        archive.file(name, (tree / name).read_bytes(), 0o755)


def copy(archive, here, there):
    """Adds a file or a folder; returns the shared libraries that its programs need."""
    if here.is_dir():
        archive.folder(there)
        libraries = set()
        for path in sorted(here.iterdir()):
            name = f"{there}/{path.name}"
            if path.is_symlink():
                archive.link(name, os.readlink(path))
            elif path.is_dir() or path.is_file():  # not a socket or a pipe
                libraries |= copy(archive, path, name)
        return libraries
    try:
        data = here.read_bytes()
    except OSError as error:
        raise common.Failure(f"--copy {here}: {error.strerror}", common.USAGE) from error
    archive.file(there, data, stat.S_IMODE(here.stat().st_mode))
    return host_libraries(here) if data[:4] == b"\x7fELF" else set()


def host_libraries(program):
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    missing = re.findall(r"(?m)^\s*(\S+) => not found", done.stdout)
    if missing:
        raise common.Failure(f"--copy {program}: this host lacks its shared libraries "
                             f"{', '.join(missing)}", common.USAGE)
    return {pathlib.Path(path) for path in re.findall(r"(?m) => (/.+) \(", done.stdout)}
