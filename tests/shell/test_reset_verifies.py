"""A reset puts back what was verified: a package that somebody touched meanwhile is verified again first."""

from __future__ import annotations

import pytest

from calculet_trio.errors import PackageError
from tests.shell.house import ask
from tests.shell.shelf_house import Heard, living


async def test_a_package_that_nobody_touched_is_put_back_without_hashing_it_again():
    async with living() as house:
        await house.alive._control.reset_device(Heard())
        assert house.shelf.verified == ["old"]
        assert (await ask(house.service, "hi"))[0] == "old"


async def test_one_that_was_touched_and_is_whole_is_verified_again():
    async with living() as house:
        house.shelf.fails["publish"] = 1
        await house.alive._control.reset_device(Heard())
        assert house.shelf.verified == ["old", "old"]
        assert (await ask(house.service, "hi"))[0] == "old"


async def test_one_that_is_another_now_is_not_put_back():
    async with living() as house:

        async def reset():
            house.shelf.reset_configuration()

        house.shelf.fails |= {"publish": 1, "verify": 1}
        with pytest.raises(PackageError, match="verify failed"):
            await house.models.residents.restore(reset)
        assert house.shelf.resident == {}
        assert await house.models.residents.restore(reset) is None
        assert (await ask(house.service, "hi"))[0] == "old"
