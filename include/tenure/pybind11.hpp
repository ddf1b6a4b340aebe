// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/pybind11.hpp
 *
 * Casters for pybind11: functions that take and return tenure's types are bound as they are.
 *
 *     #include <tenure/pybind11.hpp>
 *
 *     tenure::device_buffer make_column(std::size_t n, tenure::cuda_stream_view stream, tenure::mr::resource_ref mr);
 *
 *     PYBIND11_MODULE(columns, m)
 *     {
 *       tenure::python::register_exceptions(m);
 *       m.def("make_column", &make_column, py::arg("n"), py::arg("stream") = py::none(), py::arg("mr") = py::none(),
 *             py::call_guard<py::gil_scoped_release>());
 *     }
 *
 * | C++ | Python | who owns what |
 * |---|---|---|
 * | returns `device_buffer`, `std::unique_ptr<device_buffer>` | a new `tenure.DeviceBuffer` | it owns the buffer, with its resource, stream and device |
 * | takes `device_buffer`, `device_buffer&&` | a `tenure.DeviceBuffer` | taken out: the object is empty afterwards |
 * | takes `device_buffer const&`, `device_buffer&` | a `tenure.DeviceBuffer` | lent for the call |
 * | takes `mr::resource_ref` | a resource, or `None` for the current one | lent for the call |
 * | takes, returns `mr::resource` and its classes | a resource | a handle of one's own; the object that is alive is given back |
 * | takes `cuda_stream_view` | `tenure.Stream`, a foreign stream, or `None` for the default one | lent for the call |
 * | takes, returns `cuda_stream` | `tenure.Stream` | a reference of one's own |
 *
 * Let go of the GIL in functions that allocate or free, as above: a resource of Python functions needs it on another thread, and
 * a free may wait.
 */

#pragma once

#include <pybind11/pybind11.h>

#include <tenure/python.hpp>

#include <memory>
#include <type_traits>
#include <utility>

namespace tenure {
namespace python {

/** Errors of tenure's become the exceptions of the Python package in this module: `tenure.OutOfMemoryError` and so on. */
inline void register_exceptions(pybind11::module_ const& /*module*/)
{
  pybind11::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) { std::rethrow_exception(thrown); }
    } catch (error const& caught) {
      set_error(caught);
    }
  });
}

}  // namespace python
}  // namespace tenure

namespace pybind11 {
namespace detail {

/* Runs what may set a Python exception, for overload resolution: false with no exception when it did. */
template <class Load>
bool tenure_load(Load&& load)
{
  try {
    load();
    return true;
  } catch (tenure::python::error_set const&) {
    PyErr_Clear();
    return false;
  }
}

template <>
struct type_caster<tenure::device_buffer> {
  static constexpr auto name = const_name("tenure.DeviceBuffer");
  template <class T>
  using cast_op_type = movable_cast_op_type<T>;

  bool load(handle source, bool)
  {
    source_ = source;
    return tenure_load([&] { borrowed_ = tenure::python::borrowed_buffer(source.ptr()); });
  }
  static handle cast(tenure::device_buffer&& buffer, return_value_policy, handle)
  {
    return tenure::python::wrap(std::move(buffer));
  }
  operator tenure::device_buffer*() { return &borrowed_.get(); }
  operator tenure::device_buffer&() { return borrowed_.get(); }
  operator tenure::device_buffer&&() &&
  {
    // A call guard may have let go of the lock by now.
    gil_scoped_acquire const lock;
    try {
      taken_ = tenure::python::take_buffer(source_.ptr());
    } catch (tenure::python::error_set const&) {
      throw error_already_set();
    }
    return std::move(taken_);
  }

 private:
  handle source_;
  tenure::python::borrowed_buffer borrowed_;
  tenure::device_buffer taken_;
};

/* Only on the way to Python: what C++ owns through a pointer is taken out of it. */
template <>
struct type_caster<std::unique_ptr<tenure::device_buffer>> {
  static constexpr auto name = const_name("tenure.DeviceBuffer");
  static handle cast(std::unique_ptr<tenure::device_buffer>&& buffer, return_value_policy, handle)
  {
    return buffer == nullptr ? none().release() : handle(tenure::python::wrap(std::move(*buffer)));
  }
};

template <>
struct type_caster<tenure::mr::resource_ref> {
  static constexpr auto name = const_name("tenure.mr.DeviceMemoryResource | None");
  template <class T>
  using cast_op_type = movable_cast_op_type<T>;

  bool load(handle source, bool)
  {
    return tenure_load([&] { value_ = tenure::python::borrow_resource(source.ptr()); });
  }
  operator tenure::mr::resource_ref*() { return &value_; }
  operator tenure::mr::resource_ref&() { return value_; }
  operator tenure::mr::resource_ref&&() && { return std::move(value_); }

 private:
  tenure::mr::resource_ref value_;
};

template <class Resource>
struct type_caster<Resource, enable_if_t<std::is_base_of<tenure::mr::resource, Resource>::value>> {
  PYBIND11_TYPE_CASTER(Resource, const_name("tenure.mr.DeviceMemoryResource"));

  bool load(handle source, bool)
  {
    bool fits = true;
    return tenure_load([&] {
             tenure::mr::resource any = tenure::python::retain_resource(source.ptr());
             if constexpr (std::is_same<Resource, tenure::mr::resource>::value) {
               value = std::move(any);
             } else if (auto kind = tenure::resource_cast<Resource>(any)) {
               value = std::move(*kind);
             } else {
               fits = false;
             }
           }) &&
           fits;
  }
  static handle cast(tenure::mr::resource resource, return_value_policy, handle)
  {
    return tenure::python::wrap(std::move(resource));
  }
};

template <>
struct type_caster<tenure::cuda_stream_view> {
  PYBIND11_TYPE_CASTER(tenure::cuda_stream_view, const_name("tenure.Stream | None"));

  bool load(handle source, bool)
  {
    return tenure_load([&] {
      if (!source.is_none()) {
        kept_ = reinterpret_steal<object>(tenure::python::as_stream(source.ptr()));
        if (!kept_) { throw tenure::python::error_set(); }
        source = kept_;
      }
      value = tenure::python::borrow_stream(source.ptr());
    });
  }
  static handle cast(tenure::cuda_stream_view stream, return_value_policy, handle)
  {
    return tenure::python::wrap(stream);
  }

 private:
  object kept_;
};

template <>
struct type_caster<tenure::cuda_stream> {
  PYBIND11_TYPE_CASTER(tenure::cuda_stream, const_name("tenure.Stream"));

  bool load(handle source, bool)
  {
    return tenure_load([&] {
      tenure_stream stream{};
      tenure::python::detail::check(tenure_python_retain_stream(source.ptr(), &stream));
      value = tenure::cuda_stream::from_handle(stream);
    });
  }
  static handle cast(tenure::cuda_stream stream, return_value_policy, handle)
  {
    return tenure::python::wrap(std::move(stream));
  }
};

}  // namespace detail
}  // namespace pybind11
