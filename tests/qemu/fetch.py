#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches QEMU and the guests' packages. A test of its own, before all those in guests, so that
the time of the download is not theirs."""

import sys

import guests

if __name__ == "__main__":
    sys.exit(guests.fetch())
