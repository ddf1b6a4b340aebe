"""Every fenced block of Python, C++ and Rust in the README and in docs/ is a program that stands alone: it is run.

A block marked with another word (``text``, ``console``, none) is not code. A block may be kept from running by a comment
before it, ``<!-- not run: why -->``; the reasons are shown by ``pytest -rs``. A comment ``<!-- needs: cupy, torch -->`` says
that a block needs a GPU and these modules; ``<!-- imports: pyarrow -->``, that these modules are enough.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/libraries").glob("*.md"))]
LANGUAGES = ("python", "cpp", "rust")
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^(?P=indent)```\s*$", re.MULTILINE | re.DOTALL)
NEEDS = re.compile(r"<!--\s*needs:\s*(.*?)\s*-->\s*\Z", re.DOTALL)
IMPORTS = re.compile(r"<!--\s*imports:\s*(.*?)\s*-->\s*\Z", re.DOTALL)
NOT_RUN = re.compile(r"<!--\s*not run:\s*(.*?)\s*-->\s*\Z", re.DOTALL)

if not (ROOT / "docs").is_dir():
    pytest.skip("the source tree is not here", allow_module_level=True)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    code: str
    reason: str | None


def blocks_of(page: Path) -> list[Block]:
    if not page.is_file():
        return []
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        why = NOT_RUN.search(text[: match.start()])
        needs, imports = NEEDS.search(text[: match.start()]), IMPORTS.search(text[: match.start()])
        lacks = lacking(needs[1], True) if needs else lacking(imports[1], False) if imports else None
        code = re.sub(rf"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page.name, line, match["language"], code, why[1] if why else lacks))
    return found


# With a GPU, a library that was built without one cannot take part.
ON_A_GPU = {
    "jax": "import jax; jax.devices('gpu')",
    "tensorflow": "import tensorflow as tf; assert tf.config.list_physical_devices('GPU'), 'it has no GPU'",
}


def lacking(modules: str, needs_a_gpu: bool) -> str | None:
    """What is not here of what a block needs: a GPU, and these modules."""
    gpu = os.environ.get("TENURE_TEST_DEVICE", "sim") == "cuda"
    if needs_a_gpu and not gpu:
        return "needs a GPU"
    for module in re.split(r"\s*,\s*", modules):
        # In a child: these libraries change the process that imports them, and one that is there may not be importable.
        code = ON_A_GPU.get(module, f"import {module}") if gpu else f"import {module}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if done.returncode != 0:
            return f"needs the module {module}: {(done.stderr.splitlines() or ['no reason'])[-1]}"
    return None


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def of(language):
    blocks = [block for block in BLOCKS if block.language == language]
    return pytest.mark.parametrize("block", blocks, ids=lambda block: f"{block.page}:{block.line}")


def run(command, **keywords):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **keywords)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    # A free that went wrong on the way out says so on stderr and changes no exit code.
    assert "tenure:" not in done.stderr, done.stderr
    return done


def test_there_is_something_to_run():
    for language in LANGUAGES:
        assert any(block.language == language for block in BLOCKS), f"no block of {language} was found in any page"
    if (ROOT / "README.md").is_file():
        assert any(block.page == "README.md" and block.language == "python" for block in BLOCKS)


def test_a_block_that_fails_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nassert False\n```\n\n<!-- not run: no such machine -->\n\n```cpp\nint x;\n```\n")
    first, second = blocks_of(page)
    assert (first.language, first.code, first.line, first.reason) == ("python", "assert False\n", 3, None)
    assert (second.language, second.reason) == ("cpp", "no such machine")
    with pytest.raises(AssertionError):
        run([sys.executable, "-c", first.code])


@of("python")
def test_python(block, tmp_path):
    if block.reason:
        pytest.skip(block.reason)
    script = tmp_path / "block.py"
    # So that a traceback names the line of the page.
    script.write_text("\n" * block.line + block.code)
    run([sys.executable, script], cwd=tmp_path)


def library() -> Path:
    import tenure

    named = os.environ.get("TENURE_LIBRARY")
    return Path(named) if named else Path(tenure.__file__).parent / "lib/libtenure.so.0"


@of("cpp")
def test_cpp(block, tmp_path):
    if block.reason:
        pytest.skip(block.reason)
    if re.search(r"#include <(tenure/(cccl|thrust|rmm)\.hpp|rmm/|cuda/|thrust/)", block.code):
        pytest.skip("needs other people's headers: ci/cpp-packages compiles and runs it")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler was found")
    if not library().is_file():
        pytest.skip(f"{library()} is not there")
    source, program = tmp_path / "block.cpp", tmp_path / "block"
    code = block.code if re.search(r"\bint main\(", block.code) else f"{block.code}\nint main() {{}}\n"
    source.write_text(f'#line {block.line + 1} "{block.page}"\n{code}')
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
    run([*compiler.split(), *flags, source, library(), f"-Wl,-rpath,{library().parent}", "-pthread", "-o", program])
    run([program], cwd=tmp_path)


@pytest.fixture(scope="session")
def crate():
    """The compiled crate tenure: the compiler, the file, and where the crates are that it needs."""
    cargo, rustc = shutil.which("cargo"), shutil.which("rustc")
    if cargo is None or rustc is None:
        pytest.skip("no Rust was found")
    if not (ROOT / "Cargo.lock").is_file():
        pytest.skip("this is no source tree")
    command = [cargo, "build", "--quiet", "--locked", "-p", "tenure", "--message-format=json"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stderr
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message["target"]["name"] == "tenure":
            for file in message["filenames"]:
                if file.endswith(".rlib"):
                    return rustc, Path(file)
    pytest.fail("cargo built no library of the crate tenure")


@of("rust")
def test_rust(block, tmp_path, crate):
    if block.reason:
        pytest.skip(block.reason)
    rustc, rlib = crate
    source, program = tmp_path / "block.rs", tmp_path / "block"
    whole = re.search(r"^\s*fn main\(", block.code, re.MULTILINE)
    source.write_text(
        block.code if whole else f"fn main() -> Result<(), Box<dyn std::error::Error>> {{\n{block.code}\nOk(())\n}}\n"
    )
    # Dead code is fine in an example that shows a function; everything else is not.
    flags = ["--edition=2024", "-Dwarnings", "-Adead_code", "-Aunused_imports"]
    crates = [f"-Ldependency={rlib.parent / 'deps'}", f"-Ldependency={rlib.parent}", f"--extern=tenure={rlib}"]
    run([rustc, *flags, *crates, source, "-o", program])
    run([program], cwd=tmp_path, env={**os.environ, "TENURE_LIBRARY": str(library())})


# ---------------------------------------------------------------------------------------------------------- the reference

STUBS = sorted((ROOT / "python" / "tenure").glob("*.pyi"))

# The examples of a stub's docstrings, each by itself with `tenure` imported, in a process of their own: they may set what is
# current.
DOCTESTS = """
import ast, doctest, sys, tenure
failed = ran = 0
tree = ast.parse(open(sys.argv[1]).read())
for node in ast.walk(tree):
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
        continue
    text = ast.get_docstring(node) or ""
    name = getattr(node, "name", "module")
    test = doctest.DocTestParser().get_doctest(text, {"tenure": tenure}, name, sys.argv[1], getattr(node, "lineno", 0))
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    failed, ran = failed + outcome.failed, ran + outcome.attempted
print(f"{ran} examples")
sys.exit(failed > 0)
"""


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.name)
def test_examples_of_the_reference(stub, tmp_path):
    if os.environ.get("TENURE_TEST_DEVICE", "sim") == "cuda" and stub.name == "sim.pyi":
        pytest.skip("its examples are the simulated device's")
    run([sys.executable, "-c", DOCTESTS, stub], cwd=tmp_path)


def test_the_reference_has_examples():
    assert sum(stub.read_text().count(">>>") for stub in STUBS) > 10
