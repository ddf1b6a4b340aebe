// What the casters of nanobind and pybind11 convert, bound once for both. `def` binds a function, `def_optional` one whose argument
// may be None.

#pragma once

#include <memory>
#include <stdexcept>
#include <utility>

namespace casters {

using tenure::cuda_stream;
using tenure::cuda_stream_view;
using tenure::device_buffer;
namespace mr = tenure::mr;

template <class Bind, class BindOptional>
void bind(Bind def, BindOptional def_optional)
{
  def("pass_buffer", [](device_buffer taken) { return taken; });
  def("pass_buffer_moved", [](device_buffer&& taken) { return std::move(taken); });
  def("pass_pointer", [](device_buffer taken) { return std::make_unique<device_buffer>(std::move(taken)); });
  def("no_pointer", [] { return std::unique_ptr<device_buffer>(); });
  def("no_buffer", [] { return device_buffer(); });
  def("size_of", [](device_buffer const& lent) { return lent.size(); });
  def("grow", [](device_buffer& lent, std::size_t size) { lent.resize(size, lent.stream()); });
  def_optional("id_of", [](mr::resource_ref lent) { return mr::resource(lent).id(); });
  def("pass_resource", [](mr::resource owned) { return owned; });
  def("pass_pool", [](mr::pool_memory_resource owned) { return owned; });
  def("pass_stream", [](cuda_stream owned) { return owned; });
  def_optional("pass_view", [](cuda_stream_view lent) { return lent; });
  def("own_stream", [](cuda_stream_view lent) { return device_buffer(16, lent).stream() == lent; });
  def("empty", [] { return device_buffer().stream() == cuda_stream_view(); });
  def("throw_other", [] { throw std::runtime_error("somebody else's"); });
}

}  // namespace casters
