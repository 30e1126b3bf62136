"""A model that serves is put on record as good; where that cannot be done it serves all the same, and is told."""

from __future__ import annotations

import pytest

from calculet_trio.errors import OperationFailed, PackageError
from tests.shell.house import ask
from tests.shell.shelf_house import living

ONE, SEVERAL = pytest.param(False, id="holds one"), pytest.param(True, id="holds several")


def full():
    raise PackageError("no space left on device")


@pytest.mark.parametrize("holds_several", [ONE, SEVERAL])
async def test_what_cannot_be_put_on_record_serves_the_old_one_leaves_and_the_operator_is_told(holds_several):
    async with living(holds_several=holds_several) as house:
        house.shelf.serves["new"] = full
        with pytest.raises(OperationFailed, match="m serves, but it is not on record as good: no space left"):
            await house.load("new")
        assert (await ask(house.service, "hi"))[0] == "new"
        assert len(house.shelf.resident) == 1
        assert house.status().state == "ready"
        assert "no space left" in house.status().error
        await house.load("old")
        assert house.status().error is None


async def test_a_daemon_starts_with_what_it_cannot_put_on_record():
    async with living(holds_several=False, serves={"old": full}) as house:
        assert (await ask(house.service, "hi"))[0] == "old"
        assert "no space left" in house.status().error
