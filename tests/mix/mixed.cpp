// A C++ library of somebody's, for the test that mixes libraries: it makes device memory under the current resource, writes the
// pattern of its owner into it, and checks such patterns, whoever made the memory. What it makes leaves as a buffer's handle.

#include <tenure/tenure.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

namespace {

// The same as in mix.py: each owner's bytes are its own, and each place's.
std::vector<std::uint8_t> pattern(std::size_t bytes, std::uint32_t seed)
{
  std::vector<std::uint8_t> out(bytes);
  for (std::size_t at = 0; at < bytes; ++at) {
    std::uint32_t word = static_cast<std::uint32_t>(at) * 2654435761U ^ seed;
    out[at]            = static_cast<std::uint8_t>(word >> 15U ^ word);
  }
  return out;
}

template <class Body>
int guarded(char* why, std::size_t room, Body body) noexcept
{
  try {
    body();
    return 0;
  } catch (std::exception const& error) {
    std::snprintf(why, room, "%s", error.what());
  } catch (...) {
    std::snprintf(why, room, "an exception of an unknown kind");
  }
  return 1;
}

}  // namespace

extern "C" {

// The table is read here, once; the buffer in `out` belongs to the caller.
int mixed_make(std::size_t bytes,
               std::uint32_t seed,
               tenure_stream stream,
               tenure_resource resource,
               tenure_buffer* out,
               char* why,
               std::size_t room)
{
  return guarded(why, room, [&] {
    tenure::cuda_stream_view const on(stream);
    tenure::device_buffer buffer(bytes, on, tenure::mr::resource_ref(resource));
    auto const values = pattern(bytes, seed);
    tenure::copy_async(buffer.data(), values.data(), bytes, on);
    on.synchronize();
    *out = buffer.release();
  });
}

// How many bytes at `data` are not what their owner wrote, in the order of `stream`.
int mixed_check(void const* data,
                std::size_t bytes,
                std::uint32_t seed,
                tenure_stream stream,
                std::size_t* wrong,
                char* why,
                std::size_t room)
{
  return guarded(why, room, [&] {
    tenure::cuda_stream_view const on(stream);
    std::vector<std::uint8_t> found(bytes);
    tenure::copy_async(found.data(), data, bytes, on);
    on.synchronize();
    auto const values = pattern(bytes, seed);
    *wrong            = 0;
    for (std::size_t at = 0; at < bytes; ++at) { *wrong += found[at] != values[at]; }
  });
}

int mixed_write(void* data, std::size_t bytes, std::uint32_t seed, tenure_stream stream, char* why, std::size_t room)
{
  return guarded(why, room, [&] {
    tenure::cuda_stream_view const on(stream);
    auto const values = pattern(bytes, seed);
    tenure::copy_async(data, values.data(), bytes, on);
    on.synchronize();
  });
}

int mixed_free(tenure_buffer buffer, char* why, std::size_t room)
{
  return guarded(why, room, [&] { tenure::device_buffer::from_handle(buffer).close(); });
}
}
