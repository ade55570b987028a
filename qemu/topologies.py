# SPDX-License-Identifier: Apache-2.0
"""The machines that qemu/run knows by name: guests, CXL devices, and what lies between them.

To add one, add an entry to ALL. docs/qemu.md draws them.
"""

import dataclasses
import itertools

MIB = 1 << 20
DEVICE_BYTES = 512 * MIB  # regions are multiples of 256 MiB
LABEL_BYTES = 1 * MIB

# One host bridge with two root ports; the window of physical addresses for its memory.
BRIDGE = ["pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1",
          "cxl-rp,port=0,bus=cxl.1,id=rp0,chassis=0,slot=2",
          "cxl-rp,port=1,bus=cxl.1,id=rp1,chassis=0,slot=3"]
WINDOW = "cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G"
SWITCH = [*BRIDGE, "cxl-upstream,bus=rp0,id=up0",
          "cxl-downstream,port=0,bus=up0,id=down0,chassis=0,slot=4",
          "cxl-downstream,port=1,bus=up0,id=down1,chassis=0,slot=5"]


@dataclasses.dataclass(frozen=True)
class Topology:
    summary: str
    devices: list  # as on QEMU's command line, without -device
    memories: dict  # name: size in bytes; shared by all guests
    setup: str = "volatile"  # how guest/cxl-setup prepares the memory
    guests: int = 1
    needs_host_command: bool = False
    interleaved: bool = False  # emulated access by access, not mapped
    shared_ram: bool = False  # so that processes of this host can be devices of the guest
    iommu: bool = False

    def arguments(self, paths):
        """Arguments of QEMU; `paths` has the file of each memory."""
        objects = [f"memory-backend-file,id={name},size={size},share=on,mem-path={paths[name]}"
                   for name, size in self.memories.items()]
        machine = f"q35,cxl=on,{WINDOW}"
        if self.shared_ram:
            objects.append("memory-backend-memfd,id=ram,size=1G,share=on")
            machine += ",memory-backend=ram"
        devices = self.devices
        if self.iommu:
            devices = ["intel-iommu,intremap=on,caching-mode=on", *devices]  # first
            machine += ",kernel-irqchip=split"
        return ["-M", machine,
                *itertools.chain(*(("-object", text) for text in objects)),
                *itertools.chain(*(("-device", text) for text in devices))]


def volatile(number, bus):
    """A device with the memory of that number. Serial numbers begin at 1."""
    return (f"cxl-type3,bus={bus},volatile-memdev=memory{number},id=device{number},"
            f"sn={number + 1}")


ONE = [*BRIDGE, volatile(0, "rp0")]
SLOT = "pcie-root-port,bus=pcie.0,id=card0,chassis=1,slot=8"
ONE_MEMORY = {"memory0": DEVICE_BYTES}
TWO_MEMORIES = {"memory0": DEVICE_BYTES, "memory1": DEVICE_BYTES}

ALL = {
    "one-volatile": Topology("one guest, one volatile device: /dev/dax0.0", ONE, ONE_MEMORY),
    "one-persistent": Topology(
        "one guest, one persistent device with a label area; --state keeps both",
        [*BRIDGE, "cxl-type3,bus=rp0,persistent-memdev=memory0,lsa=labels0,id=device0,sn=1"],
        {"memory0": DEVICE_BYTES, "labels0": LABEL_BYTES}, setup="persistent"),
    "two-devices": Topology(
        "one guest, two volatile devices: /dev/dax0.0 and /dev/dax1.0",
        [*BRIDGE, volatile(0, "rp0"), volatile(1, "rp1")], TWO_MEMORIES),
    "interleaved": Topology(
        "the same two devices as one interleaved region: /dev/dax0.0 (slow: see docs/qemu.md)",
        [*BRIDGE, volatile(0, "rp0"), volatile(1, "rp1")], TWO_MEMORIES, setup="interleaved",
        interleaved=True),
    "switch": Topology(
        "one guest, two volatile devices behind a switch: /dev/dax0.0 and /dev/dax1.0",
        [*SWITCH, volatile(0, "down0"), volatile(1, "down1")], TWO_MEMORIES),
    "two-guests": Topology("two guests, one memory: each has it as /dev/dax0.0", ONE, ONE_MEMORY,
                           guests=2),
    "four-guests": Topology("four guests, one memory: each has it as /dev/dax0.0", ONE,
                            ONE_MEMORY, guests=4),
    "guest-and-host": Topology(
        "one guest and a command on this host (--host), one memory: /dev/dax0.0 and $MEMORY0",
        ONE, ONE_MEMORY, needs_host_command=True),
    "card-and-host": Topology(
        "the same; a process of this host can be a PCI function of the guest (bus=card0)",
        [*ONE, SLOT], ONE_MEMORY, needs_host_command=True, shared_ram=True),
    "card-and-iommu": Topology(
        "the same with an IOMMU, which gives the function to a process of the guest (vfio-pci)",
        [*ONE, SLOT], ONE_MEMORY, needs_host_command=True, shared_ram=True, iommu=True),
    "hot-plug": Topology(
        "one guest, one volatile device; a second one can be plugged in by QMP (--host)",
        ONE, TWO_MEMORIES),
}
