"""A server with the API of headrace serve, whose answers a test chooses; it records the requests."""

import functools
import http.server
import json
import pathlib
import threading
import time

WEB = pathlib.Path(__file__).parents[2] / "server" / "web"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


def token(text, logprob, top=()):
    """text: a string or the bytes of a part of a character."""
    data = text.encode() if isinstance(text, str) else text
    named = {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}
    return named | {"top_logprobs": [token(*one) for one in top]}


class Server:
    """While a test changes no attribute: the answer "Hello, world." in three tokens, and no API key."""

    def __init__(self):
        self.bodies = []  # of the chat requests, parsed
        self.num_disconnects = 0  # of readers of a stream
        self.paths = []
        self.api_key = None
        self.chunks = [("Hello", None), (", world", None), (".", None)]  # (text, list of tokens)
        self.seconds = 0  # between chunks
        self.gate = None  # threading.Event that the second text waits for
        self.refusal = None  # (status, headers, body)
        self.tail = "data: [DONE]\n\n"
        self.finish_reason = "stop"
        self.split = None  # bytes of a write; None: whole events
        self.engine = {}
        handler = functools.partial(Handler, self)
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()

    def events(self):
        """(seconds to wait, bytes) of a stream, the usage last."""
        choice = {"index": 0, "finish_reason": None, "logprobs": None}
        parts = [{"choices": [choice | {"delta": {"role": "assistant", "content": ""}}]}]
        for text, tokens in self.chunks:
            logprobs = tokens and {"content": tokens}
            parts.append({"choices": [choice | {"delta": {"content": text}, "logprobs": logprobs}]})
        parts.append({"choices": [choice | {"delta": {}, "finish_reason": self.finish_reason}]})
        parts.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": len(self.chunks)}})
        for i, part in enumerate(parts):
            if i == 2 and self.gate:
                self.gate.wait()
            yield self.seconds if i else 0, f"data: {json.dumps(part)}\n\n".encode()
        yield 0, self.tail.encode()


class Handler(http.server.BaseHTTPRequestHandler):
    def __init__(self, server, *args):
        self.fake = server
        super().__init__(*args)

    def log_message(self, *_):
        pass

    def reply(self, status, headers, body):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", len(body))
        self.end_headers()
        self.wfile.write(body)

    def reply_json(self, status, value, headers=None):
        self.reply(status, {"Content-Type": "application/json"} | (headers or {}), json.dumps(value).encode())

    def is_refused(self):
        key = self.fake.api_key
        if key is None or self.headers["Authorization"] == f"Bearer {key}":
            return False
        self.reply_json(401, {"error": {"message": "no valid API key"}})
        return True

    def do_GET(self):
        self.fake.paths.append(self.path)
        asset = WEB / (self.path[1:] or "index.html")
        if asset.parent == WEB and asset.is_file():
            content_type = f"{TYPES[asset.suffix]}; charset=utf-8"
            policy = {"Content-Type": content_type, "Content-Security-Policy": "default-src 'self'"}
            self.reply(200, policy, asset.read_bytes())
        elif self.path == "/favicon.ico":
            self.reply(204, {}, b"")
        elif self.is_refused():
            pass
        elif self.path == "/v1/models":
            self.reply_json(200, {"data": [{"id": "fake-1b", "max_model_len": 2048}]})
        elif self.path == "/v1/engine":
            engine = self.fake.engine
            self.reply_json(200, engine() if callable(engine) else engine)
        else:
            self.reply_json(404, {"error": {"message": f"there is no {self.path}"}})

    def do_POST(self):
        self.fake.paths.append(self.path)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.is_refused():
            return
        self.fake.bodies.append(body)
        if self.fake.refusal:
            self.reply(*self.fake.refusal)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for seconds, event in self.fake.events():
                time.sleep(seconds)
                step = self.fake.split or len(event)
                for i in range(0, len(event), step):
                    self.wfile.write(event[i : i + step])
        except (BrokenPipeError, ConnectionResetError):
            self.fake.num_disconnects += 1
