"""A server for tests, which answers requests with JSON."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def send_json(handler: BaseHTTPRequestHandler, status: int, value: object) -> None:
    """Send a reply."""
    content = json.dumps(value).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


class JsonServer:
    """A server on this machine.

    Args:
        answer: Returns the reply to a path and a body, which is None in a GET. A `KeyError` becomes status 404, a
            `ValueError` 400, an `OSError` a lost connection.
    """

    def __init__(self, answer: Callable[[str, Any], Any]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(None)

            def do_POST(self) -> None:
                self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def reply(self, body: Any) -> None:
                try:
                    send_json(self, 200, answer(self.path, body))
                except OSError:
                    self.close_connection = True
                except (ValueError, KeyError) as error:
                    send_json(self, 400 if isinstance(error, ValueError) else 404, {"error": str(error)})

            def log_message(self, *arguments: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._http.shutdown()
        self._http.server_close()
