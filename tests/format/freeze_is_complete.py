# SPDX-License-Identifier: Apache-2.0
"""Every struct and number that the format headers define must be named by the freeze test.

Usage: freeze_is_complete.py HEADER_FOLDER LAYOUT_FREEZE_TEST. (That all fields of a struct are
listed is checked by the freeze test itself: they must cover it.)"""

import pathlib
import re
import sys


def defined_names(text):
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    names = re.findall(r"\btypedef\s+struct\s+\w+\s*\{[^}]*\}\s*(\w+)\s*;", text)
    for body in re.findall(r"\benum\s*\w*\s*\{([^}]*)\}", text):
        names += re.findall(r"(?:^|,)\s*(\w+)", body)
    names += re.findall(r"(?m)^#define (\w+)[ \t]+\S", text)  # neither guards nor macro functions
    return names


def main(folder, test):
    listed = set(re.findall(r"\w+", pathlib.Path(test).read_text(encoding="utf-8")))
    count = missing = 0
    for header in sorted(pathlib.Path(folder).glob("*.h")):
        for name in defined_names(header.read_text(encoding="utf-8")):
            count += 1
            if name not in listed:
                print(f"{header.name}: {name} is not in {pathlib.Path(test).name}")
                missing += 1
    print(f"{count} names, {missing} missing")
    return 1 if missing or count < 100 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
