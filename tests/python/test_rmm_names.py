"""Every public name, signature and default of RMM 26.10 is in ``tenure.rmm``, or stands in ``docs/deliberate-differences.md``.

RMM's wheel is downloaded with pip, its ``.pyi`` and ``.py`` files are read and never imported, and each is compared with the
imported module of tenure: names, ``__all__``, base classes, parameters (names, order, kinds, defaults) and results. What
tenure takes beyond RMM's parameters must have a default. ``TENURE_RMM_WHEEL`` names a wheel that is there already.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

tenure_rmm = pytest.importorskip("tenure.rmm")

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "deliberate-differences.md"
WHEEL = "rmm-cu13==26.10.0"


def table(heading):
    """The rows of the table under a heading of the document, as lists of cells."""
    text = DOCUMENT.read_text()
    part = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def allowed():
    """Names that may differ, each with the kinds of difference."""
    return {row[0].strip("`"): set(row[1].split(", ")) for row in table("Names, signatures and defaults")}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The ``.pyi`` and ``.py`` files of RMM's wheel, parsed: ``rmm.mr`` -> its syntax tree."""
    given = os.environ.get("TENURE_RMM_WHEEL")
    if given:
        file = Path(given)
    else:
        folder = tmp_path_factory.mktemp("wheel")
        command = [sys.executable, "-I", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--python-version", "3.11", "--platform", "manylinux_2_28_x86_64", "--dest", str(folder), WHEEL]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if answer.returncode != 0:
            last = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
            pytest.skip(f"RMM's wheel {WHEEL} cannot be downloaded: {last}")
        (file,) = folder.glob("*.whl")
    files = {}
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            path = Path(name)
            if path.parts[0] != "rmm" or path.suffix not in (".py", ".pyi") or "tests" in path.parts:
                continue
            module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
            # A stub says more than the module beside it.
            if path.suffix == ".pyi" or module not in files:
                files[module] = ast.parse(archive.read(name).decode(), name)
    assert len(files) > 15 and "rmm.pylibrmm.device_buffer" in files
    return files


class Differences:
    """What was found, without what the document allows."""

    def __init__(self):
        self.allowed, self.used, self.found = allowed(), set(), []
        # Modules of tenure.rmm that are not here for want of a library.
        self.without = []

    def add(self, name, kind, text):
        if kind in self.allowed.get(name, ()):
            self.used.add((name, kind))
        else:
            self.found.append(f"{name} ({kind}): {text}")


def public(name):
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def literal_all(tree):
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [element.value for element in node.value.elts]
    return None


def top_level(tree):
    """The names that a module defines itself, each with its node. Imports are its own affair unless ``__all__`` has them."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node
        elif isinstance(node, ast.Assign):
            variable = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in ("TypeVar", "ParamSpec")
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id != "__all__" and not variable:
                    yield target.id, node


def parameters_of(node, bound):
    """RMM's parameters: ``(name, kind, default)``; the default is a literal, ``...`` for any, or ``None`` for none at all."""
    spec = node.args
    found = []
    positional = [*spec.posonlyargs, *spec.args]
    defaults = [None] * (len(positional) - len(spec.defaults)) + list(spec.defaults)
    for argument, default in zip(positional, defaults, strict=True):
        kind = "positional" if argument in spec.posonlyargs else "either"
        found.append((argument.arg, kind, default))
    found += [(a.arg, "keyword", d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)]
    if spec.vararg:
        found.append((spec.vararg.arg, "*", None))
    if spec.kwarg:
        found.append((spec.kwarg.arg, "**", None))
    return found[1:] if bound else found


# What RMM's modules need as well.
LIBRARIES = ("cupy", "numba", "torch", "cuda")

KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "either",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def compare_signature(differences, name, node, ours, bound):
    try:
        signature = inspect.signature(ours)
    except (TypeError, ValueError) as error:
        differences.add(name, "signature", f"tenure's has none: {error}")
        return
    have = [p for p in signature.parameters.values() if not (bound and p.name in ("self", "slf"))]
    want = parameters_of(node, bound)
    if any(kind in ("*", "**") for _, kind, _ in want):
        return  # anything goes there
    special = name.split(".")[-1].startswith("__") and not name.endswith("__init__")
    kinds = [KINDS[p.kind] for p in have]
    if special and (kinds == ["positional"] * len(want) or kinds == ["*"]):
        return  # the interpreter calls it, by position
    named = {p.name: p for p in have}
    for place, (parameter, kind, default) in enumerate(want):
        mine = named.get(parameter)
        if mine is None:
            differences.add(name, "signature", f"there is no parameter {parameter}")
            continue
        if kind in ("positional", "either") and (place >= len(have) or have[place].name != parameter):
            differences.add(name, "signature", f"{parameter} stands in another place")
        if KINDS[mine.kind] != kind:
            differences.add(name, "signature", f"{parameter} is {KINDS[mine.kind]} and not {kind}")
        empty = mine.default is inspect.Parameter.empty
        if (default is None) != empty:
            differences.add(name, "default", f"{parameter} has {'no ' if empty else 'a '}default")
        elif default is not None and not (isinstance(default, ast.Constant) and default.value is ...):
            try:
                value = ast.literal_eval(default)
            except ValueError:
                continue  # an expression: that there is a default is all that can be compared
            if value != mine.default:
                differences.add(name, "default", f"{parameter} is {mine.default!r} and not {value!r}")
    for mine in have:
        if mine.name not in {p for p, _, _ in want} and mine.default is inspect.Parameter.empty:
            if KINDS[mine.kind] not in ("*", "**"):
                differences.add(name, "signature", f"{mine.name} must be given, and RMM has no such parameter")


STUBS = {}
ANY = "any"


def stub_of(module):
    """The syntax tree of tenure's stub, or of the module itself where it has none."""
    if module not in STUBS:
        base = ROOT.joinpath("python", *module.split("."))
        files = [base.with_suffix(".pyi"), base / "__init__.pyi", base.with_suffix(".py"), base / "__init__.py"]
        file = next((f for f in files if f.is_file()), None)
        STUBS[module] = None if file is None else ast.parse(file.read_text())
    return STUBS[module]


def result_of(ours, method=None):
    """What tenure's stub says of a result, as text; ``None`` where it cannot be found."""
    if inspect.isclass(ours):
        if any(cls.__module__.split(".")[0] in LIBRARIES for cls in ours.__mro__):
            return ANY  # the library's own class says it
        for cls in ours.__mro__:
            tree = stub_of(cls.__module__)
            for node in [] if tree is None else tree.body:
                if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                    for inner in node.body:
                        if isinstance(inner, ast.FunctionDef) and inner.name == method and inner.returns is not None:
                            return ast.unparse(inner.returns)
        return None
    for module in (getattr(ours, "__module__", None), "tenure", "tenure.mr"):
        tree = stub_of(module) if module and module != "tenure._tenure" else None
        for node in [] if tree is None else tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == ours.__name__ and node.returns is not None:
                return ast.unparse(node.returns)
    return None


SIMPLE = {
    "None",
    "int",
    "str",
    "bool",
    "bytes",
    "tuple[int, int]",
    "dict[int, str | None]",
    "level_enum",
    "Stream",
    "DeviceBuffer",
}


def compare_result(differences, name, node, ours, method=None):
    if node.returns is None:
        return
    want = ast.unparse(node.returns)
    if want not in SIMPLE:
        return
    have = result_of(ours, method)
    if have is None:
        differences.add(name, "result", "tenure's stubs do not say what it is")
    elif have not in (want, ANY) and not (have == "Self" and want == "DeviceBuffer"):
        differences.add(name, "result", f"{have} and not {want}")


def compare_class(differences, name, node, ours):
    if not inspect.isclass(ours):
        differences.add(name, "name", "is no class")
        return
    for base in node.bases:
        text = ast.unparse(base).split("[")[0].split(".")[-1]
        if text not in {cls.__name__ for cls in ours.__mro__} and text != "Protocol":
            differences.add(name, "bases", f"is no {text}")
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and (public(inner.name)):
            where = f"{name}.{inner.name}"
            if not hasattr(ours, inner.name):
                differences.add(where, "name", "is not there")
                continue
            decorators = {ast.unparse(d) for d in inner.decorator_list}
            if "overload" in decorators:
                continue
            if "property" in decorators:
                if callable(inspect.getattr_static(ours, inner.name)):
                    differences.add(where, "signature", "is no property")
                compare_result(differences, where, inner, ours, inner.name)
                continue
            if inner.name == "__init__":
                compare_signature(differences, where, inner, ours, bound=True)
                continue
            method = inspect.getattr_static(ours, inner.name)
            static = "staticmethod" in decorators
            compare_signature(differences, where, inner, getattr(ours, inner.name), bound=not static)
            if static != isinstance(method, staticmethod):
                differences.add(where, "signature", "is a static method in one of the two only")
            if not inner.name.startswith("__"):
                compare_result(differences, where, inner, ours, inner.name)
        elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name) and public(inner.target.id):
            if not hasattr(ours, inner.target.id) and inner.target.id not in getattr(ours, "__dataclass_fields__", {}):
                differences.add(f"{name}.{inner.target.id}", "name", "is not there")
        elif isinstance(inner, ast.Assign):
            for target in inner.targets:
                if isinstance(target, ast.Name) and public(target.id) and not hasattr(ours, target.id):
                    differences.add(f"{name}.{target.id}", "name", "is not there")


def compare_module(differences, name, tree):
    try:
        module = importlib.import_module("tenure." + name)
    except ImportError as error:
        if error.name and error.name.split(".")[0] in LIBRARIES:
            differences.without.append(f"tenure.{name} needs {error.name}")
        else:
            differences.add(name, "module", str(error))
        return
    wanted = literal_all(tree)
    if wanted is not None:
        if sorted(wanted) != sorted(module.__all__):
            text = f"lacks {sorted(set(wanted) - set(module.__all__))}, has {sorted(set(module.__all__) - set(wanted))} more"
            differences.add(f"{name}.__all__", "name", text)
        for one in wanted:
            if not hasattr(module, one):
                differences.add(f"{name}.{one}", "name", "is not there")
    for one, node in top_level(tree):
        where = f"{name}.{one}"
        if not public(one) and one not in ("_initialize", "_flush_logs", "_numba_memory_manager"):
            continue
        if not hasattr(module, one):
            differences.add(where, "name", "is not there")
            continue
        ours = getattr(module, one)
        if isinstance(node, ast.ClassDef):
            compare_class(differences, where, node, ours)
        elif isinstance(node, ast.FunctionDef):
            compare_signature(differences, where, node, ours, bound=False)
            compare_result(differences, where, node, ours)


def test_names_signatures_and_defaults(wheel):
    differences = Differences()
    for name, tree in sorted(wheel.items()):
        compare_module(differences, name, tree)
    assert not differences.found, "\n".join(["neither as in RMM nor in the document:", *differences.found])
    here = {name: kinds for name, kinds in differences.allowed.items() if not any(name in w for w in differences.without)}
    stale = {(name, kind) for name, kinds in here.items() for kind in kinds} - differences.used
    assert not stale, f"the document names differences that are none: {sorted(stale)}"
    if differences.without:
        print("SKIP:", "; ".join(differences.without))


def test_the_comparison_notices(wheel):
    """What would be wrong is found: a name, a parameter, a default, a base, a result."""
    wrong = ast.parse(
        "def nothing_like_it(): ...\n"
        "def parse_bytes(t: int) -> str: ...\n"
        "class PoolMemoryResource(Exception):\n"
        "    def __init__(self, upstream_mr, initial_pool_size: int = 7): ...\n"
        "    def pool_size(self, unit: str) -> float: ...\n"
        "    def other(self): ...\n"
    )
    differences = Differences()
    importlib.import_module("tenure.rmm.mr")
    compare_module(differences, "rmm.mr", ast.Module([wrong.body[0], wrong.body[2]], []))
    compare_module(differences, "rmm.pylibrmm.helper", ast.Module([wrong.body[1]], []))
    text = "\n".join(differences.found)
    for part in (
        "nothing_like_it (name)",
        "PoolMemoryResource (bases)",
        "PoolMemoryResource.__init__ (default): initial_pool_size is None and not 7",
        "pool_size (signature): there is no parameter unit",
        "other (name)",
        "parse_bytes (signature): there is no parameter t",
        "parse_bytes (result): int and not str",
    ):
        assert part in text, text


def test_the_version(wheel):
    assert tenure_rmm.__version__.startswith("26.10.")
    assert isinstance(tenure_rmm.__git_commit__, str)
