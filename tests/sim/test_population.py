"""Who comes: drawn or recorded."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from calculet_trio.errors import ConfigurationRefused
from calculet_trio.sim.failure import Failure, try_scenario
from calculet_trio.sim.population import Poisson, Recorded, Visit
from calculet_trio.sim.scenario import Scenario

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
HEADER = "arrival_s,tenant,prompt_tokens,output_tokens\n"


def first(population: Poisson | Recorded, visits: int, *, seed: int = 1) -> list[Visit]:
    return list(islice(population.visits(np.random.default_rng(seed)), visits))


def test_arrivals_are_in_order_at_their_rate_and_of_all_tenants() -> None:
    visits = first(Poisson(per_s=4.0), 4000)
    moments = [visit.arrival_s for visit in visits]
    assert moments == sorted(moments)
    assert moments[-1] == pytest.approx(1000.0, rel=0.1)
    shares = [sum(visit.tenant == name for visit in visits) / len(visits) for name in ("a", "b", "c")]
    assert shares == pytest.approx([0.5, 0.25, 0.25], abs=0.05)


def test_some_leave_some_read_slowly_and_some_have_deadlines_of_their_own() -> None:
    visits = first(Poisson(per_s=1.0, misbehaving=0.3), 3000)
    kinds = (
        sum(visit.patience_s is not None for visit in visits),
        sum(visit.read_pause_s > 0 for visit in visits),
        sum(visit.deadline_s is not None for visit in visits),
    )
    assert kinds == pytest.approx((300, 300, 300), rel=0.25)
    well_behaved = first(Poisson(per_s=1.0, misbehaving=0.0), 100)
    assert all(visit.patience_s is None and visit.deadline_s is None for visit in well_behaved)


def test_the_same_seed_brings_the_same_visits() -> None:
    assert first(Poisson(per_s=1.0), 50, seed=5) == first(Poisson(per_s=1.0), 50, seed=5)
    assert first(Poisson(per_s=1.0), 50, seed=5) != first(Poisson(per_s=1.0), 50, seed=6)


def test_a_recorded_trace_comes_as_it_was_only_slower(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0.5,x,10,20\n1.5,y,0,0\n")
    one, other = first(Recorded(path=path, stretch=4.0), 9)
    assert (one.arrival_s, one.tenant, one.prompt_tokens, one.output_tokens) == (2.0, "x", 10, 20)
    assert (other.arrival_s, other.prompt_tokens, other.output_tokens) == (6.0, 1, 1)


@pytest.mark.parametrize("row", ["0.5,x,ten,20", "0.5,x", "soon,x,1,1", "nan,x,1,1", "-1,x,1,1"])
def test_a_row_that_is_none_is_named_by_file_and_line(tmp_path: Path, row: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0.1,x,1,1\n" + row + "\n")
    with pytest.raises(ConfigurationRefused, match=r"trace\.csv:3 "):
        first(Recorded(path=path), 9)


def test_rows_that_go_back_in_time_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "5.0,x,1,1\n4.0,x,1,1\n")
    with pytest.raises(ConfigurationRefused, match=r"trace\.csv:3 .*order"):
        first(Recorded(path=path), 9)


def test_a_trace_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationRefused, match="cannot read the trace"):
        first(Recorded(path=tmp_path / "none.csv"), 1)


@pytest.mark.parametrize("name", ["vtc_arena.csv", "azure_conv_2023.csv"])
def test_public_traces_are_served(name: str) -> None:
    if not (TRACES / name).exists():
        pytest.skip("the public traces lie beside the repository in ../shared/traces, and are not there")
    found = try_scenario(Scenario(seed=1, seconds=600.0, trace=TRACES / name, stretch=16.0, visits_max=20))
    assert not isinstance(found, Failure), found.message
    assert sum(found.clients.values()) == 20 or found.ended_s >= 600.0
