# SPDX-License-Identifier: Apache-2.0
#
# cython: language_level=3
"""The Python half of the RMM bridge: what only a `cdef class` that is compiled against RMM's can be.

`TenureMemoryResource` is an `rmm.mr.DeviceMemoryResource` over a resource of tenure's. `RmmMemoryResource` is one over what
somebody set in RMM's C++ table, where there is no Python object for it. Who uses them when is in `tenure.allocators.rmm`.

Why Cython and not C++ by hand: RMM's class is a `cdef class`. A subclass of it needs its layout, its table of C functions and
the check at import that both are what they were at compilation; Cython writes all of that from RMM's own .pxd, for the stable
ABI too (one file for all Pythons from 3.11 on), and RMM's modules are made in the same way.
"""

from cpython.object cimport PyObject
from libcpp cimport bool as cpp_bool
from libcpp.memory cimport shared_ptr
from libcpp.optional cimport optional
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.utility cimport move

from rmm.librmm.memory_resource cimport device_async_resource_ref
from rmm.pylibrmm.memory_resource._memory_resource cimport DeviceMemoryResource

from tenure cimport cpp
from tenure.cpp cimport set_error


cdef extern from "bridge.hpp" namespace "tenure_bridge" nogil:
    cdef cppclass any:
        pass
    cdef cppclass handle:
        handle()
        handle(cpp.resource)

    shared_ptr[any] hold(device_async_resource_ref) except +
    device_async_resource_ref ref_of(handle &)
    device_async_resource_ref ref_of(const shared_ptr[any] &)
    shared_ptr[any] table_get(int device) except +
    cpp_bool table_holds(int device, const shared_ptr[any] &) except +
    void table_set(int device, const shared_ptr[any] &) except +
    cpp.resource inside(const shared_ptr[any] &) except +set_error
    cpp.resource make_foreign(const shared_ptr[any] &, PyObject *, int device) except +set_error
    pair[shared_ptr[any], PyObject *] behind(const cpp.resource &) except +set_error
    string class_name(const shared_ptr[any] &) except +


cdef extern from *:
    """
    static inline bool tenure_bridge_is_some(tenure::mr::resource const& resource) { return static_cast<bool>(resource); }
    """
    cpp_bool is_some "tenure_bridge_is_some"(const cpp.resource &) nogil


cdef class TenureMemoryResource(DeviceMemoryResource):
    """A resource of tenure's, for everything that takes an `rmm.mr.DeviceMemoryResource`."""

    cdef handle c_handle
    cdef readonly object mr

    def __cinit__(self, mr):
        self.c_handle = handle(cpp.retain_resource(mr))
        self.c_ref = optional[device_async_resource_ref](ref_of(self.c_handle))
        # For a resource of Python functions its object counts too.
        self.mr = mr

    def __repr__(self):
        return f"<{type(self).__name__} over {self.mr!r}>"


cdef class RmmMemoryResource(DeviceMemoryResource):
    """A resource that C++ made: what RMM's C++ table held when it was looked at."""

    cdef shared_ptr[any] c_held

    def __cinit__(self):
        pass

    @property
    def cpp_class(self):
        """The class in C++."""
        return class_name(self.c_held).decode()

    def __repr__(self):
        return f"<{type(self).__name__} of {self.cpp_class}>"


cdef RmmMemoryResource _wrap(shared_ptr[any] held):
    cdef RmmMemoryResource made = RmmMemoryResource.__new__(RmmMemoryResource)
    made.c_held = held
    made.c_ref = optional[device_async_resource_ref](ref_of(made.c_held))
    return made


cdef shared_ptr[any] _held(DeviceMemoryResource mr) except *:
    if mr is None:
        raise TypeError("a resource of RMM's is needed, not None")
    if not mr.c_ref.has_value():
        # RMM itself would end the process at the first use of it.
        raise TypeError(
            f"this {type(mr).__name__} has no C++ resource behind it: a Python class that derives from RMM's "
            "DeviceMemoryResource alone cannot allocate; use rmm.mr.CallbackMemoryResource"
        )
    return hold(mr.get_mr())


def table_entry(int device):
    """What RMM's C++ table holds for a device: `None` where nobody has set it yet."""
    cdef shared_ptr[any] held = table_get(device)
    cdef cpp.resource ours
    if held.get() == NULL:
        return None
    ours = inside(held)
    if is_some(ours):
        return TenureMemoryResource(cpp.wrap_resource(move(ours)))
    return _wrap(held)


def table_is(int device, DeviceMemoryResource mr):
    """Whether RMM's C++ table holds this resource."""
    return table_holds(device, _held(mr))


def set_table_entry(int device, DeviceMemoryResource mr):
    """Sets RMM's C++ table alone; `None` is what was there before anybody set it."""
    cdef shared_ptr[any] held
    if mr is not None:
        held = _held(mr)
    with nogil:
        table_set(device, held)


def cpp_class(DeviceMemoryResource mr):
    """The class in C++ of a resource of RMM's."""
    return class_name(_held(mr)).decode()


def ours(DeviceMemoryResource mr):
    """The resource of tenure's behind one of RMM's, or `None`."""
    cdef cpp.resource found
    if isinstance(mr, TenureMemoryResource):
        return (<TenureMemoryResource>mr).mr
    found = inside(_held(mr))
    return cpp.wrap_resource(move(found)) if is_some(found) else None


def foreign(DeviceMemoryResource mr, int device):
    """A resource of tenure's over one of RMM's."""
    cdef cpp.resource made
    # What only stands for a resource of C++'s need not live on.
    cdef PyObject *kept = NULL
    if not isinstance(mr, RmmMemoryResource):
        kept = <PyObject *>mr
    made = make_foreign(_held(mr), kept, device)
    return cpp.wrap_resource(move(made))


def theirs(mr):
    """RMM's own resource behind one that `foreign` made, or `None`."""
    cdef cpp.resource from_ = cpp.retain_resource(mr)
    cdef pair[shared_ptr[any], PyObject *] found = behind(from_)
    if found.second != NULL:
        return <object>found.second
    if found.first.get() != NULL:
        return _wrap(found.first)
    return None
