"""Who asks: the key alone decides the tenant.

No keys can be configured yet; everybody is one tenant. This is the place where keys will be looked at: handlers
call it and nothing else reads ``Authorization`` or ``x-api-key``.
"""

from __future__ import annotations

from typing import Final

from werkzeug.datastructures import Headers

TENANT_WITHOUT_KEYS: Final = "default"


def tenant_of(headers: Headers) -> str:
    """The tenant that the request's headers prove; without configured keys it is always the same one."""
    del headers  # whatever a client sends, it proves nothing while there are no keys
    return TENANT_WITHOUT_KEYS
