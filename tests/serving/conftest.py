"""Fixtures of the tests of serving."""

from tests.s3_fixtures import clear_clients, faulty_server, proxy, s3, s3_server

__all__ = ["clear_clients", "faulty_server", "proxy", "s3", "s3_server"]
