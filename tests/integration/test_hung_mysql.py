"""A MySQL that accepts and never answers: what needs no look-up goes on, what needs one is refused without a long wait."""

import asyncio
import signal
from pathlib import Path

import pytest

from kernel.mysql_door import Database, Statement
from stockgate.servers import Servers
from tests.filtered import until_filtered
from tests.integration.gateway_world import Reply, held_open

LIMIT_S = 60.0
MYSQL_TIMEOUT_MS = 3_000
REFUSED = 30


async def until_it_hangs(database: Database) -> None:
    """Each thread of a stopped process takes a moment to stop."""
    while True:
        try:
            async with asyncio.timeout(0.5):
                await database.fetch_all(Statement("SELECT 1"))
        except TimeoutError:
            return


@pytest.mark.timeout(300)
async def test_orders_go_on_and_what_is_looked_up_is_refused_at_once(servers: Servers, tmp_path: Path) -> None:
    async with held_open(servers, tmp_path, mysql_timeout_ms=MYSQL_TIMEOUT_MS) as world:
        known = [await world.reserved(world.key) for _ in range(3)]
        await until_filtered(world.settings.redis_url.get_secret_value())
        await world.check_audit()

        async def change() -> Reply:
            """What has to be looked up: an operator's request that nobody knows yet."""
            body = {"delta": 1, "request_no": world.fresh("change"), "reason": "more came"}
            return await world.call("POST", f"/v1/inventory/{world.key}/adjust", body)

        assert (await change()).status == 200
        await servers.mariadb.kill(signal.SIGSTOP)
        try:
            database = world.state["catalogue"]._database
            await until_it_hangs(database)
            silence = database._silence
            waiting = [asyncio.create_task(change()) for _ in "ab"]
            # Look-ups hang; a call that Redis alone decides does not stand behind them.
            for path in known:
                assert (await world.call("POST", f"{path}/confirm", {})).status == 200
            assert (await world.call("POST", "/v1/reservations", world.order(world.key))).status == 201
            for reply in await asyncio.gather(*waiting):
                assert (reply.status, reply.json.get("outcome")) == (503, "not_executed"), reply.body
            async with asyncio.timeout(LIMIT_S):
                while not silence.silent:
                    await asyncio.sleep(0.05)
            # Each alone would wait for half of its deadline; but for the one that finds out, they are refused at once.
            async with asyncio.timeout(REFUSED * MYSQL_TIMEOUT_MS / 1000 / 2):
                for _ in range(REFUSED):
                    reply = await change()
                    assert (reply.status, reply.json.get("outcome")) == (503, "not_executed"), reply.body
            ready = await world.call("GET", "/health/ready")
            assert (ready.status, "mysql" in ready.json["missing"]) == (503, True)
        finally:
            await servers.mariadb.kill(signal.SIGCONT)
        async with asyncio.timeout(LIMIT_S):
            while (await change()).status != 200:
                await asyncio.sleep(0.1)
        await world.check_audit()
