# SPDX-License-Identifier: Apache-2.0
"""The table of RMM's names in docs/cpp.md, against RMM's headers and against ours.

    names.py PAGE HEADERS... > names.cpp

Reads the public names (classes, aliases, free functions, constants) of each HEADERS folder (`.../include/rmm`), and fails where
one of them is missing in the table of PAGE. Writes a program that uses each name which the table calls there, through
`namespace rmm = tenure;`: it compiles where the table is right.
"""

import pathlib
import re
import sys

NOISE = {"static_assert", "RMM_CONSTEXPR_FRIEND", "void", "bool"}


def names_of(header):
    """Names at the level of namespaces, with `mr::` where they are in it."""
    text = header.read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r'"(\\.|[^"\\])*"', '""', text)
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    text = re.sub(r"\bRMM_NAMESPACE_(BEGIN|END)\b|\bRMM_EXPORT\b|\[\[.*?\]\]", " ", text, flags=re.S)
    scopes, piece, found = [], "", set()

    def declared():
        words = " ".join(piece.split())
        if any(scope in (None, "detail") for scope in scopes) or not words:
            return
        prefix = "mr::" if "mr" in scopes else ""
        words = re.sub(r"^template <[^()]*?> ?(?=class|struct|using|inline|constexpr|bool|void|device)", "", words)
        for pattern in (
            r"^(?:class|struct) (\w+)",
            r"^using (\w+) =",
            r"(?:constexpr|const) [\w:]+ (\w+)$",
            r"(?:constexpr|const) [\w:]+ (\w+) ?=",
            r"^(?:inline |static )*[\w:<>, ]+?[ &](\w+) ?\(",
        ):
            match = re.search(pattern, words)
            if match:
                if match[1] not in NOISE and not match[1].startswith("operator"):
                    found.add(prefix + match[1])
                return

    for token in re.split(r"([{};])", text):
        if token == "{":
            namespace = re.search(r"namespace ([\w:]+)\s*$", piece.strip())
            if namespace:
                scopes.append(namespace[1])
            else:
                declared()
                scopes.append(None)
            piece = ""
        elif token == "}":
            if scopes:
                scopes.pop()
            piece = ""
        elif token == ";":
            declared()
            piece = ""
        else:
            piece += token
    return found


def main():
    page, folders = pathlib.Path(sys.argv[1]), sys.argv[2:]
    rows = re.findall(r"^\| (`[^|]*) \| (yes|no)\b([^|]*)\|", page.read_text(), flags=re.M)
    table = {name: state for cell, state, _ in rows for name in re.findall(r"`rmm::([\w:]+)", cell)}
    wanted = set()
    for folder in map(pathlib.Path, folders):
        for header in [*folder.glob("*.hpp"), *(folder / "mr").glob("*.hpp")]:
            wanted |= names_of(header)
    if len(wanted) < 60 or "mr::pool_memory_resource" not in wanted or "device_buffer" not in wanted:
        sys.exit(f"names.py: only {len(wanted)} names were found in {folders}: the headers are written differently now")
    missing = sorted(wanted - set(table))
    if missing:
        sys.exit(f"names.py: {page.name} says nothing of these names of RMM's: {', '.join(missing)}")
    stale = sorted(set(table) - wanted)
    if stale:
        sys.exit(f"names.py: {page.name} has names that RMM's headers do not have: {', '.join(stale)}")
    lines = ["#include <tenure/tenure.hpp>", "#include <tenure/thrust.hpp>", "", "namespace rmm = tenure;", ""]
    for at, name in enumerate(sorted(name for name, state in table.items() if state == "yes")):
        lines.append(f"namespace there_{at} {{ using rmm::{name}; }}")
    lines += ["", "int main() {}"]
    print("\n".join(lines))
    print(f"names: {len(table)} of RMM's, {sum(state == 'yes' for state in table.values())} of them there", file=sys.stderr)


if __name__ == "__main__":
    main()
