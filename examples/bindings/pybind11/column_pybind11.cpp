// pybind11: with the casters the functions are bound as they are.

#include "../column.hpp"

#include <tenure/pybind11.hpp>

namespace py = pybind11;

PYBIND11_MODULE(column_pybind11, m)
{
  using unlocked = py::call_guard<py::gil_scoped_release>;  // both may wait, and may call a resource of Python functions
  auto const none = py::none();
  tenure::python::register_exceptions(m);
  m.def("make_column", &column::make_column, py::arg("n"), py::arg("stream") = none, py::arg("mr") = none, unlocked());
  m.def("free_column", &column::free_column, py::arg("column"), unlocked());
}
