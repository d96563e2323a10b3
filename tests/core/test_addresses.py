import pytest

from reflectune.core.addresses import is_address, secrets_in, shown_url


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
