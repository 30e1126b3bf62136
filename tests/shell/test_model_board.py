"""Which aliases a daemon remembers: those that came to mean something, and not without end."""

from __future__ import annotations

import pytest

from calculet_trio.errors import OperationRefused, PackageError
from calculet_trio.shell import model_board
from tests.shell.house import ask
from tests.shell.shelf_house import Heard, living


async def test_an_alias_for_which_nothing_was_found_is_none():
    async with living(holds_several=True) as house:
        for alias in ("n", "m"):
            with pytest.raises(PackageError, match="there is no package"):
                await house.models.load_named(alias, "nothing", Heard())
        assert [status.alias for status in house.models.board.statuses()] == ["m"]
        shown = house.status()
        assert (shown.state, shown.doing) == ("ready", None), "nothing is under way any more"
        assert "there is no package" in shown.error


async def test_there_is_an_end_to_the_aliases_that_are_remembered(monkeypatch):
    monkeypatch.setattr(model_board, "ALIASES_MAX", 2)
    async with living(holds_several=True) as house:
        await house.models.load_named("n", "other", Heard())
        await house.models.unload("n", Heard())
        with pytest.raises(OperationRefused, match="has known 2 aliases"):
            await house.models.load_named("o", "other", Heard())
        await house.models.load_named("n", "other", Heard())
        assert (await ask(house.service, "hi"))[0] == "old"
