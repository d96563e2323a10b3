import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectune.core import secrets
from reflectune.core.secrets import (
    conceal,
    conceal_named,
    conceal_url,
    is_url,
    redacted,
    secrets_in,
    shown_options,
    shown_url,
)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Keep a test's secrets out of other tests."""
    before = set(secrets.CONCEALED)
    secrets.CONCEALED.clear()
    yield
    secrets.CONCEALED.clear()
    secrets.CONCEALED.update(before)


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com",
        "http://[::1]:8000/v1/",
        "https://example.com/accounts/1/run/@maker/v1",
        "https://example.com/v1?api-version=2024-05-01-preview&deployment=gpt-4o-mini-2024-07-18",
    ],
)
def test_a_url_without_secrets_is_shown_as_it_is(url: str) -> None:
    assert is_url(url)
    assert shown_url(url) == url
    assert secrets_in(url) == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:hidden@host:8000/v1", "http://host:8000/v1"),
        ("http://hidden@host/v1", "http://host/v1"),
        ("http://me:hid@den@host/v1", "http://host/v1"),
        (" http://me:hidden@host/v1", "http://host/v1"),
        ("https://host/v1?api_key=hidden", "https://host/v1?api_key=***"),
        ("https://host/v1?a=1&access_token=hidden&b=2", "https://host/v1?a=1&access_token=***&b=2"),
        ("https://host/v1?%6Bey=hidden", "https://host/v1?key=***"),
        ("https://host/v1#key=hidden", "https://host/v1"),
    ],
)
def test_a_url_is_shown_without_userinfo_and_without_secrets_in_its_query(url: str, shown: str) -> None:
    assert is_url(url)
    assert shown_url(url) == shown
    assert shown_url(shown) == shown


@pytest.mark.parametrize(
    "text",
    ["me:hidden@host/v1", "http://me:hid/den@host/v1", "http://[me:hidden@host/v1", "http://host:0", "sk-hidden", ""],
)
def test_a_text_that_is_not_a_url_is_not_shown(text: str) -> None:
    assert not is_url(text)
    assert shown_url(text) == "***"


def test_the_secrets_of_a_url_are_its_password_the_header_made_of_it_and_keys_in_its_query() -> None:
    assert secrets_in("http://me:a%2Fb@host/v1?x=1&key=c%20d") == ["bWU6YS9i", "a/b", "c d"]  # me:a/b in base64
    assert secrets_in("http://token@host") == ["dG9rZW46", "token"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET http://me:hidden@host:80/v1 failed", "GET http://***@host:80/v1 failed"),
        ("http://me:hid@den@host, twice http://me:hid@den@host", "http://***@host, twice http://***@host"),
        ("socks5://me:hidden@host:1080", "socks5://***@host:1080"),
        ("https://host/v1/@maker?a=1, see https://host/docs", "https://host/v1/@maker?a=1, see https://host/docs"),
        ("owner/name@abc of runs/a, me@host.org", "owner/name@abc of runs/a, me@host.org"),
    ],
)
def test_a_text_loses_the_userinfo_of_its_urls(text: str, shown: str) -> None:
    assert redacted(text) == shown


PASSWORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=4, max_size=12).filter(str.strip)


@given(PASSWORDS)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_concealed_password_is_hidden_whatever_characters_it_has(password: str) -> None:
    secrets.CONCEALED.clear()
    secret = f"7{password}7"
    conceal_url(f"http://me:{secret}@host/v1")
    for text in (secret, quote(secret, safe=""), repr(secret), json.dumps({"a": secret}), f"of {secret}: no"):
        shown = redacted(text)
        assert secret not in shown
        assert quote(secret, safe="") not in shown
        assert json.dumps(secret)[1:-1] not in shown


def test_a_short_word_is_not_a_secret() -> None:
    conceal("a", "ab", "abc", "")
    assert redacted("abc a cab") == "abc a cab"


def test_values_are_hidden_by_their_names() -> None:
    conceal_named(
        {
            "MY_API_KEY": "hidden-key-1",
            "HF_TOKEN": "hidden-token",
            "PASSWORD": "hidden-password",
            "LANG": "not-secret",
            "SSH_KEY": "/etc/hosts",
            "seed": 12345678,
        }
    )
    shown = redacted("hidden-key-1 hidden-token hidden-password not-secret /etc/hosts 12345678")
    assert shown == "*** *** *** not-secret /etc/hosts 12345678"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ('{"max_tokens":1,  "stop": ["a"]}', '{"max_tokens":1,  "stop": ["a"]}'),
        ('{"seed": 0, "api_key": "hidden"}', '{"seed": 0, "api_key": "***"}'),
        ('{"a": [{"Authorization": "hidden", "b": 1}]}', '{"a": [{"Authorization": "***", "b": 1}]}'),
        ("{broken", "{broken"),
    ],
)
def test_options_lose_the_values_that_are_secrets_by_name(options: str, shown: str) -> None:
    assert shown_options(options) == shown
