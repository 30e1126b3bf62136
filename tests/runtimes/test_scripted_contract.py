"""The contract of every runtime, over the scripted one."""

from __future__ import annotations

from pathlib import Path

import pytest

from calculet_trio.ids import GenerationId
from calculet_trio.runtimes.script import parse_script
from calculet_trio.runtimes.scripted import ScriptedRuntime
from tests.runtimes.contract import RuntimeContract, Subject


class TestScripted(RuntimeContract):
    @pytest.fixture
    def subject(self):
        script = {"lanes": 4, "profiles": [1, 4], "context_tokens": 32, "replies": [{"tokens": ["some ", "words"]}]}
        runtime = ScriptedRuntime(parse_script(script))
        runtime.open()
        runtime.configure(GenerationId(1), Path())
        yield Subject(runtime, GenerationId(1))
        runtime.close()
