"""A guarded Flight server, with real clients on loopback: who may call, what is bounded, and what errors tell."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.network.conftest import Secrets
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.network.access import Access, Credentials, read_access, read_credentials
from ziggurat.network.flight_client import call_options, connect, first_line, is_untrusted, was_too_large
from ziggurat.network.flight_server import Call, GuardedServer
from ziggurat.network.limits import Limits
from ziggurat.network.refusals import Refused
from ziggurat.network.reputation import PROVEN_BYTES, Reputation

SECONDS = 300
ROWS = 100_000
QUICK = {
    "refusal_pause_s": 0.0, "patience_s": 0.5, "pressed_s": 0.2, "unproven_pressed_s": 0.2, "stalled_s": 600.0,
}  # fmt: skip
WRONG = "0" * 64


class Numbers(GuardedServer):
    """Answers each request with as many batches as it says."""

    def __init__(self, access: Access = Access(), **limits: Any) -> None:  # noqa: B008 - immutable
        self.ended = 0
        super().__init__("127.0.0.1", 0, access, Limits(**{**QUICK, **limits}), 2, Reputation())

    @property
    def address(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def answer_get(self, call: Call) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        if call.request == b"refuse":
            raise Refused("bad", "this is refused", b"detail")
        if call.request == b"user error":
            raise DataError("/secret/folder/file.csv: line 3 is bad")
        return pa.schema([("a", pa.float64())]), self._batches(call)

    def answer_action(self, call: Call) -> Iterator[bytes]:
        if call.name == "bug":
            raise KeyError("/secret/folder")
        if call.name == "late bug":
            return iter(lambda: 1 / 0, None)
        return iter([call.name.encode(), call.request])

    def _batches(self, call: Call) -> Iterator[pa.RecordBatch]:
        try:
            for _ in range(int(call.request)):
                with call.making(8 * ROWS):
                    batch = pa.RecordBatch.from_arrays([pa.array(np.zeros(ROWS))], ["a"])
                call.made(batch.nbytes)
                yield batch
        finally:
            self.ended += 1


@contextlib.contextmanager
def serving(access: Access = Access(), **limits: Any) -> Iterator[Numbers]:  # noqa: B008 - immutable
    server = Numbers(access, **limits)
    try:
        yield server
    finally:
        server.stop()


def options(credentials: Credentials = Credentials()) -> flight.FlightCallOptions:  # noqa: B008 - immutable
    return call_options(credentials, SECONDS)


def act(client: flight.FlightClient, name: str, body: bytes, credentials: Credentials = Credentials()) -> list[bytes]:  # noqa: B008
    return [each.body.to_pybytes() for each in client.do_action(flight.Action(name, body), options(credentials))]


def stream(client: flight.FlightClient, batches: int = 1_000_000) -> flight.FlightStreamReader:
    """Returns an answer of which one batch was read."""
    answer = client.do_get(flight.Ticket(str(batches).encode()), options())
    answer.read_chunk()
    return answer


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not true within {SECONDS} seconds"
        time.sleep(0.02)


def test_answers_arrive_and_give_their_place_back() -> None:
    with serving() as server:
        client = connect(server.address, Credentials())
        assert act(client, "echo", b"body") == [b"echo", b"body"]
        table = client.do_get(flight.Ticket(b"3"), options()).read_all()
        assert table.num_rows == 3 * ROWS
        wait_until(lambda: server.open_streams == 0)
        assert server.held_bytes == 0
        assert server.ended == 1
        assert server.refusals.take() == []


def test_a_client_without_the_token_is_refused(secrets: Secrets) -> None:
    good = read_credentials(secrets.token, None)
    with serving(read_access(secrets.token, None, None)) as server:
        client = connect(server.address, Credentials())
        for credentials in (Credentials(), Credentials(WRONG)):
            with pytest.raises(flight.FlightUnauthenticatedError, match="the token is missing or wrong"):
                act(client, "echo", b"", credentials)
            with pytest.raises(flight.FlightUnauthenticatedError, match="the token is missing or wrong"):
                client.do_get(flight.Ticket(b"1"), options(credentials)).read_all()
        assert act(client, "echo", b"", good) == [b"echo", b""]
        (line,) = server.refusals.take()
        assert line.startswith("refused 127.0.0.1:")
        assert line.endswith(": the token is missing or wrong")


def test_tls_and_the_token_together(secrets: Secrets) -> None:
    credentials = read_credentials(secrets.token, secrets.certificate)
    with serving(read_access(secrets.token, secrets.certificate, secrets.key)) as server:
        secure = f"grpc+tls://127.0.0.1:{server.port}"
        assert act(connect(secure, credentials), "echo", b"", credentials) == [b"echo", b""]
        other_name = f"grpc+tls://localhost:{server.port}"
        for address, shown in ((secure, Credentials()), (other_name, credentials)):
            with pytest.raises(flight.FlightUnavailableError) as caught:
                act(connect(address, shown), "echo", b"")
            assert is_untrusted(caught.value)
        with pytest.raises(flight.FlightUnavailableError) as caught:
            act(connect(server.address, Credentials()), "echo", b"")
        assert not is_untrusted(caught.value)


def test_a_server_for_other_machines_does_not_start_without_token_and_tls(secrets: Secrets) -> None:
    class Exposed(Numbers):
        def __init__(self, access: Access) -> None:
            GuardedServer.__init__(self, "0.0.0.0", 0, access, Limits(), 1, Reputation())

    for access in (
        Access(),
        Access(WRONG),
        Access(None, read_access(None, secrets.certificate, secrets.key).certificate),
    ):
        with pytest.raises(ConfigError, match=r"--host 0\.0\.0\.0: other machines can reach this address"):
            Exposed(access)
    server = Exposed(read_access(secrets.token, secrets.certificate, secrets.key))
    credentials = read_credentials(secrets.token, secrets.certificate)
    client = connect(f"grpc+tls://127.0.0.1:{server.port}", credentials)
    assert act(client, "echo", b"", credentials) == [b"echo", b""]
    server.stop()


def test_other_methods_are_refused() -> None:
    schema, descriptor = pa.schema([("a", pa.int8())]), flight.FlightDescriptor.for_path("x")
    with serving() as server:
        client = connect(server.address, Credentials())
        calls: dict[str, Callable[[], Any]] = {
            "LIST_FLIGHTS": lambda: list(client.list_flights(options=options())),
            "LIST_ACTIONS": lambda: list(client.list_actions(options())),
            "GET_FLIGHT_INFO": lambda: client.get_flight_info(descriptor, options()),
            "GET_SCHEMA": lambda: client.get_schema(descriptor, options()),
            "DO_PUT": lambda: client.do_put(descriptor, schema, options())[0].close(),
            "DO_EXCHANGE": lambda: client.do_exchange(descriptor, options())[1].read_chunk(),
            "HANDSHAKE": lambda: client.authenticate_basic_token("user", "password"),
        }
        for name, call in calls.items():
            with pytest.raises((flight.FlightError, OSError), match=f"{name} is not offered"):
                call()


@pytest.mark.parametrize("size", [2**10 + 1, 2**24])
def test_large_requests_are_refused(size: int) -> None:
    with serving(request_bytes=2**10, unread_bytes=2**30, burst_bytes=2**30) as server:
        client = connect(server.address, Credentials())
        with pytest.raises(
            flight.FlightServerError, match=f"a request of {size + 3:,} bytes; at most 1,024 are allowed"
        ):
            client.do_get(flight.Ticket(b"{" * size), options()).read_all()
        with pytest.raises(flight.FlightServerError, match=r"a request of .* bytes; at most 1,024 are allowed"):
            act(client, "echo", b"{" * size)
        assert act(client, "echo", b"fine") == [b"echo", b"fine"]


def test_bad_requests_are_answered_late(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(refusal_pause_s=12.5) as server:
        waited: list[float] = []
        monkeypatch.setattr(server.stopping, "wait", lambda seconds: waited.append(seconds) or server.stopping.is_set())
        client = connect(server.address, Credentials())
        with pytest.raises(flight.FlightServerError, match="this is refused") as caught:
            client.do_get(flight.Ticket(b"refuse"), options()).read_all()
        assert caught.value.extra_info == b"detail"
        assert 12.5 in waited


def test_errors_tell_neither_paths_nor_code(capfd: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        client = connect(server.address, Credentials())
        calls: list[Callable[[], Any]] = [
            lambda: act(client, "bug", b""),
            lambda: act(client, "late bug", b""),
            lambda: client.do_get(flight.Ticket(b"user error"), options()).read_all(),
            lambda: client.do_get(flight.Ticket(b"no number"), options()).read_all(),
        ]
        for call in calls:
            with pytest.raises(flight.FlightServerError) as caught:
                call()
            assert first_line(caught.value) == "it cannot give this answer; its own output says why"
            for secret in ("secret", "Traceback", ".py", "KeyError", "ZeroDivision", "ValueError"):
                assert secret not in str(caught.value)
        lines = server.refusals.take()
        assert lines[0].endswith("KeyError: '/secret/folder'")
        assert capfd.readouterr().err.count("Traceback") == 1, "one of each kind in ten seconds"


def test_streams_of_a_connection_are_bounded() -> None:
    with serving(streams_per_connection=3) as server:
        client = connect(server.address, Credentials())
        held = [stream(client) for _ in range(3)]
        with pytest.raises(flight.FlightUnavailableError, match="this connection has 3 unfinished requests already"):
            stream(client)
        held[0].cancel()
        wait_until(lambda: server.open_streams == 2)
        held[0] = stream(client)


def test_a_stalled_answer_is_ended_and_its_thread_freed() -> None:
    with serving(stalled_s=0.3) as server:
        before = threading_count()
        stalled = [stream(connect(server.address, Credentials())) for _ in range(10)]
        wait_until(lambda: server.open_streams == 0 and server.ended == 10)
        assert server.held_bytes == 0
        for answer in stalled:
            with pytest.raises(flight.FlightUnavailableError):
                while True:
                    answer.read_chunk()
        del stalled, answer
        wait_until(lambda: threading_count() <= before + 8)  # gRPC keeps a few
        assert any("has not read its answer" in line for line in server.refusals.take())
        assert stream(connect(server.address, Credentials()), 1)


def test_stalled_answers_make_place_for_others() -> None:
    """All places for unproven clients are taken by answers that nobody reads; a good one waits a moment for its own."""
    with serving(streams=32, streams_per_connection=1) as server:
        stalled = [stream(connect(server.address, Credentials())) for _ in range(4)]
        client = connect(server.address, Credentials())
        for _ in range(5):
            assert client.do_get(flight.Ticket(b"2"), options()).read_all().num_rows == 2 * ROWS
        assert server.ended > 5
        del stalled


def test_a_proven_connection_does_not_wait_for_unproven_clients() -> None:
    with serving(streams=32, unproven_pressed_s=600.0) as server:
        client = connect(server.address, Credentials())
        assert client.do_get(flight.Ticket(b"2"), options()).read_all().nbytes >= PROVEN_BYTES
        stalled = [stream(connect(server.address, Credentials())) for _ in range(4)]
        with pytest.raises(flight.FlightUnavailableError, match="the server is busy"):
            stream(connect(server.address, Credentials()))
        assert client.do_get(flight.Ticket(b"2"), options()).read_all().num_rows == 2 * ROWS
        del stalled


def test_held_memory_is_bounded() -> None:
    with serving(held_bytes=3 * 8 * ROWS, patience_s=0.0) as server:
        held: list[flight.FlightStreamReader] = []
        with pytest.raises(flight.FlightUnavailableError, match="answers that were not taken yet hold"):
            for _ in range(10):
                held.append(stream(connect(server.address, Credentials())))
        assert server.held_bytes <= 3 * 8 * ROWS


def test_a_client_that_leaves_gives_its_place_back() -> None:
    with serving() as server:
        for _ in range(3):
            client = connect(server.address, Credentials())
            answer = stream(client)
            del answer
            client.close()
        wait_until(lambda: server.open_streams == 0 and server.ended == 3)


def test_stopping_ends_stalled_answers() -> None:
    server = Numbers()
    stalled = stream(connect(server.address, Credentials()))
    server.stop()
    wait_until(lambda: server.open_streams == 0)
    with pytest.raises(flight.FlightError):
        while True:
            stalled.read_chunk()


def test_a_client_receives_no_more_than_it_allows() -> None:
    with serving() as server:
        client = connect(server.address, Credentials(), message_bytes=8 * ROWS // 2)
        with pytest.raises(flight.FlightCancelledError) as caught:
            stream(client)
        assert was_too_large(caught.value)
        answer = stream(connect(server.address, Credentials()))
        answer.cancel()
        with pytest.raises(flight.FlightCancelledError) as caught:
            while True:
                answer.read_chunk()
        assert not was_too_large(caught.value)


def threading_count() -> int:
    """Returns the number of threads of this process, those of gRPC included."""
    return len(list(Path("/proc/self/task").iterdir()))


def test_messages_are_short_and_printable() -> None:
    assert first_line(ValueError("a\x1b[31mb\nsecond")) == "a [31mb"
    assert len(first_line(ValueError("x" * 10_000))) == 300
    assert first_line(ValueError()) == "ValueError"
