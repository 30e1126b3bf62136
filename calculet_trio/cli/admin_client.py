"""The commands' way to the running daemon: HTTP over its admin socket.

Source: CLI.md "Commands"; API.md "Admin endpoints".
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import attrs

from calculet_trio.cli import paths
from calculet_trio.errors import OperationFailed, Unavailable
from calculet_trio.settings.configuration import load

ANSWER_S: Final = 120.0
"""Short calls take milliseconds, a trace as long as was asked for."""

REPLY_BYTES_MAX: Final = 128 * 2**20


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Open the socket; raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@attrs.frozen
class AdminClient:
    """One daemon's admin socket.

    Args:
        path: the socket.
    """

    path: Path

    @classmethod
    def of_configuration(cls, given: Path | None, socket_path: Path | None) -> AdminClient:
        """The socket that was named, or that the configuration names, or the one of this user.

        Raises:
            calculet_trio.errors.ConfigurationRefused: the configuration is not valid.
        """
        if socket_path is not None:
            return cls(socket_path)
        configuration = load(given or paths.configuration_there())
        named = configuration.service.admin_socket
        return cls(paths.admin_socket() if named is None else configuration.path(named))

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One short call's answer.

        Raises:
            calculet_trio.errors.Unavailable: no daemon listens there.
            calculet_trio.errors.OperationFailed: it refused; the sentence is its own.
        """
        with self._reply(method, path, body, ANSWER_S) as reply:
            text = reply.read(REPLY_BYTES_MAX)
        value = json.loads(text)
        if reply.status >= 400:
            error = value["error"]
            raise OperationFailed(error["message"], hint=error.get("hint"))
        found: dict[str, Any] = value
        return found

    def follow(self, job: str) -> Iterator[dict[str, Any]]:
        """A job's lines as they come, and at last the job itself (it alone has ``state``).

        Raises:
            calculet_trio.errors.Unavailable: the daemon has left.
        """
        with self._reply("GET", f"/admin/jobs/{quote(job, safe='')}/events", None, None) as reply:
            for line in reply:
                yield json.loads(line)

    @contextmanager
    def _reply(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float | None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = _UnixConnection(self.path, timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            yield connection.getresponse()
        except (FileNotFoundError, ConnectionRefusedError):
            raise Unavailable(
                f"no daemon listens at {self.path}",
                hint="start it with calculet-trio serve, or name its socket with --socket",
            ) from None
        except PermissionError:
            raise Unavailable(f"{self.path} belongs to another user", hint="run this as the service's user") from None
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(
                f"the daemon at {self.path} did not answer: {str(error) or type(error).__name__}"
            ) from error
        finally:
            connection.close()
