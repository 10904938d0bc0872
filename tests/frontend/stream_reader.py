"""Reader of the event stream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from asgiref.sync import sync_to_async

from frontend.live import streams
from tests.support.waiting import DEADLINE_S


class Reader:
    """Reads one stream, as a browser would."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._content = aiter(response.streaming_content)

    async def block(self) -> str:
        """Give the next block, keep-alives included."""
        return (await asyncio.wait_for(anext(self._content), DEADLINE_S)).decode()

    async def event(self) -> dict[str, object]:
        """Give the data of the next event."""
        while True:
            block = await self.block()
            if block.startswith("event: changed\n"):
                return json.loads(block.split("data: ")[1])

    async def is_over(self) -> bool:
        """Read to the end; False when it does not come."""
        try:
            while True:
                await self.block()
        except StopAsyncIteration:
            return True
        except TimeoutError:
            return False

    async def close(self) -> None:
        """Go away, and wait until the server has noticed."""
        num_before = len(streams.hub().subscribers)
        await sync_to_async(self._response.close)()
        async with asyncio.timeout(DEADLINE_S):
            while len(streams.hub().subscribers) == num_before:
                await asyncio.sleep(0)
