"""``rmm._cuda``: questions to the CUDA runtime."""

from . import gpu as gpu
