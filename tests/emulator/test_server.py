"""Store servers, real ones: ready, private, apart from each other, gone afterwards."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from funcpipe.emulator import server as server_module
from funcpipe.emulator.ports import all_free
from funcpipe.emulator.server import RunningServer, start_server
from funcpipe.errors import ServerError, StoreFull

from .helpers import client_of, eventually, processes_with, tree_of

pytestmark = pytest.mark.server


def test_it_keeps_objects_from_the_moment_it_is_returned(server: RunningServer) -> None:
    with client_of(server) as client:
        client.put_object(Bucket="funcpipe", Key="a/b", Body=b"\x00\xff" * 500)
        got = client.get_object(Bucket="funcpipe", Key="a/b")["Body"].read()
        client.delete_object(Bucket="funcpipe", Key="a/b")
        left = client.list_objects_v2(Bucket="funcpipe").get("Contents", [])

    assert got == b"\x00\xff" * 500
    assert left == []
    assert server.url == "s3://funcpipe"
    assert server.trouble() is None


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"aws_secret_access_key": "wrong" * 8}, "SignatureDoesNotMatch"),
        ({"aws_access_key_id": "SOMEBODYELSE"}, "InvalidAccessKeyId"),
    ],
)
def test_wrong_credentials_are_refused(
    server: RunningServer, changes: dict[str, str], code: str
) -> None:
    with client_of(server, **changes) as client, pytest.raises(ClientError) as caught:
        client.put_object(Bucket="funcpipe", Key="intruder", Body=b"x")

    assert caught.value.response["Error"]["Code"] == code


def test_credentials_show_on_no_command_line_and_in_no_text(server: RunningServer) -> None:
    secrets = (server.credentials.access_key, server.credentials.secret_key)
    shown = [argument for process in tree_of(server) for argument in process.cmdline()]
    shown += [repr(server), repr(server.credentials), server._guarded.log_tail(1 << 20)]

    assert len(shown) > 10
    assert not [text for text in shown for secret in secrets if secret in text]


def test_two_servers_do_not_disturb_each_other(server: RunningServer, tmp_path: Path) -> None:
    with start_server(server.kind, folder=tmp_path) as other:
        assert set(other.ports.values()).isdisjoint(server.ports.values())
        with client_of(server) as first, client_of(other) as second:
            first.put_object(Bucket="funcpipe", Key="mine", Body=b"1")
            with pytest.raises(ClientError):
                second.get_object(Bucket="funcpipe", Key="mine")
        ports, processes = list(other.ports.values()), tree_of(other)
    # The other one has gone wholly, and this one has noticed nothing.
    assert all_free(ports)
    assert not [process for process in processes if process.is_running()]
    assert list(tmp_path.iterdir()) == []
    with client_of(server) as first:
        assert first.get_object(Bucket="funcpipe", Key="mine")["Body"].read() == b"1"
        first.delete_object(Bucket="funcpipe", Key="mine")


@pytest.mark.parametrize("kind", ["seaweedfs", "juicefs"])
def test_a_killed_guard_takes_the_server_with_it(kind: str, tmp_path: Path) -> None:
    server = start_server(kind, folder=tmp_path)
    ports = list(server.ports.values())

    os.kill(server._guarded.guard_pid, signal.SIGKILL)

    assert eventually(lambda: all_free(ports))
    assert eventually(lambda: len(processes_with(str(tmp_path))) == 0)
    # What only the guard could have removed goes with the next start in that place, once the
    # driver has gone too and the kernel has let its lock go.
    assert server.folder.exists()
    assert server._guarded._folder is not None
    os.close(server._guarded._folder)
    server._guarded._folder = None
    server_module.Guarded(purpose="store", parent=tmp_path, environment={}).stop()
    assert list(tmp_path.iterdir()) == []
    assert not [path for path in Path("/tmp").glob("seaweedfs-*") if _names_one(path, ports)]  # noqa: S108
    server.stop()


def _names_one(path: Path, ports: list[int]) -> bool:
    return any(f"-{port}." in path.name for port in ports)


def test_a_server_that_is_killed_is_told_as_trouble(tmp_path: Path) -> None:
    with start_server("juicefs", folder=tmp_path) as server:
        _, process = tree_of(server)

        process.kill()

        assert eventually(lambda: server.trouble() is not None)
        assert "ended by itself (code -9)" in str(server.trouble())
    assert list(tmp_path.iterdir()) == []


def test_a_proxy_in_the_environment_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)

    with start_server("juicefs", folder=tmp_path) as server:
        assert server.trouble() is None


def test_ports_that_were_taken_in_between_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: RunningServer
) -> None:
    # Given: the first choice names a port that is taken by then.
    choices = [[server.ports["s3"]], server_module.free_ports(1)]
    monkeypatch.setattr(server_module, "free_ports", lambda _num: choices.pop(0))

    with start_server("juicefs", folder=tmp_path) as other:
        assert other.ports["s3"] != server.ports["s3"]
    assert choices == []


def test_what_keeps_it_from_starting_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "minio"
    broken.write_text("#!/bin/sh\necho no such luck\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("FUNCPIPE_MINIO", str(broken))
    folder = tmp_path / "store"

    with pytest.raises(ServerError, match=r"(?s)ended with code 3.*no such luck"):
        start_server("auto", folder=folder)

    assert list(folder.iterdir()) == []


def test_space_of_deleted_objects_comes_back(tmp_path: Path) -> None:
    def stored_bytes() -> int:
        return sum(path.stat().st_size for path in server.folder.rglob("*.dat"))

    with start_server("seaweedfs", folder=tmp_path) as server, client_of(server) as client:
        for number in range(4):
            client.put_object(Bucket="funcpipe", Key=f"k{number}", Body=bytes(1 << 20))
        assert stored_bytes() > 4 << 20
        client.put_object(Bucket="funcpipe", Key="kept", Body=b"kept")
        for number in range(4):
            client.delete_object(Bucket="funcpipe", Key=f"k{number}")

        # The server learns of deletions late, so the first tries may find nothing to do.
        assert eventually(lambda: server.reclaim() and stored_bytes() < 1 << 20, within_s=40)
        assert client.get_object(Bucket="funcpipe", Key="kept")["Body"].read() == b"kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize("kind", ["seaweedfs", "juicefs"])
def test_a_full_disk_is_an_error_soon_and_is_told(kind: str, tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody mount a small disk")
    try:
        with start_server(kind, folder=tmp_path) as server, client_of(server) as client:
            put = functools.partial(client.put_object, Bucket="funcpipe", Body=bytes(4 << 20))
            for number in range(6):
                put(Key=str(number))

            with pytest.raises(ClientError) as caught:
                [put(Key=str(number)) for number in range(6, 16)]

            assert caught.value.response["Error"]["Code"] == "InternalError"
            assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
            assert isinstance(server.trouble(failing=True), StoreFull)
            assert client.get_object(Bucket="funcpipe", Key="1")["ContentLength"] == 4 << 20
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_no_process_has_more_than_it_needs_of_the_drivers_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOO_SECRET", "a-secret-of-the-shell")

    with start_server("juicefs", folder=tmp_path) as server:
        seen = [process.environ() for process in tree_of(server)]

    assert len(seen) == 2
    assert not [one for one in seen if "a-secret-of-the-shell" in one.values()]
