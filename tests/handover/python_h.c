/* An extension module that calls each function of tenure/python.h, in C and for the stable ABI: what a wrapper would do. */

#define Py_LIMITED_API 0x030b0000

#include <tenure/python.h>

/* wrap(take(buffer)): what crosses is the handle. */
static PyObject* pass_buffer(PyObject* self, PyObject* object)
{
  tenure_buffer buffer;
  (void)self;
  return tenure_python_take_buffer(object, &buffer) < 0 ? NULL : tenure_python_wrap_buffer(buffer);
}

/* The bytes of a borrowed buffer. */
static PyObject* size_of(PyObject* self, PyObject* object)
{
  struct tenure_buffer_view view = {0};
  tenure_buffer buffer;
  (void)self;
  if (tenure_python_borrow_buffer(object, &buffer) < 0) { return NULL; }
  view.size = sizeof view;
  if (tenure_python_check(tenure_python_api()->buffer_view(buffer, &view)) < 0) { return NULL; }
  return PyLong_FromSize_t(view.bytes);
}

static PyObject* wrap_buffer(PyObject* self, PyObject* number)
{
  (void)self;
  return tenure_python_wrap_buffer(PyLong_AsUnsignedLongLong(number));
}

/* A buffer that nobody but this function has, and whose wrapping fails if tenure.bindings is broken. */
static PyObject* make(PyObject* self, PyObject* arguments)
{
  PyObject *mr = Py_None, *order = Py_None;
  tenure_resource resource;
  tenure_stream stream;
  tenure_buffer buffer;
  tenure_status status;
  Py_ssize_t size;
  /* Looked up with the GIL, used without. */
  const tenure_api* const api = tenure_python_api();
  (void)self;
  if (api == NULL) { return NULL; }
  if (!PyArg_ParseTuple(arguments, "n|OO", &size, &order, &mr)) { return NULL; }
  if (tenure_python_borrow_resource(mr, &resource) < 0 || tenure_python_borrow_stream(order, &stream) < 0) {
    return NULL;
  }
  Py_BEGIN_ALLOW_THREADS
  status = api->buffer_create((size_t)size, 0, stream, resource, &buffer);
  Py_END_ALLOW_THREADS
  return tenure_python_check(status) < 0 ? NULL : tenure_python_wrap_buffer(buffer);
}

/* wrap(retain(resource)): another reference, the same object. */
static PyObject* pass_resource(PyObject* self, PyObject* object)
{
  tenure_resource resource;
  (void)self;
  return tenure_python_retain_resource(object, &resource) < 0 ? NULL : tenure_python_wrap_resource(resource);
}

static PyObject* wrap_resource(PyObject* self, PyObject* number)
{
  (void)self;
  return tenure_python_wrap_resource(PyLong_AsUnsignedLongLong(number));
}

/* A resource that C made, as an object. */
static PyObject* make_pool(PyObject* self, PyObject* upstream)
{
  tenure_resource lent, pool;
  (void)self;
  if (tenure_python_borrow_resource(upstream, &lent) < 0) { return NULL; }
  if (tenure_python_check(tenure_python_api()->pool_create(lent, NULL, &pool)) < 0) { return NULL; }
  return tenure_python_wrap_resource(pool);
}

static PyObject* pass_stream(PyObject* self, PyObject* object)
{
  tenure_stream stream;
  (void)self;
  return tenure_python_retain_stream(object, &stream) < 0 ? NULL : tenure_python_wrap_stream(stream);
}

static PyObject* wrap_stream(PyObject* self, PyObject* number)
{
  tenure_stream stream;
  (void)self;
  stream.raw    = NULL;
  stream.object = PyLong_AsUnsignedLongLong(number);
  return tenure_python_wrap_stream(stream);
}

static PyObject* check(PyObject* self, PyObject* status)
{
  (void)self;
  if (tenure_python_check((tenure_status)PyLong_AsLong(status)) < 0) { return NULL; }
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
  {"pass_buffer", pass_buffer, METH_O, NULL},     {"size_of", size_of, METH_O, NULL},
  {"wrap_buffer", wrap_buffer, METH_O, NULL},     {"make", make, METH_VARARGS, NULL},
  {"pass_resource", pass_resource, METH_O, NULL}, {"wrap_resource", wrap_resource, METH_O, NULL},
  {"make_pool", make_pool, METH_O, NULL},         {"pass_stream", pass_stream, METH_O, NULL},
  {"wrap_stream", wrap_stream, METH_O, NULL},     {"check", check, METH_O, NULL},
  {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
  PyModuleDef_HEAD_INIT, "python_h", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_python_h(void) { return PyModule_Create(&definition); }
