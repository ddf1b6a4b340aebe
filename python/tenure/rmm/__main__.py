"""``python -m tenure.rmm``: runs an unmodified program in which ``import rmm`` gives tenure.

    python -m tenure.rmm script.py args...
    python -m tenure.rmm -m module args...
    python -m tenure.rmm -c "import rmm" args...
    python -m tenure.rmm - < script.py

``sys.argv``, ``sys.path[0]`` and ``__main__`` are what they would be under ``python`` itself.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import sys
from types import CodeType, ModuleType

from ._alias import install

USAGE = """usage: python -m tenure.rmm (script.py | -m module | -c code | -) [args...]

Runs a program in which `import rmm`, and every submodule of it, gives tenure."""


class Unusable(Exception):
    """The command line names nothing that can be run; its text says why."""


def _main_module(file: str | None, spec: importlib.machinery.ModuleSpec | None, loader: object | None) -> ModuleType:
    """A fresh ``__main__``. It stays in ``sys.modules`` until the process ends: threads, exit handlers and pickles use it."""
    main = ModuleType("__main__")
    names = main.__dict__
    names["__builtins__"] = sys.modules["builtins"]
    names["__spec__"], names["__loader__"] = spec, loader
    names["__package__"] = None if spec is None else spec.parent
    if file is not None:
        names["__file__"] = file
        names["__cached__"] = None if spec is None else spec.cached
    sys.modules["__main__"] = main
    return main


def _of_module(name: str) -> tuple[importlib.machinery.ModuleSpec, CodeType]:
    """What ``-m name`` runs: the module, or the ``__main__`` of a package."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        raise Unusable(f"Error while finding module specification for {name!r} ({type(error).__name__}: {error})") from None
    except ValueError as error:
        raise Unusable(f"{name} cannot be run: {error}") from None
    if spec is None:
        raise Unusable(f"No module named {name}")
    if spec.submodule_search_locations is not None:
        if name.endswith(".__main__"):
            raise Unusable(f"{name} is a package and cannot be run")
        try:
            return _of_module(f"{name}.__main__")
        except Unusable as error:
            raise Unusable(f"{error}; {name!r} is a package and cannot be directly executed") from None
    get_code = getattr(spec.loader, "get_code", None)
    code = None if get_code is None else get_code(spec.name)
    if code is None:
        raise Unusable(f"No code object available for {name}")
    return spec, code


def _of_path(path: str) -> tuple[importlib.machinery.ModuleSpec | None, CodeType]:
    """What a path runs: a file of source or bytecode, or the ``__main__`` of a folder or zip file."""
    importer = pkgutil.get_importer(path)
    if importer is not None and (os.path.isdir(path) or not isinstance(importer, importlib.machinery.FileFinder)):
        sys.path[0] = path
        spec = importer.find_spec("__main__")
        get_code = None if spec is None else getattr(spec.loader, "get_code", None)
        if spec is None or get_code is None:
            raise Unusable(f"can't find '__main__' module in {path!r}")
        return spec, get_code("__main__")
    try:
        with io.open_code(os.path.abspath(path)) as file:
            content = file.read()
    except OSError as error:
        raise Unusable(f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}") from None
    if content[: len(importlib.util.MAGIC_NUMBER)] == importlib.util.MAGIC_NUMBER:
        import marshal

        return None, marshal.loads(content[16:])
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    return None, compile(content, path, "exec", dont_inherit=True)


def run(arguments: list[str]) -> None:
    """Installs the alias and runs what the arguments name, in this process, as its ``__main__``."""
    install()
    what, rest = arguments[0], arguments[1:]
    if what == "-m":
        if not rest:
            raise Unusable("argument expected for the -m option")
        sys.argv[:] = ["-m", *rest[1:]]
        spec, code = _of_module(rest[0])
        sys.argv[0] = spec.origin or rest[0]
        main = _main_module(spec.origin, spec, spec.loader)
    elif what == "-c":
        if not rest:
            raise Unusable("argument expected for the -c option")
        sys.argv[:] = ["-c", *rest[1:]]
        sys.path[0] = ""
        code = compile(rest[0], "<string>", "exec", dont_inherit=True)
        main = _main_module(None, None, None)
    elif what == "-":
        sys.argv[:] = arguments
        sys.path[0] = ""
        code = compile(sys.stdin.read(), "<stdin>", "exec", dont_inherit=True)
        main = _main_module(None, None, None)
    else:
        sys.argv[:] = arguments
        found, code = _of_path(what)
        loader = importlib.machinery.SourceFileLoader("__main__", what) if found is None else found.loader
        main = _main_module(what if found is None else found.origin, found, loader)
    exec(code, main.__dict__)


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        raise SystemExit(0 if arguments else 2)
    if arguments[0].startswith("-") and arguments[0] not in ("-m", "-c", "-"):
        print(f"python -m tenure.rmm: unknown option {arguments[0]}\n{USAGE}", file=sys.stderr)
        raise SystemExit(2)
    try:
        run(arguments)
    except Unusable as error:
        print(f"python -m tenure.rmm: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
