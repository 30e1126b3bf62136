"""The order is checked at the start, with the model's longest job, and with what driver and manager say."""

from __future__ import annotations

import subprocess

import pytest

from calculet_trio.cli import service_manager, timeouts
from calculet_trio.cli.service_manager import stop_timeout_s
from calculet_trio.core.profiles import BatchProfile, InactiveLanePolicy, ModelShape, PrefillProfile
from calculet_trio.doctor.board import dma_timeout
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.settings.configuration import Override, load
from calculet_trio.settings.timeout_order import NEVER_S


def shape(context):
    decode = BatchProfile("d", 1, context, InactiveLanePolicy.VALID_MASK)
    return ModelShape(PrefillProfile("p", context), (decode,), lanes=1, max_seq=context, vocab_size=300)


def service(runtime="scripted", **keys):
    values = {("device", "runtime"): runtime, **{("timeouts", name): value for name, value in keys.items()}}
    return load(
        None, [Override("calculet-service/v1", path, value, "--test") for path, value in values.items()]
    ).service


def test_the_longest_job_is_a_prompt_that_fills_the_context():
    order = timeouts.checked_order(service(), shape(40_960))
    assert order.longest_job_s == 60 + 0.05 * 40_960 + 5
    assert order.watchdog_s > order.longest_job_s


def test_a_watchdog_that_one_model_fits_and_another_does_not_is_refused_for_that():
    assert timeouts.checked_order(service(watchdog_s=100.0), shape(512)).watchdog_s == 100
    with pytest.raises(ConfigurationRefused, match=r"longest job .* \(2113 s\) must .*watchdog_s \(100 s\)"):
        timeouts.checked_order(service(watchdog_s=100.0), shape(40_960))


def test_the_driver_is_asked_only_for_a_board(monkeypatch):
    monkeypatch.setattr(dma_timeout, "dma_timeout_s", lambda _tree: NEVER_S)
    assert timeouts.checked_order(service("emulated"), shape(512)).dma_s is None
    with pytest.raises(ConfigurationRefused, match=r"dma_timeout_ms \(never\) must be less than timeouts.job_s"):
        timeouts.checked_order(service("calrt"), shape(512))


def test_the_manager_is_asked_about_this_very_unit(monkeypatch):
    asked = []

    def systemctl(command, **_options):
        asked.append(command[1])
        own = "--user" in command
        text = f"InvocationID={'mine' if own else 'other'}\nTimeoutStopUSec={'2min 30s' if own else '1s'}\n"
        return subprocess.CompletedProcess(command, 0, text, "")

    monkeypatch.setattr(service_manager, "_own_unit", lambda: "calculet-trio.service")
    monkeypatch.setattr(service_manager.subprocess, "run", systemctl)
    assert stop_timeout_s({"INVOCATION_ID": "mine"}) == 150
    assert stop_timeout_s({"INVOCATION_ID": "other"}) == 1
    assert stop_timeout_s({"INVOCATION_ID": "nobody's"}) is None
    assert asked == ["--user", "--user", "show", "--user", "show"]
    monkeypatch.setattr(timeouts, "stop_timeout_s", lambda: 150.0)
    with pytest.raises(ConfigurationRefused, match=r"drain_s \(200 s\) must be less than the unit's TimeoutStopSec"):
        timeouts.checked_order(service(drain_s=200.0), shape(512))


@pytest.mark.parametrize("failure", [FileNotFoundError(), subprocess.TimeoutExpired("systemctl", 3)])
def test_a_manager_that_cannot_be_asked_says_nothing(monkeypatch, failure):
    def systemctl(*_command, **_options):
        raise failure

    monkeypatch.setattr(service_manager, "_own_unit", lambda: "calculet-trio.service")
    monkeypatch.setattr(service_manager.subprocess, "run", systemctl)
    assert stop_timeout_s({"INVOCATION_ID": "mine"}) is None
    assert stop_timeout_s({}) is None
