"""A world that is opened and closed within one task, for fixtures whose beginning and end run in two."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

World = TypeVar("World")


@asynccontextmanager
async def held(opening: AbstractAsyncContextManager[World]) -> AsyncGenerator[World]:
    """Enter `opening` in a task that leaves it again when this block is left."""
    opened: asyncio.Future[World] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def hold() -> None:
        async with opening as world:
            opened.set_result(world)
            await over.wait()

    holding = asyncio.create_task(hold())
    await asyncio.wait([holding, opened], return_when=asyncio.FIRST_COMPLETED)
    if not opened.done():
        await holding
    try:
        yield opened.result()
    finally:
        over.set()
        await holding
