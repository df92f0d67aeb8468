"""Work beside requests: its faults end the node instead of going unnoticed."""

import asyncio

from tidelog.server.background import run_in_background


async def test_work_that_fails_is_told_and_work_that_is_cancelled_is_not() -> None:
    failures: list[BaseException] = []

    async def fail() -> None:
        raise ZeroDivisionError

    failing = run_in_background(fail(), failures.append)
    waiting = run_in_background(asyncio.Event().wait(), failures.append)  # type: ignore[arg-type]
    await asyncio.wait([failing])
    waiting.cancel()
    await asyncio.wait([waiting])
    assert [type(failure) for failure in failures] == [ZeroDivisionError]
