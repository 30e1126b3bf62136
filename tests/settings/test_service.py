"""``calculet-service/v1``: what does not go together, tenants, paths, and a configuration made of several files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from calculet_trio.core.policy import TenantPolicy
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.settings import faults as faults_module
from calculet_trio.settings.configuration import Override, check_file, examine, load
from calculet_trio.settings.scheduler import SCHEMA as SCHEDULER
from calculet_trio.settings.service import SCHEMA, TENANTS_MAX, ListenSettings

DIGESTS = [f"{number:x}".rjust(64, "a") for number in range(20)]


def write(file: Path, schema: str = SCHEMA, **sections: Any) -> Path:
    file.write_text(yaml.safe_dump({"schema": schema, **sections}, sort_keys=False))
    return file


def faults_of(directory: Path, **sections: Any) -> list[str]:
    name = str(directory / "service.yaml")
    return [str(each).replace(name, "F") for each in check_file(write(directory / "service.yaml", **sections))]


KEYED = {"name": "acme", "key_sha256": DIGESTS[0]}


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"listen": {"host": "0.0.0.0"}}, "listen.host"),
        ({"listen": {"host": "::"}}, "listen.host"),
        ({"listen": {"host": "board.example.org"}}, "listen.host"),
        # A tenant whose keys are all revoked lets nobody in, and so protects nothing.
        ({"listen": {"host": "10.0.0.1"}, "tenants": [{"name": "default", "key_sha256": []}]}, "listen.host"),
        ({"timeouts": {"job_s": 90, "watchdog_s": 90}}, "timeouts.job_s"),
        ({"timeouts": {"watchdog_s": 60}}, "timeouts.watchdog_s"),
        ({"timeouts": {"watchdog_s": 120, "drain_s": 120}}, "timeouts.watchdog_s"),
        ({"timeouts": {"drain_s": 60}}, "timeouts.drain_s"),
        ({"timeouts": {"streams_s": 121, "drain_s": 120}}, "timeouts.streams_s"),
        ({"timeouts": {"write_stall_s": 120, "drain_s": 120}}, "timeouts.write_stall_s"),
        ({"tenants": [KEYED, {"name": "acme"}]}, "tenants[1].name"),
        ({"tenants": [KEYED, {"name": "b", "key_sha256": [DIGESTS[1], DIGESTS[0]]}]}, "tenants[1].key_sha256"),
        ({"tenants": [{"name": "b", "key_sha256": [DIGESTS[1], DIGESTS[1]]}]}, "tenants[0].key_sha256[1]"),
        ({"tenants": [{"name": "acme"}]}, "tenants[0].name"),
        ({"models": [{"alias": "m", "package": "a"}, {"alias": "m", "package": "b"}]}, "models[1].alias"),
        ({"models": [{"package": "a"}, {"package": "b"}]}, "models[1].alias"),
        ({"models": [{"scheduler": "nowhere.yaml"}]}, "models[0].scheduler"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_does_not_go_together(tmp_path: Path, sections: dict[str, Any], key: str) -> None:
    first, *others = faults_of(tmp_path, **sections)
    assert f": {key} " in first
    assert first.startswith("F:")
    assert not others or key == "models[0].scheduler"


@pytest.mark.parametrize(
    "sections",
    [
        {"listen": {"host": "127.0.0.2"}},
        {"listen": {"host": "::1"}},
        {"listen": {"host": "localhost"}},
        {"listen": {"host": "0.0.0.0", "allow_remote": True}},
        {"listen": {"host": "0.0.0.0"}, "tenants": [KEYED]},
        {"tenants": [{"name": "default", "weight": 3}]},
        {"tenants": [KEYED, {"name": "revoked"}]},
        {"timeouts": {"job_s": 600, "watchdog_s": 700, "drain_s": 800}},
        {"models": [{"alias": "a"}, {"alias": "b"}]},
    ],
    ids=str,
)
def test_what_goes_together(tmp_path: Path, sections: dict[str, Any]) -> None:
    assert faults_of(tmp_path, **sections) == []


def test_loopback_is_not_what_only_looks_like_it() -> None:
    for host in ("127.0.0.1.example.org", "localhost.example.org", "0.0.0.0", "::ffff:10.0.0.1", "1"):
        assert not ListenSettings(host=host).is_loopback


def test_a_wrong_key_hash_is_one_fault_and_its_text_is_never_shown(tmp_path: Path) -> None:
    told = faults_of(
        tmp_path,
        listen={"host": "0.0.0.0"},
        tenants=[
            {"name": "a", "key_sha256": "sk-my-own-key"},
            {"name": "b", "key_sha256": ["sk-my-own-key", DIGESTS[0]]},
        ],
    )
    assert len(told) == 2
    assert "tenants[0].key_sha256 is not one (13 characters, not shown)" in told[0]
    assert "tenants[1].key_sha256[0] is not one" in told[1]
    assert "sk-my" not in "".join(told)
    [told] = faults_of(tmp_path, tenants=[{"name": "a", "key_sha256": {"sk-my-own-key": 1}}])
    assert "sk-my" not in told


def test_all_faults_of_all_files_at_once(tmp_path: Path) -> None:
    write(tmp_path / "wrong.yaml", SCHEDULER, queues={"decode_weight": 0}, model_alias="other")
    told = faults_of(
        tmp_path,
        listen={"port": -1, "prot": 80},
        models=[{"alias": "m", "scheduler": "wrong.yaml"}, {"alias": "n", "scheduler": "nowhere.yaml"}],
    )
    assert [line.split(": ", 1)[1].split(" ")[0] for line in told] == [
        *("listen.port", "listen.prot", "queues.decode_weight", "model_alias", "models[1].scheduler", "cannot")
    ]
    with pytest.raises(ConfigurationRefused) as refused:
        load(tmp_path / "service.yaml")
    assert "the configuration has 6 faults:" in refused.value.message
    assert all(str(line).replace("F", str(tmp_path / "service.yaml"), 1) in refused.value.message for line in told[:2])


def test_what_is_told_is_bounded(tmp_path: Path) -> None:
    file = write(tmp_path / "service.yaml", **{f"key{number}": 1 for number in range(200)})
    with pytest.raises(ConfigurationRefused) as refused:
        load(file)
    lines = refused.value.message.splitlines()
    assert len(lines) == faults_module.SHOWN_FAULTS_MAX + 2
    assert lines[-1].strip() == "and 150 more"
    huge = write(tmp_path / "huge.yaml", device={"runtime": "x" * 100_000, "y" * 1000: 1})
    assert max(map(len, map(str, check_file(huge)))) < 2000


def test_a_scheduler_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "other.yaml", SCHEMA)
    told = faults_of(tmp_path, models=[{"scheduler": "other.yaml"}])
    assert any(f'schema is "{SCHEMA}"; allowed: {SCHEDULER}' in line for line in told)


@pytest.mark.parametrize("text", ["schema: calculet-service/v2\n", "schema: [1]\n", "listen: {}\n", "schema:\n"])
def test_a_file_that_does_not_say_what_it_is(tmp_path: Path, text: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    [fault] = check_file(file)
    assert fault.key == "schema"
    assert fault.allowed == f"{SCHEMA} or {SCHEDULER}"


@pytest.mark.parametrize(("sections", "told"), [({}, []), ({"colour": "blue"}, ["colour"])])
def test_what_a_pipe_says_is_read_once(tmp_path: Path, sections: dict[str, str], told: list[str]) -> None:
    """``config check <(make it)``: there is nothing to be read a second time."""
    text = write(tmp_path / "f.yaml", **sections).read_bytes()
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    faults = check_file(Path(f"/dev/fd/{reader}"))
    os.close(reader)
    assert [fault.key for fault in faults] == told


def test_tenants_reach_the_policy(tmp_path: Path) -> None:
    limits = {"max_active_sequences": 2, "max_waiting_tokens": 3, "requests_per_s": 0.5, "deadline_ms": 1500}
    file = write(tmp_path / "f.yaml", tenants=[KEYED | {"weight": 2, **limits}, {"name": "other"}])
    configuration = load(file)
    policy = configuration.policy(configuration.served[0])
    assert set(policy.tenants) == {"acme", "other"}
    assert policy.tenant("other") == TenantPolicy()
    assert attrs.astuple(policy.tenant("acme")) == (2.0, 2, 3, 0.5, 1.5)


def test_many_tenants_are_read_and_one_more_is_not(tmp_path: Path) -> None:
    tenants = [{"name": f"t{number}", "key_sha256": f"a{number:063x}"} for number in range(TENANTS_MAX)]
    configuration = load(write(tmp_path / "f.yaml", tenants=tenants))
    assert len(configuration.policy(configuration.served[0]).tenants) == TENANTS_MAX
    [told] = faults_of(tmp_path, tenants=[*tenants, {"name": "more"}])
    assert f"at most {TENANTS_MAX} tenants (it has {TENANTS_MAX + 1})" in told


def test_paths_begin_at_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    configuration = load(write(tmp_path / "f.yaml", store="packages"))
    assert configuration.path("packages") == tmp_path / "packages"
    assert configuration.path("~/x") == Path("/somewhere/x")
    assert configuration.path("/x") == Path("/x")


def test_each_alias_has_its_own_policy(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    write(tmp_path / "policies" / "a.yaml", SCHEDULER, admission={"max_waiting_requests": 7}, model_alias="a")
    file = write(
        tmp_path / "f.yaml",
        models=[{"alias": "a", "package": "pa", "scheduler": "policies/a.yaml"}, {"alias": "b", "package": "pb"}],
    )
    configuration = load(file)
    assert [configuration.policy(each).admission.max_waiting_requests for each in configuration.served] == [7, 128]
    assert [each.model.alias for each in load(file, model="b").served] == ["b"]
    assert [each.model.alias for each in load(file, model="pa").served] == ["a"]
    [other] = load(file, model="pc").served
    assert (other.model.alias, other.model.package) == (None, "pc")
    [there] = load(file, model="./some/where").served
    assert there.model.package == str(Path.cwd() / "some/where")


def test_flags_stand_over_files_and_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", SCHEDULER, admission={"max_waiting_requests": 7, "deadline_default_ms": 9})
    file = write(tmp_path / "f.yaml", listen={"port": 1}, models=[{"scheduler": "a.yaml"}])
    waiting = Override(SCHEDULER, ("admission", "max_waiting_requests"), 8, "--max-waiting")
    port = Override(SCHEMA, ("listen", "port"), 2, "--port")
    configuration = load(file, [waiting, port])
    policy = configuration.policy(configuration.served[0])
    assert (policy.admission.max_waiting_requests, policy.admission.deadline_default_s) == (8, 0.009)
    assert configuration.service.listen.port == 2
    origins = {each.path: str(each.origin) for _, values in configuration.effective() for each in values}
    assert origins[("listen", "port")] == "--port"
    assert origins[("listen", "host")] == "default"
    assert origins[("admission", "max_waiting_requests")] == "--max-waiting"
    assert origins[("admission", "deadline_default_ms")] == f"{tmp_path / 'a.yaml'}:4"
    assert origins[("models", 0, "scheduler")] == f"{file}:5"
    _, [fault] = examine(file, [attrs.evolve(port, value=-2)])
    assert str(fault) == "--port: listen.port is -2; allowed: an integer from 0 to 65535"
