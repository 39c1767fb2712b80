"""Bundles: all that the job needs, nothing that must not leave, and checked before it is run."""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.util
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from funcpipe import bundle, locate
from funcpipe.bundle import Bundle, load_unpacked, pack, unpack
from funcpipe.errors import BundleError, JobImportError
from funcpipe.locate import load_job, located
from funcpipe.usercode import BUNDLE_MARKER

JOB = """
import funcpipe as fp
{imports}
def model():
    {body}
def loss(output, target):
    pass
def optimizer(params):
    pass
job = fp.Job(model=model, loss=loss, optimizer=optimizer, train_data=model, batch_size=4,
             include={include!r})
"""


@pytest.fixture(autouse=True)
def _own_imports() -> Iterator[None]:
    """What a test imports is gone after it."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    locate._brought.clear()
    for name in set(sys.modules) - modules:
        if not name.startswith(("torch", "funcpipe", "numpy")):
            del sys.modules[name]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    return folder


def write(folder: Path, *names: str, **contents: str) -> None:
    """Empty files by name, and files with contents by name; ``.py`` may be left out."""
    for name, text in {**dict.fromkeys(names, ""), **contents}.items():
        path = folder / (name if "." in name else f"{name}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_job(
    folder: Path, *, imports: str = "", body: str = "pass", include: tuple[str, ...] = ()
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "job.py"
    file.write_text(JOB.format(imports=imports, body=body, include=include))
    return file


def packed(folder: Path, **fields: object) -> Bundle:
    return pack(load_job(write_job(folder, **fields)))  # type: ignore[arg-type]


def test_the_job_file_alone_is_a_bundle(tree: Path) -> None:
    # when
    result = packed(tree)
    # then
    assert result.files == ("job.py",)
    assert result.entry == "job:job"
    assert result.digest == hashlib.sha256(result.data).hexdigest()
    with zipfile.ZipFile(io.BytesIO(result.data)) as archive:
        assert archive.namelist() == [BUNDLE_MARKER, "job.py"]
        assert archive.read("job.py") == (tree / "job.py").read_bytes()
        assert json.loads(archive.read(BUNDLE_MARKER)) == {"format": 1, "entry": "job:job"}
    assert "data" not in repr(result)


def test_local_modules_are_found_wherever_they_are_imported(tree: Path) -> None:
    # given imports at the top, in functions, relative, of packages, by name and for types only
    write(
        tree,
        "deeper.py",
        "pkg/sub/__init__.py",
        "space/other.py",
        "named.py",
        "typed.py",
        "dynamic1.py",
        "unused.py",
        "pkg/unused.py",
        top="import deeper",
        **{
            "pkg/__init__": "from .first import *",
            "pkg/first": "def f():\n    from . import second",
            "pkg/second": "from .sub.third import x",
            "pkg/sub/third": "from ... import nothing\nx = 1",
            "space/part": "from .other import *",
        },
    )
    imports = """
import top, os.path, json, importlib, typing
__import__("importlib").import_module("dynamic" + "1")
if typing.TYPE_CHECKING:
    import typed
try:
    import no_such_module
except ImportError:
    pass
"""
    body = "import pkg, space.part; importlib.import_module('named')"
    # when
    result = packed(tree, imports=imports, body=body)
    # then
    assert set(result.files) == {
        *("job.py", "top.py", "deeper.py", "named.py", "typed.py", "dynamic1.py"),
        *("pkg/__init__.py", "pkg/first.py", "pkg/second.py"),
        *("pkg/sub/__init__.py", "pkg/sub/third.py", "space/part.py", "space/other.py"),
    }


def test_installed_packages_the_standard_library_and_funcpipe_stay_out(tree: Path) -> None:
    result = packed(tree, imports="import torch, numpy, xxhash, json, funcpipe.wire, pytest")
    assert result.files == ("job.py",)


def test_a_folder_does_not_hide_an_installed_package_of_its_name(tree: Path) -> None:
    write(tree, "hypothesis/notes.py")
    assert packed(tree, body="import hypothesis.notes").files == ("job.py",)


def test_the_users_own_packages_outside_the_root_are_included(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a package on sys.path, as an editable install or PYTHONPATH puts it there
    write(tmp_path / "src", x="1/0", **{"mine/__init__": "from mine.a import b", "mine/a": "b = 1"})
    monkeypatch.syspath_prepend(tmp_path / "src")
    # when
    eager = packed(tree, imports="import mine")
    lazy = packed(tree, body="import mine.a")
    # then
    assert eager.files == lazy.files == ("job.py", "mine/__init__.py", "mine/a.py")


def test_a_package_that_only_an_import_hook_finds_is_included(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a finder such as those that editable installs put on sys.meta_path
    write(tmp_path / "src", "hooked/__init__.py", "hooked/part.py")
    package = tmp_path / "src" / "hooked"

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, path: object, target: object = None) -> object:
            if fullname != "hooked":
                return None
            return importlib.util.spec_from_file_location(
                fullname, package / "__init__.py", submodule_search_locations=[str(package)]
            )

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    # when
    result = packed(tree, body="from hooked import part")
    # then
    assert result.files == ("hooked/__init__.py", "hooked/part.py", "job.py")


def test_a_module_of_a_package_brings_its_package(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    write(
        tree,
        "app/__init__.py",
        "app/common.py",
        "app/jobs/__init__.py",
        "app/other.py",
        **{"app/jobs/x.csv": "1"},
    )
    write_job(tree / "app" / "jobs", imports="from .. import common", include=("x.csv",))
    monkeypatch.chdir(tree)
    # when
    result = pack(load_job("app.jobs.job"))
    # then
    assert result.entry == "app.jobs.job:job"
    assert set(result.files) == {
        *("app/__init__.py", "app/common.py"),
        *("app/jobs/__init__.py", "app/jobs/job.py", "app/jobs/x.csv"),
    }


def test_a_job_in_an_installed_package_brings_that_package_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    site = tmp_path / "site-packages"
    write(site, "shop/__init__.py", "shop/part.py", "stranger/__init__.py")
    write_job(site / "shop", imports="import stranger, torch", body="from shop import part")
    monkeypatch.syspath_prepend(site)
    # when
    result = pack(load_job("shop.job"))
    # then
    assert result.files == ("shop/__init__.py", "shop/job.py", "shop/part.py")
    assert result.entry == "shop.job:job"


def test_each_of_two_jobs_of_one_process_is_packed_with_its_own_modules(tmp_path: Path) -> None:
    # given
    for name in ("one", "two"):
        write(tmp_path / name, helper=f"'''{name}'''", lazy=f"'''{name}'''")
        write_job(tmp_path / name, imports="import helper", body="import lazy")
    # when
    loaded = [load_job(tmp_path / name / "job.py") for name in ("one", "two")]
    bundles = [pack(item) for item in loaded]
    # then
    for name, result in zip(("one", "two"), bundles, strict=True):
        assert result.files == ("helper.py", "job.py", "lazy.py")
        with zipfile.ZipFile(io.BytesIO(result.data)) as archive:
            assert archive.read("helper.py") == archive.read("lazy.py") == f"'''{name}'''".encode()


def test_a_job_object_is_packed_like_its_file(tree: Path) -> None:
    write(tree, "helper.py")
    loaded = load_job(write_job(tree, imports="import helper"))
    assert pack(located(loaded.job)) == pack(loaded)


def test_equal_files_make_equal_bytes_wherever_and_whenever(tmp_path: Path) -> None:
    # given the same files, written in another order, at other times and with other modes
    for name in ("one", "two"):
        folder = tmp_path / name
        files = ["b.py", "a.py", "data/x.csv"]
        for file in files if name == "one" else reversed(files):
            write(folder, **{file: f"'{file}'"})
        write_job(folder, imports="import a, b", include=("data",))
    os.utime(tmp_path / "two" / "a.py", (1, 1))
    (tmp_path / "two" / "b.py").chmod(0o600)
    # when
    first, second = (pack(load_job(tmp_path / name / "job.py")) for name in ("one", "two"))
    # then
    assert first == second
    # and a changed byte is another digest
    (tmp_path / "two" / "data" / "x.csv").write_text("changed")
    assert pack(load_job(tmp_path / "two" / "job.py")).digest != first.digest


def test_files_folders_and_globs_are_included_without_caches(tree: Path) -> None:
    # given
    write(
        tree,
        "data/a.csv",
        "data/deep/b.txt",
        "more/c.csv",
        "more/d.txt",
        "lone.bin",
        "used.py",
        **{"plugins/p": "import used"},
    )
    for hidden in (
        ".git/config",
        ".venv/x.py",
        "data/__pycache__/y.txt",
        "data/z.pyc",
        BUNDLE_MARKER,
    ):
        (tree / hidden).parent.mkdir(parents=True, exist_ok=True)
        (tree / hidden).write_text("")
    # when
    some = packed(tree, include=("data", "more/*.csv", "lone.bin", "plugins"))
    everything = packed(tree, include=(".",))
    # then
    chosen = {"data/a.csv", "data/deep/b.txt", "more/c.csv", "lone.bin", "plugins/p.py", "used.py"}
    assert set(some.files) == chosen | {"job.py"}
    assert set(everything.files) == chosen | {"job.py", "more/d.txt"}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("dat", ["'dat'", "names no file", "did you mean 'data'?"]),
        ("*.parquet", ["'*.parquet'", "names no file"]),
        (".git", ["'.git'", "never are"]),
        ("empty", ["'empty'", "nothing to send"]),
        ("outside.txt", ["symbolic link that leaves", "secret.txt"]),
        ("data", ["symbolic link to a folder"]),
        ("through/secret.txt", ["symbolic link that leaves"]),
        ("broken", ["broken symbolic link"]),
        ("pipe", ["not a plain file"]),
    ],
)
def test_an_include_that_cannot_be_packed_is_explained(
    tree: Path, tmp_path: Path, pattern: str, expected: list[str]
) -> None:
    # given
    write(tmp_path, "secret.txt")
    write(tree, "data/a.csv")
    for folder in (".git", "empty"):
        (tree / folder).mkdir()
    (tree / ".git" / "config").write_text("")
    (tree / "outside.txt").symlink_to(tmp_path / "secret.txt")
    (tree / "data" / "folder").symlink_to(tree / "empty")
    (tree / "through").symlink_to(tmp_path)
    (tree / "broken").symlink_to(tree / "nothing")
    os.mkfifo(tree / "pipe")
    # when
    with pytest.raises(BundleError) as caught:
        packed(tree, include=(pattern,))
    # then
    for text in expected:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        *(".env", ".env.local", "prod.env", "server.pem", "TLS.KEY", "id_rsa", "id_ed25519"),
        *(".aws/config", ".ssh/known_hosts", "credentials", "credentials.json", ".netrc"),
        *(".npmrc", "store.p12", "innocent.txt"),
    ],
)
def test_credentials_are_refused_by_name_and_by_content(tree: Path, name: str) -> None:
    # given
    secret = tree / "conf" / name
    secret.parent.mkdir(parents=True)
    secret.write_text("-----BEGIN OPENSSH PRIVATE KEY-----" if "innocent" in name else "x")
    # then
    for pattern in (f"conf/{name}", "conf", "conf/**/*"):
        with pytest.raises(BundleError, match="looks like a credential"):
            packed(tree, include=(pattern,))


def test_a_module_that_is_a_link_out_of_its_folder_is_refused(tree: Path, tmp_path: Path) -> None:
    write(tmp_path, "shared.py")
    (tree / "linked.py").symlink_to(tmp_path / "shared.py")
    with pytest.raises(BundleError, match="'linked' is a symbolic link that leaves"):
        packed(tree, imports="import linked")


def test_a_bundle_that_is_too_large_names_its_largest_files(tree: Path) -> None:
    # given
    (tree / "data").mkdir()
    for index in range(7):
        (tree / "data" / f"{index}.bin").write_bytes(bytes(200_000 + index))
    loaded = load_job(write_job(tree, include=("data",)))
    # then
    with pytest.raises(BundleError) as caught:
        pack(loaded, limit_bytes=10**6)
    assert "1.4 MB in 8 files, more than the limit of 1.0 MB" in str(caught.value)
    assert "the largest are data/6.bin (0.2 MB), data/5.bin" in str(caught.value)
    assert "data/1.bin" not in str(caught.value)
    assert len(pack(loaded, limit_bytes=2 * 10**6).files) == 8


def test_a_file_that_cannot_be_read_is_a_bundle_error(tree: Path) -> None:
    loaded = load_job(write_job(tree))
    (tree / "job.py").unlink()
    with pytest.raises(BundleError, match=r"cannot be read: .*job\.py"):
        pack(loaded)


def test_what_was_packed_is_unpacked_read_only(tree: Path, tmp_path: Path) -> None:
    # given
    write(tree, "pkg/__init__.py", **{"data/x.csv": "1,2"})
    result = packed(tree, imports="import pkg", include=("data",))
    folder = tmp_path / "new" / "folder"
    # when
    names = unpack(memoryview(result.data), digest=result.digest, folder=folder)
    # then
    assert sorted(names) == sorted([BUNDLE_MARKER, *result.files])
    for name in result.files:
        assert (folder / name).read_bytes() == (tree / name).read_bytes()
        assert stat.S_IMODE((folder / name).stat().st_mode) & 0o222 == 0


def test_another_digest_is_refused_before_anything_is_written(tree: Path, tmp_path: Path) -> None:
    result = packed(tree)
    for data, digest in (
        (result.data + b"\0", result.digest),
        (result.data, "0" * 64),
        (b"no zip at all", result.digest),
    ):
        with pytest.raises(BundleError, match="has the SHA-256"):
            unpack(data, digest=digest, folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_folder_that_holds_something_is_left_alone(tree: Path, tmp_path: Path) -> None:
    result = packed(tree)
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(BundleError, match="not empty"):
        unpack(result.data, digest=result.digest, folder=tmp_path)
    with pytest.raises(BundleError, match="cannot be unpacked"):
        unpack(result.data, digest=result.digest, folder=tmp_path / "mine.txt")


def archive(*members: tuple[str, int, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as made:
        for name, mode, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = method
            made.writestr(info, content)
    return target.getvalue()


FILE = stat.S_IFREG | 0o444


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([("/etc/x", FILE, b"")], "'/etc/x', which is not allowed"),
        ([("../x", FILE, b"")], "'../x', which is not allowed"),
        ([("a/../../x", FILE, b"")], "not allowed"),
        ([("a//x", FILE, b"")], "not allowed"),
        ([("./x", FILE, b"")], "not allowed"),
        ([("a\\x", FILE, b"")], "not allowed"),
        ([("folder/", stat.S_IFDIR | 0o755, b"")], "not allowed"),
        ([(".", FILE, b"")], "'.', which is not allowed"),
        ([("link", stat.S_IFLNK | 0o777, b"/etc")], "not a plain file"),
        ([("pipe", stat.S_IFIFO | 0o777, b"")], "not a plain file"),
        ([("x", FILE, b"1"), ("x", FILE, b"2")], "'x' twice"),
        ([("x", FILE, b"1"), ("x/y", FILE, b"2")], "'x' as file and folder"),
        ([("x", FILE, bytes(3000))], "unpacks to 3000 bytes, more than 2000 bytes"),
        ([(str(index), FILE, bytes(100)) for index in range(30)], "unpacks to"),
    ],
)
def test_a_harmful_archive_is_refused_before_anything_is_written(
    tmp_path: Path, members: list[tuple[str, int, bytes]], expected: str
) -> None:
    data = archive(*members)
    with pytest.raises(BundleError) as caught:
        unpack(
            data,
            digest=hashlib.sha256(data).hexdigest(),
            folder=tmp_path / "new",
            limit_bytes=2000,
        )
    assert expected in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_an_archive_that_is_damaged_but_has_the_digest_is_refused(tmp_path: Path) -> None:
    # given a member that says it is smaller than it is, and every kind of broken archive
    whole = archive(("x", FILE, bytes(range(256)) * 40), method=zipfile.ZIP_STORED)
    size = (10240).to_bytes(4, "little")
    forged = whole.replace(size, (10).to_bytes(4, "little"))
    assert forged != whole
    odd = archive(("x", FILE, b"text"), method=zipfile.ZIP_BZIP2)
    for number, data in enumerate((forged, odd, whole[:-30], whole[200:], b"", b"PK\5\6")):
        # then
        with pytest.raises(BundleError):
            unpack(data, digest=hashlib.sha256(data).hexdigest(), folder=tmp_path / str(number))


WORKER = """
import os, sys
from pathlib import Path
from funcpipe.bundle import load_unpacked, unpack
data, digest, entry, folder = Path(sys.argv[1]).read_bytes(), sys.argv[2], sys.argv[3], sys.argv[4]
unpack(data, digest=digest, folder=Path(folder))
os.chdir(folder)
job = load_unpacked(Path(folder), entry)
print(job.model(), job.origin.file)
"""


def run_worker(result: Bundle, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "bundle.zip").write_bytes(result.data)
    arguments = [tmp_path / "bundle.zip", result.digest, result.entry, tmp_path / "unpacked"]
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", WORKER, *map(str, arguments)],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_worker_runs_from_the_bundle_when_the_tree_is_gone(tree: Path, tmp_path: Path) -> None:
    # given
    write(
        tree,
        "pkg/__init__.py",
        helper="from pathlib import Path\nhere = Path(__file__).parent",
        **{"pkg/lazy": "from . import more", "pkg/more": "value = 3", "data/x.csv": "1,2"},
    )
    body = """
    from pkg.lazy import more
    beside = (helper.here / "data" / "x.csv").read_text()
    with open("data/x.csv") as relative:
        return more.value, beside, relative.read()
"""
    result = packed(tree, imports="import helper", body=body, include=("data/*.csv",))
    shutil.rmtree(tree)
    # when
    done = run_worker(result, tmp_path)
    # then
    assert done.stderr == ""
    assert done.stdout.strip() == f"(3, '1,2', '1,2') {tmp_path / 'unpacked' / 'job.py'}"


def test_a_worker_without_a_module_or_a_file_is_told_what_to_include(
    tree: Path, tmp_path: Path
) -> None:
    # given names that no analysis can see
    write(tree, "hidden.py", "data/x.csv")
    write_job(tree, imports="import importlib; importlib.import_module('hid' + 'den')")
    loaded = load_job(tree / "job.py")
    assert "hidden.py" in pack(loaded).files
    lacks_module = bundle.pack(
        locate.LoadedJob(**{**vars(loaded), "modules": {"job": tree / "job.py"}})
    )
    write_job(
        tree, imports="from pathlib import Path\n(Path(__file__).parent / 'data/x.csv').read_text()"
    )
    lacks_file = pack(load_job(tree / "job.py"))
    shutil.rmtree(tree)
    # when
    module, file = tmp_path / "module", tmp_path / "file"
    for result, folder in ((lacks_module, module), (lacks_file, file)):
        unpack(result.data, digest=result.digest, folder=folder)
    # then
    with pytest.raises(BundleError, match=r"no module 'hidden'.*include=\('hidden\.py',\)") as one:
        load_unpacked(module, "job:job")
    assert str(one.value.where).startswith("job.py:3 in <module>: import importlib")
    with pytest.raises(BundleError, match=r"no file 'data/x\.csv'.*include=\('data/x\.csv',\)"):
        load_unpacked(file, "job:job")


def test_the_unpacked_job_is_another_module_than_the_users(tree: Path, tmp_path: Path) -> None:
    # given
    write(tree, "helper.py")
    loaded = load_job(write_job(tree, imports="import helper"))
    result = pack(loaded)
    unpack(result.data, digest=result.digest, folder=tmp_path / "new")
    # when
    job = load_unpacked(tmp_path / "new", result.entry)
    # then
    assert job is not loaded.job
    assert job.origin.file == tmp_path / "new" / "job.py"
    assert sys.modules["helper"].__file__ == str(tmp_path / "new" / "helper.py")
    assert sys.path[0] == str(tmp_path / "new")


def test_an_unpacked_job_that_fails_otherwise_shows_the_users_line(
    tree: Path, tmp_path: Path
) -> None:
    write(tree, BUNDLE_MARKER, job="1 / 0")
    with pytest.raises(JobImportError, match="ZeroDivisionError") as caught:
        load_unpacked(tree, "job:job")
    assert caught.value.where == "job.py:1 in <module>: 1 / 0"
    for entry in ("job", ":job", "job:", ""):
        with pytest.raises(BundleError, match="expected module:attribute"):
            load_unpacked(tree, entry)
    with pytest.raises(BundleError, match="has no module 'other'"):
        load_unpacked(tree, "other:job")
