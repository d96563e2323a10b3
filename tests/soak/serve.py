"""Send good and bad requests to a server that is killed and restarted in between.

    bash scripts/soak.sh serve --run runs/quickstart --minutes 20

Every answer must be that of an undisturbed server, bad requests must get 4xx, and a request that a kill cut off is sent
again. SIGTERM must let requests under way finish. Memory is compared within the last life of the server, which is the
longest: its median in the second fifth with that in the last one.
"""

import argparse
import base64
import http.client
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from reflectune.examples.staging import program
from reflectune.formats.dataset import Dataset

CLIENTS = 6
KILLS = {0.15: signal.SIGKILL, 0.3: signal.SIGTERM}
"""Signals by the share of the time at which they are sent."""
CONNECTION_ERRORS = (OSError, http.client.HTTPException)


def url(content: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"


def bad(image: bytes) -> list[tuple[str, bytes]]:
    """Routes and bodies of requests that must be refused."""
    bodies: list[dict[str, Any]] = [
        {"question": "Q?", "image": url(b"not an image")},
        {"question": "Q?", "image": url(b"<svg xmlns='http://www.w3.org/2000/svg'/>")},
        {"question": "Q?", "image": url(image[: len(image) // 2])},
        {"question": "Q?", "image": "http://localhost/x.jpg"},
        {"question": "Q?", "image": "/etc/passwd"},
        {"question": " ", "image": url(image)},
        {"question": "x" * 10**6, "image": url(image)},
        {"question": "Q?", "image": url(b"\xff\xd8" + bytes(11 * 10**6))},
        {"question": "Q?", "image": url(image), "pipeline": "[Retrieval]"},
        {"question": None},
    ]
    routes = [("/answer", json.dumps(body).encode()) for body in bodies]
    return [*routes, ("/answer", b"{"), ("/nowhere", b"{}"), ("/retrieve", b'{"images": ["/etc/passwd"]}')]


class Soak:
    """A server in a process of its own, its clients, and what they found."""

    def __init__(self, run: Path, seed: int) -> None:
        dataset, self.rng = Dataset(run / "world"), random.Random(seed)
        questions = list(dataset.questions("val_unseen_question"))
        self.asked = [(q.text, (dataset.root / q.image).read_bytes()) for q in questions[:12]]
        self.bad = bad(self.asked[0][1])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        keys = (
            "--dataset",
            f"{run}/world",
            "--index",
            f"{run}/index",
            "--model",
            f"{run}/checkpoint",
            "--page",
            "false",
        )
        self.command = [*program("inference.serve"), *keys, "--device", "cpu", "--port", str(self.port)]
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.is_over = False
        self.process = self.start()
        self.expected = [self.answer(n) for n in range(len(self.asked))]

    def start(self) -> subprocess.Popen[bytes]:
        """Start the server, and wait until it answers."""
        process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, start_new_session=True)
        while True:
            try:
                assert process.poll() is None, "the server ended"
                assert self.send("GET", "/healthz")[0] == 200
                return process
            except CONNECTION_ERRORS:
                time.sleep(0.2)

    def send(self, method: str, route: str, body: bytes = b"") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, route, body)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()

    def answer(self, number: int) -> str:
        """Ask a question until it is answered, and return the answer."""
        text, image = self.asked[number]
        body = json.dumps({"question": text, "image": url(image)}).encode()
        while True:
            try:
                status, reply = self.send("POST", "/answer", body)
            except CONNECTION_ERRORS:
                self.counts["sent again"] += 1
                time.sleep(0.2)
                continue
            if status == 200 and "event: done" in reply:
                return str(json.loads(reply.strip().rpartition("data: ")[2])["trace"]["answer"])
            self.counts["sent again"] += 1
            if status not in (200, 429, 503):
                self.problems.append(f"a good question: {status} {reply[:200]}")
                return ""
            time.sleep(0.2)

    def client(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self.is_over:
            kind = rng.choice(["good", "bad", "gone"])
            self.counts[kind] += 1
            if kind == "good":
                number = rng.randrange(len(self.asked))
                if (found := self.answer(number)) != self.expected[number]:
                    self.problems.append(f"answered {found!r} in place of {self.expected[number]!r}")
                continue
            route, body = rng.choice(self.bad)
            try:
                if kind == "bad":
                    status, reply = self.send("POST", route, body)
                    if not (400 <= status < 500 or status == 503):
                        self.problems.append(f"bad input {body[:60]!r}: {status} {reply[:200]}")
                else:
                    text, image = rng.choice(self.asked)
                    body = json.dumps({"question": text, "image": url(image)}).encode()
                    head = f"POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                    with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
                        connection.sendall((head + body)[: rng.choice([len(head), len(head) + 99, len(head + body)])])
                        time.sleep(rng.random() / 10)
            except CONNECTION_ERRORS:
                self.counts["cut off"] += 1

    def run(self, minutes: float) -> dict[str, Any]:
        """Run the clients and the kills; return the figures."""
        clients = [threading.Thread(target=self.client, args=(seed,)) for seed in range(CLIENTS)]
        begin, memory, kills = time.monotonic(), list[float](), dict(KILLS)
        for client in clients:
            client.start()
        while (share := (time.monotonic() - begin) / (60 * minutes)) < 1:
            time.sleep(0.5)
            memory.append(psutil.Process(self.process.pid).memory_info().rss / 2**20)
            for due in [moment for moment in kills if moment <= share]:
                self.process.send_signal(kills.pop(due))
                status = self.process.wait(120)
                if status not in (0, -signal.SIGKILL):
                    self.problems.append(f"the server ended with status {status}")
                self.process, memory = self.start(), []
        self.is_over = True
        for client in clients:
            client.join()
        waiting = [
            line for line in self.send("GET", "/metrics")[1].splitlines() if line.startswith("reflectune_waiting")
        ]
        if waiting != ["reflectune_waiting 0.0"]:
            self.problems.append(f"questions are left: {waiting}")
        fifth = len(memory) // 5
        early, late = statistics.median(memory[fifth : 2 * fifth]), statistics.median(memory[-fifth:])
        if abs(late / early - 1) > 0.05:
            self.problems.append(f"memory went from {early:.0f} to {late:.0f} MiB")
        return {"requests": dict(self.counts), "memory_mib": [round(early), round(late)], "problems": self.problems}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a quick start's run: world, index and checkpoint")
    parser.add_argument("--minutes", type=float, default=20)
    arguments = parser.parse_args()
    os.environ.pop("REFLECTUNE_TOKEN", None)
    soak = Soak(arguments.run, seed=0)
    try:
        figures = soak.run(arguments.minutes)
    finally:
        soak.is_over = True
        soak.process.kill()
    print(json.dumps(figures, indent=1))
    sys.exit(bool(figures["problems"]))


if __name__ == "__main__":
    main()
