// SPDX-License-Identifier: Apache-2.0
//
// Resources of user code: owned, called without a lock, and their exceptions come back as they were thrown.

#include "check.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <new>

using namespace tenure;

namespace {

struct own_exception : std::runtime_error {
  int number;
  explicit own_exception(int n) : std::runtime_error("an exception of the program's own"), number(n) {}
};

/** Throws what it is told to. */
struct throwing {
  std::function<void()> on_allocate;
  std::function<void()> on_deallocate;
  void* allocate(cuda_stream_view, std::size_t bytes, std::size_t alignment)
  {
    if (on_allocate) { on_allocate(); }
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  void deallocate(cuda_stream_view, void* ptr, std::size_t, std::size_t)
  {
    std::free(ptr);
    if (on_deallocate) { on_deallocate(); }
  }
};

/** Forwards to another resource, through tenure again: what a user's adaptor does. */
struct forwarding {
  mr::resource upstream;
  std::size_t trimmed{0};
  void* allocate(cuda_stream_view stream, std::size_t bytes, std::size_t alignment)
  {
    return upstream.allocate(stream, bytes, alignment);
  }
  void deallocate(cuda_stream_view stream, void* ptr, std::size_t bytes, std::size_t alignment)
  {
    upstream.deallocate(stream, ptr, bytes, alignment);
  }
  std::size_t trim(std::size_t keep) { return trimmed = keep; }
};

mr::resource stack_over(mr::resource const& lowest)
{
  return mr::statistics_resource_adaptor{mr::limiting_resource_adaptor{mr::make_resource(forwarding{lowest}, {"forwarding"}), 1 << 20}};
}

}  // namespace

TEST(an_exception_comes_back_as_it_was_thrown)
{
  mr::resource const lowest = mr::make_resource(throwing{[] { throw own_exception(42); }, {}}, {"throwing"});
  for (mr::resource resource : {lowest, stack_over(lowest)}) {
    try {
      (void)resource.allocate(cuda_stream_legacy, 100);
      CHECK(!"it throws");
    } catch (own_exception const& error) {
      CHECK_EQ(error.number, 42);
    }
    CHECK_THROWS(device_buffer(100, cuda_stream_legacy, resource), own_exception, "of the program's own");
    CHECK_EQ(resource.info().live_bytes, 0);
  }
}

TEST(even_what_is_no_exception_comes_back)
{
  mr::resource resource = stack_over(mr::make_resource(throwing{[] { throw 7; }, {}}));
  int caught            = 0;
  try {
    (void)resource.allocate(cuda_stream_legacy, 100);
  } catch (int number) {
    caught = number;
  }
  CHECK_EQ(caught, 7);
}

TEST(bad_alloc_is_out_of_memory_to_everybody_else)
{
  mr::resource resource = stack_over(mr::make_resource(throwing{[] { throw std::bad_alloc(); }, {}}));
  CHECK_THROWS(resource.allocate(cuda_stream_legacy, 100), std::bad_alloc, "");
  void* ptr = nullptr;
  CHECK_STATUS(tenure_allocate(resource.handle(), 100, 0, TENURE_STREAM_LEGACY, &ptr), TENURE_ERROR_OUT_OF_MEMORY);
  CHECK(ptr == nullptr);
}

TEST(null_is_out_of_memory)
{
  mr::callback_memory_resource resource{[](std::size_t, cuda_stream_view, void*) -> void* { return nullptr; },
                                        [](void*, std::size_t, cuda_stream_view, void*) {}};
  CHECK_THROWS(resource.allocate(cuda_stream_legacy, 100), out_of_memory, "null");
}

TEST(an_error_of_the_library_keeps_its_kind_and_figures)
{
  mr::limiting_resource_adaptor const small{mr::cuda_memory_resource{}, 1000};
  mr::resource resource = stack_over(small);
  try {
    (void)resource.allocate(cuda_stream_legacy, 5000);
    CHECK(!"it throws");
  } catch (out_of_memory const& error) {
    CHECK_EQ(error.details().limit, 1000);
    CHECK_EQ(error.details().requested, 5000);
  }
}

TEST(an_exception_of_a_free_is_reported_and_stops_nothing)
{
  auto const before = misuse_count();
  int ends[2];
  CHECK(::pipe(ends) == 0);
  std::fflush(stderr);
  int const kept = ::dup(2);
  ::dup2(ends[1], 2);
  {
    mr::resource const resource = mr::make_resource(throwing{{}, [] { throw own_exception(1); }});
    device_buffer const buffer{100, cuda_stream_legacy, resource};
  }
  ::dup2(kept, 2);
  ::close(kept);
  ::close(ends[1]);
  char text[1024]{};
  CHECK(::read(ends[0], text, sizeof text - 1) > 0);
  ::close(ends[0]);
  std::string const said{text};
  CHECK(said.find("of the program's own") != std::string::npos && said.find("counts as freed") != std::string::npos);
  // The program named the right block: that its own function failed is no misuse.
  CHECK_EQ(misuse_count(), before);
}

TEST(functions_are_owned_and_get_their_arguments)
{
  auto const alive = std::make_shared<int>(5);
  int argument     = 0;
  device_buffer buffer;
  {
    mr::callback_memory_resource const resource{
      [alive](std::size_t bytes, cuda_stream_view stream, void* arg) {
        CHECK(stream == cuda_stream_per_thread && bytes == 100);
        ++*static_cast<int*>(arg);
        return std::aligned_alloc(256, 256);
      },
      [alive](void* ptr, std::size_t bytes, cuda_stream_view, void* arg) {
        CHECK_EQ(bytes, 100);
        *static_cast<int*>(arg) += 10;
        std::free(ptr);
      },
      &argument,
      &argument};
    buffer = device_buffer{100, cuda_stream_per_thread, resource};
    CHECK(resource_cast<mr::callback_memory_resource>(buffer.memory_resource()).has_value());
  }
  CHECK_EQ(alive.use_count(), 3);
  CHECK_EQ(argument, 1);
  buffer = device_buffer{};
  CHECK_EQ(argument, 11);
  CHECK_EQ(alive.use_count(), 1);
  CHECK_THROWS(mr::callback_memory_resource({}, {}), invalid_argument, "both functions");
}

TEST(an_object_is_found_again_and_trimmed)
{
  mr::resource resource     = mr::make_resource(forwarding{mr::cuda_memory_resource{}, 0}, {"forwarding"});
  forwarding* const object = resource_cast<forwarding>(resource);
  CHECK(object != nullptr && object->upstream == mr::cuda_memory_resource{});
  CHECK_EQ(resource.trim(33), 33);
  CHECK_EQ(object->trimmed, 33);
  CHECK(resource_cast<throwing>(resource) == nullptr);
  CHECK(resource.properties() == (TENURE_DEVICE_ACCESSIBLE | TENURE_STREAM_ORDERED));
}

TEST(a_callback_may_allocate_and_change_the_table)
{
  auto const book           = std::make_shared<check::ledger>();
  mr::resource const before = mr::get_current_device_resource();
  mr::resource resource     = mr::make_resource(throwing{[&] {
                                                       device_buffer const scratch{10, cuda_stream_legacy, check::make_counting(book)};
                                                       mr::resource const mine = mr::set_current_device_resource(mr::managed_memory_resource{});
                                                       mr::set_current_device_resource(mine);
                                                     },
                                                     {}});
  device_buffer const buffer{100, cuda_stream_legacy, resource};
  CHECK_EQ(book->dropped, 1);
  CHECK(mr::get_current_device_resource() == before);
}

TEST(recursion_without_end_is_an_error)
{
  mr::resource const before = mr::get_current_device_resource();
  struct endless {
    void* allocate(cuda_stream_view stream, std::size_t bytes, std::size_t alignment)
    {
      return mr::get_current_device_resource().allocate(stream, bytes, alignment);
    }
    void deallocate(cuda_stream_view, void*, std::size_t, std::size_t) {}
  };
  {
    mr::using_resource const scope{mr::make_resource(endless{}, {"endless"})};
    CHECK_THROWS(device_buffer(10, cuda_stream_legacy), tenure::error, "");
  }
  CHECK(mr::get_current_device_resource() == before);
}

TEST(listeners_are_owned_and_may_throw)
{
  auto const alive = std::make_shared<int>(0);
  std::uint64_t last = 0;
  set_misuse_handler([](std::string_view) {});
  auto const before = misuse_count();
  {
    mr::listener const listener{[alive, &last](cuda_device_id device, mr::resource current, std::uint64_t version) {
      CHECK(device == get_current_cuda_device() && version > last);
      last = version;
      if (++*alive == 1) { CHECK(current == mr::managed_memory_resource{}); }
      if (*alive == 2) { throw own_exception(2); }
    }};
    mr::resource const previous = mr::set_current_device_resource(mr::managed_memory_resource{});
    mr::set_current_device_resource(previous);
    CHECK_EQ(*alive, 2);
  }
  CHECK_EQ(alive.use_count(), 1);
  CHECK_EQ(misuse_count(), before + 1);
  set_misuse_handler({});
  CHECK_THROWS(mr::listener(mr::listener::function{}), invalid_argument, "empty");
}

// A listener threw on purpose.
TEST(a_pool_that_is_about_to_fail_asks_the_process)
{
  mr::pool_options options;
  options.maximum_pool_size = std::size_t{16} << 20;
  options.remap             = false;
  options.chunk_size        = std::size_t{4} << 20;
  options.decay             = std::chrono::seconds(60);
  mr::cuda_memory_resource cuda;
  mr::pool_memory_resource pool{cuda, options};
  CHECK(pool.own_ranges());
  std::uint64_t value = 1;
  CHECK_EQ(tenure_resource_property(pool.handle(), "decay_ms", &value), TENURE_OK);
  CHECK_EQ(value, 60000U);
  CHECK_EQ(tenure_resource_property(pool.handle(), "remap", &value), TENURE_OK);
  CHECK_EQ(value, 0U);
  CHECK_EQ(pool.info().own_ranges, 1U);
  options.peers = {cuda_device_id{62}};
  CHECK_THROWS((mr::pool_memory_resource{cuda, options}), invalid_argument, "no device 62");
  options.peers = {cuda_device_id{64}};
  CHECK_THROWS((mr::pool_memory_resource{cuda, options}), invalid_argument, "0 to 63");
  device_buffer cache{std::size_t{12} << 20, cuda_stream_legacy, pool};
  int asked = 0;
  low_memory_hook hook{[&](cuda_device_id, std::size_t bytes) {
    ++asked;
    CHECK(bytes >= std::size_t{8} << 20);
    std::size_t const held = cache.capacity();
    cache                  = device_buffer{};
    if (held == 0) { throw own_exception(1); }
    return held;
  }};
  device_buffer buffer{std::size_t{8} << 20, cuda_stream_legacy, pool};
  CHECK_EQ(asked, 1);
  try {
    device_buffer more{std::size_t{12} << 20, cuda_stream_legacy, pool};
    CHECK(!"it does not fit");
  } catch (out_of_memory const& error) {
    CHECK_EQ(error.details().live, std::uint64_t{8} << 20);
    CHECK(error.details().tried.find("other libraries") != std::string::npos);
    CHECK_EQ(error.details().cached, error.details().reserved - error.details().live);
  }
  low_memory_hook moved{std::move(hook)};
  CHECK(moved && !hook);
  moved.remove();
  buffer = device_buffer{};
  CHECK(low_memory(cuda_device_id{0}) >= std::size_t{8} << 20);
  CHECK_THROWS(low_memory_hook(low_memory_hook::function{}), invalid_argument, "needs a function");
}

int main() { return check::run_all("callbacks.cpp", 1); }
