#include <tenure/nanobind.hpp>

#include "casters.hpp"

NB_MODULE(casters_nanobind, m)
{
  tenure::python::register_exceptions(m);
  casters::bind([&](char const* name, auto function) { m.def(name, function); },
                [&](char const* name, auto function) { m.def(name, function, nanobind::arg().none()); });
}
