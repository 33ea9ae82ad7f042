"""The API's page: what it may run is named by its digest, and it needs nothing from elsewhere."""

import base64
import hashlib
import re
from importlib.resources import files

import pytest

from gateway.docs_page import content_security_policy

PAGE = files("gateway").joinpath("docs.html").read_bytes()


def test_the_policy_names_exactly_the_style_and_script_of_the_page() -> None:
    policy = content_security_policy(PAGE)
    named = re.findall(r"'sha256-([^']+)'", policy)
    inline = re.findall(rb"<(?:style|script)>(.*?)</(?:style|script)>", PAGE, re.DOTALL)
    assert named == [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in inline]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none';")


def test_the_policy_would_stop_nothing_that_the_page_relies_on() -> None:
    # Attributes and foreign files are what a digest does not cover.
    assert not re.search(rb"\s(on\w+|style)=", PAGE)
    assert not re.search(rb"<(link|img|iframe|script\s|style\s)", PAGE)
    assert b"innerHTML" not in PAGE


@pytest.mark.parametrize("page", [b"<style></style>", b"<style>a</style><script>1</script><script>2</script>"])
def test_a_page_that_the_policy_cannot_cover_is_not_served(page: bytes) -> None:
    with pytest.raises(ValueError, match="script"):
        content_security_policy(page)
