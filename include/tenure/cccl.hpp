// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/cccl.hpp
 *
 * tenure's resources where CCCL's are wanted, and CCCL's where tenure's are. Needs CCCL's headers (3.4 or newer) and CUDA's.
 *
 *     tenure::mr::pool_memory_resource pool{tenure::mr::cuda_memory_resource{}, 1 << 20};
 *     cuda::mr::any_resource<cuda::mr::device_accessible> any = pool;          // owns the pool: one word, stored inline
 *     tenure::mr::resource mr = tenure::mr::from_cccl(any);                    // and any of theirs below one of ours
 *
 *     cub::DeviceReduce::Sum(in, out, n, tenure::execution_env(stream, pool)); // CUB's scratch comes from the pool
 *
 * With this header every handle of tenure's is a `cuda::mr::resource_with<device_accessible>`; those whose kind is known to the
 * compiler as memory that the host can use (pinned, managed, system) are `host_accessible` as well. Of a plain `resource` only
 * the run can say it: `resource_with<cuda::mr::host_accessible>{mr}` asks, and throws where it is not so.
 *
 * - A handle in an `any_resource` is an owner like any other: the resource lives while it does.
 * - A `cuda::mr::resource_ref` names the handle that it was made of, and is good while that handle is: `any_resource` keeps it.
 * - Allocation throws tenure's exceptions (`tenure::out_of_memory` is a `std::bad_alloc`). A free through an erased type cannot
 *   throw; a wrong one goes to the handler of wrong frees, and changes nothing.
 * - `cuda::stream_ref` and `tenure::cuda_stream_view` convert into each other, with or without this header.
 *
 * Cost: what the call costs, and CCCL's one indirect call. Copying an `any_resource` is one light reference.
 */

#pragma once

#include <tenure/callback.hpp>
#include <tenure/resource.hpp>
#include <tenure/resources.hpp>
#include <tenure/adaptors.hpp>
#include <tenure/stream.hpp>

#if !__has_include(<cuda/memory_resource>)
#error "tenure/cccl.hpp needs CCCL's headers: add the include folder of CCCL 3.4 or newer, which has cuda/memory_resource"
#endif

#include <cuda/memory_resource>
#include <cuda/std/execution>
#include <cuda/stream_ref>

#if !defined(CCCL_VERSION) || CCCL_VERSION < 3004000
#error "tenure/cccl.hpp needs CCCL 3.4 or newer; put its include folder before the one that CUDA's toolkit brings"
#endif

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

// CCCL asks for properties in functions that nvcc compiles for both sides.
#if defined(__CUDACC__)
#define TENURE_DETAIL_BOTH_SIDES __host__ __device__
#else
#define TENURE_DETAIL_BOTH_SIDES
#endif

namespace tenure {
namespace mr {

// CCCL finds these by their argument: they are how a type says what its memory is.

/** A device can use the memory of every handle. */
TENURE_DETAIL_BOTH_SIDES constexpr void get_property(resource const&, ::cuda::mr::device_accessible) noexcept {}
/** Pinned memory is memory of the host. */
TENURE_DETAIL_BOTH_SIDES constexpr void get_property(pinned_host_memory_resource const&,
                                                     ::cuda::mr::host_accessible) noexcept
{
}
/** The host can use managed memory. */
TENURE_DETAIL_BOTH_SIDES constexpr void get_property(managed_memory_resource const&, ::cuda::mr::host_accessible) noexcept {}
/** The host can use managed memory of the driver's pool. */
TENURE_DETAIL_BOTH_SIDES constexpr void get_property(cuda_async_managed_memory_resource const&,
                                                     ::cuda::mr::host_accessible) noexcept
{
}
/** Memory of the system's allocator is memory of the host. */
TENURE_DETAIL_BOTH_SIDES constexpr void get_property(system_memory_resource const&, ::cuda::mr::host_accessible) noexcept {}
/** Memory of the system's allocator is memory of the host. */
TENURE_DETAIL_BOTH_SIDES constexpr void get_property(sam_headroom_memory_resource const&,
                                                     ::cuda::mr::host_accessible) noexcept
{
}

/**
 * A handle whose type says what its memory is: `device_accessible` always, and `host_accessible` where it is named. The resource
 * is asked when the handle is made.
 */
template <class... Properties>
class resource_with : public resource {
  static_assert(((std::is_same_v<Properties, ::cuda::mr::device_accessible> ||
                  std::is_same_v<Properties, ::cuda::mr::host_accessible>)&&...),
                "tenure: a resource can promise cuda::mr::device_accessible and cuda::mr::host_accessible");

 public:
  /** Whether `host_accessible` is among the promises. */
  static constexpr bool promises_host = (std::is_same_v<Properties, ::cuda::mr::host_accessible> || ...);

  /** Empty. */
  resource_with() noexcept = default;
  /** A handle of `from`. Throws `invalid_argument` where its memory is not what the type says. */
  explicit resource_with(resource from) : resource(std::move(from))
  {
    auto const has = properties();
    require((has & TENURE_DEVICE_ACCESSIBLE) != 0, "a device");
    if constexpr (promises_host) { require((has & TENURE_HOST_ACCESSIBLE) != 0, "the host"); }
  }
  /** A handle of what a parameter names. */
  explicit resource_with(resource_ref from) : resource_with(resource(from)) {}

 private:
  void require(bool accessible, char const* who) const
  {
    if (!accessible) {
      ::tenure::detail::raise_own<invalid_argument>(
        TENURE_ERROR_INVALID_ARGUMENT,
        "tenure: the memory of this " + std::string(kind()) + " resource cannot be used by " + who +
          ", as the type of the handle would promise; ask properties() first, or pass a resource whose memory can");
    }
  }
};

/** The promise of the type. */
template <class... Properties, std::enable_if_t<resource_with<Properties...>::promises_host, int> = 0>
TENURE_DETAIL_BOTH_SIDES constexpr void get_property(resource_with<Properties...> const&, ::cuda::mr::host_accessible) noexcept
{
}

namespace detail {

/** A resource of CCCL's as an object of ours. */
template <class Held>
struct cccl_object {
  static constexpr bool stream_ordered = ::cuda::mr::resource<Held>;
  Held held;

  void* allocate(cuda_stream_view stream, std::size_t bytes, std::size_t alignment)
  {
    if constexpr (stream_ordered) {
      return held.allocate(::cuda::stream_ref(stream.value()), bytes, alignment);
    } else {
      (void)stream;
      return held.allocate_sync(bytes, alignment);
    }
  }
  void deallocate(cuda_stream_view stream, void* ptr, std::size_t bytes, std::size_t alignment)
  {
    if constexpr (stream_ordered) {
      held.deallocate(::cuda::stream_ref(stream.value()), ptr, bytes, alignment);
    } else {
      // It takes back only what nobody uses any more.
      stream.synchronize();
      held.deallocate_sync(ptr, bytes, alignment);
    }
  }
};

template <class Held, class = void>
struct can_be_empty : std::false_type {};
template <class Held>
struct can_be_empty<Held, std::void_t<decltype(std::declval<Held const&>().has_value())>> : std::true_type {};

}  // namespace detail

/**
 * Makes a resource of ours over one of CCCL's, which is moved in: an `any_resource`, a pool of CCCL's, a resource of RMM's, a
 * class of your own. One that is only synchronous serves too; each free then waits for its stream. What the resource throws
 * reaches the caller as the same exception.
 *
 * `device` is whose memory it is; left out, it follows from the stream of each call. `kind` is a short name for reports.
 * A handle of tenure's is returned as it is.
 */
template <class Resource, class Held = std::decay_t<Resource>>
[[nodiscard]] resource from_cccl(Resource&& from, std::string kind = "cccl", cuda_device_id device = {})
{
  if constexpr (std::is_base_of_v<resource, Held>) {
    return resource(static_cast<resource const&>(from));
  } else {
    static_assert(::cuda::mr::synchronous_resource<Held>,
                  "tenure: this is no resource of CCCL's: it lacks allocate_sync, deallocate_sync or ==");
    constexpr bool on_device = ::cuda::has_property<Held, ::cuda::mr::device_accessible>;
    constexpr bool on_host   = ::cuda::has_property<Held, ::cuda::mr::host_accessible>;
    static_assert(on_device || on_host, "tenure: this resource does not say who can use its memory: it has no get_property");
    if constexpr (detail::can_be_empty<Held>::value) {
      if (!from.has_value()) {
        ::tenure::detail::raise_own<logic_error>(
          TENURE_ERROR_BAD_HANDLE, "tenure: this any_resource is empty: it was default-constructed or moved from; put a resource in");
      }
    }
    using object = detail::cccl_object<Held>;
    resource_traits traits;
    traits.kind       = std::move(kind);
    traits.device     = device;
    traits.properties = (on_device ? TENURE_DEVICE_ACCESSIBLE : 0U) | (on_host ? TENURE_HOST_ACCESSIBLE : 0U) |
                        (object::stream_ordered ? TENURE_STREAM_ORDERED : 0U);
    return make_resource(object{std::forward<Resource>(from)}, traits);
  }
}

/** The same for what a reference of CCCL's refers to: it is copied, as `any_resource` does. */
template <class... Properties>
[[nodiscard]] resource from_cccl(::cuda::mr::resource_ref<Properties...> from,
                                 std::string kind      = "cccl",
                                 cuda_device_id device = {})
{
  return from_cccl(::cuda::mr::any_resource<Properties...>(from), std::move(kind), device);
}

}  // namespace mr

/**
 * An environment for algorithms of CCCL: on `stream`, with scratch of `resource`, which it owns. The stream is alive while the
 * algorithm runs.
 */
[[nodiscard]] inline auto execution_env(cuda_stream_view stream, mr::resource resource)
{
  // The arguments are written out: nvcc does not pass on what it deduced for one template within another.
  using order   = ::cuda::std::execution::prop<::cuda::get_stream_t, ::cuda::stream_ref>;
  using scratch = ::cuda::std::execution::prop<::cuda::mr::get_memory_resource_t, mr::resource>;
  return ::cuda::std::execution::env<order, scratch>{order{::cuda::get_stream_t{}, ::cuda::stream_ref(stream.value())},
                                                     scratch{::cuda::mr::get_memory_resource_t{}, std::move(resource)}};
}
/** The same with the resource that is current now on the current device, which is the stream's. */
[[nodiscard]] inline auto execution_env(cuda_stream_view stream)
{
  return execution_env(stream, mr::resource(mr::resource_ref()));
}

}  // namespace tenure
