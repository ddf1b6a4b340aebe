"""Modules that are compiled against one minor version of another library.

``rmm_26_10`` is the bridge to RMM 26.10, and so on; ``tenure.allocators.rmm`` picks the one of the RMM that is installed. A
source tree has none until ``make bridge-rmm``.
"""
