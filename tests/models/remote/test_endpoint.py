import traceback
from pathlib import Path

import pytest

from reflectune.core.config import cross_check, find_problems, parse_config, setting
from reflectune.core.errors import UserError
from reflectune.core.flags import help_text
from reflectune.models.remote.endpoint import Endpoint, RemoteConfig

URL = "http://localhost:8000/v1"


def remote(**settings: object) -> RemoteConfig:
    return RemoteConfig(**{"llm_url": "https://api.example.com/v1", "llm_model": "m", **settings})


def test_a_local_server_needs_an_address_and_a_model_only() -> None:
    assert RemoteConfig(llm_url=URL, llm_model="m").llm_problems() == []


class Asking(RemoteConfig):
    dry_run: bool = setting(False, "send nothing")

    @cross_check
    def problems_of_asking(self) -> list[str]:
        return self.llm_problems()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"llm_url": ""}, "`llm_url` is needed"),
        ({"llm_model": ""}, "`llm_model` is needed"),
        ({"llm_url": "localhost:8000"}, "must look like https://HOST/v1, found another form"),
        ({"llm_url": "file:///etc/passwd"}, "must look like https://HOST/v1"),
        ({"llm_url": "https://api.example.com/v1"}, "$NO_SUCH_VARIABLE holds no API key"),
        ({"llm_concurrency": 0}, "`llm_concurrency` must be at least 1, found 0"),
        ({"llm_timeout": 0.0}, "`llm_timeout` must be above 0"),
        ({"llm_options": "{"}, "`llm_options` is not valid JSON"),
        ({"llm_options": "[1]"}, "must be a JSON object"),
    ],
)
def test_each_problem_is_reported(settings: dict[str, object], problem: str) -> None:
    values = {"llm_url": URL, "llm_model": "m", "llm_key_variable": "NO_SUCH_VARIABLE", **settings}

    (problem_found,) = find_problems(Asking, values)

    assert problem in problem_found


def test_a_dry_run_needs_no_key() -> None:
    values = {"llm_url": "https://api.example.com/v1", "llm_model": "m", "llm_key_variable": "NO_SUCH_VARIABLE"}

    assert find_problems(Asking, {**values, "dry_run": True}) == []


def test_the_key_comes_from_the_environment_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    config = remote(llm_url="https://api.example.com/v1/", llm_key_variable="SOME_KEY")

    assert config.llm_problems() == []
    assert config.endpoint().key == "sk-secret"
    assert config.endpoint().url == "https://api.example.com/v1"
    assert "sk-secret" not in f"{config!r} {config.endpoint()!r}"


def test_options_change_a_request_and_null_takes_a_field_out() -> None:
    config = remote(llm_options='{"max_tokens": null, "max_completion_tokens": 9, "temperature": 1}')

    for limits in ({}, {"max_tokens": 32}):  # a pipeline's step has a limit of its own
        body = config.endpoint().request([], **limits)
        assert body == {"model": "m", "messages": [], "temperature": 1, "max_completion_tokens": 9}


def test_the_cost_is_tokens_times_price() -> None:
    assert Endpoint(URL, "m", input_price=2.0, output_price=8.0).cost(500_000, 250_000) == pytest.approx(3.0)


@pytest.mark.parametrize("around", ["{}\n", "{}\r\n", " {}\t\n", "\n{}"])
def test_white_space_around_a_key_is_taken_off(monkeypatch: pytest.MonkeyPatch, around: str) -> None:
    monkeypatch.setenv("SOME_KEY", around.format("sk-secret"))

    assert Endpoint(URL, "m", key=around.format("sk-secret")).key == "sk-secret"
    assert remote(llm_key_variable="SOME_KEY").endpoint().key == "sk-secret"


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("sk-secret\nsk-other", "holds a line break"),
        ("sk-secret\r\nX-Header: 1", "holds a line break"),
        ("sk-secret\x0bsk-other", "a control character"),
        ("sk-secret sk-other", "holds a space"),
        ("“sk-secret”", "not ASCII"),
        ("sk-secret\x7f", "a control character"),
    ],
)
def test_a_key_that_no_header_can_hold_is_refused_and_never_shown(monkeypatch, key: str, problem: str) -> None:
    monkeypatch.setenv("SOME_KEY", key)
    config = remote(llm_key_variable="SOME_KEY")

    with pytest.raises(UserError, match=problem) as caught:
        config.endpoint()

    (problem_found,) = config.llm_problems()
    assert problem_found.startswith("the API key in the variable $SOME_KEY holds")
    assert problem in problem_found
    shown = "".join(traceback.TracebackException.from_exception(caught.value).format())
    for secret in ("sk-secret", "sk-other"):
        assert secret not in f"{problem_found} {shown} {caught.value!r}"


@pytest.mark.parametrize("mistaken", ["sk-secret", "hf_secret"])
def test_a_key_in_the_place_of_its_variable_s_name_is_not_shown(mistaken: str) -> None:
    config = remote(llm_key_variable=mistaken)

    (problem_found,) = config.llm_problems()

    assert "`llm_key_variable`" in problem_found
    assert "secret" not in problem_found


def test_secrets_in_the_address_are_not_shown_and_reach_the_endpoint() -> None:
    url = "https://me:hidden@api.example.com/v1?key=hidden/"
    config = remote(llm_url=url, llm_key_variable="NO_SUCH_VARIABLE")

    assert config.llm_problems() == []  # it needs no other key
    assert config.endpoint().url == url
    assert "hidden" not in f"{config!r} {config.endpoint()!r}"


@pytest.mark.parametrize("url", ["me:hidden@host/v1", "http://me:hid/den@host/v1", "ftp://host/?key=hidden"])
def test_secrets_in_a_malformed_url_are_not_shown(url: str) -> None:
    (problem_found,) = find_problems(Asking, {"llm_url": url, "llm_model": "m"})
    with pytest.raises(UserError, match="must look like https://HOST/v1") as caught:
        Endpoint(url, "m")

    assert "must look like https://HOST/v1" in problem_found
    assert "hid" not in problem_found + "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("key", ["llm_url", "llm_key_variable", "llm_options"])
def test_a_list_in_the_place_of_a_text_that_may_hold_a_secret_is_not_quoted(tmp_path: Path, key: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"{key}: ['http://me:hidden@host/v1']\n")

    with pytest.raises(UserError, match=f"`{key}` should be text, found a value of type list") as caught:
        parse_config(RemoteConfig, argv=["--config", str(path)])

    assert "hidden" not in str(caught.value)


def test_help_shows_no_default_of_a_secret() -> None:
    shown = help_text(RemoteConfig, "reflectune score", "Score.")
    assert "(default: 8)" in shown
    assert "OPENAI_API_KEY" not in shown
    assert "OpenAI-compatible server, e.g. http://localhost:8000/v1 --llm_model" in " ".join(shown.split())
