"""``calculet-trio config``, and ``serve`` and wiring as the configuration's users."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import attrs
import jsonschema
import pytest
import yaml

from calculet_trio.api.settings import ApiSettings
from calculet_trio.cli import serve as serve_module
from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.cli.main import run
from calculet_trio.cli.wiring import api_settings, wire
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.settings.configuration import Configuration, load
from calculet_trio.shell.daemon import Daemon
from calculet_trio.shell.executor import JobTimeout

SERVICE, SCHEDULER = "calculet-service/v1", "calculet-scheduler/v1"
DIGEST = "a" * 64


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of this machine's user is read."""
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    return tmp_path


def write(file: Path, schema: str = SERVICE, **sections: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump({"schema": schema, **sections}, sort_keys=False))
    return file


# ---- check ----------------------------------------------------------------------------------------------


def test_check_says_every_fault_and_leaves_with_78(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = write(home / "wrong.yaml", listen={"port": 70_000, "hots": "x"})
    right = write(home / "right.yaml", SCHEDULER)
    assert run(["config", "check", str(wrong), str(right)]) == ExitCode.REFUSED
    hots = "listen.hots is not a known key (did you mean host?); allowed: host, port, allow_remote, cors_origins"
    assert capsys.readouterr().out.splitlines() == [
        f"{wrong}:3: listen.port is 70000; allowed: an integer from 0 to 65535",
        f"{wrong}:4: {hots}",
        f"{right}: right",
    ]
    assert run(["config", "check", str(right)]) == ExitCode.DONE


def test_check_speaks_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = write(home / "wrong.yaml", listen={"port": 70_000})
    assert run(["config", "check", "--json", str(wrong)]) == ExitCode.REFUSED
    assert json.loads(capsys.readouterr().out) == {
        str(wrong): [
            {
                "file": str(wrong),
                "line": 3,
                "key": "listen.port",
                "problem": "is 70000",
                "allowed": "an integer from 0 to 65535",
            }
        ]
    }


def test_check_without_a_file_checks_the_users(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "check"]) == ExitCode.DONE
    assert "the defaults hold" in capsys.readouterr().err
    write(home / "xdg_config_home" / "calculet-trio" / "service.yaml", listen={"port": "x"})
    assert run(["config", "check"]) == ExitCode.REFUSED


@pytest.mark.parametrize("arguments", [["config", "check"], ["config", "show"], ["serve"], ["package", "list"]])
def test_a_file_that_cannot_be_read_is_no_reason_for_the_defaults(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    directory = home / "xdg_config_home" / "calculet-trio"
    directory.mkdir(parents=True)
    (directory / "service.yaml").symlink_to("nothing.yaml")
    assert run(arguments) == ExitCode.REFUSED
    captured = capsys.readouterr()
    assert "service.yaml" in captured.out + captured.err


# ---- show -----------------------------------------------------------------------------------------------


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    assert run(["config", "show", "--json", *arguments]) == ExitCode.DONE
    return json.loads(capsys.readouterr().out)


def test_show_says_what_holds_and_where_it_comes_from(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(home / "s.yaml", SCHEDULER, admission={"max_waiting_requests": 3})
    file = write(home / "f.yaml", listen={"port": 1234, "host": "::1"}, models=[{"alias": "m", "scheduler": "s.yaml"}])
    parts = shown(["--config", str(file), "--port", "99", "--deadline", "1.5"], capsys)
    service, scheduler = parts[SERVICE], parts[f"{SCHEDULER} of m"]
    assert service["listen.port"] == {"value": 99, "from": "--port"}
    assert service["listen.host"] == {"value": "::1", "from": f"{file}:4"}
    assert service["device.runtime"] == {"value": "host", "from": "default"}
    assert service["store"] == {"value": str(home / "xdg_data_home/calculet-trio/packages"), "from": "default"}
    assert service["admin_socket"]["value"] == str(home / "xdg_runtime_dir/calculet-trio/admin.sock")
    assert scheduler["admission.max_waiting_requests"] == {"value": 3, "from": f"{home / 's.yaml'}:3"}
    assert scheduler["admission.deadline_default_ms"] == {"value": 1500, "from": "--deadline"}
    assert scheduler["queues.policy"]["from"] == "default"


def test_show_for_people_has_a_line_for_each_key_and_no_whole_hash(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(home / "f.yaml", tenants=[{"name": "acme", "key_sha256": DIGEST}])
    assert run(["config", "show", "--config", str(file)]) == ExitCode.DONE
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert rows["listen.port"] == ["8080", "default"]
    assert rows["tenants[0].key_sha256"] == ['["aaaaaaaa…"]', f"{file}:4"]
    assert DIGEST not in text


def test_the_users_file_is_read_and_flags_stand_over_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(home / "xdg_config_home" / "calculet-trio" / "service.yaml", listen={"port": 4321})
    assert shown([], capsys)[SERVICE]["listen.port"] == {"value": 4321, "from": f"{file}:3"}
    assert shown(["--port", "5"], capsys)[SERVICE]["listen.port"] == {"value": 5, "from": "--port"}
    other = write(home / "other.yaml")
    assert shown(["--config", str(other)], capsys)[SERVICE]["listen.port"]["from"] == "default"


# ---- schema, defaults, key ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["service", "scheduler"])
def test_schema_and_defaults_fit_each_other(kind: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "schema", kind]) == ExitCode.DONE
    schema = json.loads(capsys.readouterr().out)
    assert run(["config", "defaults", kind]) == ExitCode.DONE
    text = capsys.readouterr().out
    jsonschema.validate(yaml.safe_load(text), schema)
    file = home / "f.yaml"
    file.write_text(text)
    assert run(["config", "check", str(file)]) == ExitCode.DONE


def test_key_is_made_shown_once_and_fits_the_configuration(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "key"]) == ExitCode.DONE
    first, second = capsys.readouterr().out.splitlines()
    made = first.rpartition(" ")[2]
    assert len(made) > 40
    digest = yaml.safe_load(second)["key_sha256"]
    assert digest == hashlib.sha256(made.encode()).hexdigest()
    configuration = load(write(home / "f.yaml", tenants=[{"name": "acme", **yaml.safe_load(second)}]))
    found = configuration.key_ring().tenant_of(made.encode())
    assert found is not None
    assert found.tenant == "acme"
    assert run(["config", "key"]) == ExitCode.DONE
    assert made not in capsys.readouterr().out


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_key_hashes_what_it_reads(
    end: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "schlüssel-für-uns-alle".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(key + end)))
    assert run(["config", "key", "--stdin", "--json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out) == {"key_sha256": hashlib.sha256(key).hexdigest()}


@pytest.mark.parametrize(
    "key", [b"", b"short", b"x" * 1025, b"x" * 100_000, b"two words are no key", b"a" * 20 + b"\0"]
)
def test_a_key_that_would_not_do_is_refused_and_not_shown(
    key: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(key)))
    assert run(["config", "key", "--stdin"]) == ExitCode.REFUSED
    out, err = capsys.readouterr()
    assert "key_sha256" not in out
    assert not key or key.decode() not in err


# ---- serve ----------------------------------------------------------------------------------------------


@pytest.fixture
def script(home: Path) -> Path:
    file = home / "script.yaml"
    file.write_text(yaml.safe_dump({"schema": "calculet-script/v1", "model": "m", "replies": [{"tokens": ["a"]}]}))
    return file


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Daemon]:
    """The daemons that ``serve`` would have run."""
    found: list[Daemon] = []
    monkeypatch.setattr(serve_module.trio, "run", lambda _run, daemon: found.append(daemon))
    return found


def test_serve_takes_the_file_and_what_stands_over_it(home: Path, script: Path, started: list[Daemon]) -> None:
    write(home / "s.yaml", SCHEDULER, admission={"max_waiting_requests": 3}, batch={"profiles": [1, 4]})
    file = write(
        home / "f.yaml",
        device={"runtime": "scripted"},
        models=[{"alias": "chosen", "package": "./script.yaml", "scheduler": "s.yaml"}],
        tenants=[{"name": "default", "weight": 2}],
        limits={"stream_backlog_bytes": 2048},
        timeouts={"job_s": 7, "job_per_token_ms": 20, "streams_s": 9},
    )
    assert run(["serve", "--config", str(file), "--deadline", "2"]) == ExitCode.DONE
    [daemon] = started
    assert daemon.source.alias == "chosen"
    assert daemon.policy.admission.max_waiting_requests == 3
    assert daemon.policy.admission.deadline_default_s == 2.0
    assert daemon.policy.batch.profiles == (1, 4)
    assert daemon.policy.tenant("default").weight == 2
    assert daemon.job_timeout == JobTimeout(base_s=7, per_token_s=0.02)
    assert (daemon.drain_s, daemon.backlog_bytes_max) == (9, 2048)


def test_serve_without_a_file_is_what_it_was(script: Path, started: list[Daemon]) -> None:
    assert run(["serve", "--runtime", "scripted", "--script", str(script), "--max-waiting", "5", "--drain", "3"]) == 0
    [daemon] = started
    assert daemon.source.alias == "m"
    assert daemon.policy.admission.max_waiting_requests == 5
    assert daemon.drain_s == 3
    assert daemon.job_timeout == JobTimeout()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--config", "nowhere.yaml"], 78, "nowhere.yaml: cannot be read"),
        (["--config", "."], 78, "directory"),
        (["--host", "0.0.0.0"], 78, "--host: listen.host is 0.0.0.0"),
        (["--script", "{script}"], 78, "--script goes with --runtime scripted"),
        (["--script", "{script}", "--model", "m", "--runtime", "scripted"], 2, "--model and --script"),
        (["--runtime", "scripted"], 78, "needs --script"),
        (["--runtime", "calrt", "--library", "{script}"], 69, "cannot be loaded"),
        (["--runtime", "nothing"], 2, "nothing"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_serve_refuses_in_one_sentence(
    arguments: list[str], code: int, words: str, script: Path, started: list[Daemon], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *(each.format(script=script) for each in arguments)]) == code
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown
    assert not started


def configured(home: Path, script: Path, scheduler: dict[str, Any], **sections: Any) -> Configuration:
    write(home / "s.yaml", SCHEDULER, **scheduler)
    entry = {"alias": "m", "package": str(script), "scheduler": "s.yaml"}
    return load(write(home / "f.yaml", device={"runtime": "scripted"}, **{"models": [entry], **sections}))


@pytest.mark.parametrize(
    ("scheduler", "sections", "words"),
    [
        ({"batch": {"profiles": [1, 7]}}, {}, "batch.profiles of 'm' asks for batch 7"),
        ({"batch": {"thresholds": {7: 2}}}, {}, "batch.thresholds of 'm' asks for batch 7"),
        (
            {},
            {"models": [{"alias": "a"}, {"alias": "b"}]},
            "2 models are configured, and what the runtime scripted drives holds one: a, b",
        ),
    ],
    ids=["profile", "threshold", "models"],
)
def test_wiring_refuses_what_there_is_not(
    home: Path, script: Path, scheduler: dict[str, Any], sections: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationRefused) as refused:
        wire(configured(home, script, scheduler, **sections), on_ready=lambda _: None)
    assert words in refused.value.message


def test_a_policy_of_another_model_is_refused_by_the_packages_own_name(home: Path, script: Path) -> None:
    entry = {"package": str(script), "scheduler": "s.yaml"}
    configuration = configured(home, script, {"model_alias": "qwen3"}, models=[entry])
    with pytest.raises(ConfigurationRefused) as refused:
        wire(configuration, on_ready=lambda _: None)
    assert f"{home / 's.yaml'}:2: model_alias is qwen3, but this is the policy of m" in refused.value.message


def test_the_surface_has_the_configurations_bounds() -> None:
    """Every bound of the surface is a key with the same default; nothing is forgotten on either side."""
    service = load(None).service
    assert api_settings(service, drain_s=ApiSettings().connection.graceful_s) == ApiSettings()
    names = {
        field.name for part in (ApiSettings().request, ApiSettings().connection) for field in attrs.fields(type(part))
    }
    keys = {field.name for part in (service.limits, service.timeouts) for field in attrs.fields(type(part))}
    assert names - keys == {"graceful_s"}
    assert keys - names == {
        *(
            "stream_backlog_bytes",
            "job_s",
            "job_per_token_ms",
            "watchdog_s",
            "drain_s",
            "quiet_s",
            "streams_s",
            "keep_alive_s",
        )
    }
    changed = attrs.evolve(
        service,
        limits=attrs.evolve(service.limits, stops=7, connections=8),
        timeouts=attrs.evolve(service.timeouts, head_s=4, keep_alive_s=5),
    )
    settings = api_settings(changed, drain_s=3)
    assert (settings.request.stops, settings.connection.connections) == (7, 8)
    assert (settings.connection.graceful_s, settings.connection.head_s, settings.keep_alive_s) == (3, 4, 5)
