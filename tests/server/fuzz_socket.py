#!/usr/bin/env python3
"""Malformed requests over sockets: the server answers with 4xx or closes, needs no more memory, and goes on.

    fuzz_socket.py PROGRAM MODEL [COUNT [SEED]]

Exit codes: 0 as it should be, 1 a 5xx other than 503, a growing resident set, or a server that has ended.
"""

import collections
import pathlib
import random
import re
import socket
import sys

from served import Server

CORPUS = pathlib.Path(__file__).resolve().parents[1] / "fuzz" / "corpus" / "request"
PATHS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/v1/models/%", "/metrics"]
PIECES = [
    b"\r\n", b"\r\n\r\n", b":", b" ", b"\0", b"\xff", b"GET ", b"HTTP/1.1", b"HTTP/9.9", b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"{", b"}", b"[", b'"',
    b"null", b"1e999", b"\\u0000", b"-1", b"zz\r\n", b"0\r\n\r\n", b"Connection: close\r\n",
]
MAX_GROWTH = 16 << 20


def request(bodies, pick):
    body = pick.choice(bodies)
    if pick.random() < 0.7:
        body = mutated(body, pick)
    head = f"{pick.choice(['POST', 'POST', 'POST', 'GET'])} {pick.choice(PATHS)} HTTP/1.1\r\nHost: a\r\n".encode()
    whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    return mutated(whole, pick) if pick.random() < 0.4 else whole


def mutated(data, pick):
    data = bytearray(data)
    for _ in range(pick.randint(1, 5)):
        at, end = sorted(pick.choices(range(len(data) + 1), k=2))
        kind = pick.randrange(4)
        if kind == 0:
            data[at:at] = pick.choice(PIECES)
        elif kind == 1:
            data[at:at + pick.randrange(16)] = pick.choice(PIECES)
        elif kind == 2:
            data[at:at] = data[at:min(end, at + 64)]
        elif data:
            data[min(at, len(data) - 1)] = pick.randrange(256)
    return bytes(data)


def answer(server, data):
    """The status of the first answer; 0: none, as the request is not complete, or the server has closed."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        try:
            connection.sendall(data)
            connection.settimeout(0.05)
            received = connection.recv(4096)
        except (ConnectionError, TimeoutError):
            return 0
    status = re.match(rb"HTTP/1\.1 (\d\d\d) ", received)
    return int(status.group(1)) if status else 0


def resident_bytes(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) << 10


def main():
    program, model, *numbers = sys.argv[1:]
    count, seed = ([int(number) for number in numbers] + [100000, 1][len(numbers):])
    pick = random.Random(seed)
    bodies = [path.read_bytes()[1:] for path in sorted(CORPUS.iterdir())]
    statuses = collections.Counter()
    with Server(program, model, "--template", "qwen2.5") as server:
        for i in range(count):
            if i == count // 5:
                before = resident_bytes(server)
            statuses[answer(server, request(bodies, pick))] += 1
        growth = resident_bytes(server) - before
        health = server.ask("GET", "/health")[0]
    print(f"{count} requests: {dict(sorted(statuses.items()))}")
    print(f"resident set after the first fifth: {growth / 1e6:+.1f} MB; /health: {health}")
    is_wrong = any(status >= 500 and status != 503 for status in statuses)
    return 1 if is_wrong or growth > MAX_GROWTH or health != 200 else 0


if __name__ == "__main__":
    sys.exit(main())
