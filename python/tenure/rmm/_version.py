"""The version of RMM whose names, signatures and defaults are here. ``tenure.__version__`` is tenure's own."""

__version__: str = "26.10.00"
__git_commit__: str = ""

__all__ = ["__git_commit__", "__version__"]
