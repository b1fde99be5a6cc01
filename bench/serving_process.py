"""Runs `headrace serve` for a measurement, and reads what it takes of the machine from /proc (Linux)."""

import datetime
import http.client
import json
import os
import pathlib
import platform
import re
import subprocess
import time

TICKS = os.sysconf("SC_CLK_TCK")


class ServingProcess:
    """On a free port, until the end of the with statement. arguments: of the program, after `serve`."""

    def __init__(self, program, model, *arguments):
        command = [program, "serve", "-m", model, "--port", "0", "--served-model-name", "model", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        text = ""
        for line in self.process.stderr:
            if ready := re.search(r"ready at http://127\.0\.0\.1:(\d+)/", line):
                self.port = int(ready.group(1))
                return
            text += line
        raise RuntimeError(f"the server did not start: {text}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.stderr.close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def sample(self):
        """Time in s, memory in MiB, open files, threads, CPU seconds by thread (that of connections is "main").

        heap: anonymous memory, also what the kernel has swapped out, so that its reclaim does not show.
        """
        folder = pathlib.Path("/proc") / str(self.process.pid)
        kib = {name: int(size) for name, size in re.findall(r"(\w+):\s+(\d+) kB", (folder / "status").read_text())}
        cpu = {}
        for task in (folder / "task").iterdir():
            # utime and stime; the name before them may have spaces.
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            name = "main" if task.name == str(self.process.pid) else task.name
            cpu[name] = (int(fields[11]) + int(fields[12])) / TICKS
        return {
            "time": time.monotonic(),
            "rss_mib": round(kib["VmRSS"] / 1024, 2),
            "heap_mib": round((kib["RssAnon"] + kib["VmSwap"]) / 1024, 2),
            "files": len(list((folder / "fd").iterdir())),
            "threads": len(cpu),
            "cpu": cpu,
        }


def cpu_shares(first, last):
    """Cores that the thread of connections and all others took between two samples."""
    seconds = last["time"] - first["time"]
    used = {name: last["cpu"][name] - first["cpu"].get(name, 0) for name in last["cpu"]}
    return {
        "connections": round(used["main"] / seconds, 3),
        "others": round(sum(share for name, share in used.items() if name != "main") / seconds, 3),
    }


def meta(benchmark, command, program):
    """What is needed to repeat a run; local folder names are left out."""
    models = re.findall(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    build = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return {
        "benchmark": benchmark,
        "command": " ".join(pathlib.Path(word).name if "/" in word else word for word in command),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": f"{models[0] if models else platform.machine()}, {os.cpu_count()} CPUs",
        "operating_system": platform.platform(),
        "build": build.splitlines()[0],
        "python": platform.python_version(),
    }


def write(path, result):
    text = json.dumps(result, indent=1)
    print(text)
    if path:
        pathlib.Path(path).write_text(text + "\n", encoding="utf-8")
