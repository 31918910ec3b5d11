#!/usr/bin/env python3
"""Hostile clients of a server on this machine: attack.py EXPERIMENT ADDRESS PID [PICTURE…].

The token is in TEALIGHT_TOKEN. An experiment prints what it sees and fails by its exit status.
"""

import base64
import http.client
import json
import os
import random
import socket
import sys
import threading
import time
from pathlib import Path

TOKEN = os.environ["TEALIGHT_TOKEN"]
MIB = 1 << 20


class Server:
    def __init__(self, address, pid):
        self.address, self.pid = address, pid
        self.host, port = address.rsplit(":", 1)
        self.port = int(port)

    def ask(self, method, path, body=None, kind="application/json", timeout=60):
        """The status and the bytes of an answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        head = {"authorization": f"Bearer {TOKEN}", "content-type": kind}
        try:
            connection.request(method, path, body, head)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def post(self, path, value, **options):
        return self.ask("POST", path, json.dumps(value), **options)

    def socket(self):
        return socket.create_connection((self.host, self.port), timeout=60)

    def reset_peak(self):
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.memory("VmRSS")

    def memory(self, name="VmHWM"):
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        line = next(line for line in lines if line.startswith(name + ":"))
        return int(line.split()[1]) * 1024


def expect(holds, what):
    print(("ok: " if holds else "FAIL: ") + what)
    if not holds:
        sys.exit(1)


class Health(threading.Thread):
    """Asks for /health again and again, and keeps the longest time that an answer took."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.longest, self.n, self.has_ended = server, 0.0, 0, False

    def run(self):
        while not self.has_ended:
            since = time.perf_counter()
            try:
                status, _ = self.server.ask("GET", "/health")
            except OSError:
                status = 0
            taken = time.perf_counter() - since if status == 200 else 999.0
            self.longest, self.n = max(self.longest, taken), self.n + 1
            time.sleep(0.01)

    def end(self):
        self.has_ended = True
        self.join()
        expect(self.longest < 0.1, f"/health takes {1e3 * self.longest:.0f} ms at most, of {self.n}")


def description(server):
    """An answer, whatever it is, and a server that goes on."""
    status, answer = server.ask("GET", "/models/m")
    expect(400 <= status < 600, f"the model: {status} {answer[:200]!r}")
    expect(server.ask("GET", "/health")[0] == 200, "/health afterwards")


def candidates(server):
    name = json.loads(server.ask("GET", "/v1/models")[1])["data"][0]["id"]
    expect(server.post(f"/models/{name}", {"inputs": "word1 [MASK]"})[0] == 200, "one mask is filled")
    before = server.reset_peak()
    body = {"inputs": ["[MASK] " * 120] * 8, "parameters": {"top_k": 1000}}
    since = time.perf_counter()
    status, answer = server.post(f"/models/{name}", body)
    taken = time.perf_counter() - since
    expect(status == 400, f"960 masks with top_k 1000: {status} {answer[:200]!r}")
    expect(taken < 1, f"refused after {1e3 * taken:.0f} ms")
    grown = server.memory() - before
    expect(grown < 64 * MIB, f"memory grew by {grown / MIB:.0f} MiB")


def sockets(server):
    """Keeps 256 connections without a token, and opens them again when they are closed."""
    has_ended = threading.Event()

    def hold():
        while not has_ended.is_set():
            try:
                with server.socket() as stream:
                    while not has_ended.is_set():
                        stream.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                        if not stream.recv(4096):
                            break
                        has_ended.wait(8)
            except OSError:
                has_ended.wait(0.1)

    for _ in range(256):
        threading.Thread(target=hold, daemon=True).start()
    time.sleep(3)
    for _ in range(8):
        since = time.perf_counter()
        status, _ = server.ask("GET", "/health", timeout=15)
        expect(status == 200, f"the owner: {status} after {1e3 * (time.perf_counter() - since):.0f} ms")
        time.sleep(1.5)
    # Connections that send nothing at all.
    silent = [server.socket() for _ in range(600)]
    since = time.perf_counter()
    status, _ = server.ask("GET", "/health", timeout=15)
    taken = time.perf_counter() - since
    expect(status == 200 and taken < 5, f"the owner beside 600 silent connections: {status} after {1e3 * taken:.0f} ms")
    has_ended.set()
    for stream in silent:
        stream.close()


def prompts(server):
    order = {"model": "gpt2", "prompt": "the", "n": 16, "max_tokens": 4096}
    status, answer = server.post("/v1/completions", {**order, "prompt": ["the"] * 64})
    expect(status == 400, f"4,194,304 tokens: {status} {answer[:200]!r}")
    for _ in range(8):
        try:
            server.post("/v1/completions", order, timeout=0.2)
        except TimeoutError:
            pass
    since = time.perf_counter()
    status, _ = server.post("/v1/completions", {"model": "gpt2", "prompt": "the", "max_tokens": 1})
    taken = time.perf_counter() - since
    expect(status == 200 and taken < 3, f"one token after 8 clients that are gone: {status} after {taken:.1f} s")


def numbers(server):
    server.ask("GET", "/models/vit")
    body = b'{"inputs":[' + b"0," * 11_000_000 + b"0]}"
    before = server.reset_peak()
    health = Health(server)
    health.start()
    for _ in range(3):
        try:
            status, answer = server.ask("POST", "/models/vit", body)
        except (BrokenPipeError, ConnectionResetError):
            # Refused by its length, and closed before all of it was sent.
            status, answer = 413, b""
        expect(400 <= status < 500, f"{len(body)} bytes of numbers: {status} {answer[:120]!r}")
    shorter = b'{"inputs":[' + b"0," * 5_000_000 + b"0]}"
    status, answer = server.ask("POST", "/models/vit", shorter)
    expect(status == 400, f"{len(shorter)} bytes of numbers: {status} {answer[:120]!r}")
    health.end()
    grown = server.memory() - before
    expect(grown < 64 * MIB, f"memory grew by {grown / MIB:.0f} MiB")


def folders(server):
    streams = [server.socket() for _ in range(200)]
    health = Health(server)
    health.start()
    time.sleep(0.2)
    since = time.perf_counter()
    for n, stream in enumerate(streams):
        stream.sendall(f"GET /models/none{n} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
    answers = [stream.recv(4096) for stream in streams]
    taken = time.perf_counter() - since
    health.end()
    n = sum(answer.startswith(b"HTTP/1.1 404") for answer in answers)
    expect(n == len(streams), f"{n} answers 404 after {taken:.1f} s")


def changed(bytes_, draw):
    """A few changed bytes, a cut, or bytes of another place."""
    result = bytearray(bytes_)
    for _ in range(draw.randint(1, 8)):
        at = draw.randrange(len(result))
        match draw.randrange(4):
            case 0:
                result[at] = draw.randrange(256)
            case 1:
                result[at : at + draw.randint(1, 4)] = draw.randbytes(draw.randint(1, 4))
            case 2:
                del result[at : at + draw.randint(1, 64)]
            case 3:
                other = draw.randrange(len(result))
                result[at:at] = result[other : other + draw.randint(1, 64)]
        if not result:
            result = bytearray(b"\x89PNG")
    return bytes(result)


# A JPEG of one grey pixel.
JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQEASABIAAD/2wBDAP//////////////////////////////////////////////////////////////////////////////////////"
    "wAALCAABAAEBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAA//EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AN//Z"
)


def pictures(server, *paths):
    png = Path(paths[0]).read_bytes()
    tar = b"a.png".ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % len(png) + b"0" * 400 + png
    status, right = server.ask("POST", "/models/vit", png, kind="image/png")
    expect(status == 200, f"the picture: {status} {right[:100]!r}")
    has_ended = threading.Event()
    wrong = []

    def attack(seed):
        draw = random.Random(seed)
        for _ in range(5000 // 8):
            one = changed(draw.choice([png, JPEG, tar]), draw)
            status, answer = server.ask("POST", "/models/vit", one, kind="image/png")
            if status not in (200, 400):
                wrong.append((status, answer[:200], one.hex()))

    def check():
        while not has_ended.is_set():
            status, answer = server.ask("POST", "/models/vit", png, kind="image/png")
            same = status == 200 and [one["label"] for one in json.loads(answer)] == [one["label"] for one in json.loads(right)]
            if not same:
                wrong.append((status, answer[:200], "the picture as it is"))

    attackers = [threading.Thread(target=attack, args=(seed,)) for seed in range(8)]
    checker = threading.Thread(target=check)
    for thread in [*attackers, checker]:
        thread.start()
    for thread in attackers:
        thread.join()
    has_ended.set()
    checker.join()
    # A picture that panics is a bug, though it harms nobody else.
    expect(not wrong, f"5,000 changed pictures, {len(wrong)} answered wrongly: {wrong[:3]}")


if __name__ == "__main__":
    name, address, pid = sys.argv[1:4]
    globals()[name](Server(address, int(pid)), *sys.argv[4:])
