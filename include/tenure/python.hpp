// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/python.hpp
 *
 * `tenure/python.h` in C++'s terms: buffers, resources and streams in and out of Python objects, and exceptions in both
 * directions. The casters for nanobind and pybind11 are a few lines over this. Every function needs the GIL.
 *
 *     tenure::device_buffer buffer = ...;
 *     return tenure::python::wrap(std::move(buffer));   // a new tenure.DeviceBuffer, or null with a Python exception
 *
 * The direction from Python throws `tenure::python::error_set` when a Python exception is set; the direction to Python returns
 * null. `set_error()` turns the C++ exception that is being caught into the Python exception that tenure's own functions raise.
 */

#pragma once

#include <tenure/python.h>

#include <tenure/tenure.hpp>

#include <exception>
#include <new>
#include <utility>

namespace tenure {
namespace python {

/** A Python exception is set. */
class error_set : public std::exception {
 public:
  [[nodiscard]] char const* what() const noexcept override { return "a Python exception is set"; }
};

namespace detail {

/* The exception of the package for a status, with a text and without figures. */
inline void set_plain(tenure_status status, char const* message) noexcept
{
  char const* own = nullptr;
  PyObject* kind  = PyExc_RuntimeError;
  switch (status) {
    case TENURE_ERROR_OUT_OF_MEMORY: own = "OutOfMemoryError"; break;
    case TENURE_ERROR_OWNERSHIP: own = "OwnershipError"; break;
    case TENURE_ERROR_CUDA:
    case TENURE_ERROR_NO_DEVICE: own = "CudaError"; break;
    case TENURE_ERROR_INVALID_ARGUMENT:
    case TENURE_ERROR_BAD_HANDLE: kind = PyExc_ValueError; break;
    case TENURE_ERROR_UNSUPPORTED: kind = PyExc_NotImplementedError; break;
    default: break;
  }
  PyObject* const module = own != nullptr ? PyImport_ImportModule("tenure") : nullptr;
  PyObject* const found  = module != nullptr ? PyObject_GetAttrString(module, own) : nullptr;
  if (own == nullptr || found != nullptr) { PyErr_SetString(found != nullptr ? found : kind, message); }
  Py_XDECREF(found);
  Py_XDECREF(module);
}

}  // namespace detail

/** The Python exception that says what an error of tenure's says, with its figures; a Python callback's own exception is itself. */
inline void set_error(error const& thrown) noexcept
{
  auto const* const api = tenure_python_api();
  if (api == nullptr) { return; }
  // The figures are those of this thread's last failing call, which this error normally comes from. Not so what a header found by
  // itself, and what was followed by another failure.
  tenure_error last{};
  last.size           = sizeof last;
  bool const its_call = api->error_get(&last) == TENURE_OK && last.status == thrown.status() && last.message != nullptr &&
                        thrown.message() == last.message;
  if (!its_call || tenure_python_check(thrown.status()) == 0) {
    detail::set_plain(thrown.status(), thrown.message().c_str());
  }
}

/** Within a catch block: sets the Python exception for whatever is being caught. For Cython's `except +`. */
inline void set_error() noexcept
{
  try {
    throw;
  } catch (error_set const&) {
    // It is set already.
  } catch (error const& thrown) {
    set_error(thrown);
  } catch (std::bad_alloc const&) {
    PyErr_NoMemory();
  } catch (std::invalid_argument const& thrown) {
    PyErr_SetString(PyExc_ValueError, thrown.what());
  } catch (std::out_of_range const& thrown) {
    PyErr_SetString(PyExc_IndexError, thrown.what());
  } catch (std::exception const& thrown) {
    PyErr_SetString(PyExc_RuntimeError, thrown.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "a C++ exception that is not a std::exception");
  }
}

namespace detail {

inline void check(int result)
{
  if (result < 0) { throw error_set(); }
}

}  // namespace detail

/** A new `tenure.DeviceBuffer` that owns the buffer; null, with the exception set and the buffer freed, after a failure. */
inline PyObject* wrap(device_buffer&& buffer) noexcept { return tenure_python_wrap_buffer(buffer.release()); }

/** The object of a resource: the one that is alive, or a new one of the concrete class. Null with an exception. */
inline PyObject* wrap(mr::resource resource) noexcept
{
  try {
    return tenure_python_wrap_resource(resource.release());
  } catch (...) {
    set_error();
    return nullptr;
  }
}

/** A new `tenure.Stream` that takes the reference over. Null with an exception. */
inline PyObject* wrap(cuda_stream&& stream) noexcept { return tenure_python_wrap_stream(stream.release()); }

/** A new `tenure.Stream` with a reference of its own; a bare value must outlive it. Null with an exception. */
inline PyObject* wrap(cuda_stream_view stream) noexcept
{
  auto const native = stream.native();
  if (native.object != 0) {
    auto const* const api = tenure_python_api();
    if (api == nullptr || tenure_python_check(api->stream_retain(native.object)) < 0) { return nullptr; }
  }
  return tenure_python_wrap_stream(native);
}

/** Takes the native buffer out of a `tenure.DeviceBuffer`, which is empty afterwards. */
[[nodiscard]] inline device_buffer take_buffer(PyObject* object)
{
  tenure_buffer handle = 0;
  detail::check(tenure_python_take_buffer(object, &handle));
  return device_buffer::from_handle(handle);
}

/** A native buffer that stays the object's. Keep the object, and the buffer in it, for as long as this is used. */
class borrowed_buffer {
 public:
  /** Nothing. */
  borrowed_buffer() noexcept = default;
  explicit borrowed_buffer(PyObject* object)
  {
    tenure_buffer handle = 0;
    detail::check(tenure_python_borrow_buffer(object, &handle));
    buffer_ = device_buffer::from_handle(handle);
  }
  borrowed_buffer(borrowed_buffer&& other) noexcept = default;
  borrowed_buffer& operator=(borrowed_buffer&& other) noexcept
  {
    swap(buffer_, other.buffer_);
    return *this;
  }
  ~borrowed_buffer() { (void)buffer_.release(); }

  /** The buffer. What may not be done with it is to move from it. */
  [[nodiscard]] device_buffer& get() noexcept { return buffer_; }

 private:
  device_buffer buffer_;
};

/** Names the resource of an object for a call; `None` is the current one. The object must live during the call. */
[[nodiscard]] inline mr::resource_ref borrow_resource(PyObject* object)
{
  tenure_resource handle = TENURE_RESOURCE_NULL;
  detail::check(tenure_python_borrow_resource(object, &handle));
  return mr::resource_ref(handle);
}

/** A handle of one's own of the resource of an object. */
[[nodiscard]] inline mr::resource retain_resource(PyObject* object)
{
  tenure_resource handle = TENURE_RESOURCE_NULL;
  detail::check(tenure_python_retain_resource(object, &handle));
  return mr::resource::from_handle(handle);
}

/** Names the stream of a `tenure.Stream` for a call; `None` is the default one. The object must live during the call. */
[[nodiscard]] inline cuda_stream_view borrow_stream(PyObject* object)
{
  tenure_stream stream{};
  detail::check(tenure_python_borrow_stream(object, &stream));
  return cuda_stream_view(stream);
}

/**
 * A new reference to a `tenure.Stream` for whatever a user passes as a stream: a `tenure.Stream`, or a foreign one, whose owner
 * it holds; `None` stays `None`. Null with an exception for anything else.
 */
inline PyObject* as_stream(PyObject* object) noexcept
{
  if (Py_IsNone(object)) { return Py_NewRef(object); }
  PyObject* const module = PyImport_ImportModule("tenure");
  PyObject* stream       = nullptr;
  if (module != nullptr) {
    stream = PyObject_CallMethod(module, "Stream", "O", object);
    Py_DECREF(module);
  }
  return stream;
}

}  // namespace python
}  // namespace tenure
