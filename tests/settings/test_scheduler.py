"""``calculet-scheduler/v1``: the specification's own text, its policy, and what does not go together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from calculet_trio.core.policy import BatchPolicy, DecodeOrder, Policy, TenantPolicy, TurnPolicy
from calculet_trio.settings.configuration import check_file, load
from calculet_trio.settings.document import Document, read_document
from calculet_trio.settings.keys import leaves_of
from calculet_trio.settings.scheduler import SCHEMA, SchedulerSettings
from calculet_trio.settings.structuring import plain, structured

SPECIFICATION = Path(__file__).resolve().parents[3] / "shared" / "spec" / "000_c28a7f30164d6db2.txt"

# S §15. The copy that we received has lost its indentation; `test_this_is_the_specifications_text` compares the rest.
PRINTED = """\
schema: calculet-scheduler/v1
model_alias: qwen3
admission:
  max_waiting_requests: 128
  max_waiting_prompt_tokens: 262144
  deadline_default_ms: 120000
queues:
  decode_weight: 8
  short_prefill_weight: 4
  medium_prefill_weight: 2
  long_prefill_weight: 1
  short_prefill_max_tokens: 512
  medium_prefill_max_tokens: 4096
batch:
  profiles: [1]
  batching_window_us: 0
executor:
  max_inflight: 1
  fixed_engine: false
recovery:
  max_resets_per_10min: 2
  restart_on_unknown_dma: true
"""


def read(**sections: Any):
    return structured(Document("f.yaml", Path(), {"schema": SCHEMA, **sections}), SchedulerSettings)


def test_this_is_the_specifications_text() -> None:
    if not SPECIFICATION.exists():
        pytest.skip("the specification does not lie beside this repository")
    section = SPECIFICATION.read_text("utf-8").split("## 15. ")[1].split("## 16. ")[0]
    block = section.split("```yaml")[1].split("```")[0]
    lines = [line for line in block.splitlines() if re.search(r"\w", line)]
    assert [line.strip() for line in lines] == [line.strip() for line in PRINTED.splitlines()]


def test_the_specifications_text_loads_to_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(PRINTED)
    document, faults = read_document(file)
    settings, more = structured(document, SchedulerSettings)
    assert (faults, more) == ((), ())
    assert settings is not None
    # It names its model, and its board has B1 alone; everything else that it says is what nobody need say.
    assert settings == SchedulerSettings(
        schema=SCHEMA, model_alias="qwen3", batch=attrs.evolve(SchedulerSettings(schema=SCHEMA).batch, profiles=(1,))
    )
    assert settings.policy({}) == Policy(batch=BatchPolicy(profiles=(1,)))


def test_without_a_word_the_policy_is_the_cores_own() -> None:
    assert load(None).policy(load(None).served[0]) == Policy()


EVERY = {
    "model_alias": "m",
    "admission": {
        "max_sequences": 3,
        "max_kv_tokens": 4,
        "max_waiting_requests": 5,
        "max_waiting_prompt_tokens": 6,
        "max_inflight_jobs": 2,
        "deadline_default_ms": 7500,
    },
    "queues": {
        "policy": "wrr",
        "decode_weight": 9,
        "short_prefill_weight": 10,
        "medium_prefill_weight": 11,
        "long_prefill_weight": 12,
        "short_prefill_max_tokens": 13,
        "medium_prefill_max_tokens": 14,
        "long_quota": 0.25,
        "prefill_chunk_tokens": 15,
    },
    "decode": {"policy": "edf", "tenant_lane_share": 0.5},
    "fairness": {"decode_cost_weight": 2.5},
    "batch": {"profiles": [1, 4], "batching_window_us": 1500, "thresholds": {4: 3}},
    "prefix_reuse": {"enabled": True, "max_lanes": 3, "max_age_s": 90, "min_tokens": 40, "replies": False},
    "executor": {
        "max_inflight": 2,
        "fixed_engine": False,
        "mode": "async",
        "p99_gate": 0.2,
        "probation_jobs": 500,
    },
    "recovery": {"max_resets_per_10min": 8, "restart_on_unknown_dma": False, "replay": True},
}


def test_every_key_reaches_the_policy() -> None:
    settings, faults = read(**EVERY)
    assert faults == ()
    assert settings is not None
    policy = settings.policy({"acme": TenantPolicy(weight=2)})
    admission, queues, batch = policy.admission, policy.queues, policy.batch
    assert attrs.astuple(admission) == (3, 4, 5, 6, 2, 7.5)
    assert attrs.astuple(queues) == (TurnPolicy.WRR, 9, 10, 11, 12, 13, 14, 0.25, 15)
    assert attrs.astuple(policy.decode) == (DecodeOrder.EDF, 0.5)
    assert attrs.astuple(policy.fairness) == (2.5,)
    assert attrs.astuple(policy.reuse) == (True, 3, 90, 40, False)
    assert (batch.profiles, batch.batching_window_s, batch.thresholds) == ((1, 4), 0.0015, {4: 3})
    assert attrs.astuple(policy.recovery) == (8, False, True)
    assert policy.tenant("acme").weight == 2


def test_no_key_is_deaf() -> None:
    """Each key by itself, away from its default, makes another policy (or is refused for what it contradicts)."""
    other = {"model_alias": "policy of another", "schema": SCHEMA}
    for path, key, value in leaves_of(read(**EVERY)[0]):
        if path[0] in other or plain(value) == plain(key.default):
            continue
        changed, faults = read(**{path[0]: {path[1]: plain(value)}})
        assert changed is not None
        assert faults or changed.policy({}) != Policy(), path


def test_the_engines_of_the_policy() -> None:
    fixed, _ = read(executor={"fixed_engine": True, "mode": "sync", "p99_gate": 0.1, "probation_jobs": None})
    assert fixed is not None
    assert attrs.astuple(fixed.policy({}).executor) == (True, True, 0.1, None)
    both, _ = read(executor={"max_inflight": 2})
    assert both is not None
    assert both.policy({}).admission.max_inflight_jobs == 2
    budgeted, faults = read(executor={"max_inflight": 2}, admission={"max_inflight_jobs": 1})
    assert faults == ()
    assert budgeted is not None
    assert budgeted.policy({}).admission.max_inflight_jobs == 1


@pytest.mark.parametrize(
    ("sections", "key", "words"),
    [
        ({"admission": {"max_inflight_jobs": 2}}, "admission.max_inflight_jobs", "executor.max_inflight (1)"),
        ({"executor": {"max_inflight": 2, "fixed_engine": True}}, "executor.fixed_engine", "one engine takes one job"),
        ({"executor": {"max_inflight": 2, "mode": "sync"}}, "executor.mode", "one job at a time"),
        ({"queues": {"medium_prefill_max_tokens": 511}}, "queues.medium_prefill_max_tokens", "(512)"),
        # The key that somebody wrote is the one that is named first, not its innocent default partner.
        ({"queues": {"short_prefill_max_tokens": 4097}}, "queues.short_prefill_max_tokens", "(4096)"),
        ({"batch": {"profiles": [1], "thresholds": {4: 3}}}, "batch.thresholds[4]", "[1] and has no 4"),
        ({"batch": {"thresholds": {4: 6, 8: 6}}}, "batch.thresholds[8]", "never chosen"),
        ({"batch": {"thresholds": {8: 2, 4: 3}}}, "batch.thresholds[8]", "never chosen"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_does_not_go_together(tmp_path: Path, sections: dict[str, Any], key: str, words: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(yaml.safe_dump({"schema": SCHEMA, **sections}))
    [fault] = check_file(file)
    assert fault.key == key
    assert words in fault.problem
    assert fault.origin.line is not None


def test_what_goes_together() -> None:
    for sections in (
        {"batch": {"thresholds": {4: 3, 8: 6, 16: 12}}},
        {"batch": {"profiles": [1, 4], "thresholds": {4: 3}}},
        {"queues": {"short_prefill_max_tokens": 4096}},
        {"executor": {"fixed_engine": True, "mode": "sync"}},
    ):
        assert read(**sections)[1] == ()


def test_a_contradiction_with_a_wrong_value_is_not_told() -> None:
    """512 > "x" is nothing that anybody could mend; but what has nothing to do with the wrong key is told."""
    _, faults = read(
        queues={"short_prefill_max_tokens": "x", "medium_prefill_max_tokens": 1}, batch={"thresholds": {4: 6, 8: 6}}
    )
    assert [fault.key for fault in faults] == ["queues.short_prefill_max_tokens", "batch.thresholds[8]"]
