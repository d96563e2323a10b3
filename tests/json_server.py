"""A server for tests, which answers requests with JSON."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class JsonServer:
    """A server on this machine.

    Args:
        answer: Returns the reply to a path and a body, which is None in a GET. A `KeyError` becomes status 404, a
            `ValueError` 400, an `OSError` a lost connection.
    """

    def __init__(self, answer: Callable[[str, Any], Any]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(answer(self.path, None))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    self.reply(answer(self.path, body))
                except OSError:
                    self.close_connection = True
                except (ValueError, KeyError) as error:
                    self.reply({"error": str(error)}, 400 if isinstance(error, ValueError) else 404)

            def reply(self, value: Any, status: int = 200) -> None:
                text = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._http.shutdown()
        self._http.server_close()
