"""``calculet-trio audit``: whose log is read, and what it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from calculet_trio.admin.audit import AuditLog
from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.cli.main import run


@pytest.fixture
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This user's configuration, which keeps the state elsewhere, with one record there."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "unused"))
    path = tmp_path / "calculet-trio" / "service.yaml"
    path.parent.mkdir()
    path.write_text("schema: calculet-service/v1\nstate: ../kept\n", encoding="utf-8")
    (tmp_path / "kept").mkdir()
    log = AuditLog(tmp_path / "kept" / "audit")
    log.append({"event": "asked", "call": "POST /admin/drain"})
    log.close()
    return path


@pytest.mark.usefixtures("own_file")
def test_the_log_is_the_one_that_this_users_daemon_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "show"]) == ExitCode.DONE
    assert "POST /admin/drain" in capsys.readouterr().out
    assert run(["audit", "verify"]) == ExitCode.DONE
    assert capsys.readouterr().out.startswith("1 records")


def test_a_file_that_cannot_be_read_is_no_reason_for_the_defaults(
    own_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_file.unlink()
    own_file.symlink_to("nothing")
    for words in (["audit", "show"], ["audit", "verify"], ["models", "list"], ["drain"]):
        assert run(words) == ExitCode.REFUSED, words
        assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("head", ["abc", "A" * 64, "0" * 63])
def test_a_digest_that_is_none_is_wrong_usage_and_no_verdict(head: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "verify", "--head", head]) == ExitCode.USAGE
    assert "64 lower-case hex digits" in " ".join(capsys.readouterr().err.split())
