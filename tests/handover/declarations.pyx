"""Calls each function of `tenure/__init__.pxd`, through the table of the package."""

cimport tenure
from libc.string cimport memset


def pass_buffer(source):
    return tenure.wrap_buffer(tenure.take_buffer(source))


def pass_resource(source):
    return tenure.wrap_resource(tenure.retain_resource(source))


def pass_stream(source):
    return tenure.wrap_stream(tenure.retain_stream(source))


def size_of(source):
    cdef tenure.tenure_buffer_view view
    memset(&view, 0, sizeof(view))
    view.size = sizeof(view)
    tenure.check(tenure.api().buffer_view(tenure.borrow_buffer(source), &view))
    return view.bytes


def make(size_t size, stream=None, mr=None):
    cdef tenure.tenure_resource resource = tenure.borrow_resource(mr)
    cdef tenure.tenure_stream order = tenure.borrow_stream(stream)
    cdef const tenure.tenure_api *api = tenure.api()
    cdef tenure.tenure_buffer made = 0
    cdef tenure.tenure_status status
    with nogil:
        status = api.buffer_create(size, 0, order, resource, &made)
    tenure.check(status)
    return tenure.wrap_buffer(made)


def constants():
    return tenure.TENURE_ABI_VERSION, tenure.TENURE_ERROR_OWNERSHIP, tenure.TENURE_RESOURCE_CURRENT
