// SPDX-License-Identifier: Apache-2.0
//
// Thrust's vectors and algorithms over tenure's memory. Without nvcc, Thrust's device is the host (-DTHRUST_DEVICE_SYSTEM=
// THRUST_DEVICE_SYSTEM_CPP), and the memory is the host's too; compiled for CUDA by g++, it is compiled and no more: the
// algorithms of a GPU are in cccl.cu.

#include "../check.hpp"

#include <tenure/allocator.hpp>
#include <tenure/thrust.hpp>

#include <memory>
#include <stdexcept>
#include <vector>

using namespace tenure;

static_assert(::cuda::has_property<mr::thrust_allocator<int>, ::cuda::mr::device_accessible>);
static_assert(std::is_nothrow_move_constructible_v<mr::thrust_allocator<int>>);

#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA

// Policies are made without a GPU; what runs under them needs one.
static_assert(std::is_constructible_v<exec_policy, cuda_stream_view, mr::pool_memory_resource const&>);
static_assert(std::is_constructible_v<exec_policy_nosync, ::cuda::stream_ref> && std::is_constructible_v<exec_policy>);
exec_policy make_policy(cuda_stream_view stream, mr::resource const& from) { return exec_policy(stream, from); }
exec_policy_nosync make_nosync(cuda_stream_view stream, mr::resource const& from) { return exec_policy_nosync(stream, from); }

#else

#include <thrust/reduce.h>
#include <thrust/sort.h>

TEST(a_vector_takes_its_memory_from_the_resource)
{
  mr::statistics_resource_adaptor counted{mr::pinned_host_memory_resource{}};
  {
    device_vector<int> v(1000, 3, mr::thrust_allocator<int>{cuda_stream_legacy, counted});
    CHECK(counted.get_bytes_counter().value == 4000 && thrust::reduce(v.begin(), v.end()) == 3000);
    for (int i = 0; i < 1000; ++i) { v[static_cast<std::size_t>(i)] = 999 - i; }
    thrust::sort(v.begin(), v.end());
    CHECK(v[0] == 0 && v[999] == 999);
    device_vector<int> copy = v;
    CHECK(copy.get_allocator() == v.get_allocator() && counted.get_allocations_counter().value == 2);
    v.resize(5000);
    copy = std::move(v);
    CHECK(copy.size() == 5000);
  }
  CHECK(counted.get_bytes_counter().value == 0 && counted.get_allocations_counter().value == 0);
}

TEST(an_allocator_knows_stream_device_and_resource)
{
  cuda_stream stream{cuda_stream::flags::non_blocking};
  mr::pool_memory_resource const pool{mr::cuda_memory_resource{}, 0};
  mr::thrust_allocator<int> ints{stream, pool};
  mr::thrust_allocator<double> doubles{ints};
  CHECK(doubles.stream() == stream.view() && doubles.get_upstream_resource() == pool && doubles.device() == cuda_device_id{0});
  auto const p = doubles.allocate(10);
  CHECK(pool.info().live_count == 1);
  doubles.deallocate(p, 10);
  CHECK_THROWS(doubles.allocate(~std::size_t{0} / 2), invalid_argument, "elements");
  CHECK(mr::thrust_allocator<int>{}.get_upstream_resource() == mr::get_current_device_resource());
}

TEST(allocators_of_elements)
{
  cuda_stream stream{cuda_stream::flags::non_blocking};
  mr::pool_memory_resource const pool{mr::cuda_memory_resource{}, 0};
  mr::polymorphic_allocator<int> ints{pool};
  mr::polymorphic_allocator<char> chars{ints};
  CHECK(ints == chars && ints != mr::polymorphic_allocator<int>{mr::cuda_memory_resource{}});
  int* const p = ints.allocate(100, stream);
  CHECK(pool.info().live_count == 1);
  ints.deallocate(p, 100, stream);
  CHECK_THROWS(ints.allocate(~std::size_t{0}, stream), invalid_argument, "elements");
  CHECK(mr::polymorphic_allocator<int>{}.get_upstream_resource() == mr::get_current_device_resource());
  // The resource lives while an allocator does.
  auto const id = pool.id();
  CHECK(mr::resource::from_id(id));

  // On one stream, with the standard's two functions: so a container of the standard's can have memory of the host.
  mr::stream_allocator_adaptor const adaptor{mr::polymorphic_allocator<int>{mr::pinned_host_memory_resource{}}, stream};
  std::vector<int, std::decay_t<decltype(adaptor)>> v(100, 7, adaptor);
  v.push_back(8);
  CHECK(v.front() == 7 && v.back() == 8 && v.get_allocator().stream() == stream.view());
  using rebound = std::allocator_traits<std::decay_t<decltype(adaptor)>>::rebind_alloc<double>;
  CHECK(rebound{adaptor}.underlying_allocator() == adaptor.underlying_allocator());
}

TEST(what_was_moved_from_allocates_again)
{
  mr::statistics_resource_adaptor counted{mr::pinned_host_memory_resource{}};
  mr::thrust_allocator<int> const of_thrust{cuda_stream_legacy, counted};
  device_vector<int> there(10, 3, of_thrust);
  device_vector<int> const taken = std::move(there);
  there.resize(5);
  CHECK(taken.size() == 10 && there.size() == 5 && there.get_allocator() == of_thrust);

  mr::stream_allocator_adaptor const adaptor{mr::polymorphic_allocator<int>{counted}, cuda_stream_legacy};
  std::vector<int, std::decay_t<decltype(adaptor)>> v(10, 7, adaptor);
  auto const moved = std::move(v);
  v.push_back(8);
  CHECK(moved.size() == 10 && v.back() == 8 && v.get_allocator() == adaptor);
  CHECK(counted.get_allocations_counter().value == 4);
}

TEST(an_allocator_asks_its_resource_and_not_the_current_one)
{
  auto const refuse = [](std::size_t, cuda_stream_view, void*) -> void* { throw std::runtime_error("it was asked"); };
  mr::callback_memory_resource const refusing{refuse, [](void*, std::size_t, cuda_stream_view, void*) {}};
  mr::using_resource const here{refusing};
  mr::thrust_allocator<int> ints{cuda_stream_legacy, mr::pinned_host_memory_resource{}};
  ints.deallocate(ints.allocate(100), 100);
  CHECK_THROWS(mr::thrust_allocator<int>{}.allocate(100), std::runtime_error, "it was asked");
}

TEST(an_element_has_its_alignment)
{
  struct alignas(1024) wide {
    char bytes[1024];
  };
  mr::pool_memory_resource const pool{mr::cuda_memory_resource{}, 0};
  mr::thrust_allocator<wide> wides{cuda_stream_legacy, pool};
  mr::thrust_allocator<char> chars{wides};
  auto const before = chars.allocate(256);  // so that what follows would not be aligned by chance
  auto const p      = wides.allocate(3);
  CHECK(is_pointer_aligned(thrust::raw_pointer_cast(p), alignof(wide)));
  wides.deallocate(p, 3);
  chars.deallocate(before, 256);
  CHECK(misuse_count() == 0 && pool.info().live_count == 0);
}

int main() { return check::run_all("thrust.cpp"); }

#endif
