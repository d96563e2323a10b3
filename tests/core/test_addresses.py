import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectune.core import addresses
from reflectune.core.addresses import (
    conceal,
    conceal_address,
    conceal_environment,
    is_address,
    redacted,
    secrets_in,
    shown_options,
    shown_url,
)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """What one test conceals is no secret of the next one, here or elsewhere."""
    before = set(addresses.CONCEALED)
    addresses.CONCEALED.clear()
    yield
    addresses.CONCEALED.clear()
    addresses.CONCEALED.update(before)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8000/v1",
        "https://api.example.com",
        "http://[::1]:8000/v1/",
        "https://example.com/accounts/1/run/@maker/v1",
        "https://example.com/v1?api-version=2024-05-01-preview&deployment=gpt-4o-mini-2024-07-18",
    ],
)
def test_an_address_without_secrets_is_shown_as_it_is(url: str) -> None:
    assert is_address(url)
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
        ("https://host/v1?api_key=hidden=", "https://host/v1?api_key=***"),
        ("https://host/v1?a=1&subscription-key=hidden&b=2", "https://host/v1?a=1&subscription-key=***&b=2"),
        ("https://host/v1?a=1;access_token=hidden", "https://host/v1?a=1;access_token=***"),
        ("https://host/v1?%6Bey=hidden", "https://host/v1?%6Bey=***"),
        ("https://host/v1?hidden", "https://host/v1?***"),
        ("https://host/v1?a=sk-hiddenhidden0123456789", "https://host/v1?a=***"),
        ("https://host/v1#key=hidden", "https://host/v1"),
    ],
)
def test_of_an_address_neither_userinfo_nor_secrets_of_its_query_are_shown(url: str, shown: str) -> None:
    assert is_address(url)
    assert shown_url(url) == shown
    assert shown_url(shown) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("me:hidden@host/v1", "host/v1"),
        ("http://me:hid/den@host/v1", "host/v1"),
        ("http://me:hid?den@host/v1", "host/v1"),
        ("http://[me:hidden@host/v1", "host/v1"),
        ("host/v1?api_key=hidden", "host/v1"),
        ("http://me:12/hidden@host/v1", "host/v1"),
        ("http://me:12#hidden@host/v1", "host/v1"),
        ("http://me:12?hidden@host/v1", "host/v1"),
        ("http://me:12/hidden/@host/v1", "host/v1"),
        ("http://token/hidden@host/v1", "host/v1"),
        ("http://host:80a/v1?api_key=hidden@host", "host"),
        ("host/v1#hidden", "host/v1"),
        ("sk-hiddenhidden0123456789", "***"),
        ("localhost:8000", "localhost:8000"),
        ("", ""),
    ],
)
def test_of_what_is_no_address_only_what_can_be_no_secret_is_shown(url: str, shown: str) -> None:
    assert not is_address(url)
    assert "hid" not in shown_url(url)
    assert shown_url(url) == shown


def test_secrets_are_told_as_they_are_written_and_as_a_server_reads_them() -> None:
    secrets = secrets_in("http://me:a%2Fb@host/v1?x=1&key=c%20d&hidden")

    assert secrets == ["bWU6YS9i", "a%2Fb", "c%20d", "hidden", "a/b", "c d"]  # the first: me:a/b in base64
    assert secrets_in("http://token@host") == ["dG9rZW46", "token"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET http://me:hidden@host:80/v1 failed", "GET http://***@host:80/v1 failed"),
        ("http://me:hid@den@host, twice http://me:hid@den@host", "http://***@host, twice http://***@host"),
        ("`http://me:hid/den@host/v1?a=1&key=hidden`", "`http://***@host/v1?a=1&key=***`"),
        ("http://me:hid%2Fd#en@host", "http://***@host"),
        ("socks5://me:hidden@host:1080", "socks5://***@host:1080"),
        ("hf_hiddenhiddenhiddenhidden1234 and sk-hiddenhiddenhidden", "*** and ***"),
        ("Authorization: Bearer hiddenhidden", "Authorization: Bearer ***"),
        ("https://host/v1/@maker?a=1, see https://host/docs", "https://host/v1/@maker?a=1, see https://host/docs"),
        ("owner/name@abc of runs/a, me@host.org", "owner/name@abc of runs/a, me@host.org"),
        ("", ""),
    ],
)
def test_a_text_loses_the_secrets_of_its_addresses_alone(text: str, shown: str) -> None:
    assert redacted(text) == shown


PASSWORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=4, max_size=12).filter(str.strip)


@given(PASSWORDS)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_concealed_password_is_hidden_whatever_characters_it_has(password: str) -> None:
    addresses.CONCEALED.clear()
    secret = f"7{password}7"
    url = f"http://me:{secret}@host/v1"
    conceal_address(url)

    for text in (url, secret, quote(secret, safe=""), repr(secret), json.dumps({"a": secret}), f"of {secret}: no"):
        shown = redacted(text)
        assert secret not in shown
        assert quote(secret, safe="") not in shown
        assert json.dumps(secret)[1:-1] not in shown


def test_a_short_word_is_no_secret() -> None:
    conceal("a", "ab", "abc", "")
    assert redacted("abc a cab") == "abc a cab"


def test_keys_of_the_environment_are_hidden() -> None:
    environment = {
        "MY_API_KEY": "hidden-key-1",
        "HF_TOKEN": "hidden-token",
        "LANG": "not-secret",
        "SSH_KEY": "/etc/hosts",
    }
    conceal_environment({**environment, "HTTPS_PROXY": "http://me:hidden-pass@proxy:80"})

    shown = redacted("hidden-key-1 hidden-token not-secret /etc/hosts hidden-pass")

    assert shown == "*** *** not-secret /etc/hosts ***"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ('{"seed": 0}', '{"seed": 0}'),
        ('{"max_tokens":1,  "stop": ["a"]}', '{"max_tokens":1,  "stop": ["a"]}'),
        ('{"seed": 0, "api_key": "hidden"}', '{"seed": 0, "api_key": "***"}'),
        ('{"a": [{"Authorization": "hidden", "b": 1}]}', '{"a": [{"Authorization": "***", "b": 1}]}'),
        ("", ""),
        ("{broken", "{broken"),
    ],
)
def test_options_lose_the_values_that_are_secrets_by_name(options: str, shown: str) -> None:
    assert shown_options(options) == shown
