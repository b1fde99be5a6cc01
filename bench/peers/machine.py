"""Machine and revision for reports, and the progress line."""

import pathlib
import platform
import re
import subprocess
import sys


def cpu_name():
    match = re.search(r"model name\s*:\s*(.+)", pathlib.Path("/proc/cpuinfo").read_text())
    return match[1] if match else platform.processor()


def revision():
    try:
        git = ["git", "describe", "--always", "--dirty", "--tags"]
        folder = pathlib.Path(__file__).parent
        return subprocess.run(git, cwd=folder, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def progress(text):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
