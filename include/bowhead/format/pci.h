/* SPDX-License-Identifier: Apache-2.0 */
/* The device as a PCI function (docs/device-pci.md): its identity, and the registers of BAR 0, by
 * which a driver tells it where the memory of a pool lies. Requests and answers go through the
 * queue pairs of that pool (bowhead/format/device.h). */
#ifndef BOWHEAD_FORMAT_PCI_H
#define BOWHEAD_FORMAT_PCI_H

#include <bowhead/format/common.h>

/* Of a range that QEMU's docs/specs/pci-ids reserves for experiments. */
#define BH_PCI_VENDOR 0x1AF4u
#define BH_PCI_DEVICE 0x10F8u
#define BH_PCI_CLASS 0x120000u /* processing accelerator */

#define BH_PCI_BAR_BYTES 4096u
#define BH_PCI_MAGIC 0x56444842u /* "BHDV" */
#define BH_PCI_VERSION 1u

/* Registers of 32 bits, little-endian, by their offset in BAR 0. Accesses are aligned and have a
 * multiple of 4 bytes; others store nothing. A 64-bit number has its low half first. WINDOW and
 * BYTES are taken while CONTROL is 0. */
enum {
  BH_PCI_REG_MAGIC = 0x00,    /* BH_PCI_MAGIC */
  BH_PCI_REG_VERSION = 0x04,  /* BH_PCI_VERSION */
  BH_PCI_REG_STATE = 0x08,    /* BH_PCI_DISABLED, ... */
  BH_PCI_REG_STATUS = 0x0C,   /* bowhead/status.h: why the state is FAILED */
  BH_PCI_REG_WINDOW = 0x10,   /* written: DMA address of the pool's first byte, 64 bits */
  BH_PCI_REG_BYTES = 0x18,    /* written: of the window, 64 bits; the pool has no more */
  BH_PCI_REG_CONTROL = 0x20,  /* written: 1 enables, 0 disables, also after a failure. Bus Master of
                                 the command register must be set, and stay so */
  BH_PCI_REG_DOORBELL = 0x24, /* written, anything: there are commands */
  BH_PCI_REG_SIGNAL = 0x28,   /* written, anything: the next completions are signalled, once */
  BH_PCI_REG_TEXT = 0x100     /* the sentence of STATUS, BH_PCI_TEXT_BYTES, zeros behind it */
};
#define BH_PCI_TEXT_BYTES 256u
/* Behind the registers: MSI-X, one vector. */
#define BH_PCI_MSIX_TABLE 0x800u
#define BH_PCI_MSIX_PENDING 0xC00u

/* States. */
enum {
  BH_PCI_DISABLED = 0,
  BH_PCI_STARTING = 1, /* it opens the pool, which may take a second */
  BH_PCI_READY = 2,
  BH_PCI_FAILED = 3
};

#endif
