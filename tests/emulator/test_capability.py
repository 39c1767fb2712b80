"""What this machine really can enforce, tried as whoever runs the tests and as an ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from funcpipe.emulator import isolation_probe
from funcpipe.emulator.capability import find, probe_machine
from funcpipe.emulator.cgroups import open_cgroups

from .helpers import eventually, processes_with

NOBODY = 65534
ROOT = Path(__file__).resolve().parents[2]


def groups_of_probes() -> list[str]:
    cgroups = open_cgroups(f"funcpipe-look-{os.getpid()}")
    cgroups.close()
    folders = [Path(folder).parent for folder in cgroups.folders]
    names = [entry.name for folder in folders for entry in folder.iterdir() if entry.is_dir()]
    return [name for name in names if name.startswith("funcpipe-probe-")]


def mounted_below(folder: Path) -> list[str]:
    """Mounts and loop devices of the whole machine that have to do with `folder`."""
    loops = [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return [one for one in (*loops, *mounts) if str(folder) in one]


def test_probing_leaves_nothing(tmp_path: Path) -> None:
    found = probe_machine(tmp_path)

    assert len(found) == 8
    assert list(tmp_path.iterdir()) == []
    assert mounted_below(tmp_path) == []
    assert eventually(lambda: groups_of_probes() == [])  # another test may be probing too
    assert processes_with(str(tmp_path)) == []


def test_what_was_found_agrees_with_what_is_used(tmp_path: Path) -> None:
    cgroups = open_cgroups(f"funcpipe-test-{os.getpid()}")
    cgroups.close()

    findings = find(tmp_path)

    assert findings.cgroups == cgroups.versions
    assert set(findings.why_not) == {"cpu", "memory"} - set(cgroups.versions)
    assert set(findings.steps) <= set(isolation_probe.STEPS)


def probe_as_user(tmp_path: Path, *, user_namespace: bool) -> dict[str, str | None]:
    """The probe, run by a user with no rights."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    place = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    try:
        folder = place / "mount"
        folder.mkdir()
        for path in (place, folder):
            os.chown(path, NOBODY, NOBODY)
        spec = {"folder": str(folder), "image": None, "user_namespace": user_namespace}
        become = [sys.executable, str(Path(__file__).with_name("as_user.py")), str(NOBODY)]
        done = subprocess.run(
            [*become, sys.executable, "-P", "-m", isolation_probe.__name__],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            input=json.dumps(spec) + "\n",
            capture_output=True,
            text=True,
            check=True,
        )
        assert list(folder.iterdir()) == []
        return dict(json.loads(done.stdout))
    finally:
        shutil.rmtree(place)


def test_a_user_has_no_namespaces_of_its_own(tmp_path: Path) -> None:
    found = probe_as_user(tmp_path, user_namespace=False)

    assert "not permitted" in str(found["pid namespace"])
    assert found["tmpfs"] == "needs a mount namespace"


def test_a_user_has_them_inside_a_user_namespace(tmp_path: Path) -> None:
    found = probe_as_user(tmp_path, user_namespace=True)
    if found["user namespace"] is not None:
        pytest.skip(f"no user namespaces here: {found['user namespace']}")

    assert {step: text for step, text in found.items() if text is not None} == {}
