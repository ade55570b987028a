#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""End-to-end tests of pools in guests with emulated CXL memory. CMake runs each as a test of its
own; by hand: tests/qemu/scenarios.py --build build/release NAME"""

import argparse
import pathlib
import sys

import chaos
import device
import guests
import one_host
import two_hosts

MODULES = (chaos, device, one_host, two_hosts)  # imported for what they register


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=guests.ALL, metavar="NAME")
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.add_argument("--build", type=pathlib.Path, default="build/release",
                        help="the build folder (default: %(default)s)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.list:
        print("\n".join(guests.ALL))
        return 0
    if not options.name:
        parser.error("NAME is missing: see --list")
    if options.inside:
        guests.run_inside(options.name)
        return 0
    return guests.run(pathlib.Path(__file__).resolve(), options.name, options.build)


if __name__ == "__main__":
    sys.exit(main())
