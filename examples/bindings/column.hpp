// The library that is bound: one function that makes a column, and one that ends it. Three of the five bindings (Cython,
// nanobind, pybind11) bind exactly this.
//
// Like every function that allocates should, `make_column` takes a stream and a resource, and gives back an owner: the buffer
// knows its resource, its stream and its device, so that whoever gets it needs to be told nothing else.

#pragma once

#include <tenure/tenure.hpp>

#include <cstddef>
#include <cstdint>

namespace column {

// `n` bytes under `mr` (left out: the current resource), each 42, ready in the order of `stream`.
inline tenure::device_buffer make_column(std::size_t n, tenure::cuda_stream_view stream, tenure::mr::resource_ref mr = {})
{
  constexpr std::uint8_t value = 42;
  tenure::device_buffer made(n, stream, mr);
  if (n != 0) { tenure::fill_async(made.data(), value, n, stream); }
  return made;
}

// Takes a column over and frees it: in the order of its own stream, into the resource that made it.
inline void free_column(tenure::device_buffer column) { column.close(); }

}  // namespace column
