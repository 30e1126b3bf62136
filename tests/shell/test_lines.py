"""Lines of calls: each is handed to the line's thread, and nobody stands still for a thread that is not there."""

from __future__ import annotations

import trio

from calculet_trio.shell.blocking import ThreadRunner


async def test_a_call_that_nobody_takes_yet_is_not_waited_for_and_not_lost():
    line = ThreadRunner().line()
    answers = []
    line.put(lambda: "first")
    line.put(lambda: "second")
    assert answers == []

    def hear(answer):
        answers.append(answer)
        if len(answers) == 2:
            line.close()

    with trio.fail_after(60):
        await line.run(hear)
    assert answers == ["first", "second"]


async def test_nothing_is_begun_after_the_end():
    line = ThreadRunner().line()
    line.close()
    line.put(lambda: "never")
    answers = []
    with trio.fail_after(60):
        await line.run(answers.append)
    assert answers == []
