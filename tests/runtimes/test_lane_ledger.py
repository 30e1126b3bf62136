"""Lane isolation: what a conversation says does not depend on who decodes beside it."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import WeightForm
from calculet_trio.runtimes.host_model import HostModel, LaneStep
from tests.models import TinyModel
from tests.runtimes.conftest import BATCHES, LANES, MakePackage

CONVERSATIONS = 8
SAME_KERNELS = 1e-3
"""Logits spread by 8: what another conversation says differs by that."""
OTHER_KERNELS = {WeightForm.FP32: 1e-3, WeightForm.Q8Z: 0.5, WeightForm.Q4X: 0.5}
"""For another number of rows kernels add in another order, and then one activation in int8 rounds the other way: on one
CPU a logit of the four-bit form moves by 0.11, on others by nothing."""

Rows = list[npt.NDArray[np.float32]]


@attrs.define
class Conversation:
    """A prompt, and the tokens that are forced on the model after it."""

    prompt: tuple[int, ...]
    following: tuple[int, ...]
    alone: dict[int, Rows] = attrs.field(factory=dict)
    """What the model said when nobody else was there, by profile."""


@attrs.define
class Seat:
    """A lane's conversation and how far it has come; None: the lane idles."""

    conversation: Conversation | None = None
    said: int = 0


def converse(index: int) -> Conversation:
    random = np.random.default_rng(index)
    tokens = [int(token) for token in random.integers(0, 256, size=24)]
    prompt = 1 + int(random.integers(1, 9))
    return Conversation(tuple(tokens[:prompt]), tuple(tokens[prompt : prompt + 3 + index]))


def say_alone(model: HostModel, conversation: Conversation) -> None:
    for batch in BATCHES:
        rows = [model.prefill(0, conversation.prompt, position=0)[0].copy()]
        for place, token in enumerate(conversation.following):
            step = LaneStep(0, token, len(conversation.prompt) + place)
            rows.append(model.decode(0, batch, [step])[0].copy())
        conversation.alone[batch] = rows


class Table:
    """Lanes of one model with conversations coming, going and resting; every row is compared with its own alone.

    Args:
        model: its lanes.
        tolerance: of a logit.
        batch: whose rows are compared with; where no other is decoded with, the kernels are the same.
    """

    def __init__(self, model: HostModel, tolerance: float, batch: int = 1) -> None:
        self.model = model
        self._tolerance = tolerance
        self._batch = batch
        self.seats = [Seat() for _ in range(model.manifest.kv.lanes)]

    def sit(self, lane: int, conversation: Conversation) -> None:
        row = self.model.prefill(lane, conversation.prompt, position=0)[0]
        self._compare(row, conversation.alone[self._batch][0])
        self.seats[lane] = Seat(conversation)

    def step(self, batch: int, first: int, active: Sequence[int]) -> None:
        """One decode of those lanes in ``active`` that the window holds and that have something to say."""
        steps, owners = [], []
        for lane in range(first, first + batch):
            seat = self.seats[lane]
            if lane not in active or seat.conversation is None:
                continue
            position = len(seat.conversation.prompt) + seat.said
            steps.append(LaneStep(lane - first, seat.conversation.following[seat.said], position))
            owners.append(lane)
        if not steps:
            return
        rows = self.model.decode(first, batch, steps)
        for lane in owners:
            seat = self.seats[lane]
            assert seat.conversation is not None
            seat.said += 1
            self._compare(rows[lane - first], seat.conversation.alone[self._batch][seat.said])
            if seat.said == len(seat.conversation.following):
                self.seats[lane] = Seat()

    def _compare(self, row: npt.NDArray[np.float32], alone: npt.NDArray[np.float32]) -> None:
        np.testing.assert_allclose(row, alone, atol=self._tolerance, rtol=0)
        assert row[alone.argmax()] >= row.max() - 2 * self._tolerance


@pytest.fixture(
    scope="module",
    params=[
        (TinyModel(family="llama"), WeightForm.FP32),
        (TinyModel(family="qwen3", quantization="Q8_0"), WeightForm.Q8Z),
        (TinyModel(family="qwen3", quantization="Q4_1"), WeightForm.Q4X),
        (TinyModel(family="qwen3moe"), WeightForm.FP32),
        (TinyModel(family="qwen3moe", quantization="Q8_0"), WeightForm.Q8Z),
    ],
    ids=lambda param: f"{param[0].family}-{param[1].value}",
)
def house(
    request: pytest.FixtureRequest, make_package: MakePackage
) -> tuple[HostModel, WeightForm, list[Conversation]]:
    """A model, its weight form, and conversations that it has had alone."""
    tiny, form = request.param
    package = make_package(tiny, form)
    model = HostModel(package, Manifest.load(package), threads=2)
    conversations = [converse(index) for index in range(CONVERSATIONS)]
    for conversation in conversations:
        say_alone(model, conversation)
    return model, form, conversations


House = tuple[HostModel, WeightForm, list[Conversation]]


@pytest.mark.parametrize("batch", BATCHES)
def test_eight_conversations_in_one_batch_equal_each_alone(house: House, batch: int) -> None:
    """In every profile: all lanes busy at first, then ever fewer, as conversations end."""
    model, _, conversations = house
    table = Table(model, SAME_KERNELS, batch)
    for lane, conversation in enumerate(conversations):
        table.sit(lane, conversation)
    while any(seat.conversation for seat in table.seats):
        for first in range(0, LANES, batch):
            table.step(batch, first, range(LANES))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_conversations_that_rest_end_and_restart_stay_themselves(house: House, data: st.DataObject) -> None:
    """Any profile, any window, any lanes idle, newcomers prefilled between steps."""
    model, form, conversations = house
    table = Table(model, OTHER_KERNELS[form])
    for _ in range(12):
        empty = [lane for lane, seat in enumerate(table.seats) if seat.conversation is None]
        for lane in data.draw(st.lists(st.sampled_from(empty), unique=True) if empty else st.just([])):
            table.sit(lane, conversations[data.draw(st.integers(0, CONVERSATIONS - 1))])
        batch = data.draw(st.sampled_from(BATCHES))
        first = data.draw(st.integers(0, LANES - batch))
        table.step(batch, first, data.draw(st.sets(st.integers(0, LANES - 1), min_size=1)))


@pytest.mark.parametrize("batch", BATCHES)
def test_an_idle_lane_s_kv_is_not_touched(house: House, batch: int) -> None:
    model, _, conversations = house
    for lanes in model.kv.values():
        lanes[:] = 0  # what another test left would be written again, and look untouched
    table = Table(model, SAME_KERNELS, batch)
    for lane, conversation in enumerate(conversations):
        table.sit(lane, conversation)
    before = {name: lanes.copy() for name, lanes in model.kv.items()}
    active = range(0, batch, 2)
    table.step(batch, 0, active)
    for name, lanes in model.kv.items():
        changed = {lane for lane in range(LANES) if not np.array_equal(lanes[lane], before[name][lane])}
        assert changed == set(active), name
        for lane in active:
            position = len(conversations[lane].prompt)
            same = [n for n in range(lanes.shape[2]) if np.array_equal(lanes[lane, :, n], before[name][lane, :, n])]
            assert set(range(lanes.shape[2])) - set(same) == {position}


def test_a_prompt_in_chunks_says_what_it_says_at_once(house: House) -> None:
    model, form, _ = house
    prompt = converse(3).prompt + converse(3).following
    whole = model.prefill(0, prompt, position=0)[0].copy()
    for split in (1, 3, len(prompt) - 1):
        model.prefill(1, prompt[:split], position=0)
        row = model.prefill(1, prompt[split:], position=split)[0]
        np.testing.assert_allclose(row, whole, atol=OTHER_KERNELS[form], rtol=0)
