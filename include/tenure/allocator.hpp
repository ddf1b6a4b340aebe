// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/allocator.hpp
 *
 * Allocators over a resource, for containers that take one.
 *
 *     tenure::mr::polymorphic_allocator<int> ints{pool};
 *     int* p = ints.allocate(100, stream);
 *     ints.deallocate(p, 100, stream);
 *
 *     tenure::mr::stream_allocator_adaptor on_stream{ints, stream};   // the standard's two functions, on one stream
 *
 * An allocator owns a reference to its resource, as a container's copy of it does. The elements lie where the resource's memory
 * lies: a container that writes them on the host needs memory of the host. For Thrust there is thrust.hpp.
 */

#pragma once

#include <tenure/current.hpp>
#include <tenure/resource.hpp>
#include <tenure/stream.hpp>

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace tenure {
namespace mr {

/** Allocates elements from whatever resource it was made with; each call names its stream. */
template <class T>
class polymorphic_allocator {
 public:
  using value_type = T;

  /** Allocates from the resource that is current now. */
  polymorphic_allocator() : resource_(get_current_device_resource()) {}
  /** Allocates from this resource. */
  polymorphic_allocator(resource_ref from)  // NOLINT(google-explicit-constructor)
    : resource_(from)
  {
  }
  /** The same for a handle, so that a resource converts in one step. */
  polymorphic_allocator(resource from)  // NOLINT(google-explicit-constructor)
    : resource_(std::move(from))
  {
  }
  // Copied where others are moved: a container whose allocator was moved away must be able to allocate again.
  polymorphic_allocator(polymorphic_allocator const&)            = default;
  polymorphic_allocator& operator=(polymorphic_allocator const&) = default;
  ~polymorphic_allocator()                                       = default;
  /** Allocates from the resource of an allocator of other elements. */
  template <class Other>
  polymorphic_allocator(polymorphic_allocator<Other> const& other)  // NOLINT(google-explicit-constructor)
    : resource_(other.get_upstream_resource())
  {
  }

  /** Memory for `count` elements, usable in the order of `stream`. */
  [[nodiscard]] value_type* allocate(std::size_t count, cuda_stream_view stream)
  {
    return static_cast<value_type*>(resource_.allocate(stream, ::tenure::detail::bytes_of<T>(count), alignment()));
  }
  /** Frees it in the order of `stream`. A wrong free goes to the handler of wrong frees. */
  void deallocate(value_type* ptr, std::size_t count, cuda_stream_view stream) noexcept
  {
    resource_.deallocate_or_report(stream, ptr, count * sizeof(T), alignment());
  }
  /** The resource, owned. */
  [[nodiscard]] resource get_upstream_resource() const { return resource_; }

 private:
  static constexpr std::size_t alignment() noexcept
  {
    return alignof(T) > CUDA_ALLOCATION_ALIGNMENT ? alignof(T) : CUDA_ALLOCATION_ALIGNMENT;
  }
  resource resource_;
};

/** Whether what one allocates the other may free. */
template <class T, class Other>
[[nodiscard]] bool operator==(polymorphic_allocator<T> const& a, polymorphic_allocator<Other> const& b)
{
  return a.get_upstream_resource() == b.get_upstream_resource();
}
template <class T, class Other>
[[nodiscard]] bool operator!=(polymorphic_allocator<T> const& a, polymorphic_allocator<Other> const& b)
{
  return !(a == b);
}

/**
 * An allocator as the standard wants it, without a stream, of one that needs a stream: all goes to one. The stream is alive while
 * the adaptor is used.
 */
template <class Allocator>
class stream_allocator_adaptor {
 public:
  using value_type = typename std::allocator_traits<Allocator>::value_type;

  // There is no stream to fall back on.
  stream_allocator_adaptor() = delete;
  /** Allocates with `allocator` on `stream`. */
  stream_allocator_adaptor(Allocator const& allocator, cuda_stream_view stream) : allocator_(allocator), stream_(stream) {}
  /** The same allocator for other elements. */
  template <class Other>
  stream_allocator_adaptor(stream_allocator_adaptor<Other> const& other)  // NOLINT(google-explicit-constructor)
    : allocator_(other.underlying_allocator()), stream_(other.stream())
  {
  }
  /** The adaptor for elements of another type. */
  template <class T>
  struct rebind {
    using other = stream_allocator_adaptor<typename std::allocator_traits<Allocator>::template rebind_alloc<T>>;
  };

  /** Memory for `count` elements. */
  [[nodiscard]] value_type* allocate(std::size_t count) { return allocator_.allocate(count, stream_); }
  /** Frees it. */
  void deallocate(value_type* ptr, std::size_t count) noexcept { allocator_.deallocate(ptr, count, stream_); }
  /** The stream of all calls. */
  [[nodiscard]] cuda_stream_view stream() const noexcept { return stream_; }
  /** The allocator below. */
  [[nodiscard]] Allocator underlying_allocator() const { return allocator_; }

 private:
  Allocator allocator_;
  cuda_stream_view stream_;
};

/** Whether what one allocates the other may free. Streams do not matter for that. */
template <class A, class B>
[[nodiscard]] bool operator==(stream_allocator_adaptor<A> const& a, stream_allocator_adaptor<B> const& b)
{
  return a.underlying_allocator() == b.underlying_allocator();
}
template <class A, class B>
[[nodiscard]] bool operator!=(stream_allocator_adaptor<A> const& a, stream_allocator_adaptor<B> const& b)
{
  return !(a == b);
}

}  // namespace mr
}  // namespace tenure
