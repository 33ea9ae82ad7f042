"""Encryption to real servers, with certificates that are made here: who is spoken to, and who is not."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import pytest
import trustme
import uvloop

import sql
from kernel.amqp_door import Publisher
from kernel.errors import StoreRefused, StoreUnavailable
from kernel.mysql_door import Database, Statement
from kernel.redis_door import RedisDoor
from kernel.settings import Settings
from stockgate.ports import choose_port
from stockgate.servers import MariaDBServer, RabbitServer, RedisServer, Servers

Result = TypeVar("Result")
STORES = ("redis", "mysql", "amqp")
SCHEMES = {"redis": "rediss", "mysql": "mysqls", "amqp": "amqps"}
IN_FAILURES = {"redis": "redis", "mysql": "mysql", "amqp": "rabbitmq"}


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """On the loop of production: TLS is the loop's own work."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@dataclass(frozen=True)
class Encrypted:
    """Servers that speak TLS, under the name `localhost` alone."""

    urls: dict[str, str]
    ca_file: Path
    client_file: Path
    """A certificate that the servers trust, with its key."""
    strange_ca_file: Path

    def settings(self, store: str, url: str | None = None, **changed: Any) -> Settings:
        values = {"tls_ca_file": self.ca_file, "tls_cert_file": self.client_file, **changed}
        return Settings.model_validate({f"{store}_url": url or self.urls[store], **values})


def moved(url: str, scheme: str, host: str, port: int) -> str:
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(scheme=scheme, netloc=f"{login}@{host}:{port}"))


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    directory = tmp_path_factory.mktemp("tls")
    authority, strange = trustme.CA(), trustme.CA()
    files = {name: directory / f"{name}.pem" for name in ("ca", "strange", "server", "key", "client")}
    authority.cert_pem.write_to_path(files["ca"])
    strange.cert_pem.write_to_path(files["strange"])
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(files["server"])
    certificate.private_key_pem.write_to_path(files["key"])
    authority.issue_cert("gateway.client").private_key_and_cert_chain_pem.write_to_path(files["client"])

    redis_port, amqp_port = choose_port(set()), choose_port(set())
    redis = RedisServer(
        directory / "run",
        config={
            "tls-port": str(redis_port),
            "tls-cert-file": str(files["server"]),
            "tls-key-file": str(files["key"]),
            "tls-ca-cert-file": str(files["ca"]),
            "tls-auth-clients": "yes",
        },
    )
    mysql = MariaDBServer(
        directory / "run",
        config={"ssl-cert": str(files["server"]), "ssl-key": str(files["key"]), "ssl-ca": str(files["ca"])},
    )
    amqp = RabbitServer(
        directory / "run",
        config={
            "listeners.ssl.1": f"127.0.0.1:{amqp_port}",
            "ssl_options.cacertfile": str(files["ca"]),
            "ssl_options.certfile": str(files["server"]),
            "ssl_options.keyfile": str(files["key"]),
            "ssl_options.verify": "verify_peer",
            "ssl_options.fail_if_no_peer_cert": "true",
        },
    )

    async def start() -> None:
        _ = redis.port, mysql.port, amqp.port
        async with asyncio.TaskGroup() as group:
            for server in (redis, mysql, amqp):
                group.create_task(server.start())

    async def stop() -> None:
        for server in (redis, mysql, amqp):
            await server.stop()

    asyncio.run(start())
    urls = {
        "redis": moved(redis.url, "rediss", "localhost", redis_port),
        "mysql": moved(mysql.url, "mysqls", "localhost", mysql.port),
        "amqp": moved(amqp.url, "amqps", "localhost", amqp_port),
    }
    yield Encrypted(urls, files["ca"], files["client"], files["strange"])
    asyncio.run(stop())


async def ask_redis(settings: Settings) -> str:
    door = RedisDoor.open(settings, name="test")
    try:
        return (await door.command("PING")).decode()
    finally:
        await door.close()


async def ask_mysql(settings: Settings) -> str:
    database = await Database.open(settings, name="test")
    try:
        await database.fetch_all(sql.load("select_one"))
        return (await database.fetch_all(Statement("SHOW SESSION STATUS LIKE 'Ssl_version'")))[0][1]
    finally:
        await database.close()


async def ask_rabbitmq(settings: Settings) -> str:
    publisher = await Publisher.connect(settings, name="test")
    try:
        await publisher.declare_log_queue(0)
        await publisher.publish("sg.0.log", b"body", message_type="test")
        return "confirmed"
    finally:
        await publisher.close()


ASK: dict[str, Callable[[Settings], Coroutine[Any, Any, str]]] = {
    "redis": ask_redis,
    "mysql": ask_mysql,
    "amqp": ask_rabbitmq,
}


@pytest.mark.parametrize(("store", "answer"), [("redis", "PONG"), ("mysql", "TLSv1.3"), ("amqp", "confirmed")])
def test_an_encrypted_server_is_asked(encrypted: Encrypted, store: str, answer: str) -> None:
    assert run(ASK[store](encrypted.settings(store))) == answer


@pytest.mark.parametrize("store", STORES)
def test_a_server_of_a_strange_authority_is_not_spoken_to(encrypted: Encrypted, store: str) -> None:
    with pytest.raises(StoreRefused) as refusal:
        run(ASK[store](encrypted.settings(store, tls_ca_file=encrypted.strange_ca_file)))
    assert (refusal.value.store, refusal.value.code) == (IN_FAILURES[store], "TLS_FAILED")
    assert "certificate is not accepted" in str(refusal.value)
    assert "issuer" in str(refusal.value) or "self-signed" in str(refusal.value)


@pytest.mark.parametrize("store", STORES)
def test_a_server_by_another_name_is_not_spoken_to(encrypted: Encrypted, store: str) -> None:
    url = encrypted.urls[store].replace("@localhost:", "@127.0.0.1:")
    with pytest.raises(StoreRefused, match=r"certificate is not accepted.*mismatch.*127\.0\.0\.1") as refusal:
        run(ASK[store](encrypted.settings(store, url)))
    assert refusal.value.code == "TLS_FAILED"


@pytest.mark.parametrize("store", ["redis", "amqp"])
def test_a_server_that_wants_our_certificate_does_without_nobody(encrypted: Encrypted, store: str) -> None:
    with pytest.raises(StoreUnavailable) as failure:
        run(ASK[store](encrypted.settings(store, tls_cert_file=None)))
    assert failure.value.outcome == "not_executed"


@pytest.mark.parametrize("store", STORES)
def test_a_server_without_tls_gets_nothing_in_plain_text(encrypted: Encrypted, servers: Servers, store: str) -> None:
    plain = servers.addresses()[store]
    url = moved(plain, SCHEMES[store], "localhost", urlsplit(plain).port or 0)
    with pytest.raises(StoreUnavailable) as failure:
        run(ASK[store](encrypted.settings(store, url)))
    assert failure.value.outcome == "not_executed"


@pytest.mark.parametrize("store", ["redis", "amqp"])
def test_a_plain_address_of_an_encrypted_port_leads_nowhere(encrypted: Encrypted, store: str) -> None:
    url = encrypted.urls[store].replace(f"{SCHEMES[store]}://", f"{store}://")
    with pytest.raises(StoreUnavailable) as failure:
        run(ASK[store](encrypted.settings(store, url, tls_ca_file=None, tls_cert_file=None)))
    assert failure.value.outcome == "not_executed"
