"""The names that stores are asked for by, checked without importing what searches them."""

from __future__ import annotations

import os
from typing import Annotated, Any

from reflectune.core.config import setting
from reflectune.core.errors import UserError
from reflectune.core.launching import Processes
from reflectune.core.secrets import is_url, redacted, secrets_in
from reflectune.core.values import checked_by


def is_server(store: str) -> bool:
    """Return True if a store's name is the address of a Milvus server, or a file of Milvus Lite."""
    return is_lite(store) or (is_url(store) and not secrets_in(store))


def is_lite(store: str) -> bool:
    """Return True if a store's name is a file of Milvus Lite."""
    return store.endswith(".db") and "://" not in store


def full_address(store: str, folder: str | os.PathLike[str] = ".") -> str:
    """Return a store's name, with the full path of a file of Milvus Lite that is relative to `folder`."""
    return os.path.realpath(os.path.join(os.path.realpath(folder), store)) if is_lite(store) else store


def store_name(store: str) -> str:
    """Return the problem of a store's name, to be appended to the key's name; "" for none.

    An address with a password is refused: an index's manifest would hold it.
    """
    if store in ("auto", "exact", "faiss") or is_server(store):
        return ""
    names = "auto, exact, faiss, or a Milvus server's address (http://HOST:19530, or a file *.db)"
    if "@" in store or "?" in store:
        return f"must be {names}, without a password, which belongs into $MILVUS_TOKEN"
    return f"must be {names}, found `{redacted(store)}`"


def check_shareable(store: str, processes: Processes) -> None:
    """Refuse a store that several processes can't open.

    Raises:
        UserError: They would open one file of Milvus Lite.
    """
    if processes.count > 1 and is_lite(store):
        raise UserError(
            f"`store`: {store} serves one process at a time, and this launch has {processes.count}; start it without "
            "`accelerate launch`, or give a server's address"
        )


StoreName = Annotated[str, checked_by(store_name)]


def store_setting() -> Any:
    """Declare the key `store` of a config."""
    return setting(
        "auto",
        "vector store: auto (by size), exact, faiss, or a Milvus server's address (http://host:19530, or a file *.db)",
        secret=True,
    )
