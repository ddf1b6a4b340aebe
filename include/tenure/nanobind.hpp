// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/nanobind.hpp
 *
 * Casters for nanobind: functions that take and return tenure's types are bound as they are.
 *
 *     #include <tenure/nanobind.hpp>
 *
 *     tenure::device_buffer make_column(std::size_t n, tenure::cuda_stream_view stream, tenure::mr::resource_ref mr);
 *
 *     NB_MODULE(columns, m)
 *     {
 *       tenure::python::register_exceptions(m);
 *       m.def("make_column", &make_column, nb::arg("n"), nb::arg("stream") = nb::none(), nb::arg("mr") = nb::none(),
 *             nb::call_guard<nb::gil_scoped_release>());
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
 * nanobind passes `None` on only to arguments that say so: `nb::arg("mr") = nb::none()`, or `nb::arg("mr").none()`.
 *
 * Let go of the GIL in functions that allocate or free, as above: a resource of Python functions needs it on another thread, and
 * a free may wait.
 */

#pragma once

#include <nanobind/nanobind.h>

#include <tenure/python.hpp>

#include <memory>
#include <type_traits>
#include <utility>

namespace tenure {
namespace python {

/** Errors of tenure's become the exceptions of the Python package in this module: `tenure.OutOfMemoryError` and so on. */
inline void register_exceptions(nanobind::module_ const& /*module*/)
{
  nanobind::register_exception_translator([](std::exception_ptr const& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (error const& caught) {
      set_error(caught);
    }
  });
}

}  // namespace python
}  // namespace tenure

namespace nanobind {
namespace detail {

/* Runs what may set a Python exception, for overload resolution: false with no exception when it did. */
template <class Load>
bool tenure_load(Load&& load) noexcept
{
  try {
    load();
    return true;
  } catch (...) {
    PyErr_Clear();
    return false;
  }
}

template <>
struct type_caster<tenure::device_buffer> {
  using Value                = tenure::device_buffer;
  static constexpr auto Name = const_name("tenure.DeviceBuffer");
  template <class T>
  using Cast = movable_cast_t<T>;
  template <class T>
  static constexpr bool can_cast()
  {
    return true;
  }

  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept
  {
    source_ = source;
    return tenure_load([&] { borrowed_ = tenure::python::borrowed_buffer(source.ptr()); });
  }
  static handle from_cpp(tenure::device_buffer&& buffer, rv_policy, cleanup_list*) noexcept
  {
    return tenure::python::wrap(std::move(buffer));
  }
  explicit operator tenure::device_buffer*() { return &borrowed_.get(); }
  explicit operator tenure::device_buffer&() { return borrowed_.get(); }
  explicit operator tenure::device_buffer&&()
  {
    gil_scoped_acquire const lock;
    try {
      taken_ = tenure::python::take_buffer(source_.ptr());
    } catch (tenure::python::error_set const&) {
      throw python_error();
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
  using Value                = std::unique_ptr<tenure::device_buffer>;
  static constexpr auto Name = const_name("tenure.DeviceBuffer");
  template <class T>
  using Cast = T;
  template <class T>
  static constexpr bool can_cast()
  {
    return true;
  }
  static handle from_cpp(std::unique_ptr<tenure::device_buffer>&& buffer, rv_policy, cleanup_list*) noexcept
  {
    return buffer == nullptr ? none().release() : handle(tenure::python::wrap(std::move(*buffer)));
  }
};

template <>
struct type_caster<tenure::mr::resource_ref> {
  NB_TYPE_CASTER(tenure::mr::resource_ref, const_name("tenure.mr.DeviceMemoryResource | None"))

  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept
  {
    return tenure_load([&] { value = tenure::python::borrow_resource(source.ptr()); });
  }
};

template <class Resource>
struct type_caster<Resource, enable_if_t<std::is_base_of_v<tenure::mr::resource, Resource>>> {
  NB_TYPE_CASTER(Resource, const_name("tenure.mr.DeviceMemoryResource"))

  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept
  {
    bool fits = true;
    return tenure_load([&] {
             tenure::mr::resource any = tenure::python::retain_resource(source.ptr());
             if constexpr (std::is_same_v<Resource, tenure::mr::resource>) {
               value = std::move(any);
             } else if (auto kind = tenure::resource_cast<Resource>(any)) {
               value = std::move(*kind);
             } else {
               fits = false;
             }
           }) &&
           fits;
  }
  static handle from_cpp(tenure::mr::resource resource, rv_policy, cleanup_list*) noexcept
  {
    return tenure::python::wrap(std::move(resource));
  }
};

template <>
struct type_caster<tenure::cuda_stream_view> {
  NB_TYPE_CASTER(tenure::cuda_stream_view, const_name("tenure.Stream | None"))

  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept
  {
    return tenure_load([&] {
      if (!source.is_none()) {
        kept_ = steal(tenure::python::as_stream(source.ptr()));
        if (!kept_.is_valid()) { throw tenure::python::error_set(); }
        source = kept_;
      }
      value = tenure::python::borrow_stream(source.ptr());
    });
  }
  static handle from_cpp(tenure::cuda_stream_view stream, rv_policy, cleanup_list*) noexcept
  {
    return tenure::python::wrap(stream);
  }

 private:
  object kept_;
};

template <>
struct type_caster<tenure::cuda_stream> {
  NB_TYPE_CASTER(tenure::cuda_stream, const_name("tenure.Stream"))

  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept
  {
    return tenure_load([&] {
      tenure_stream stream{};
      tenure::python::detail::check(tenure_python_retain_stream(source.ptr(), &stream));
      value = tenure::cuda_stream::from_handle(stream);
    });
  }
  static handle from_cpp(tenure::cuda_stream stream, rv_policy, cleanup_list*) noexcept
  {
    return tenure::python::wrap(std::move(stream));
  }
};

}  // namespace detail
}  // namespace nanobind
