"""The design as such systems are first written: per request one script, one cache write, one confirmed message.

Not safe (a crash between script and message loses the event); it is here to be measured against. Run by
`loadtests.bench`, or by hand: `REDIS_URL=… AMQP_URL=… uvicorn loadtests.baselines.seed:app --loop uvloop`.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import msgspec
import orjson
import redis.asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

QUEUE = "baseline.seed"
KEYS = 1_000
UNITS = 1_000_000_000
RESERVE = """
local available = redis.call('GET', KEYS[1])
if not available or tonumber(available) < tonumber(ARGV[1]) then return {-1, 0} end
redis.call('DECRBY', KEYS[1], ARGV[1])
redis.call('INCRBY', KEYS[2], ARGV[1])
return {1, redis.call('INCR', KEYS[3])}
"""


class Line(msgspec.Struct):
    inventory_key: str
    qty: int


class Reserve(msgspec.Struct):
    order_id: str
    lines: list[Line]


_decoder = msgspec.json.Decoder(Reserve)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncGenerator[dict[str, Any]]:
    """Open both stores, give keys `k0` to `k999` their stock; a pool of 64 connections, one channel with confirms."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(os.environ["REDIS_URL"], max_connections=64, timeout=None)
    client = redis.asyncio.Redis(connection_pool=pool)
    await client.mset({f"inventory:available_qty:{{k{number}}}": UNITS for number in range(KEYS)})
    digest = await client.script_load(RESERVE)
    connection = await aio_pika.connect(os.environ["AMQP_URL"])
    channel = await connection.channel(publisher_confirms=True)
    arguments: dict[str, str | int] = {"x-queue-type": "quorum", "x-max-length": 50_000}
    await channel.declare_queue(QUEUE, durable=True, arguments=arguments)  # type: ignore[arg-type]  # str|int is a table value
    yield {"redis": client, "digest": digest, "exchange": channel.default_exchange}
    await connection.close()
    await client.aclose()


async def reserve(request: Request) -> Response:
    """Take one line's stock and send its event; 201, or 409 when there is not enough."""
    order = _decoder.decode(await request.body())
    line = order.lines[0]
    key, state = line.inventory_key, request.state
    names = [f"inventory:{part}:{{{key}}}" for part in ("available_qty", "reserved_qty", "seq")]
    code, seq = await state.redis.evalsha(state.digest, 3, *names, line.qty)
    if code < 0:
        return Response(b'{"code":"INSUFFICIENT_STOCK"}', 409, media_type="application/json")
    await state.redis.hset(f"reserve_cache:{order.order_id}", mapping={"k": key, "qty": line.qty, "seq": seq})
    event = orjson.dumps({"order_id": order.order_id, "key": key, "qty": line.qty, "seq": seq})
    await state.exchange.publish(
        aio_pika.Message(event, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), routing_key=QUEUE
    )
    body = orjson.dumps({"order_id": order.order_id, "status": "RESERVED", "seq": seq})
    return Response(body, 201, media_type="application/json")


app = Starlette(routes=[Route("/v1/reservations", reserve, methods=["POST"])], lifespan=lifespan)
