"""Runs `headrace serve` for a test, and sends it requests."""

import http.client
import json
import pathlib
import re
import struct
import subprocess


def write_with_context(model, num_tokens, path):
    """Copies a GGUF file with another context length, a number of four bytes behind its key and type."""
    data = pathlib.Path(model).read_bytes()
    key, types = re.search(rb"(?:llama|qwen2)\.context_length(?=\x04\0\0\0)", data), 4
    at = key.end() + types
    path.write_bytes(data[:at] + struct.pack("<I", num_tokens) + data[at + 4:])
    return path


class Server:
    """On a free port, until the end of the with statement. arguments: of the program, after `serve`."""

    def __init__(self, program, model, *arguments):
        command = [program, "serve", "-m", model, "--port", "0", "--served-model-name", "tiny", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if ready := re.search(r"ready at http://127\.0\.0\.1:(\d+)/", line):
                self.port = int(ready.group(1))
                return
        raise RuntimeError("the server did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method, path, body=None, headers=None):
        """Status, headers and text of the answer. body: JSON, or bytes as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()
