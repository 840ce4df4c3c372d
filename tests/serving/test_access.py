"""Access to a server: empty tokens, addresses that other machines reach, and host names."""

import pytest
from serving.asgi import client
from serving.commands import serving
from serving.test_http import refused

from fieldwise import ConfigError
from fieldwise.cli import run
from fieldwise.serving.http import ServerSettings
from fieldwise.serving.service import Service


@pytest.fixture(scope="module")
def folder(tmp_path_factory, ranker):
    made = tmp_path_factory.mktemp("served")
    ranker.save(made / "ranker")
    return made


@pytest.mark.parametrize(
    ("arguments", "token", "said"),
    [
        ([], "", "found an empty one: give --token or FIELDWISE_TOKEN a value, or unset it"),
        ([], "  ", "found an empty one"),
        (["--token", ""], None, "found an empty one"),
        (
            ["--host", "0.0.0.0"],
            None,
            "a server on a non-loopback address needs a token, found --host 0.0.0.0",
        ),
        (["--host", "::"], None, "needs a token, found --host ::"),
        (["--host", "a-name-of-some-machine"], None, "needs a token"),
        (["--no-token"], "secret", "--no-token allows access without a token, found a token too"),
    ],
)
def test_options_that_leave_a_server_open_are_refused(
    folder, monkeypatch, capsys, arguments, token, said
):
    if token is None:
        monkeypatch.delenv("FIELDWISE_TOKEN", raising=False)
    else:
        monkeypatch.setenv("FIELDWISE_TOKEN", token)
    assert run(["serve", str(folder / "ranker"), "--port", "0", *arguments]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert said in told
    with pytest.raises(ConfigError, match="must not be empty"):
        ServerSettings(token=" ")


def test_a_server_has_names(ranker):
    named = client(Service(ranker), allow_hosts=frozenset({"localhost", "[::1]", "shop.example"}))
    for host in ("localhost", "LOCALHOST:8000", "[::1]:8000", "[::1]", "shop.example:"):
        assert named.get("/v1/about", headers={"Host": host}).status_code == 200, host
    for host in (
        "evil.example",
        "localhost.evil.example",
        "evil.example:8000",
        "localhost:x",
        "[::1",
        "",
    ):
        refused(named.get("/v1/about", headers={"Host": host}), 421, "--allow-host", field="host")
        refused(named.get("/", headers={"Host": host}), 421)
        assert named.get("/healthz", headers={"Host": host}).status_code == 200, (
            "probes call it by its address"
        )


def test_names_on_loopback(folder):
    """Without a token those of this machine; with one, or with `--allow-host '*'`, any."""
    other = {"Host": "evil.example"}
    with serving(folder, "ranker") as server:
        assert server.get("/v1/about").status_code == 200
        assert (
            server.get("/v1/about", headers={"Host": f"localhost:{server.port}"}).status_code == 200
        )
        assert server.get("/v1/about", headers=other).status_code == 421
    with serving(
        folder, "ranker", "--host", "0.0.0.0", "--no-token", "--allow-host", "shop.example"
    ) as server:
        assert server.get("/v1/about", headers=other).status_code == 421
        assert server.get("/v1/about", headers={"Host": "shop.example"}).status_code == 200
