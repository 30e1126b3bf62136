"""Metrics follow the core's events, effects and snapshot, and Prometheus can read them (B59, B61)."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from calculet_trio.core import effects as ef
from calculet_trio.core import events as ev
from calculet_trio.core.device_reading import DeviceReading
from calculet_trio.core.effects import Effect
from calculet_trio.core.fault_record import FaultMemory, FaultRecord
from calculet_trio.core.generation import GenerationEvent
from calculet_trio.core.jobs import EngineId
from calculet_trio.core.policy import AdmissionPolicy, Policy
from calculet_trio.core.profiles import BatchProfile, InactiveLanePolicy, ModelShape, PrefillProfile
from calculet_trio.core.serving import ServingCore
from calculet_trio.observe.metrics import ServiceMetrics
from tests.core.test_fault_sightings import SHOWN

SHAPE = ModelShape(
    prefill=PrefillProfile("prefill", 64),
    decode=tuple(BatchProfile(f"b{b}", b, 64, InactiveLanePolicy.VALID_MASK) for b in (1, 4)),
    lanes=4,
    max_seq=64,
    vocab_size=10,
)


class Scene:
    """A core whose metrics are watched, with its device's answers given by hand."""

    def __init__(self, *, engines=(EngineId.PING,), **admission):
        self.core = ServingCore(Policy(admission=AdmissionPolicy(**admission)), engines)
        self.metrics = ServiceMetrics()
        self.metrics.watch(self.core.snapshot, lambda: self.now)
        self.now = 0.0
        self.job = None
        self.sequences = 0
        self.tokens = 2
        for step in (GenerationEvent.VALIDATE, GenerationEvent.CONFIGURE, GenerationEvent.WARM):
            self.tell(ev.GenerationAdvanced(1, "m", step))
        self.tell(ev.GenerationAdvanced(1, "m", GenerationEvent.PUBLISH, SHAPE))

    def tell(self, event):
        self.metrics.heard(event, self.now)
        for effect in self.core.handle(event, self.now):
            self.metrics.saw(effect, self.now)
            match effect:
                case ef.Place(request, generation):
                    self.tell(ev.Offered(request, generation, (1, 2, 3), self.tokens))
                case ef.AllocateSequence(generation, lane, request, reservation):
                    self.sequences += 1
                    self.tell(ev.SequenceAllocated(generation, lane, request, reservation, self.sequences))
                case ef.ReleaseSequence(generation, lane, sequence):
                    self.now += 0.25
                    self.tell(ev.SequenceReleased(generation, lane, sequence, True))
                case ef.SubmitJob(_, job):
                    self.job = job

    def come(self, request, tenant="t"):
        self.tell(ev.Arrived(request, tenant, "m", None))

    def end_job(self, taken_s=0.1):
        job, self.job = self.job, None
        self.now += taken_s
        times = ev.JobTimes(taken_s, device_s=taken_s * 0.9, h2d_s=taken_s * 0.02, d2h_s=taken_s * 0.03)
        results = tuple(ev.LaneResult(w.lane, w.request, 7) for w in job.lanes)
        self.tell(ev.JobFinished(job.job, 1, results, times=times))

    def end_all(self):
        while self.job is not None:
            self.end_job()

    def read(self):
        """Every sample as {name{labels}: value}."""
        page = self.metrics.expose("text/plain;version=0.0.4")[0].decode()
        return {
            sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
            for family in plain_text(page)
            for sample in family.samples
        }


def test_a_requests_life_is_counted_once_in_every_series():
    scene = Scene()
    scene.come(1)
    scene.end_all()
    seen = scene.read()
    assert seen["calculet_requests_total outcome=length"] == 1
    assert sum(value for name, value in seen.items() if name.startswith("calculet_requests_total")) == 1
    assert seen["calculet_prompt_tokens_total"] == 3
    assert seen["calculet_generated_tokens_total"] == 2
    assert seen["calculet_tenant_service_tokens_total kind=prompt tenant=t"] == 3
    assert seen["calculet_tenant_service_tokens_total kind=generated tenant=t"] == 2
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "request_queue_time"):
        assert seen[f"vllm:{name}_seconds_count"] == 1
    assert seen["vllm:time_to_first_token_seconds_sum"] == pytest.approx(0.1)
    assert seen["calculet_jobs_total engine=ping outcome=finished phase=prefill"] == 1
    assert seen["calculet_jobs_total engine=ping outcome=finished phase=decode"] == 1
    assert seen["calrt_infer_ms_sum phase=decode"] == pytest.approx(90)
    assert seen["calrt_h2d_ms_sum phase=decode"] == pytest.approx(2)
    assert seen["calrt_d2h_ms_sum phase=decode"] == pytest.approx(3)
    assert seen["calrt_framework_ms_sum phase=decode"] == pytest.approx(5)
    assert seen["calculet_kv_free_seconds_sum"] == pytest.approx(0.25)
    assert seen["vllm:num_requests_running"] == seen["calrt_kv_used_batches"] == 0


def test_lanes_without_a_sequence_are_counted_as_waste():
    scene = Scene()
    scene.tokens = 20
    for request in (1, 2, 3):
        scene.come(request)
    wasted = 0
    while scene.job is not None:
        if scene.job.phase == "decode":
            wasted += scene.job.profile.compiled_batch - len(scene.job.lanes)
        scene.end_job()
    assert wasted > 0
    assert scene.read()["calculet_batch_wasted_lanes_total"] == wasted
    assert scene.read()["calculet_batch_active_lanes_count compiled_batch=4"] >= 1


def test_gauges_are_those_of_the_moment_and_fall_when_all_leave():
    scene = Scene(max_sequences=1)
    for request in (1, 2, 3):
        scene.come(request, tenant="ab"[request % 2])
    scene.now += 4.0
    seen = scene.read()
    assert (seen["vllm:num_requests_running"], seen["vllm:num_requests_waiting"]) == (1, 2)
    assert seen["calculet_tenant_waiting tenant=a"] == 1
    assert seen["calculet_tenant_active tenant=b"] == 1
    assert seen["calculet_kv_lanes state=updating"] == 1
    assert seen["calculet_status status=ok"] == 1
    for request in (1, 2, 3):
        scene.tell(ev.Cancelled(request, ev.CancelReason.CLIENT_GONE))
    scene.end_job()
    seen = scene.read()
    assert (seen["vllm:num_requests_running"], seen["vllm:num_requests_waiting"]) == (0, 0)
    assert seen["calculet_requests_total outcome=cancelled"] == 3
    assert seen["calculet_kv_tokens_reserved"] == 0


def test_a_model_that_takes_anothers_place_is_seen_beside_it():
    scene = Scene()
    for step in (GenerationEvent.VALIDATE, GenerationEvent.CONFIGURE):
        scene.tell(ev.GenerationAdvanced(2, "m", step))
    seen = scene.read()
    assert seen["calculet_generations alias=m state=ready"] == 1
    assert seen["calculet_generations alias=m state=configuring"] == 1
    assert seen["calculet_generations alias=m state=failed"] == 0


def test_refusals_starvation_and_faults_have_their_reasons():
    scene = Scene(max_sequences=1, max_waiting_requests=1, deadline_default_s=1.0)
    for request in (1, 2, 3):
        scene.come(request)
    scene.now = 2.0
    scene.tell(ev.TimePassed())
    scene.tell(ev.JobUnknown(scene.job.job, 1, ev.FaultReason.CCU_FAULT))
    seen = scene.read()
    assert seen["calculet_refusals_total code=queue_full"] == 1
    assert seen["calculet_refusals_total code=deadline_exceeded"] == 1
    assert seen["calculet_starvation_events_total tenant=t"] == 1
    assert seen["calrt_errors_total code=ccu_fault"] == 1
    assert seen["calculet_quarantined_jobs_total reason=ccu_fault"] == 1
    assert seen["calculet_jobs_total engine=ping outcome=unknown phase=prefill"] == 1
    assert seen["calculet_status status=recovering"] == 1
    assert sum(value for name, value in seen.items() if name.startswith("calculet_requests_total")) == 3


@pytest.mark.parametrize(("told", "reasons"), [(told, [reason for reason, _ in seen]) for told, seen in SHOWN])
def test_each_fault_is_counted_once_by_its_code(told, reasons):
    """What a job met is counted with the job, and not again for each request that it cost."""
    metrics = ServiceMetrics()
    tell = metrics.saw if isinstance(told, Effect) else metrics.heard
    tell(told, 0.0)
    [family] = [each for each in metrics._errors.collect() if each.name == "calrt_errors"]
    counts = {sample.labels["code"]: sample.value for sample in family.samples if sample.name == "calrt_errors_total"}
    assert counts.keys() == {each.value for each in ev.FaultReason}
    assert {code: count for code, count in counts.items() if count} == {reason.value: 1 for reason in reasons}


def test_a_pair_in_doubt_is_counted_and_the_mode_is_one_of_three():
    scene = Scene(max_inflight_jobs=2, engines=(EngineId.PING, EngineId.PONG))
    assert scene.read()["calculet_engine_mode mode=ping_pong"] == 1
    scene.tell(ev.PairDoubted(ev.Doubt.STATUS_ANOMALY))
    seen = scene.read()
    assert seen["calculet_ping_pong_degradations_total doubt=status_anomaly"] == 1
    assert seen["calculet_ping_pong_degradations_total doubt=timeout"] == 0
    assert [seen[f"calculet_engine_mode mode={mode}"] for mode in ("single", "ping_pong", "degraded")] == [0, 0, 1]


def test_waiting_work_shows_its_depth_and_age():
    scene = Scene()
    scene.come(1)
    scene.come(2)
    scene.now += 3.0
    seen = scene.read()
    assert seen["calculet_queue_depth kind=short"] == 1
    assert seen["calculet_queue_oldest_seconds kind=short"] == pytest.approx(3.0)
    assert seen["calculet_queue_depth kind=decode"] == 0


@pytest.mark.parametrize(
    ("accept", "content_type", "parse"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8", plain_text),
        ("text/plain;version=0.0.4", "text/plain; version=0.0.4; charset=utf-8", plain_text),
        (
            "application/openmetrics-text; version=1.0.0",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            open_metrics,
        ),
    ],
)
def test_the_page_is_in_the_format_that_was_asked_for(accept, content_type, parse):
    scene = Scene()
    scene.come(1)
    page, declared = scene.metrics.expose(accept)
    assert declared.startswith(content_type)
    families = list(parse(page.decode()))
    assert len({family.name for family in families}) == len(families)
    assert page.endswith(b"# EOF\n") == (parse is open_metrics)


def test_labels_come_from_closed_sets():
    scene = Scene()
    for request in range(50):
        scene.come(request)
    scene.end_all()
    assert not any(key in name for name in scene.read() for key in (" request=", " job=", " lane="))
    assert scene.metrics._lives == {}
    assert scene.metrics._jobs == {}
    assert scene.metrics._releases == {}


def test_waiting_for_a_kv_sequence_counts_from_the_first_asking():
    metrics = ServiceMetrics()
    generation, lane = 1, 0
    for reservation, asked_s, request in ((1, 1.0, 1), (2, 1.5, 1), (3, 2.0, 2)):
        metrics.saw(ef.AllocateSequence(generation, lane, request, reservation, 8), asked_s)
    metrics.heard(ev.SequenceAllocated(generation, lane, 1, 2, 5), 1.75)
    metrics.saw(ef.Drop(2), 3.0)
    metrics.heard(ev.SequenceAllocated(generation, lane, 2, 3, 6), 4.0)
    page = metrics.expose("text/plain")[0].decode()
    assert "calrt_kv_allocation_wait_ms_count 1.0" in page
    assert "calrt_kv_allocation_wait_ms_sum 750.0" in page


def test_the_memory_of_faults_is_shown_and_no_device_that_was_not_asked():
    metrics = ServiceMetrics()
    memory = FaultMemory(restarts=3).with_reset_begun(5.0).with_reset_ended(succeeded=True, took_s=1.0)
    memory = memory.with_reset_begun(9.0)
    memory = memory.with_fault(FaultRecord(happened_unix_s=9.0, reason=ev.FaultReason.UNKNOWN_DMA))
    metrics.watch_device(lambda: None, lambda: memory)
    page = metrics.expose("text/plain")[0].decode()
    assert "calculet_fault_restarts_total 3.0" in page
    assert 'calculet_resets_remembered{outcome="succeeded"} 1.0' in page
    assert "calculet_last_recovery_seconds 1.0" in page
    assert 'calculet_faults_remembered{code="unknown_dma"} 1.0' in page
    assert 'calculet_faults_remembered{code="timeout"} 0.0' in page
    assert 'calculet_resets_remembered{outcome="unknown"} 1.0' in page
    assert "calrt_device" not in page


def test_every_name_of_the_runtimes_metrics_is_there():
    """A §6's list, and S §16's row of recovery."""
    metrics = ServiceMetrics()
    reading = DeviceReading(read_s=0.0, is_ok=True, word="w", jobs=0, counters={}, used_bytes=5, total_bytes=None)
    metrics.watch(lambda: ServingCore(Policy()).snapshot(), lambda: 1.0)
    metrics.watch_device(lambda: reading, FaultMemory)
    page = metrics.expose("text/plain")[0].decode()
    for name in (
        "calculet_buffers_unknown",
        "calculet_device_resets_total",
        "calculet_replays_total",
        "calculet_quarantined_jobs_total",
        "calrt_infer_ms", "calrt_h2d_ms", "calrt_d2h_ms", "calrt_framework_ms", "calrt_kv_used_batches",
        "calrt_kv_allocation_wait_ms", "calrt_device_dram_used_bytes", "calrt_device_status", "calrt_errors_total",
    ):  # fmt: skip
        assert f"# HELP {name} " in page
    assert "calrt_device_dram_total_bytes" not in page, "a total that cannot be trusted is not shown"


def test_what_reuse_came_to_is_counted():
    scene = Scene()
    counts = scene.core._fleet.reuse
    counts.hits, counts.tokens, counts.evictions = 2, 300, 1
    seen = scene.read()
    named = ("hits", "cached_tokens", "evictions")
    assert [seen[f"calculet_prefix_{name}_total"] for name in named] == [2, 300, 1]
    assert seen["calculet_kv_lanes state=retained"] == 0
