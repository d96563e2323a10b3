"""Names of vector stores in configs, validated without importing FAISS or pymilvus."""

from __future__ import annotations

import os

from reflectune.core.errors import UserError
from reflectune.core.launching import Processes
from reflectune.core.secrets import is_url, redacted, secrets_in


def is_server(store: str) -> bool:
    """Return True if a store's name is the address of a Milvus server, or a file of Milvus Lite."""
    return is_lite(store) or (is_url(store) and not secrets_in(store))


def is_lite(store: str) -> bool:
    """Return True if a store's name is a file of Milvus Lite."""
    return store.endswith(".db") and "://" not in store


def full_address(store: str, folder: str | os.PathLike[str] = ".") -> str:
    """Return a store's name; a Milvus Lite file's path, relative to `folder`, becomes absolute."""
    return os.path.realpath(os.path.join(os.path.realpath(folder), store)) if is_lite(store) else store


def store_name(store: str) -> str:
    """Return the problem of a store's name, as a predicate of the config key; "" if there is none.

    An address with a password is refused, since the index's manifest would contain it.
    """
    if store in ("auto", "exact", "faiss") or is_server(store):
        return ""
    names = "auto, exact, faiss, or a Milvus server's address (http://HOST:19530, or a file *.db)"
    if "@" in store or "?" in store:
        return f"must be {names}, without a password; set the password in $MILVUS_TOKEN"
    return f"must be {names}, found `{redacted(store)}`"


def check_shareable(store: str, processes: Processes) -> None:
    """Refuse a Milvus Lite file in a launch of several processes.

    Raises:
        UserError: The launch has several processes, and the store is a Milvus Lite file.
    """
    if processes.count > 1 and is_lite(store):
        raise UserError(
            f"`store`: {store} serves one process at a time, and this launch has {processes.count}; start it without "
            "`accelerate launch`, or give a server's address"
        )
