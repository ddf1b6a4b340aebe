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
 *       PyObject* mr;
 *       if (!PyArg_ParseTuple(args, "O", &mr)) return NULL;
 *       tenure_resource resource;
 *       if (tenure_python_borrow_resource(mr, &resource) < 0) return NULL;      // None: the current one
 *       tenure_buffer buffer;
 *       if (tenure_python_check(my_read(resource, &buffer)) < 0) return NULL;
 *       return tenure_python_wrap_buffer(buffer);                              // takes it over
 *     }
 *
 * Wrapping takes no resource, no stream and no device: the buffer knows them, so that no guess is possible. Header-only, over
 * the limited API from Python 3.11 on; nothing is linked. Every function needs an attached interpreter (the GIL) and, where it
 * fails, sets a Python exception. Include it after `Python.h`, or let it include that.
 *
 * | function | who owns what afterwards |
 * |---|---|
 * | `tenure_python_wrap_*`   | the object owns the native reference, also when the call fails |
 * | `tenure_python_borrow_*` | the object owns it still; valid while the object lives and is not emptied |
 * | `tenure_python_take_buffer`, `_retain_resource`, `_retain_stream` | the caller owns one |
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

/** The table of functions of the engine that Python uses; NULL with an exception when tenure cannot be imported. */
TENURE_PYTHON_UNUSED static const tenure_api* tenure_python_api(void)
{
  /* One pointer for each file that includes this; the capsule and its table live as long as the process. */
  static const tenure_api* api = NULL;
  if (api == NULL) {
    api = (const tenure_api*)PyCapsule_Import("tenure._tenure._C_API", 0);
    if (api != NULL && api->size < sizeof(tenure_api)) {
      PyErr_SetString(PyExc_ImportError,
                      "this extension was built for a newer tenure than the one that is installed: update tenure");
      api = NULL;
    }
  }
  return api;
}

/* Calls a function of tenure.bindings. Steals the reference to `arguments`. */
TENURE_PYTHON_UNUSED static PyObject* tenure_python_call(const char* name, PyObject* arguments)
{
  PyObject* module;
  PyObject* function;
  PyObject* result = NULL;
  if (arguments == NULL) { return NULL; }
  module   = PyImport_ImportModule("tenure.bindings");
  function = module == NULL ? NULL : PyObject_GetAttrString(module, name);
  if (function != NULL) { result = PyObject_CallObject(function, arguments); }
  Py_XDECREF(function);
  Py_XDECREF(module);
  Py_DECREF(arguments);
  return result;
}

/* The number that a function of tenure.bindings gives for one object. */
TENURE_PYTHON_UNUSED static int tenure_python_number(const char* name, PyObject* object, uint64_t* out)
{
  PyObject* number = tenure_python_call(name, Py_BuildValue("(O)", object));
  if (number == NULL) { return -1; }
  *out = PyLong_AsUnsignedLongLong(number);
  Py_DECREF(number);
  return PyErr_Occurred() != NULL ? -1 : 0;
}

/**
 * 0 for `TENURE_OK`; otherwise -1 with the exception that tenure's own Python functions would raise: `tenure.OutOfMemoryError`,
 * `tenure.OwnershipError`, `tenure.CudaError`, or the very exception that a Python callback raised.
 */
TENURE_PYTHON_UNUSED static int tenure_python_check(tenure_status status)
{
  PyObject* result;
  if (status == TENURE_OK || status == TENURE_OK_COLLECT) { return 0; }
  result = tenure_python_call("raise_for_status", Py_BuildValue("(i)", (int)status));
  Py_XDECREF(result);
  return -1;
}

/* ---------------------------------------------------------------------------------------------------------------- buffers */

/** A `tenure.DeviceBuffer` that takes `buffer` over, with its resource, its stream and its device. */
TENURE_PYTHON_UNUSED static PyObject* tenure_python_wrap_buffer(tenure_buffer buffer)
{
  PyObject* object           = NULL;
  const tenure_api* const api = tenure_python_api();
  if (api == NULL) { return NULL; } /* Without the table nobody can own it. */
  object = tenure_python_call("wrap_buffer", Py_BuildValue("(K)", (unsigned long long)buffer));
  if (object == NULL) {
    /* The exception is kept while the buffer is given back. */
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    (void)api->buffer_destroy(buffer);
    PyErr_Restore(type, value, trace);
  }
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

/** The object of a resource, which takes the reference over. A resource that has an object already gives that object. */
TENURE_PYTHON_UNUSED static PyObject* tenure_python_wrap_resource(tenure_resource resource)
{
  return tenure_python_call("wrap_resource", Py_BuildValue("(K)", (unsigned long long)resource));
}

/** The native reference of a resource object, which stays the object's; `None` gives `TENURE_RESOURCE_CURRENT`. */
TENURE_PYTHON_UNUSED static int tenure_python_borrow_resource(PyObject* object, tenure_resource* out)
{
  if (Py_IsNone(object)) {
    *out = TENURE_RESOURCE_CURRENT;
    return 0;
  }
  return tenure_python_number("borrow_resource", object, out);
}

/** A native reference of the caller's own, to be given back with `resource_release`. */
TENURE_PYTHON_UNUSED static int tenure_python_retain_resource(PyObject* object, tenure_resource* out)
{
  return tenure_python_number("retain_resource", object, out);
}

/* ---------------------------------------------------------------------------------------------------------------- streams */

/** The object of a stream, which takes the reference in `stream.object` over. */
TENURE_PYTHON_UNUSED static PyObject* tenure_python_wrap_stream(tenure_stream stream)
{
  PyObject* raw = PyLong_FromVoidPtr(stream.raw);
  if (raw == NULL) { return NULL; }
  return tenure_python_call("wrap_stream", Py_BuildValue("(NK)", raw, (unsigned long long)stream.object));
}

/** The native stream of a `tenure.Stream`, which stays the object's. */
TENURE_PYTHON_UNUSED static int tenure_python_borrow_stream(PyObject* object, tenure_stream* out)
{
  PyObject* pair = tenure_python_call("borrow_stream", Py_BuildValue("(O)", object));
  PyObject* raw;
  PyObject* seat;
  if (pair == NULL) { return -1; }
  raw  = PyTuple_GetItem(pair, 0);
  seat = raw == NULL ? NULL : PyTuple_GetItem(pair, 1);
  if (seat != NULL) {
    out->raw    = PyLong_AsVoidPtr(raw);
    out->object = PyLong_AsUnsignedLongLong(seat);
  }
  Py_DECREF(pair);
  return PyErr_Occurred() != NULL ? -1 : 0;
}

/** The same with a reference of the caller's own, to be given back with `stream_release` when `out->object` is not 0. */
TENURE_PYTHON_UNUSED static int tenure_python_retain_stream(PyObject* object, tenure_stream* out)
{
  const tenure_api* const api = tenure_python_api();
  if (api == NULL || tenure_python_borrow_stream(object, out) < 0) { return -1; }
  return out->object == 0 ? 0 : tenure_python_check(api->stream_retain(out->object));
}

#ifdef __cplusplus
}
#endif

#endif /* TENURE_PYTHON_H */
