// SPDX-License-Identifier: Apache-2.0
//
// Each call of the C++ part of docs/allocating-calls.md with its resource named, while the current one refuses.
// Built and run by test_allocating_calls.py, which compares the rows that are printed with the table's.

#include <tenure/tenure.hpp>

#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

std::size_t asked = 0;

/** Refuses, and counts who came. */
struct refusing {
  void* allocate(tenure::cuda_stream_view, std::size_t, std::size_t)
  {
    ++asked;
    throw std::runtime_error("the current resource was asked");
  }
  void deallocate(tenure::cuda_stream_view, void*, std::size_t, std::size_t) noexcept {}
};

constexpr std::size_t bytes = 1000;

struct row {
  char const* name;
  std::function<void(tenure::cuda_stream_view, tenure::mr::resource const&)> call;
};

using tenure::cuda_stream_view;
using tenure::device_buffer;
using tenure::device_scalar;
using tenure::device_uvector;
using tenure::mr::resource;

std::vector<row> const named{
  {"buffer.hpp:device_buffer",
   [](cuda_stream_view s, resource const& r) {
     char const text[bytes] = {};
     device_buffer const plain{bytes, s, r};
     device_buffer const aligned{bytes, 4096, s, r};
     device_buffer const filled{text, bytes, s, r};
     device_buffer const copied{filled, s, r};
     s.synchronize();
   }},
  {"buffer.hpp:resize",
   [](cuda_stream_view s, resource const& r) { device_buffer{bytes, s, r}.resize(5 * bytes, s); }},
  {"buffer.hpp:reserve",
   [](cuda_stream_view s, resource const& r) { device_buffer{bytes, s, r}.reserve(5 * bytes, s); }},
  {"buffer.hpp:shrink_to_fit",
   [](cuda_stream_view s, resource const& r) {
     device_buffer buffer{bytes, s, r};
     buffer.resize(10, s);
     buffer.shrink_to_fit(s);
   }},
  {"allocator.hpp:allocate",
   [](cuda_stream_view s, resource const& r) {
     tenure::mr::polymorphic_allocator<int> ints{r};
     ints.deallocate(ints.allocate(bytes, s), bytes, s);
     tenure::mr::stream_allocator_adaptor adaptor{ints, s};
     adaptor.deallocate(adaptor.allocate(bytes), bytes);
   }},
  {"uvector.hpp:device_uvector",
   [](cuda_stream_view s, resource const& r) {
     device_uvector<int> const made{bytes, s, r};
     device_uvector<int> const copied{made, s, r};
   }},
  {"uvector.hpp:resize",
   [](cuda_stream_view s, resource const& r) { device_uvector<int>{1, s, r}.resize(bytes, s); }},
  {"uvector.hpp:reserve",
   [](cuda_stream_view s, resource const& r) { device_uvector<int>{1, s, r}.reserve(bytes, s); }},
  {"uvector.hpp:shrink_to_fit",
   [](cuda_stream_view s, resource const& r) {
     device_uvector<int> vector{bytes, s, r};
     vector.resize(10, s);
     vector.shrink_to_fit(s);
   }},
  {"scalar.hpp:device_scalar",
   [](cuda_stream_view s, resource const& r) {
     device_scalar<double> const empty{s, r};
     device_scalar<double> const made{3.5, s, r};
     device_scalar<double> const copied{made, s, r};
     s.synchronize();
   }},
  {"resource.hpp:allocate",
   [](cuda_stream_view s, resource const& r) {
     resource mine{r};
     mine.deallocate(s, mine.allocate(s, bytes), bytes);
   }},
  {"resource.hpp:allocate_sync",
   [](cuda_stream_view, resource const& r) {
     resource mine{r};
     mine.deallocate_sync(mine.allocate_sync(bytes), bytes);
   }},
  {"resource.hpp:allocate_many",
   [](cuda_stream_view s, resource const& r) {
     resource mine{r};
     std::vector<std::size_t> const sizes{bytes, 0, bytes};
     mine.deallocate_many(s, mine.allocate_many(s, sizes), sizes);
   }},
  {"resources.hpp:pool_memory_resource",
   [](cuda_stream_view s, resource const& r) {
     tenure::mr::pool_memory_resource const pool{tenure::mr::statistics_resource_adaptor{r}, std::size_t{1} << 21};
     device_buffer const grown{std::size_t{1} << 23, s, pool};
   }},
  {"bins.hpp:fixed_size_memory_resource",
   [](cuda_stream_view s, resource const& r) {
     tenure::mr::fixed_size_memory_resource const blocks{tenure::mr::statistics_resource_adaptor{r}, bytes, 2};
     device_buffer const made{bytes, s, blocks};
     device_buffer const other{bytes, s, blocks};
     device_buffer const grown{bytes, s, blocks};
   }},
  {"bins.hpp:arena_memory_resource",
   [](cuda_stream_view s, resource const& r) {
     tenure::mr::arena_memory_resource const arena{tenure::mr::statistics_resource_adaptor{r}, std::size_t{1} << 21};
     device_buffer const made{bytes, s, arena};
   }},
  {"resources.hpp:cuda_async_memory_resource",
   [](cuda_stream_view s, resource const&) {
     tenure::mr::cuda_async_memory_resource const pool{std::size_t{1} << 20};
     device_buffer const made{bytes, s, pool};
   }},
};

/** Those that may be left without a name. */
std::vector<row> const unnamed{
  {"device_buffer", [](cuda_stream_view s, resource const&) { device_buffer const made{bytes, s}; }},
  {"device_buffer, copied",
   [](cuda_stream_view s, resource const& r) {
     device_buffer const made{bytes, s, r};
     device_buffer const copied{made, s};
   }},
  {"device_uvector", [](cuda_stream_view s, resource const&) { device_uvector<int> const made{bytes, s}; }},
  {"device_scalar", [](cuda_stream_view s, resource const&) { device_scalar<int> const made{1, s}; }},
};

int wrong(char const* name, std::string const& why)
{
  std::fprintf(stderr, "%s: %s\n", name, why.c_str());
  return 1;
}

}  // namespace

int main()
{
  tenure::cuda_stream const stream{tenure::cuda_stream::flags::non_blocking};
  tenure::mr::pool_memory_resource const pool{tenure::mr::cuda_memory_resource{}, 0};
  auto const before = tenure::mr::set_current_device_resource(tenure::mr::make_resource(refusing{}));
  int failed        = 0;
  for (resource const& mr : {resource{tenure::mr::cuda_memory_resource{}}, resource{pool}}) {
    for (auto const& [name, call] : named) {
      try {
        call(stream, mr);
        if (asked != 0) { failed = wrong(name, "asked the current resource"); }
        asked = 0;
      } catch (std::exception const& error) {
        failed = wrong(name, error.what());
      }
    }
  }
  for (auto const& [name, call] : unnamed) {
    try {
      asked = 0;
      call(stream, pool);
      failed = wrong(name, "did not ask the current resource");
    } catch (std::exception const&) {
      if (asked != 1) { failed = wrong(name, "asked " + std::to_string(asked) + " times"); }
    }
  }
  (void)tenure::mr::set_current_device_resource(before);
  for (auto const& row : named) { std::puts(row.name); }
  return failed;
}
