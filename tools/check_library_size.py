#!/usr/bin/env python3
"""check_library_size.py STRIP LIBRARY LIMIT: the library without its symbol table has less than LIMIT bytes."""

import os
import pathlib
import subprocess
import sys
import tempfile


def stripped_bytes(strip, library):
    with tempfile.TemporaryDirectory() as folder:
        stripped = pathlib.Path(folder) / "stripped"
        subprocess.run([strip, "-o", str(stripped), library], check=True)
        return stripped.stat().st_size


def check(strip, library, limit):
    size = stripped_bytes(strip, library)
    print(f"check_library_size.py: {os.path.basename(library)}: {size} bytes, the limit is {limit}")
    return 0 if size < limit else 1


def self_test(strip, library):
    """Just below the limit and on it."""
    size = stripped_bytes(strip, library)
    wrong = [limit for limit, expected in ((size + 1, 0), (size, 1)) if check(strip, library, limit) != expected]
    print(f"check_library_size.py: self-test, 2 cases: {len(wrong)} wrong {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[3:] == ["--self-test"]:
        sys.exit(self_test(*sys.argv[1:3]))
    sys.exit(check(sys.argv[1], sys.argv[2], int(sys.argv[3])))
