// nanobind: with the casters the functions are bound as they are.

#include "../column.hpp"

#include <tenure/nanobind.hpp>

namespace nb = nanobind;

NB_MODULE(column_nanobind, m)
{
  using unlocked = nb::call_guard<nb::gil_scoped_release>;  // both may wait, and may call a resource of Python functions
  auto const none = nb::none();
  tenure::python::register_exceptions(m);
  m.def("make_column", &column::make_column, nb::arg("n"), nb::arg("stream") = none, nb::arg("mr") = none, unlocked());
  m.def("free_column", &column::free_column, nb::arg("column"), unlocked());
}
