/* SPDX-License-Identifier: Apache-2.0 */

/**
 * \file tenure/python.h
 *
 * For people who write bindings in C or C++: native buffers, resources and streams of tenure's in and out of Python objects.
 *
 * The scene: a native function takes a resource and gives back a buffer; Python shall own it.
 *
 *     static PyObject* read_column(PyObject* self, PyObject* args)
 *     {
 *       PyObject *mr = Py_None, *stream = Py_None;
 *       tenure_resource resource;
 *       tenure_stream order;
 *       tenure_buffer buffer;
 *       tenure_status status;
 *       if (!PyArg_ParseTuple(args, "|OO", &mr, &stream)) { return NULL; }
 *       if (tenure_python_borrow_resource(mr, &resource) < 0) { return NULL; }  // None: the current one
 *       if (tenure_python_borrow_stream(stream, &order) < 0) { return NULL; }   // None: the default one
 *       Py_BEGIN_ALLOW_THREADS
 *       status = my_read(order, resource, &buffer);
 *       Py_END_ALLOW_THREADS
 *       if (tenure_python_check(status) < 0) { return NULL; }
 *       return tenure_python_wrap_buffer(buffer);                               // takes it over
 *     }
 *
 * Wrapping takes no resource, no stream and no device: the buffer knows them, so that no guess is possible.
 *
 * | function | who owns what afterwards |
 * |---|---|
 * | `tenure_python_wrap_buffer`, `_wrap_resource`, `_wrap_stream` | the object; after a failure nobody: it was given back |
 * | `tenure_python_borrow_buffer`, `_borrow_resource`, `_borrow_stream` | the object still: valid while it lives and is not emptied |
 * | `tenure_python_take_buffer` | the caller; the object is empty |
 * | `tenure_python_retain_resource`, `_retain_stream` | the caller owns a reference of its own; the object keeps its own too |
 *
 * Header-only, over the limited API from Python 3.11 on; nothing is linked. Every function needs an attached interpreter (the
 * GIL) and, where it fails, sets a Python exception. Let go of the GIL around calls that allocate or free, as above: a
 * resource of Python functions needs it on another thread, and a free may wait. For C++ there is `tenure/python.hpp`.
 */

#ifndef TENURE_PYTHON_H
#define TENURE_PYTHON_H

#ifndef Py_PYTHON_H
#include <Python.h>
#endif

#include <tenure/tenure.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TENURE_PYTHON_UNUSED __attribute__((unused))
#else
#define TENURE_PYTHON_UNUSED
#endif

/**
 * The table of functions of the engine that Python uses; NULL with an exception when tenure cannot be imported. Look it up
 * with the GIL, before `Py_BEGIN_ALLOW_THREADS`; its functions can be called without.
 */
TENURE_PYTHON_UNUSED static const tenure_api* tenure_python_api(void)
{
  /* One pointer for each file that includes this; the table lives as long as the process. */
  static const tenure_api* api = NULL;
  if (api == NULL) {
    const tenure_api* const found = (const tenure_api*)PyCapsule_Import("tenure._tenure._C_API", 0);
    if (found != NULL && found->size < sizeof(tenure_api)) {
      PyErr_SetString(PyExc_ImportError,
                      "this extension was built for a newer tenure than the one that is installed: update tenure");
      return NULL;
    }
    api = found;
  }
  return api;
}

/* A function of tenure.bindings. */
TENURE_PYTHON_UNUSED static PyObject* tenure_python_function(const char* name)
{
  PyObject* const module = PyImport_ImportModule("tenure.bindings");
  PyObject* function     = NULL;
  if (module != NULL) {
    function = PyObject_GetAttrString(module, name);
    Py_DECREF(module);
  }
  return function;
}

/* Calls a function of tenure.bindings. Steals the reference to `arguments`, a tuple or NULL with an exception. */
TENURE_PYTHON_UNUSED static PyObject* tenure_python_call(const char* name, PyObject* arguments)
{
  PyObject* result = NULL;
  if (arguments != NULL) {
    PyObject* const function = tenure_python_function(name);
    if (function != NULL) {
      result = PyObject_CallObject(function, arguments);
      Py_DECREF(function);
    }
    Py_DECREF(arguments);
  }
  return result;
}

/* The number that a function of tenure.bindings gives for one object. */
TENURE_PYTHON_UNUSED static int tenure_python_number(const char* name, PyObject* object, uint64_t* out)
{
  unsigned long long value;
  PyObject* const number = tenure_python_call(name, Py_BuildValue("(O)", object));
  if (number == NULL) { return -1; }
  value = PyLong_AsUnsignedLongLong(number);
  Py_DECREF(number);
  if (value == (unsigned long long)-1 && PyErr_Occurred() != NULL) { return -1; }
  *out = value;
  return 0;
}

/* What is given back when it could not be wrapped: without the GIL, and the exception is kept meanwhile. */
TENURE_PYTHON_UNUSED static void tenure_python_give_back(tenure_status (*give_back)(uint64_t), uint64_t handle)
{
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  Py_BEGIN_ALLOW_THREADS
  (void)give_back(handle);
  Py_END_ALLOW_THREADS
  PyErr_Restore(type, value, trace);
}

/**
 * 0 for `TENURE_OK`; otherwise -1 with the exception that tenure's own Python functions would raise: `tenure.OutOfMemoryError`,
 * `tenure.OwnershipError`, `tenure.CudaError`, or the very exception that a Python callback raised. Call it on the thread that
 * got the status, before it makes another failing call.
 */
TENURE_PYTHON_UNUSED static int tenure_python_check(tenure_status status)
{
  PyObject* result;
  if (status == TENURE_OK) { return 0; }
  result = tenure_python_call("raise_for_status", Py_BuildValue("(i)", (int)status));
  if (result == NULL) { return -1; }
  Py_DECREF(result);
  return 0;
}

/* ---------------------------------------------------------------------------------------------------------------- buffers */

/** A new `tenure.DeviceBuffer` that takes `buffer` over, with its resource, its stream and its device. */
TENURE_PYTHON_UNUSED static PyObject* tenure_python_wrap_buffer(tenure_buffer buffer)
{
  PyObject* object;
  const tenure_api* const api = tenure_python_api();
  if (api == NULL) { return NULL; } /* Without the table nobody can give it back. */
  object = tenure_python_call("wrap_buffer", Py_BuildValue("(K)", (unsigned long long)buffer));
  if (object == NULL) { tenure_python_give_back(api->buffer_destroy, buffer); }
  return object;
}

/** The native buffer of a `tenure.DeviceBuffer`, which stays the object's. */
TENURE_PYTHON_UNUSED static int tenure_python_borrow_buffer(PyObject* object, tenure_buffer* out)
{
  return tenure_python_number("borrow_buffer", object, out);
}

/** The native buffer of a `tenure.DeviceBuffer`, which the caller owns from then on; the object is empty afterwards. */
TENURE_PYTHON_UNUSED static int tenure_python_take_buffer(PyObject* object, tenure_buffer* out)
{
  return tenure_python_number("take_buffer", object, out);
}

/* -------------------------------------------------------------------------------------------------------------- resources */

/**
 * The object of a resource, which takes the reference over. A resource that has an object already gives that object; any other
 * gives one of the concrete class, such as `tenure.mr.PoolMemoryResource`.
 */
TENURE_PYTHON_UNUSED static PyObject* tenure_python_wrap_resource(tenure_resource resource)
{
  PyObject* object;
  const tenure_api* const api = tenure_python_api();
  if (api == NULL) { return NULL; }
  object = tenure_python_call("wrap_resource", Py_BuildValue("(K)", (unsigned long long)resource));
  if (object == NULL) { tenure_python_give_back(api->resource_release, resource); }
  return object;
}

/** The native reference of a resource object, which stays the object's; `None` gives `TENURE_RESOURCE_CURRENT`. */
TENURE_PYTHON_UNUSED static int tenure_python_borrow_resource(PyObject* object, tenure_resource* out)
{
  return tenure_python_number("borrow_resource", object, out);
}

/** A native reference of the caller's own, to be given back with `resource_release`. */
TENURE_PYTHON_UNUSED static int tenure_python_retain_resource(PyObject* object, tenure_resource* out)
{
  return tenure_python_number("retain_resource", object, out);
}

/* ---------------------------------------------------------------------------------------------------------------- streams */

/** A new object of a stream, which takes the reference in `stream.object` (if it is not 0) over. */
TENURE_PYTHON_UNUSED static PyObject* tenure_python_wrap_stream(tenure_stream stream)
{
  PyObject* object;
  const tenure_api* const api = tenure_python_api();
  if (api == NULL) { return NULL; }
  object = tenure_python_call(
    "wrap_stream",
    Py_BuildValue("(KK)", (unsigned long long)(uintptr_t)stream.raw, (unsigned long long)stream.object));
  if (object == NULL && stream.object != 0) { tenure_python_give_back(api->stream_release, stream.object); }
  return object;
}

/** The native stream of a `tenure.Stream`, which stays the object's; `None` gives the default stream. */
TENURE_PYTHON_UNUSED static int tenure_python_borrow_stream(PyObject* object, tenure_stream* out)
{
  PyObject* const pair = tenure_python_call("borrow_stream", Py_BuildValue("(O)", object));
  PyObject* const raw  = pair == NULL ? NULL : PyTuple_GetItem(pair, 0);
  PyObject* const seat = raw == NULL ? NULL : PyTuple_GetItem(pair, 1);
  if (seat != NULL) {
    out->raw    = PyLong_AsVoidPtr(raw);
    out->object = PyLong_AsUnsignedLongLong(seat);
  }
  Py_XDECREF(pair);
  return seat == NULL || PyErr_Occurred() != NULL ? -1 : 0;
}

/** The same with a reference of the caller's own, to be given back with `stream_release` when `out->object` is not 0. */
TENURE_PYTHON_UNUSED static int tenure_python_retain_stream(PyObject* object, tenure_stream* out)
{
  tenure_stream borrowed;
  const tenure_api* const api = tenure_python_api();
  if (api == NULL || tenure_python_borrow_stream(object, &borrowed) < 0) { return -1; }
  if (borrowed.object != 0 && tenure_python_check(api->stream_retain(borrowed.object)) < 0) { return -1; }
  *out = borrowed;
  return 0;
}

#ifdef __cplusplus
}
#endif

#endif /* TENURE_PYTHON_H */
