// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/thrust.hpp
 *
 * Thrust over tenure's memory: its scratch, and its vectors. Needs CCCL's headers (3.4 or newer) and CUDA's; algorithms on a
 * device need nvcc, as always.
 *
 *     thrust::sort(tenure::exec_policy(stream, pool), v.begin(), v.end());          // scratch from the pool, then waits
 *     thrust::sort(tenure::exec_policy_nosync(stream, pool), v.begin(), v.end());   // does not wait
 *     tenure::device_vector<int> v(1000, tenure::mr::thrust_allocator<int>{stream, pool});
 *
 * A policy and an allocator own their resource. `device_uvector` needs none of this: its `begin()` and `end()` are what
 * algorithms take, and it does not initialise.
 */

#pragma once

#include <tenure/cccl.hpp>
#include <tenure/current.hpp>

#include <thrust/detail/config.h>
#include <thrust/device_malloc_allocator.h>
#include <thrust/device_ptr.h>
#include <thrust/device_vector.h>
#include <thrust/memory.h>

#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
#include <thrust/system/cuda/execution_policy.h>
#endif

#include <cstddef>
#include <utility>

namespace tenure {

// Thrust may be told to live in another namespace.
namespace detail {
namespace thrust_names = THRUST_NS_QUALIFIER;
}  // namespace detail

namespace mr {

/**
 * An allocator for Thrust's vectors and algorithms. Frees happen on the device that was current when it was made, and in the
 * order of its stream, which is alive while the allocator or a vector of it is.
 */
template <class T>
class thrust_allocator : public ::tenure::detail::thrust_names::device_malloc_allocator<T> {
 public:
  using base      = ::tenure::detail::thrust_names::device_malloc_allocator<T>;
  using pointer   = typename base::pointer;
  using size_type = typename base::size_type;

  /** The allocator for elements of another type. */
  template <class Other>
  struct rebind {
    using other = thrust_allocator<Other>;
  };

  /** Allocates from the current resource on the default stream. */
  thrust_allocator() : thrust_allocator(cuda_stream_default) {}
  /** Allocates from the resource that is current now on the current device, which is the stream's. */
  explicit thrust_allocator(cuda_stream_view stream) : thrust_allocator(stream, resource(resource_ref())) {}
  /** Allocates from `from`. */
  thrust_allocator(cuda_stream_view stream, resource from) : stream_(stream), resource_(std::move(from)) {}
  /** The same for a parameter that names a resource. */
  thrust_allocator(cuda_stream_view stream, resource_ref from) : thrust_allocator(stream, resource(from)) {}
  // Thrust's base class is told apart from ours, as its own copying is for both sides. Copied where others are moved: a vector
  // whose allocator was moved away must be able to allocate again.
  thrust_allocator(thrust_allocator const& other)
    : base(other), stream_(other.stream_), resource_(other.resource_), device_(other.device_)
  {
  }
  thrust_allocator(thrust_allocator&& other) noexcept : thrust_allocator(std::as_const(other)) {}
  thrust_allocator& operator=(thrust_allocator const& other)
  {
    stream_   = other.stream_;
    resource_ = other.resource_;
    device_   = other.device_;
    return *this;
  }
  /** The resource and the stream of an allocator of other elements. */
  template <class Other>
  thrust_allocator(thrust_allocator<Other> const& other)  // NOLINT(google-explicit-constructor)
    : stream_(other.stream()), resource_(other.get_upstream_resource()), device_(other.device())
  {
  }
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  ~thrust_allocator() = default;  // Thrust's base class makes it one for both sides; it is called on the host

  /** Memory for `count` elements, usable in the order of the stream. */
  [[nodiscard]] pointer allocate(size_type count)
  {
    cuda_set_device_raii const on{device_};
    return ::tenure::detail::thrust_names::device_pointer_cast(
      static_cast<T*>(resource_.allocate(stream_, ::tenure::detail::bytes_of<T>(count), alignment())));
  }
  /** Frees it in the order of the stream. A wrong free goes to the handler of wrong frees. */
  void deallocate(pointer ptr, size_type count) noexcept
  {
    ::tenure::detail::call_and_report([&] {
      cuda_set_device_raii const on{device_};
      resource_.deallocate(
        stream_, ::tenure::detail::thrust_names::raw_pointer_cast(ptr), count * sizeof(T), alignment());
    });
  }
  /** The resource, owned. */
  [[nodiscard]] resource get_upstream_resource() const { return resource_; }
  /** The stream of all calls. */
  [[nodiscard]] cuda_stream_view stream() const noexcept { return stream_; }
  /** The device that was current when the allocator was made. */
  [[nodiscard]] cuda_device_id device() const noexcept { return device_; }

  /** Whether what one allocates the other may free. */
  friend bool operator==(thrust_allocator const& a, thrust_allocator const& b) noexcept
  {
    return a.resource_ == b.resource_;
  }
  friend bool operator!=(thrust_allocator const& a, thrust_allocator const& b) noexcept { return !(a == b); }
  /** A device can use the memory. */
  TENURE_DETAIL_BOTH_SIDES friend constexpr void get_property(thrust_allocator const&,
                                                              ::cuda::mr::device_accessible) noexcept
  {
  }

 private:
  static constexpr std::size_t alignment() noexcept
  {
    return alignof(T) > CUDA_ALLOCATION_ALIGNMENT ? alignof(T) : CUDA_ALLOCATION_ALIGNMENT;
  }
  cuda_stream_view stream_;
  resource resource_;
  cuda_device_id device_{get_current_cuda_device()};
};

}  // namespace mr

/** A vector that initialises its elements, on tenure's memory. */
template <class T>
using device_vector = ::tenure::detail::thrust_names::device_vector<T, mr::thrust_allocator<T>>;

#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA

/** What Thrust calls a policy with a stream and an allocator; algorithms wait for the stream at their end. */
using thrust_exec_policy_t =
  ::tenure::detail::thrust_names::detail::execute_with_allocator<mr::thrust_allocator<char>,
                                                                 ::tenure::detail::thrust_names::cuda_cub::execute_on_stream_base>;
/** The same for algorithms that need not wait. */
using thrust_exec_policy_nosync_t = ::tenure::detail::thrust_names::detail::
  execute_with_allocator<mr::thrust_allocator<char>, ::tenure::detail::thrust_names::cuda_cub::execute_on_stream_nosync_base>;

/** Runs Thrust's algorithms on a stream, with scratch of a resource, and waits for them. */
class exec_policy : public thrust_exec_policy_t {
 public:
  /** The stream is alive during the algorithms; the resource is held. */
  explicit exec_policy(cuda_stream_view order = cuda_stream_default, mr::resource_ref resource = {})
    : thrust_exec_policy_t(::tenure::detail::thrust_names::cuda::par(mr::thrust_allocator<char>(order, resource))
                             .on(order.value()))
  {
  }
};

/** Runs Thrust's algorithms on a stream, with scratch of a resource, and does not wait where the result allows it. */
class exec_policy_nosync : public thrust_exec_policy_nosync_t {
 public:
  /** The stream is alive during the algorithms; the resource is held. */
  explicit exec_policy_nosync(cuda_stream_view order = cuda_stream_default, mr::resource_ref resource = {})
    : thrust_exec_policy_nosync_t(
        ::tenure::detail::thrust_names::cuda::par_nosync(mr::thrust_allocator<char>(order, resource)).on(order.value()))
  {
  }
};

#endif

}  // namespace tenure
