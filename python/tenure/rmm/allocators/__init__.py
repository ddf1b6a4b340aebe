"""``rmm.allocators``: what makes CuPy, Numba and PyTorch take their memory from the current resource."""
