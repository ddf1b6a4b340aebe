"""``rmm.librmm``: in RMM the declarations of its C++ classes, for Cython. tenure's are ``tenure.pxd`` and ``tenure.cpp``."""
