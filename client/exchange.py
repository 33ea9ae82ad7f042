"""One call: attempts until there is an answer or the deadline comes."""

import asyncio
from dataclasses import dataclass
from typing import Literal

import httpx2
import msgspec

from .answers import Problem, Refused
from .failures import BadReply, BadRequest, Forbidden, NotExecuted, OutcomeUnknown, Unauthorized
from .retries import Retries

Outcome = Literal["not_executed", "unknown"]

# These fail before a byte of the request was sent.
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_problem_decoder = msgspec.json.Decoder(Problem)


@dataclass(frozen=True)
class Reply:
    """A 2xx answer as it came."""

    status: int
    body: bytes
    headers: httpx2.Headers
    after_unknown: bool


@dataclass(frozen=True)
class _Failure:
    """An attempt without an answer, worth repeating."""

    outcome: Outcome
    what: str
    retry_after_s: float | None = None
    problem: Problem | None = None


class Exchange:
    """Sends requests over kept connections and repeats what may be repeated."""

    def __init__(self, http: httpx2.AsyncClient, retries: Retries) -> None:
        self._http = http
        self._retries = retries

    async def call(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], deadline_s: float | None = None
    ) -> Reply | Refused:
        """Return the answer. Raises the failures of `client.failures`; cancellation leaves the outcome unknown."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._retries.deadline_s if deadline_s is None else deadline_s)
        request = self._http.build_request(method, path, content=body, headers=headers)
        unknown = False
        attempt = 0
        while True:
            attempt += 1
            # Once an attempt may have been carried out, a later proof of not having run proves nothing about the call.
            left_s = max(0.0, deadline - loop.time())
            answer = await self._attempt(request, min(self._retries.attempt_s, left_s), unknown)
            if not isinstance(answer, _Failure):
                return answer
            unknown = unknown or answer.outcome == "unknown"
            pause_s = self._retries.pause_s(attempt, answer.retry_after_s)
            if loop.time() + pause_s >= deadline:
                failure = OutcomeUnknown if unknown else NotExecuted
                raise failure(f"{method} {path}: {answer.what} after {attempt} attempts", answer.problem)
            await asyncio.sleep(pause_s)

    async def _attempt(self, request: httpx2.Request, limit_s: float, unknown: bool) -> Reply | Refused | _Failure:
        try:
            async with asyncio.timeout(limit_s):
                response = await self._http.send(request)
        except _NEVER_SENT as error:
            return _Failure("not_executed", f"no connection ({type(error).__name__})")
        except (httpx2.TransportError, TimeoutError) as error:
            return _Failure("unknown", f"no reply ({type(error).__name__})")
        if 200 <= response.status_code < 300:
            return Reply(response.status_code, response.content, response.headers, unknown)
        problem = read_problem(response.content)
        if response.status_code in {429, 502, 503, 504} or response.status_code >= 500:
            return _failure_of(response, problem)
        return _refusal_of(response.status_code, problem, unknown)


def read_problem(body: bytes | msgspec.Raw) -> Problem | None:
    """A problem body with its raw bytes, or None where it is not one (a proxy's page)."""
    try:
        return msgspec.structs.replace(_problem_decoder.decode(body), raw=msgspec.Raw(bytes(body)))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _failure_of(response: httpx2.Response, problem: Problem | None) -> _Failure:
    if problem is not None:
        # 429 is decided before anything is done. A 5xx that does not say so is taken for the worse.
        outcome: Outcome = "not_executed" if response.status_code == 429 else (problem.outcome or "unknown")
        return _Failure(outcome, problem.code, _retry_after_s(response), problem)
    return _Failure("unknown", f"HTTP {response.status_code} without a problem body", _retry_after_s(response))


def _retry_after_s(response: httpx2.Response) -> float | None:
    """Seconds of `Retry-After`; the date form is not used by this service and counts as absent."""
    value = response.headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() else None


def _refusal_of(status: int, problem: Problem | None, unknown: bool) -> Refused:
    if problem is None:
        raise BadReply(f"HTTP {status} without a problem body")
    match status:
        case 401:
            raise Unauthorized(problem.detail or problem.title, problem)
        case 403:
            raise Forbidden(problem.detail or problem.title, problem)
        case 404 | 409:
            return Refused(problem.code, status, problem, unknown)
        case _:
            raise BadRequest(f"{problem.code}: {problem.detail or problem.title}", problem)
