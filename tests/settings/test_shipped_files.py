"""What ships in ``config/`` is the table of keys itself, says the defaults, and an editor's schema accepts it."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from calculet_trio.settings.allowed import dotted
from calculet_trio.settings.configuration import KINDS, check_file, load
from calculet_trio.settings.json_schema import json_schema
from calculet_trio.settings.keys import keys_of, leaves_of
from calculet_trio.settings.structuring import plain
from calculet_trio.settings.written_defaults import written_defaults

CONFIG = Path(__file__).resolve().parents[2] / "config"
FILES = {"calculet-scheduler/v1": CONFIG / "scheduler.yaml", "calculet-service/v1": CONFIG / "service.yaml"}
EACH = pytest.mark.parametrize("name", list(KINDS))


@EACH
def test_it_is_what_the_command_prints(name: str) -> None:
    kind = name.partition("/")[0].removeprefix("calculet-")
    assert FILES[name].read_text("utf-8") == written_defaults(KINDS[name]), (
        f"calculet-trio config defaults {kind} > config/{kind}.yaml"
    )


@EACH
def test_it_says_the_defaults_and_nothing_else(name: str) -> None:
    assert check_file(FILES[name]) == ()
    said = yaml.safe_load(FILES[name].read_text("utf-8"))
    for path, _, value in leaves_of(KINDS[name](schema=name)):
        place = said
        for part in path:
            place = place[part]
        assert place == plain(value), dotted(path)
    assert load(CONFIG / "service.yaml").service == load(None).service


@EACH
def test_an_editor_accepts_it(name: str) -> None:
    schema = json_schema(KINDS[name])
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(FILES[name].read_text("utf-8")), schema)


@EACH
def test_every_key_has_a_sentence_a_default_and_a_range(name: str) -> None:
    def look(kind: type) -> None:
        for each in keys_of(kind):
            assert re.search(r"\w.*[.]$", each.says, flags=re.DOTALL), each.name
            assert each.is_required == (each.name in ("schema", "name"))
            if each.section is not None:
                look(each.section)
            else:
                assert each.allowed is not None
                assert each.allowed.words
                if not each.is_required:
                    assert plain(each.allowed.accept(plain(each.default))) == plain(each.default)

    look(KINDS[name])


def test_what_is_commented_out_works_when_it_is_not(tmp_path: Path) -> None:
    """The entries of ``models`` and ``tenants``: uncomment one and it is right."""
    text = FILES["calculet-service/v1"].read_text("utf-8")
    text = re.sub(r"^(models|tenants): \[\]$", r"\1:", text, flags=re.MULTILINE)
    text = re.sub(r"^# (  (?:-|  |  #).*)$", r"\1", text, flags=re.MULTILINE)
    file = tmp_path / "service.yaml"
    file.write_text(text.replace("the-name", "default"))
    assert check_file(file) == ()
    configuration = load(file)
    assert [tenant.name for tenant in configuration.service.tenants] == ["default"]
    assert len(configuration.service.models) == 1
