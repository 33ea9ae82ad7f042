"""Finds the endpoint of a call on the raw path, where a percent-encoded slash is still part of its key."""

from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from gateway.call import Endpoint
from gateway.requests import FieldError, InvalidBody
from kernel.problems import Problem

Template = tuple[bytes | None, ...]
"""Path segments; None stands for a name in braces."""


class Routes:
    """All endpoints. Fixed paths are one look-up; a template is compared with paths of as many segments."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._fixed: dict[bytes, dict[str, Endpoint]] = {}
        self._templates: dict[int, dict[Template, dict[str, Endpoint]]] = {}
        for endpoint in endpoints:
            if "{" not in endpoint.template:
                self._fixed.setdefault(endpoint.template.encode(), {})[endpoint.method] = endpoint
                continue
            template = _template(endpoint.template)
            self._templates.setdefault(len(template), {}).setdefault(template, {})[endpoint.method] = endpoint

    def find(self, method: str, raw_path: bytes) -> tuple[Endpoint, tuple[str, ...]] | None:
        """The endpoint and the decoded names of its path; None for a path that nobody answers.

        Raises Problem METHOD_NOT_ALLOWED where the path exists, and InvalidBody for a name that is no ASCII text.
        """
        fixed = self._fixed.get(raw_path)
        if fixed is not None and method in fixed:
            return fixed[method], ()
        # A fixed path may also be a name: `/v1/inventory/query` is a key when it is read.
        segments = raw_path.split(b"/")
        allowed = set(fixed or ())
        for template, methods in self._templates.get(len(segments), {}).items():
            if all(want is None or want == segment for want, segment in zip(template, segments, strict=True)):
                if method in methods:
                    return methods[method], _names(template, segments)
                allowed |= methods.keys()
        if allowed:
            raise Problem("METHOD_NOT_ALLOWED", f"use {', '.join(sorted(allowed))}", allowed=sorted(allowed))
        return None


def _template(path: str) -> Template:
    return tuple(None if segment.startswith("{") else segment.encode() for segment in path.split("/"))


def _names(template: Template, segments: list[bytes]) -> tuple[str, ...]:
    return tuple(_name(segment) for want, segment in zip(template, segments, strict=True) if want is None)


def _name(segment: bytes) -> str:
    try:
        return (unquote_to_bytes(segment) if b"%" in segment else segment).decode("ascii")
    except UnicodeDecodeError:
        raise InvalidBody(FieldError("path", "a name in the path is not ASCII")) from None
