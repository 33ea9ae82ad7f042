"""The page at `/docs`: one file, drawn from `/openapi.json`, that may load nothing and run nothing but what stands in it."""

import hashlib
import re
from base64 import b64encode
from importlib.resources import files

from gateway.call import Call, Handle
from gateway.replies import Reply


def serve_page() -> Handle:
    """The handler of GET /docs."""
    page = files("gateway").joinpath("docs.html").read_bytes()
    headers = (
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", content_security_policy(page).encode()),
        (b"x-content-type-options", b"nosniff"),
    )

    async def docs(_call: Call) -> Reply:
        return Reply(200, page, headers)

    return docs


def content_security_policy(page: bytes) -> str:
    """Names the page's style and script by their digests: anything else, injected or inline, is not run."""
    style, script = (_digest(page, tag) for tag in (b"style", b"script"))
    return (
        f"default-src 'none'; style-src '{style}'; script-src '{script}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _digest(page: bytes, tag: bytes) -> str:
    """The digest of the one element of this name, as the policy wants it. Raises ValueError unless there is one."""
    found = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
    if len(found) != 1:
        raise ValueError(f"the page has {len(found)} elements <{tag.decode()}>, one is served")
    return f"sha256-{b64encode(hashlib.sha256(found[0]).digest()).decode()}"
