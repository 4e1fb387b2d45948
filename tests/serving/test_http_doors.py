"""Who is admitted, what a client may take, and what malformed and hostile requests get."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from collections.abc import Generator
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from starlette.types import Message

from tests.serving.http_kit import Exported, Running, arrow_stream, exported, running
from ziggurat.serving.http.access_log import AccessLog
from ziggurat.serving.http.app import application
from ziggurat.serving.http.arrow_body import ARROW_STREAM
from ziggurat.serving.http.doors import Doors
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused

MALFORMED = 3_000


@pytest.fixture(scope="module")
def export() -> Exported:
    return exported()


@pytest.fixture(scope="module")
def server(export: Exported) -> Generator[Running]:
    with running(export.folder, "--max-body-mib", "1", "--max-connections", "50") as found:
        yield found


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]:80", "shop.localhost", "127.3.2.1"])
def test_names_of_this_machine(host: str) -> None:
    assert Doors().admit("/v1/predict", [(b"host", host.encode())]) == "-"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.1"])
def test_a_page_of_another_site_cannot_use_a_server_without_tokens(server: Running, host: str) -> None:
    with pytest.raises(HttpRefused):
        Doors().admit("/v1/predict", [(b"host", host.encode())])
    assert server.client.get("/v2", headers={"host": host}).json()["code"] == "foreign_host"


def test_large_bodies_are_refused_and_others_are_unharmed(server: Running, export: Exported) -> None:
    large = b'{"rows": [' + b" " * 2**20 + b"]}"
    refused = server.client.post("/v1/predict", content=large)
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")

    def parts() -> Generator[bytes]:
        for _ in range(40):
            yield b" " * 2**16

    assert server.client.post("/v1/predict", content=parts()).json()["code"] == "too_large"
    refused = server.client.post("/v1/predict", content=b"x", headers={"content-encoding": "gzip"})
    assert (refused.status_code, refused.json()["code"]) == (415, "compressed_body")
    assert server.client.get("/v2", headers={"x-long": "a" * 20_000}).status_code == 431
    many = {f"x-{number}": "a" * 60 for number in range(300)}
    assert server.client.get("/v2", headers=many).status_code == 431
    assert server.client.post("/v1/predict", json={"rows": export.rows[:1]}).status_code == 200


def raw(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 60)


def test_slow_clients_are_refused_and_others_are_unharmed(export: Exported) -> None:
    with (
        running(export.folder, "--receive-seconds", "1") as server,
        raw(server) as head,
        raw(server) as body,
        raw(server) as silent,
    ):
        head.sendall(b"GET /v2 HTTP/1.1\r\n")
        body.sendall(b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        assert server.client.post("/v1/predict", json={"rows": export.rows[:1]}).status_code == 200
        assert head.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert silent.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert body.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert server.client.post("/v1/predict", json={"rows": export.rows[:1]}).status_code == 200


def test_bodies_that_are_announced_and_trickle_take_no_room_from_others(export: Exported) -> None:
    """Sixteen of the largest ones would be all that a worker takes, if what is announced counted."""
    head = b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\n"
    with running(export.folder) as server, contextlib.ExitStack() as stack:
        held = [stack.enter_context(raw(server)) for _ in range(40)]
        for number, each in enumerate(held):
            chunked = b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"
            each.sendall(head + (chunked if number % 2 else b"content-length: 16777216\r\n\r\n{"))
        for _ in range(5):
            assert server.client.post("/v1/predict", json={"rows": export.rows[:1]}).status_code == 200
        whole = stack.enter_context(raw(server))
        whole.sendall(head + b"content-length: 16777217\r\n\r\n{")
        assert whole.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_bodies_beyond_the_room_are_refused_as_they_arrive(export: Exported) -> None:
    limits = ServingLimits(body_bytes=1000, all_bodies_bytes=1500)
    gate = application(export.model, Doors(), limits, AccessLog(None)).asgi
    arrived, go = asyncio.Event(), asyncio.Event()

    async def post(parts: list[bytes], waits: bool) -> list[Message]:
        sent: list[Message] = []
        left = list(parts)

        async def receive() -> Message:
            if waits and len(left) == 1:
                arrived.set()
                await go.wait()
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)} if left else gone

        async def send(message: Message) -> None:
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")]
        scope = {"type": "http", "method": "POST", "path": "/v1/predict", "headers": headers, "query_string": b""}
        await gate(scope, receive, send)
        return sent

    gone: Message = {"type": "http.disconnect"}

    async def both() -> None:
        first = asyncio.create_task(post([b" " * 900, b"{}"], True))
        await arrived.wait()
        refused = await post([b" " * 300, b" " * 400, b"{}"], False)
        assert refused[0]["status"] == 503
        assert b"the bodies of other requests hold 900 bytes" in refused[1]["body"]
        go.set()
        assert (await first)[0]["status"] == 422
        assert (await post([b" " * 900, b"{}"], False))[0]["status"] == 422

    asyncio.run(both())


def test_too_many_connections_make_room_for_who_sends(server: Running, export: Exported) -> None:
    assert server.client.get("/v2").status_code == 200
    held = [raw(server) for _ in range(60)]
    try:
        assert held[0].recv(1000).startswith(b"HTTP/1.1 408 ")  # the first that never sent a request
        held[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            held[-1].recv(1)
        assert server.client.post("/v1/predict", json={"rows": export.rows[:1]}).status_code == 200
    finally:
        for each in held:
            each.close()


def test_connections_beyond_those_that_are_answered_are_refused(server: Running) -> None:
    begun = b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"
    held: list[socket.socket] = []
    try:
        for _ in range(200):  # some of the first make room before the server has read their heads
            held.append(raw(server))
            held[-1].sendall(begun)
            held[-1].settimeout(0.01 if len(held) < 60 else 1.0)
            with contextlib.suppress(TimeoutError):
                if held[-1].recv(1000).startswith(b"HTTP/1.1 503 "):
                    break
        else:
            pytest.fail("200 connections were taken; 50 are allowed")
    finally:
        for each in held:
            each.close()

    until = time.monotonic() + 60
    while server.client.get("/v2").status_code == 503:  # the server has yet to read that these clients are gone
        assert time.monotonic() < until, "connections of clients that are gone still count after 60 seconds"
        time.sleep(0.05)


def test_rows_of_a_client_that_has_gone_are_not_predicted(export: Exported) -> None:
    body = json.dumps({"rows": export.rows[:7]}).encode()
    head = f"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with running(export.folder, "--batch-wait-ms", "1000") as server:
        with raw(server) as connection:
            connection.sendall(head + body)
            time.sleep(0.1)
        until = time.monotonic() + 60
        while '"status":499' not in server.lines():
            assert time.monotonic() < until, server.lines()
            time.sleep(0.05)
        assert '"code":"client_gone"' in server.lines()
        assert server.client.post("/v1/predict", json={"rows": export.rows[:1]}).status_code == 200
        until = time.monotonic() + 60
        while not (rows := rows_predicted(server)):  # a batch is counted after its answers are handed over
            assert time.monotonic() < until, "the batch is not counted after 60 seconds"
            time.sleep(0.05)
        assert rows == 1.0


def rows_predicted(server: Running) -> float:
    """Returns how many rows a server says it has predicted."""
    lines = server.client.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("ziggurat_batch_rows_sum")).split()[-1])


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Returns data with some bytes changed, cut, doubled or inserted."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(5):
            case 0:
                found[at : at + 1] = chance.randbytes(1)
            case 1:
                del found[at : at + chance.randint(1, 40)]
            case 2:
                found[at:at] = chance.choice(
                    [b"[", b"{", b'"', b"null", b"-1", b"1e999", b"\\ud800", b"\0", b",", b"true"]
                )
            case 3:
                found[at:at] = found[at : at + chance.randint(1, 30)]
            case _:
                found[at : at + 8] = chance.randbytes(8)
    return bytes(found)


def unusual_tables(rows: list[dict[str, Any]]) -> list[pa.Table]:
    """Returns rows as a table, and with a column of each unusual type in place of each of two columns."""
    found = [pa.Table.from_pylist(rows)]
    numbers = pa.array(range(1, len(rows) + 1), pa.int64())
    kinds = (pa.decimal128(30, 2), pa.decimal256(50, 3), pa.timestamp("us", "UTC"), pa.timestamp("s"), pa.date64())
    for column, name in ((0, "user"), (2, "age")):
        for kind in kinds:
            values = numbers.cast(pa.int32()).cast(pa.date32()) if kind == pa.date64() else numbers
            found.append(found[0].set_column(column, name, values.cast(kind)))
        found.append(found[0].set_column(column, name, found[0]["user"].dictionary_encode()))
    return found


def flipped(data: bytes, chance: random.Random) -> bytes:
    """Returns data with few bytes changed, so that most of it can still be read."""
    found = bytearray(data)
    for _ in range(chance.randint(0, 4)):
        found[chance.randrange(len(found))] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
    return bytes(found)


def value(chance: random.Random, depth: int = 0) -> Any:
    options: list[Any] = [
        None, True, 0, -1, 2**63, 2**64, 1e308, -0.0, 0.5, "", "a", "u1", "\0", "é" * 50, "1|2", "[1]", "NaN", "\u202e",
        10**400,
    ]  # fmt: skip
    if depth < 4:
        options += [[], {}, [value(chance, depth + 1) for _ in range(3)], {"a": value(chance, depth + 1)}]
    return chance.choice(options)


def test_malformed_requests_get_refusals_in_words(server: Running, export: Exported) -> None:
    chance = random.Random(20261127)
    rows = export.rows[:3]
    arrow = [arrow_stream(table) for table in unusual_tables(rows)]
    names = ["user", "item", "age", "tags", "history"]
    tensors = [{"name": "user", "datatype": "BYTES", "shape": [1], "data": ["a"]}]
    bodies: dict[str, list[tuple[bytes, str]]] = {
        "/v1/predict": [(json.dumps({"rows": rows}).encode(), "application/json")],
        "/v1/rank": [(json.dumps({"context": {"user": "u1"}, "candidates": rows}).encode(), "application/json")],
        "/v2/models/small/infer": [(json.dumps({"inputs": tensors}).encode(), "application/json")],
    }
    statuses: dict[int, int] = {}
    for number in range(MALFORMED):
        path = chance.choice(list(bodies))
        sample, kind = chance.choice(bodies[path])
        if number % 3 == 0 and kind == "application/json":
            row = {name: value(chance) for name in names if chance.random() < 0.95}
            wrapped: Any = {
                "/v1/predict": {"rows": [row, {name: value(chance) for name in names}]},
                "/v1/rank": {"context": {"user": value(chance)}, "candidates": [row], "top": value(chance)},
                "/v2/models/small/infer": {
                    "inputs": [
                        {"name": name, "datatype": chance.choice(["BYTES", "INT64", "FP32", "BOOL"]),
                         "shape": chance.choice([[1], [1, 1], [0], [2], value(chance)]), "data": [value(chance)]}
                        for name in names
                    ],
                    "outputs": value(chance),
                },
            }[path]  # fmt: skip
            content = json.dumps(wrapped).encode()
        elif path == "/v1/predict" and number % 3 == 1:
            kind, content = ARROW_STREAM, flipped(chance.choice(arrow), chance)
        else:
            content = mutated(sample, chance)
        headers = {"content-type": kind, "inference-header-content-length": str(chance.randrange(3000))}
        if chance.random() < 0.7:
            del headers["inference-header-content-length"]
        response = server.client.post(path, content=content, headers=headers)
        statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        assert response.status_code in {200, 400, 404, 413, 415, 422}, (path, content, response.text)
        assert "Traceback" not in response.text
        assert response.status_code == 200 or response.json()["error"]
    assert statuses.keys() >= {200, 400, 422}
    assert '"event":"error"' not in server.lines()
    assert "Traceback" not in server.lines()
    found = server.client.post("/v1/predict", json={"rows": rows}).json()
    np.testing.assert_array_equal(np.float32(found["predictions"]["click"]), export.predictions(rows)[:, 0])


def test_bytes_that_are_no_http_get_400(server: Running) -> None:
    chance = random.Random(5)
    heads = [
        b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\nhello",
        b"GET /%ff%00 HTTP/1.1\r\n\r\n",
    ]
    statuses = set[bytes]()
    for number in range(300):
        content = chance.randbytes(200) if number % 3 == 0 else mutated(chance.choice(heads), chance)
        with raw(server) as connection:
            connection.sendall(content + b"\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(60)
            answer = b""
            while part := connection.recv(65_536):
                answer += part
        statuses.add(answer[9:12])
        assert answer[9:10] in {b"", b"4", b"2"}, (content, answer)
        assert b"Traceback" not in answer
    assert b"400" in statuses
    assert httpx.get(f"{server.url}/v2", trust_env=False).status_code == 200
