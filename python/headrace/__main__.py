"""python -m headrace info: the build, the machine, the kernels. Other commands are those of the program."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys

from . import __version__, _library, _program, _structs, devices
from ._devices import num_cuda_devices

_OTHERS = ("numpy", "torch", "transformers", "ml_dtypes")


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _kernels(device_type: int) -> list[tuple[str, str]]:
    library = _library.LIBRARY
    rows = []
    for phase in (_structs.FORWARD, _structs.BACKWARD):
        for i in range(library.headrace_num_kernels(device_type, phase)):
            name = library.headrace_kernel_name(device_type, phase, i)
            rows.append((name.decode(), library.headrace_kernel_summary(device_type, phase, i).decode()))
    return rows


def _info_rows() -> list[tuple[str, str]]:
    rows = [
        ("version", __version__),
        ("library", str(_library.PATH)),
        ("build", _library.LIBRARY.headrace_build_info().decode()),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("libc", " ".join(platform.libc_ver()) or "unknown"),
        *((name, _version_of(name)) for name in _OTHERS),
    ]
    for device in devices():
        units = "threads" if device.sm == 0 else f"multiprocessors, sm{device.sm}"
        rows.append((device.name, f"{device.description}, {device.num_units} {units}"))
    try:
        if num_cuda_devices() == 0:
            rows.append(("cuda", "no device"))
    except (RuntimeError, ValueError) as error:
        rows.append(("cuda", str(error)))
    for device_type in (_structs.CPU, _structs.CUDA):
        rows += [(f"{_structs.DEVICE_NAMES[device_type]} kernel", f"{n}: {text}") for n, text in _kernels(device_type)]
    return rows


def _info() -> int:
    rows = _info_rows()
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] != "info" and not arguments[0].startswith("-"):
        return _program.run(arguments)
    parser = argparse.ArgumentParser(prog="python -m headrace", description="Headrace from the shell.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="show devices, kernels and versions")
    commands.add_parser("serve", help="serve a model over HTTP, with a page to chat; without -m SmolLM2-135M")
    commands.add_parser("...", help="the other commands of the headrace program: python -m headrace help")
    parser.parse_args(arguments)
    return _info()


if __name__ == "__main__":
    sys.exit(main())
