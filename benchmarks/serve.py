"""Measure `reflectune serve` on the miniature: questions a second of 1 and 16 clients, and the first event's delay.

    python benchmarks/serve.py --run runs/quickstart

The server is a process of its own. Each client asks the next question when its answer is there.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import statistics
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from results import Benchmark, table

from reflectune.examples.staging import program
from reflectune.formats.dataset import Dataset

CLIENTS = (1, 16)


def bodies(run: Path, questions: int) -> list[bytes]:
    """Return requests of different questions about different images."""
    dataset = Dataset(run / "world")
    made = []
    for question in itertools.islice(dataset.questions("val_unseen_entity"), questions):
        image = base64.b64encode((dataset.root / question.image).read_bytes()).decode()
        made.append(json.dumps({"question": question.text, "image": f"data:image/jpeg;base64,{image}"}).encode())
    return made


def ask(port: int, body: bytes) -> float:
    """Ask a question; return the seconds until the first event."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    start = time.perf_counter()
    connection.request("POST", "/answer", body)
    reply = connection.getresponse()
    reply.readline()
    first = time.perf_counter() - start
    if reply.status != 200 or b"event: done" not in reply.read():
        raise RuntimeError(f"a question was not answered: status {reply.status}")
    connection.close()
    return first


def rate(port: int, requests: list[bytes], clients: int, seconds: float) -> dict[str, float]:
    """Return the questions a second of some clients, and the delays of first events."""
    following, end, delays = itertools.cycle(requests), time.perf_counter() + seconds, list[float]()

    def client() -> None:
        while time.perf_counter() < end:
            delays.append(ask(port, next(following)))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken, quantiles = time.perf_counter() - start, statistics.quantiles(delays, n=20)
    return {
        "questions_a_second": len(delays) / taken,
        "first_event_ms": 1000 * statistics.median(delays),
        "first_event_ms_95": 1000 * quantiles[-1],
    }


def measure(run: Path, device: str, seconds: float) -> dict[str, Any]:
    """Start a server, and return its figures by the number of clients."""
    keys = ("--dataset", f"{run}/world", "--index", f"{run}/index", "--model", f"{run}/checkpoint", "--page", "false")
    command = [*program("inference.serve"), *keys, "--device", device, "--port", "0", "--max_new_tokens", "16"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            ready = next((line for line in server.stdout if line.startswith("serving on")), None)
            if ready is None:
                raise SystemExit("the server has ended; its error stands above")
            port = int(ready.rpartition(":")[2])
            requests = bodies(run, 64)
            rate(port, requests, 16, seconds / 4)
            figures = {str(clients): rate(port, requests, clients, seconds) for clients in CLIENTS}
            memory = psutil.Process(server.pid).memory_info().rss / 2**20
        finally:
            server.terminate()
    return {"clients": figures, "memory_mib": memory}


def ratio(figures: dict[str, Any]) -> float:
    """Return the questions a second of 16 clients, as a multiple of one client's."""
    one, many = (figures["clients"][str(clients)]["questions_a_second"] for clients in CLIENTS)
    return float(many / one)


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's table."""
    rows = [
        (clients, row["questions_a_second"], row["first_event_ms"], row["first_event_ms_95"])
        for clients, row in figures["clients"].items()
    ]
    head = ("clients", "questions a second", "first event, ms", "95 % within, ms")
    return [*table(head, rows), "", f"Memory: {figures['memory_mib']:.0f} MiB. 16 clients: {ratio(figures):.2f} × one."]


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the row of the board."""
    return [("`reflectune serve`, miniature: 16 clients against 1, questions/s", f"{ratio(figures):.2f} ×", "aim 4 ×")]


BENCHMARK = Benchmark(
    "serve",
    "The server",
    "Each client asks about a new image as soon as it has its last answer. The first event is the gate's probability.",
    tables,
    claims,
)


def main() -> None:
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="the quick start's folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=30, help="seconds to measure each number of clients")
    arguments = BENCHMARK.parse(parser)
    BENCHMARK.finish(measure(arguments.run, arguments.device, arguments.seconds), arguments)


if __name__ == "__main__":
    main()
