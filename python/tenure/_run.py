"""``python -m tenure run script.py``: a program on tenure's memory, and what it took.

::

    the program, unchanged --> its libraries --> the resource (--resource)
                                   '--> the engine's meter --> the last lines on stderr, and -o FILE

The program runs in this process, as ``__main__``. It may end in any way that Python sees: by its last line, an exception,
``sys.exit``, ``os._exit``, or a signal that it leaves to the system; then the lines are said, once, by the process that was
started and by none that it forked, and its exit code, or its signal, is ours. For what nobody sees (SIGKILL, a crash, `exec`)
FILE is written anew every few seconds and says that the program had not ended.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import stat
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tenure

from . import _tenure
from ._report import Report
from .allocators import Row, Table, _libraries, _on

_EVERY = 5.0
"""Seconds between two writings of the file while the program runs."""
_SIGNALS = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGXCPU", "SIGUSR1", "SIGUSR2", "SIGALRM")
"""Signals that end a program which does nothing about them."""


def resource(text: str) -> Any:
    """The resource of a word such as ``pool:80%``: ``pool[:INITIAL[,MAXIMUM]]``, ``arena[:SIZE]``, ``async[:INITIAL]``, ``cuda``,
    ``managed``."""
    name, _, sizes = text.partition(":")
    size = [part.strip() or None for part in sizes.split(",")] if sizes else []
    mr = tenure.mr
    kinds: dict[str, tuple[int, Callable[..., Any]]] = {
        "cuda": (0, mr.CudaMemoryResource),
        "managed": (0, mr.ManagedMemoryResource),
        "async": (1, mr.CudaAsyncMemoryResource),
        "pool": (2, lambda *sizes: mr.PoolMemoryResource(mr.CudaMemoryResource(), *sizes)),
        "arena": (1, lambda *sizes: mr.ArenaMemoryResource(mr.CudaMemoryResource(), *sizes)),
    }
    if name not in kinds:
        raise ValueError(f"there is no resource {name!r}: choose one of {', '.join(kinds)}")
    most, make = kinds[name]
    if len(size) > most:
        raise ValueError(f"{name} takes {most or 'no'} size{'s' if most > 1 else ''}, and {text!r} has {len(size)}")
    return make(*size)


def _to_stderr(text: str) -> None:
    """Prints it where the process was started with a stderr that can still be written."""
    # `print` takes None for stdout, which is the program's.
    if sys.__stderr__ is not None:
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.__stderr__, flush=True)


def now(table: Table) -> list[Row]:
    """What became of the libraries: one that waited for its import may be on by now."""
    return [_on.get(row.library, row) for row in table]


class Run:
    """One program, from its start until it was said what it took."""

    def __init__(self, options: argparse.Namespace, base: Any, table: Table) -> None:
        self.options = options
        self.base = base
        self.table = table
        self.pid = os.getpid()
        self.file = Path(options.output).absolute() if options.output else None
        self.said = False
        self.module: types.ModuleType | None = None
        # Reentrant: a signal may end the program while this thread writes.
        self._writing = threading.RLock()
        self._stop = threading.Event()
        self.forget: Callable[[], object] = gc.collect

    def start(self) -> None:
        _tenure._report_begin(True, self.options.stacks)
        if self.file is not None:
            self.write("running")
            if self.file.is_file():
                threading.Thread(target=self._rewrite, name="tenure-run", daemon=True).start()

    def _rewrite(self) -> None:
        while not self._stop.wait(_EVERY):
            with contextlib.suppress(OSError, RuntimeError):
                self.write("running")

    def raw(self, end: str) -> dict[str, Any]:
        """What is written to the file."""
        raw: dict[str, Any] = json.loads(_tenure._report())
        raw["program"] = [self.options.program, *self.options.arguments]
        raw["resource"] = type(self.base).__name__
        raw["end"] = end
        raw["enabled"] = [
            {"library": row.library, "version": row.version, "state": row.state, "route": row.route, "notes": list(row.notes)}
            for row in now(self.table)
        ]
        return raw

    def write(self, end: str, raw: dict[str, Any] | None = None) -> None:
        """Writes the file: as a whole, so that whoever reads it meanwhile has the last one."""
        file = self.file
        if file is None:
            return
        text = json.dumps(raw if raw is not None else self.raw(end)) + "\n"
        with self._writing:
            if end == "running" and self.said:
                # This was counted before the end, and comes after it.
                return
            if file.exists() and not file.is_file():
                # A pipe or a device is written once.
                if end != "running":
                    file.write_text(text)
                return
            # A name that is a link stays one.
            target = file.resolve()
            part = target.with_name(f".{target.name}.{self.pid}.part")
            try:
                part.write_text(text)
                if target.exists():
                    part.chmod(stat.S_IMODE(target.stat().st_mode))
                part.replace(target)
            except OSError:
                part.unlink(missing_ok=True)
                target.write_text(text)

    def say(self, end: str) -> None:
        """Says what it took; in this process, and once."""
        if self.said or os.getpid() != self.pid:
            return
        self.said = True
        self._stop.set()
        # A program may have closed the stream on which it is said, or filled its disk: the file is written all the same.
        try:
            self.forget()
            raw = self.raw(end)
            _tenure._report_begin(False, False)
            lines = self.lines(raw)
        except Exception as error:
            _to_stderr(f"tenure run: what it took cannot be said: {error}")
            return
        _to_stderr("\n".join(lines))
        try:
            self.write(end, raw)
        except OSError as error:
            _to_stderr(f"tenure run: {self.file} cannot be written: {error}")

    def lines(self, raw: dict[str, Any]) -> list[str]:
        """The last lines on stderr."""
        report = Report(raw)
        lines = report.lines()
        lines[0] = f"tenure run: {report.seconds:.1f} s on {type(self.base).__name__}: {lines[0]}"
        off = [row for row in self.table if row.state == "failed"]
        lines += [f"  {row.library} was not turned on: {row.notes[0]}" for row in off]
        lines += report.left_lines("left at the end")
        if report.live_count and not self.options.stacks:
            lines.append("    (with --stacks: the lines that made them)")
        return lines

    # -------------------------------------------------------------------- how a program ends

    def watch_ends(self) -> None:
        """Says it however the program ends. What libraries do at the end comes first: this is registered before they are."""
        atexit.register(self.end_of_python)
        leave = os._exit

        def _exit(status: int) -> Any:
            """Ends the process at once."""
            # Nothing is let go: neither does the system's.
            self.forget = lambda: None
            self.say(f"os._exit({status})")
            leave(status)

        os._exit = _exit
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self.signalled)

    def signalled(self, number: int, frame: Any) -> None:
        """A signal that the program left to the system: it ends by it."""
        self.forget = lambda: None
        self.say(f"signal {signal.Signals(number).name}")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    end = "exit"

    def end_of_python(self) -> None:
        module, self.module = self.module, None
        if module is not None and os.getpid() == self.pid:
            # What the program kept in its globals goes with them, as it does when it runs by itself.
            def forget() -> None:
                vars(module).clear()
                gc.collect()

            self.forget = forget
        self.say(self.end)


def arguments_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tenure run",
        description="Runs a program on tenure's memory, unchanged, and says at its end what it took.",
    )
    parser.add_argument(
        "--resource",
        default="pool",
        metavar="SPEC",
        help="pool[:INITIAL[,MAXIMUM]], arena[:SIZE], async[:INITIAL], cuda, managed",
    )
    parser.add_argument("--libraries", metavar="NAMES", help="such as cupy,torch; without it, all that are installed")
    parser.add_argument("--stacks", action="store_true", help="keeps the lines that allocate, which takes longer")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="writes what was counted there, for tenure view and tenure stats"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("program", help="a script, or a module after -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own")
    return parser.parse_args(arguments)


def _code(options: argparse.Namespace) -> tuple[Any, types.ModuleType]:
    """The program, and the module ``__main__`` that it is run as."""
    module = types.ModuleType("__main__")
    if options.module:
        sys.path.insert(0, os.getcwd())
        name, spec, code = runpy._get_module_details(options.program)  # type: ignore[attr-defined]
        file: str | None = spec.origin
        module.__spec__, module.__loader__, module.__package__ = spec, spec.loader, spec.parent
        sys.argv[0] = file or name
    else:
        file = options.program
        sys.path.insert(0, str(Path(file).resolve().parent))
        code = compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
    module.__file__ = file
    vars(module)["__builtins__"] = __builtins__
    return code, module


def _run(options: argparse.Namespace, run: Run) -> Any:
    """The program, as if it had been started by itself: what to give to ``sys.exit``."""
    sys.argv = [options.program, *options.arguments]
    try:
        code, module = _code(options)
        run.module = module
        sys.modules["__main__"] = module
        exec(code, vars(module))
    except SystemExit as end:
        return end.code
    except BaseException as error:
        run.end = type(error).__name__
        # The frames of this file are nobody's business.
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            return "SIGINT"
        return 1
    return 0


def main(arguments: list[str]) -> int:
    """Runs ``arguments``; the exit code is the program's, or 2 where it could not be started."""
    options = arguments_of(arguments)
    try:
        if not options.module and not Path(options.program).is_file():
            raise FileNotFoundError(f"there is no file {options.program}")
        named = [_libraries.named(name.strip()) for name in (options.libraries or "").split(",") if name.strip()]
        chosen = named or [library for library in _libraries.LIBRARIES.values() if _libraries.installed(library)]
        if options.output:
            try:
                # Here and not at the end of an hour: what can be appended to can be written.
                with open(options.output, "a"):
                    pass
            except OSError as error:
                raise OSError(f"{options.output} cannot be written ({error.strerror}): name another file after -o") from error
        base = resource(options.resource)
        tenure.mr.set_current_device_resource(base)
        rows = [row for library in chosen for row in tenure.enable(library.name)]
    except (ValueError, OSError, ImportError, RuntimeError, MemoryError) as error:
        print(f"tenure run: {error}", file=sys.stderr)
        return 2
    run = Run(options, base, Table(rows))
    run.watch_ends()
    run.start()
    status = _run(options, run)
    if status == "SIGINT" and run.end == "KeyboardInterrupt":
        # As Python ends by itself, so that whoever waits for it sees the signal.
        run.end_of_python()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(status)
