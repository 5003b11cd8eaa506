"""A local server in the place of a model: it replays answers, good ones and bad ones."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What the server says to one request."""

    status: int = 200
    body: str = ""
    wait_s: float = 0.0


def said(text: str | None, finish: str = "stop", tokens: tuple[int, int] = (100, 50), **message: Any) -> Reply:
    """A whole chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
    return Reply(body=json.dumps(body))


def failed(status: int, message: str = "later") -> Reply:
    """An error as servers give it."""
    return Reply(status, json.dumps({"error": {"message": message}}))


class ReplayServer:
    """Answers request number i with `script(i, body)` and remembers all bodies."""

    def __init__(self, script: Callable[[int, dict[str, Any]], Reply]) -> None:
        self.script, self.bodies = script, []
        self.most_at_once = self._now = 0
        lock, server = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    server.bodies.append(body)
                    server._now += 1
                    server.most_at_once = max(server.most_at_once, server._now)
                    reply = server.reply(len(server.bodies) - 1, body)
                time.sleep(reply.wait_s)
                payload = reply.body.encode()
                self.send_response(reply.status)
                for name, value in (("Content-Type", "application/json"), ("retry-after-ms", "1")):
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)
                with lock:
                    server._now -= 1

            def log_message(self, *_: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """A client that gave up is part of the tests."""

        self._http = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def reply(self, number: int, body: dict[str, Any]) -> Reply:
        """What is said to one request."""
        return self.script(number, body)

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
