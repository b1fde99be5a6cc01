"""What the source checks share: the tree's files, the report, and the self-test that shows a check can fail."""

import argparse
import pathlib
import subprocess
import sys
import tempfile

SKIPPED_FOLDERS = {".git", "build", "__pycache__"}
SKIPPED = 77  # the exit status of a check whose tool is missing


class Skip(Exception):
    """A check cannot run here; the text says what is missing."""


def tracked_files(root):
    """The files git tracks or would track under root, as sorted paths relative to it; without git, every file."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (root / ".git").exists():
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
        paths = (pathlib.PurePosixPath(name) for name in listed if name)
    else:
        paths = (pathlib.PurePosixPath(p.relative_to(root).as_posix()) for p in root.rglob("*"))
    return sorted(
        p for p in set(paths) if (root / p).is_file() and not SKIPPED_FOLDERS.intersection(p.parts[:-1])
    )


def read_text(path):
    """The file's text, or None where it is not UTF-8 text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def write_tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def self_test(check, cases):
    """cases: (name, files, expected), where expected is a text that the findings must hold, or None for no finding."""
    failures = []
    for name, files, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            write_tree(root, files)
            findings = check(root)
        if expected is None and findings:
            failures.append(f"{name}: expected no finding, got {findings}")
        elif expected is not None and not any(expected in f for f in findings):
            failures.append(f"{name}: expected '{expected}', got {findings}")
    return failures


def main(description, check, cases, add_arguments=None, configure=None):
    """check(root) returns findings, one line of text each. Exits 1 where there is one, 77 where a tool is missing."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("root", nargs="?", default=str(pathlib.Path(__file__).resolve().parent.parent))
    parser.add_argument("--self-test", action="store_true", help="prove on small bad trees that the check can fail")
    if add_arguments:
        add_arguments(parser)
    args = parser.parse_args()
    name = pathlib.Path(sys.argv[0]).name
    try:
        if configure:
            configure(args)
        findings = self_test(check, cases) if args.self_test else check(pathlib.Path(args.root).resolve())
    except Skip as missing:
        print(f"{name}: skipped: {missing}")
        sys.exit(SKIPPED)
    for finding in findings:
        print(finding)
    what = f"self-test, {len(cases)} cases" if args.self_test else "check"
    print(f"{name}: {what}: {len(findings)} finding(s)")
    sys.exit(1 if findings else 0)
