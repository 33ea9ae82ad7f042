"""The design without Redis: per request one MySQL transaction of balance, ledger and reservation.

Safe, and as quick as row locks and commits allow; it is here to be measured against. Run by `loadtests.bench`, or by hand:
`MYSQL_HOST=… MYSQL_PORT=… MYSQL_USER=… MYSQL_PASSWORD=… MYSQL_DATABASE=… uvicorn loadtests.baselines.mysql:app --loop uvloop`.
The database is made where it is missing, its tables are made anew at each start, with keys `k0` to `k999`.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import asyncmy
import msgspec
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

CONNECTIONS = 32
KEYS = 1_000
UNITS = 1_000_000_000
TABLES = (
    # Without the notes that there was nothing to drop.
    "SET SESSION sql_notes = 0",
    "DROP TABLE IF EXISTS balance, ledger, reservation",
    (
        "CREATE TABLE balance (inventory_key VARCHAR(128) PRIMARY KEY, available BIGINT NOT NULL, reserved BIGINT NOT NULL,"
        " seq BIGINT NOT NULL)"
    ),
    (
        "CREATE TABLE ledger (id BIGINT AUTO_INCREMENT PRIMARY KEY, request_no VARCHAR(96) NOT NULL UNIQUE,"
        " inventory_key VARCHAR(128) NOT NULL, qty INT NOT NULL, created_at DATETIME(3) NOT NULL DEFAULT NOW(3))"
    ),
    (
        "CREATE TABLE reservation (order_id VARCHAR(64) NOT NULL, inventory_key VARCHAR(128) NOT NULL, qty INT NOT NULL,"
        " status TINYINT NOT NULL, PRIMARY KEY (order_id, inventory_key))"
    ),
)
TAKE = (
    "UPDATE balance SET available = available - %s, reserved = reserved + %s, seq = seq + 1"
    " WHERE inventory_key = %s AND available >= %s"
)
RECORD = "INSERT INTO ledger (request_no, inventory_key, qty) VALUES (%s, %s, %s)"
HOLD = "INSERT INTO reservation VALUES (%s, %s, %s, 1)"


class Line(msgspec.Struct):
    inventory_key: str
    qty: int


class Reserve(msgspec.Struct):
    order_id: str
    lines: list[Line]


_decoder = msgspec.json.Decoder(Reserve)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncGenerator[dict[str, Any]]:
    """Make database and tables; a pool of 32 connections."""
    database = os.environ["MYSQL_DATABASE"]
    account: dict[str, Any] = {
        "host": os.environ["MYSQL_HOST"],
        "port": int(os.environ["MYSQL_PORT"]),
        "user": os.environ["MYSQL_USER"],
        "password": os.environ["MYSQL_PASSWORD"],
    }
    if not database.isidentifier():
        raise ValueError("MYSQL_DATABASE must be a plain name")
    connection = await asyncmy.connect(**account)
    async with connection.cursor() as cursor:
        await cursor.execute(f"CREATE DATABASE IF NOT EXISTS {database}")
    connection.close()
    pool = await asyncmy.create_pool(**account, db=database, minsize=CONNECTIONS, maxsize=CONNECTIONS, autocommit=False)
    async with pool.acquire() as connection, connection.cursor() as cursor:
        for statement in TABLES:
            await cursor.execute(statement)
        keys = [(f"k{number}", UNITS) for number in range(KEYS)]
        await cursor.executemany("INSERT INTO balance VALUES (%s, %s, 0, 0)", keys)
        await connection.commit()
    yield {"pool": pool}
    pool.close()
    await pool.wait_closed()


async def reserve(request: Request) -> Response:
    """Take one line's stock, record it, hold it; 201, or 409 when there is not enough."""
    order = _decoder.decode(await request.body())
    line = order.lines[0]
    async with request.state.pool.acquire() as connection, connection.cursor() as cursor:
        if not await cursor.execute(TAKE, (line.qty, line.qty, line.inventory_key, line.qty)):
            await connection.rollback()
            return Response(b'{"code":"INSUFFICIENT_STOCK"}', 409, media_type="application/json")
        held = (order.order_id, line.inventory_key, line.qty)
        await cursor.execute(RECORD, held)
        await cursor.execute(HOLD, held)
        await connection.commit()
    return Response(
        orjson.dumps({"order_id": order.order_id, "status": "RESERVED"}), 201, media_type="application/json"
    )


app = Starlette(routes=[Route("/v1/reservations", reserve, methods=["POST"])], lifespan=lifespan)
