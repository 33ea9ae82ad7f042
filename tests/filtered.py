"""Waiting until the leader has filled the filter of orders, from when on a new order needs no look-up in MySQL."""

import asyncio

import redis.asyncio

LIMIT_S = 30.0


async def until_filtered(redis_url: str) -> None:
    """Wait until the filter of shard 0's latest epoch is complete."""
    async with redis.asyncio.Redis.from_url(redis_url) as client, asyncio.timeout(LIMIT_S):
        while True:
            heads = [name async for name in client.scan_iter("{sg:0}:*:head")]
            latest = max(heads, key=lambda name: int(name.split(b":")[2]), default=b"")
            if latest and await client.hget(latest, "filter") == b"1":
                return
            await asyncio.sleep(0.05)
