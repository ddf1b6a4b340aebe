"""The documentation site: ``make docs`` builds it with warnings as errors.

The pages are the Markdown files of this folder; the reference of the Python package is made from its stubs, which are its
documentation, without importing it.
"""

from __future__ import annotations

import re
from pathlib import Path

root = Path(__file__).resolve().parents[1]

project = "tenure"
author = "the authors of tenure"
copyright = author
release = re.search(r'^version = "(.*)"', (root / "Cargo.toml").read_text(), re.MULTILINE)[1]
version = release

extensions = ["myst_parser", "autoapi.extension", "sphinx.ext.intersphinx"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autoapi_dirs = [str(root / "python" / "tenure")]
autoapi_file_patterns = ["*.pyi"]
# `tenure.rmm` has RMM's names for what the reference shows under its own.
autoapi_ignore = ["*/tenure/rmm/*", "*/_tenure.pyi", "*/_errors.pyi"]
autoapi_root = "reference"
autoapi_options = ["members", "undoc-members", "show-inheritance"]
autoapi_member_order = "groupwise"
autoapi_python_class_content = "class"
autoapi_keep_files = False
autoapi_add_toctree_entry = False
autodoc_typehints = "none"
# Stubs import each other in a circle, which is legal there.
suppress_warnings = ["autoapi.python_import_resolution"]

html_theme = "furo"
html_title = f"tenure {release}"


def setup(app):
    """What rustdoc compiles and does not run is Rust all the same."""
    from pygments.lexers.rust import RustLexer

    app.add_lexer("rust,no_run", RustLexer)
