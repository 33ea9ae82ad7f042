"""Encrypted connections to the servers: the address says whether, the settings say whom to trust.

There is no way to encrypt without knowing the server: its certificate is checked against the CA, and its name against
the address. And none to fall back: an address that asks for TLS gets TLS or nothing.
"""

import ssl
from typing import Final

from kernel.settings import Settings

_CAUSES_MAX: Final = 8


def client_context(settings: Settings) -> ssl.SSLContext:
    """What a door needs to encrypt; raises OSError (ssl.SSLError among them) for files that are of no use.

    Files are read anew each time. Without a CA file those of the machine are trusted.
    """
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=settings.tls_ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.tls_cert_file is not None:
        context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    return context


def refusal(failure: BaseException) -> str | None:
    """Why there is no TLS with a server, if that is what lies behind a driver's failure; None for any other failure."""
    cause: BaseException | None = failure
    for _ in range(_CAUSES_MAX):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the server's certificate is not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"the server does not speak TLS as it should: {cause.reason or cause}"
        if cause is None:
            return None
        cause = cause.__cause__ or cause.__context__
    return None
