"""Builds tenure's wheel: the build backend of pyproject.toml (PEP 517 and 660), without requirements.

    pip install .        python -m build        make wheel

The bridges to other libraries (`python/tenure/bridges`) are in the wheel where they were built before: `make wheel` builds them
if it can, `pip install .` fetches nothing.

It runs tools/lib, which has cargo build the shared library, the extension module and the command and puts them into
python/tenure; a wheel is that folder with its metadata. So what is shipped is, file for file, what `make test` tested.

Why not maturin. It builds one cdylib of a project and tenure has two and a program, so that cargo would have to run beside
it anyway; it would compile the extension in a build of its own; its check of the platform looks at the extension alone and
stops at the library, which must be found by its SONAME and may be neither renamed nor copied by a repair step; and it is a
download before every isolated build. What is left of its work is this file.

The platform tag is computed from all binaries (`tools/elf.py`): it names the newest GLIBC_ symbol that any of them asks for
and never promises more. SOURCE_DATE_EPOCH is honoured; two builds of the same binaries give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import elf  # noqa: E402

PACKAGE = ROOT / "python" / "tenure"
BINARIES = ("lib/libtenure.so.0", "_tenure.abi3.so", "bin/tenure")
PYTHON_TAG = "cp311-abi3"
# `#!python` is replaced by whoever installs the wheel.
SCRIPT = "#!python\nimport sys\n\nfrom tenure.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"


def get_requires_for_build_wheel(config_settings: dict | None = None) -> list[str]:
    return []


get_requires_for_build_editable = get_requires_for_build_wheel
get_requires_for_build_sdist = get_requires_for_build_wheel


def project() -> dict:
    """The table `project` of pyproject.toml, with the version of Cargo.toml."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        table = tomllib.load(file)["project"]
    with open(ROOT / "Cargo.toml", "rb") as file:
        table["version"] = tomllib.load(file)["workspace"]["package"]["version"]
    return table


def metadata() -> str:
    """The text of METADATA (core metadata 2.4)."""
    table = project()
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {table['name']}",
        f"Version: {table['version']}",
        f"Summary: {table['description']}",
        *(f"Author: {author['name']}" for author in table["authors"]),
        f"License-Expression: {table['license']}",
        *(f"License-File: {name}" for name in table["license-files"]),
        f"Keywords: {','.join(table['keywords'])}",
        *(f"Classifier: {classifier}" for classifier in table["classifiers"]),
        *(f"Project-URL: {name}, {url}" for name, url in table["urls"].items()),
        f"Requires-Python: {table['requires-python']}",
        "Description-Content-Type: text/markdown",
        "",
    ]
    readme = ROOT / table["readme"]
    return "\n".join(lines) + "\n" + (readme.read_text(encoding="utf-8") if readme.exists() else "")


def wheel_text(tag: str, pure: bool = False) -> str:
    return f"Wheel-Version: 1.0\nGenerator: tenure\nRoot-Is-Purelib: {str(pure).lower()}\nTag: {tag}\n"


def platform_tag() -> str:
    """What the binaries of the package need, as a platform tag."""
    bridges = sorted((PACKAGE / "bridges").glob("*.so"))
    return elf.platform_tag([*(PACKAGE / name for name in BINARIES), *bridges])


def build_library() -> None:
    try:
        subprocess.run([str(ROOT / "tools" / "lib")], check=True, stdout=sys.stderr)
    except FileNotFoundError as error:
        raise SystemExit(f"tools/lib cannot be run ({error}): building tenure needs bash") from None
    except subprocess.CalledProcessError:
        raise SystemExit("building the libraries failed (see above); tools/doctor says what building needs") from None


def moment() -> tuple[int, int, int, int, int, int]:
    """The time that every file of the archive bears."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))
    return time.gmtime(max(epoch, 315532800))[:6]


class Wheel:
    """A wheel that is being written, with its RECORD."""

    def __init__(self, directory: str, tag: str):
        table = project()
        self.stem = f"{table['name']}-{table['version']}"
        self.name = f"{self.stem}-{tag}.whl"
        self._path = Path(directory) / self.name
        self._archive = zipfile.ZipFile(self._path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self._record: list[str] = []

    def add(self, name: str, content: bytes, executable: bool = False) -> None:
        entry = zipfile.ZipInfo(name, moment())
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self._archive.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self._record.append(f"{name},sha256={digest},{len(content)}")

    def close(self, tag: str) -> str:
        """Adds the metadata and the record. Returns the file's name."""
        info = f"{self.stem}.dist-info"
        for name in project()["license-files"]:
            self.add(f"{info}/licenses/{name}", (ROOT / name).read_bytes())
        self.add(f"{info}/METADATA", metadata().encode())
        self.add(f"{info}/WHEEL", wheel_text(tag).encode())
        record = f"{info}/RECORD"
        self._record.append(f"{record},,")
        entry = zipfile.ZipInfo(record, moment())
        entry.external_attr = 0o100644 << 16
        self._archive.writestr(entry, "\n".join(self._record) + "\n")
        self._archive.close()
        return self.name


def package_files() -> list[Path]:
    """The files of the package, in the order of their names. A tree that was used holds caches; they stay behind."""
    files = [path for path in PACKAGE.rglob("*") if path.is_file()]
    kept = [path for path in files if "__pycache__" not in path.parts and ".part." not in path.name]
    return sorted(kept)


def build_wheel(wheel_directory: str, config_settings: dict | None = None, metadata_directory: str | None = None) -> str:
    """Builds the libraries and writes the wheel. Returns its file name."""
    build_library()
    tag = f"{PYTHON_TAG}-{platform_tag()}"
    wheel = Wheel(wheel_directory, tag)
    for path in package_files():
        executable = os.access(path, os.X_OK)
        wheel.add(path.relative_to(PACKAGE.parent).as_posix(), path.read_bytes(), executable)
    wheel.add(f"{wheel.stem}.data/scripts/tenure", SCRIPT.encode(), executable=True)
    return wheel.close(tag)


def build_editable(wheel_directory: str, config_settings: dict | None = None, metadata_directory: str | None = None) -> str:
    """A wheel that names the tree: `make lib` renews what is imported."""
    build_library()
    tag = f"{PYTHON_TAG}-{platform_tag()}"
    wheel = Wheel(wheel_directory, tag)
    wheel.add("tenure-editable.pth", f"{PACKAGE.parent}\n".encode())
    wheel.add(f"{wheel.stem}.data/scripts/tenure", SCRIPT.encode(), executable=True)
    return wheel.close(tag)


def source_files() -> list[str]:
    """What git knows, or, in a source archive, everything that is no product."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
        names = [name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        product = re.compile(
            r"(^|/)(target|dist|demo|build|\.venv[^/]*|__pycache__|\.[a-z]+_cache|\.git)/"
            r"|^python/tenure/(lib|bin|include|cmake|_tenure|bridges/.*\.so)|^PKG-INFO$"
        )
        every = (path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file())
        names = [name for name in every if not product.search(name)]
    return sorted(name for name in names if (ROOT / name).is_file())


def build_sdist(sdist_directory: str, config_settings: dict | None = None) -> str:
    """The sources as one archive; needs cargo and the crates to become a wheel."""
    table = project()
    stem = f"{table['name']}-{table['version']}"
    name = f"{stem}.tar.gz"

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(Path(sdist_directory) / name, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        text = metadata().encode()
        information = tarfile.TarInfo(f"{stem}/PKG-INFO")
        information.size = len(text)
        archive.addfile(information, io.BytesIO(text))
        for file in source_files():
            archive.add(ROOT / file, f"{stem}/{file}", filter=plain)
    return name
