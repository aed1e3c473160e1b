"""Run as a script: prints the commands of programs in which asyncio keeps tasks in sets, in the order asked for.

The first argument is how much junk to allocate first, so that objects come to lie elsewhere in memory.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import as_completed  # before Holdfast is imported, as isort would have it
from typing import Any

junk = [bytearray(17 * (n % 13)) for n in range(int(sys.argv[1]) if len(sys.argv) > 1 else 0)]
del junk[::3]

from core_code import a, b, c, p, world  # noqa: E402

from holdfast.core import commands as co  # noqa: E402


async def branch(n: int) -> Any:
    junk.append(bytearray(n))
    await a(n)
    return n


async def completing() -> Any:
    for each in as_completed([branch(n) for n in range(7)]):
        await b(await each)


async def aborting() -> Any:
    async def clean(n: int) -> None:
        try:
            await a(n)
        finally:
            await b(n)

    async def fail() -> None:
        await c()
        raise ValueError

    try:
        async with asyncio.TaskGroup() as group:
            for n in range(7):
                group.create_task(clean(n))
            group.create_task(fail())
    except* ValueError:
        pass


async def waiting() -> Any:
    done, late = await asyncio.wait([asyncio.ensure_future(branch(n)) for n in range(7)], return_when="FIRST_COMPLETED")
    for task in {*done, *late}:
        await b(await task)


async def racing() -> Any:
    """Timers of the same length, and plain calls, beside tasks that wait with a timeout."""

    async def sleeps(n: int) -> Any:
        await asyncio.sleep(5)
        return p(n)

    tasks = {asyncio.ensure_future(asyncio.wait_for(sleeps(n), 9)) for n in range(4)}
    tasks |= {asyncio.ensure_future(sleeps(n)) for n in range(4, 8)}
    for task in tasks:
        await b(await task)


async def timing() -> Any:
    iterator = as_completed([asyncio.wait_for(branch(n), 9) for n in range(3)], timeout=20)
    await c()
    for each in iterator:
        await b(await each)


def main() -> None:
    for function in (completing, aborting, waiting, racing, timing):
        run = world(function, seed=3).run()
        commands = [
            f"{each.name}{run.argument(each.args)}" for each in run.commands if isinstance(each, co.ScheduleStep)
        ]
        print(function.__name__, *commands)
        print(b"\n".join(run.committed).decode())


if __name__ == "__main__":
    main()
