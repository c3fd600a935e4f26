"""Settings of the documentation site: `make docs` builds it into build/docs, with warnings as errors."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

import standfast

sys.path.insert(0, str(Path(__file__).parent))
import generated

project = "standfast"
author = "the standfast authors"
copyright = "the standfast authors"
release = version = standfast.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "reference/generated"]
nitpicky = False

html_theme = "furo"
html_title = "standfast"
html_show_sphinx = False
html_copy_source = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

# Public docstrings give their sections in plain text, so that help() reads well in a terminal too.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True, "inherited-members": False, "show-inheritance": False}


def setup(app: Sphinx) -> None:
    """Write the pages that come from the product before Sphinx looks for pages."""
    generated.write_all()
