from . import CudaError as CudaError
from . import OutOfMemoryError as OutOfMemoryError
from . import OwnershipError as OwnershipError

__all__ = ["CudaError", "OutOfMemoryError", "OwnershipError"]
