#include <tenure/pybind11.hpp>

#include "casters.hpp"

PYBIND11_MODULE(casters_pybind11, m)
{
  tenure::python::register_exceptions(m);
  auto const def = [&](char const* name, auto function) { m.def(name, std::move(function)); };
  casters::bind(def, def);
}
