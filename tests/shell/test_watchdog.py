"""The watchdog bites a loop that stands still and progress that does not come, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import trio

from calculet_trio.shell.watchdog import Watchdog
from tests.shell.house import until

QUICK_S = 0.16


def watched():
    return any(thread.name == "watchdog" for thread in threading.enumerate())


async def test_who_makes_progress_is_left_alone(nursery):
    bitten = threading.Event()
    looked = []
    dog = Watchdog(QUICK_S, lambda: looked.append(1), bite=lambda _: bitten.set())
    nursery.start_soon(dog.run)
    await until(lambda: len(looked) > 64)  # four times as long as it takes to bite
    assert not bitten.is_set()
    nursery.cancel_scope.cancel()


async def test_who_makes_none_is_bitten_with_the_reason(nursery):
    said = []
    dog = Watchdog(QUICK_S, lambda: "past its bound: engine ping", bite=said.append)
    nursery.start_soon(dog.run)
    await until(lambda: said)
    assert said == ["past its bound: engine ping"]


async def test_a_loop_that_stands_still_is_bitten_from_outside(nursery):
    bitten = threading.Event()
    said = []
    dog = Watchdog(QUICK_S, lambda: None, bite=lambda why: (said.append(why), bitten.set()))
    nursery.start_soon(dog.run)
    await until(watched)
    assert bitten.wait(30), "in the loop's own thread: nothing else runs meanwhile"
    assert said == ["the event loop does not run"]


async def test_the_thread_ends_with_its_task(nursery):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Watchdog(QUICK_S, lambda: None, bite=os.abort).run)
        await until(watched)
        nursery.cancel_scope.cancel()
    await until(lambda: not watched())


def test_the_process_leaves_with_75_and_says_where_it_stood():
    program = (
        "import trio, threading; from calculet_trio.shell.watchdog import Watchdog\n"
        "async def stand_still():\n"
        "    threading.Event().wait()\n"
        "async def main():\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        nursery.start_soon(Watchdog(0.1, lambda: None).run)\n"
        "        await trio.sleep(0.01)\n"
        "        nursery.start_soon(stand_still)\n"
        "trio.run(main)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 75
    assert "watchdog" in ended.stdout + ended.stderr
    assert "stand_still" in ended.stderr
