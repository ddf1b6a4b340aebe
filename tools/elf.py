"""What a binary asks of the machine that runs it: libraries and the newest glibc.

    python tools/elf.py FILE...          prints the platform tag that the files deserve together
    python tools/elf.py --check WHEEL    fails when the name of the wheel promises more than its binaries keep

Read from the file itself (ELF: the sections SHT_DYNAMIC and SHT_GNU_verneed), so that no binutils are needed.
"""

from __future__ import annotations

import re
import struct
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

# The libraries that a manylinux tag promises to be there (PEP 600), as far as a Rust program can come to ask for them.
EVERYWHERE = re.compile(
    r"(libc|libm|libdl|libpthread|librt|libutil|libgcc_s|libstdc\+\+)\.so\.\d+|ld-linux-(x86-64|aarch64)\.so\.\d"
)
# What is loaded only where a package that is no requirement is installed, which then brings these: the bridges.
OPTIONAL = {"bridges": re.compile(r"librmm\.so")}
MACHINES = {62: "x86_64", 183: "aarch64"}
# Below this no manylinux tag exists for the machine; what asks for less still gets it.
OLDEST = {"x86_64": (2, 17), "aarch64": (2, 17)}
# Names of versions that stand for a property of the loader or of a release, not for one of a symbol.
PROPERTIES = {"GLIBC_ABI_DT_RELR": (2, 36)}


class Needs(NamedTuple):
    """What one binary asks for."""

    machine: str
    libraries: tuple[str, ...]
    glibc: tuple[int, int]


def needs(content: bytes, name: str = "the file") -> Needs:
    """Reads a binary. ValueError, with a sentence, for anything but a 64-bit little-endian ELF file of a known machine."""
    if content[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{name} is no 64-bit little-endian ELF file")
    (number,) = struct.unpack_from("<H", content, 18)
    if number not in MACHINES:
        raise ValueError(f"{name} is built for machine {number}, which tenure does not support")
    (table,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    # Each section: name, type, flags, address, offset, size, link, info, alignment, size of an entry.
    sections = [struct.unpack_from("<IIQQQQIIQQ", content, table + index * size) for index in range(count)]

    def text(strings: int, offset: int) -> str:
        start = sections[strings][4] + offset
        return content[start : content.index(b"\0", start)].decode()

    libraries, glibc = [], (0, 0)
    for _, kind, _, _, offset, length, link, info, _, _ in sections:
        if kind == 6:  # SHT_DYNAMIC
            for at in range(offset, offset + length, 16):
                tag, value = struct.unpack_from("<QQ", content, at)
                if tag == 0:
                    break
                if tag == 1:  # DT_NEEDED
                    libraries.append(text(link, value))
        elif kind == 0x6FFFFFFE:  # SHT_GNU_verneed: `info` entries, each with a chain of versions
            at = offset
            for _ in range(info):
                _, versions, _, first, following = struct.unpack_from("<HHIII", content, at)
                version = at + first
                for _ in range(versions):
                    _, _, _, label, further = struct.unpack_from("<IHHII", content, version)
                    glibc = max(glibc, glibc_version(text(link, label)))
                    version += further
                at += following
    return Needs(MACHINES[number], tuple(libraries), glibc)


def glibc_version(label: str) -> tuple[int, int]:
    """The glibc that a version's name asks for; (0, 0) for names of other libraries."""
    if label in PROPERTIES:
        return PROPERTIES[label]
    found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", label)
    if found:
        return int(found[1]), int(found[2])
    if label.startswith("GLIBC_"):
        raise ValueError(f"a binary asks for {label}, of which it is not known since when glibc has it: add it to tools/elf.py")
    return 0, 0


def tag_of(all_needs: Iterable[Needs]) -> str:
    """The tag that all of them keep."""
    all_needs = list(all_needs)
    machines = {each.machine for each in all_needs}
    if len(machines) != 1:
        raise ValueError(f"the binaries are for different machines: {sorted(machines)}")
    machine = machines.pop()
    foreign = {name for each in all_needs for name in each.libraries if not EVERYWHERE.fullmatch(name)}
    if foreign:
        # Not portable: such a wheel is for the machine that built it.
        return f"linux_{machine}"
    major, minor = max(OLDEST[machine], *(each.glibc for each in all_needs))
    return f"manylinux_{major}_{minor}_{machine}"


def portable(each: Needs, name: str) -> Needs:
    """The needs of a file, without what only a package brings that need not be there."""
    allowed = OPTIONAL.get(Path(name).parent.name)
    if allowed is None:
        return each
    return each._replace(libraries=tuple(library for library in each.libraries if not allowed.fullmatch(library)))


def platform_tag(paths: Iterable[Path]) -> str:
    return tag_of(portable(needs(path.read_bytes(), str(path)), str(path)) for path in paths)


def check(wheel: Path) -> str | None:
    """Why the name of the wheel, or its WHEEL file, promises more than the binaries keep. None: it does not."""
    with zipfile.ZipFile(wheel) as archive:
        inside = {name: archive.read(name) for name in archive.namelist()}
    binaries = [portable(needs(content, name), name) for name, content in inside.items() if content[:4] == b"\x7fELF"]
    if not binaries:
        return f"{wheel.name} holds no binary"
    honest = tag_of(binaries)
    promises = wheel.name.removesuffix(".whl").split("-")[-1].split(".")
    text = next(content for name, content in inside.items() if name.endswith(".dist-info/WHEEL")).decode()
    promises += [line.split("-")[-1].strip() for line in text.splitlines() if line.startswith("Tag:")]
    for promise in promises:
        if not keeps(honest, promise):
            return f"{wheel.name} promises {promise}, its binaries keep {honest}"
    return None


def keeps(honest: str, promise: str) -> bool:
    """Whether binaries that deserve the one tag may bear the other: the same machine, and no older glibc."""
    pattern = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")
    have, want = pattern.fullmatch(honest), pattern.fullmatch(promise)
    if have is None or want is None:
        return honest == promise
    return have[3] == want[3] and (int(want[1]), int(want[2])) >= (int(have[1]), int(have[2]))


def main(arguments: list[str]) -> int:
    if not arguments or (arguments[0].startswith("-") and arguments[0] != "--check"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        if arguments[0] != "--check":
            print(platform_tag(map(Path, arguments)))
            return 0
        failed = 0
        for name in arguments[1:]:
            reason = check(Path(name))
            print(reason or f"{Path(name).name}: the tag is kept")
            failed |= reason is not None
        return int(failed)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"elf: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
