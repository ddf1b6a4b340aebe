// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/resource.hpp
 *
 * `tenure::mr::resource`: an owning handle of any memory resource.
 *
 * A resource lives while a handle or an allocation of it lives; the last one out closes it. So a handle may be copied, stored,
 * put into containers and dropped at any time, before or after the buffers that were made with it.
 *
 *     tenure::mr::resource mr = tenure::mr::get_current_device_resource();
 *     void* p = mr.allocate(stream, 1 << 20);
 *     mr.deallocate(stream, p, 1 << 20);
 *
 * A handle is copied with a *light* reference, which is cheap and does not fight over a shared cache line. A default-constructed
 * or moved-from handle is empty, and using it is a `tenure::logic_error` that says so.
 */

#pragma once

#include <tenure/aligned.hpp>
#include <tenure/error.hpp>
#include <tenure/stream.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace tenure {

namespace mr {

class resource;

/** The figures of a resource, in bytes: see `tenure_info`. */
using resource_info = ::tenure_info;

namespace detail {

/** The resources that exist once per process: a handle of one can be made without calling anything. */
enum class process_resource : std::uint8_t { none, cuda, managed, pinned, system };

/**
 * What stands in a handle's place until the resource of this kind is asked for: values that no handle has, just under
 * `TENURE_RESOURCE_CURRENT`. So a `resource` is one word, and a process-wide one is made without calling anything.
 */
constexpr tenure_resource stand_in(process_resource kind) noexcept
{
  return kind == process_resource::none ? TENURE_RESOURCE_NULL
                                        : TENURE_RESOURCE_CURRENT - static_cast<tenure_resource>(kind);
}
/** Which kind a value stands in for; `none` for a handle. */
constexpr process_resource stands_for(tenure_resource value) noexcept
{
  auto const kind = TENURE_RESOURCE_CURRENT - value;
  return kind >= 1 && kind <= static_cast<tenure_resource>(process_resource::system) ? static_cast<process_resource>(kind)
                                                                                     : process_resource::none;
}

/** The process's own handle of such a resource. It is never given back, as the resource is never closed. */
template <process_resource Kind>
tenure_resource process_handle()
{
  static tenure_resource const handle = [] {
    tenure_resource made = TENURE_RESOURCE_NULL;
    if constexpr (Kind == process_resource::cuda) {
      ::tenure::detail::check(TENURE_DETAIL_CALL(cuda_resource)(&made));
    } else if constexpr (Kind == process_resource::managed) {
      ::tenure::detail::check(TENURE_DETAIL_CALL(managed_resource)(&made));
    } else if constexpr (Kind == process_resource::pinned) {
      ::tenure::detail::check(TENURE_DETAIL_CALL(pinned_resource)(&made));
    } else {
      ::tenure::detail::check(TENURE_DETAIL_CALL(system_resource)(&made));
    }
    return made;
  }();
  return handle;
}

inline tenure_resource process_handle(process_resource kind)
{
  switch (kind) {
    case process_resource::cuda: return process_handle<process_resource::cuda>();
    case process_resource::managed: return process_handle<process_resource::managed>();
    case process_resource::pinned: return process_handle<process_resource::pinned>();
    case process_resource::system: return process_handle<process_resource::system>();
    case process_resource::none: break;
  }
  ::tenure::detail::raise_own<logic_error>(
    TENURE_ERROR_BAD_HANDLE,
    "tenure: this resource is empty: it was default-constructed or moved from; give it a resource first, such as "
    "get_current_device_resource() or a pool_memory_resource with an upstream");
}

}  // namespace detail

/**
 * A parameter type, as `std::string_view` is one for strings: it names a resource for the time of a call and owns nothing.
 * Functions that keep the resource keep a `resource` made of it. Left out, it is the current resource, which the function that
 * is called reads from the table once. Do not store it.
 */
class resource_ref {
 public:
  /** The current resource of the device that the call is about. */
  resource_ref() noexcept : handle_(TENURE_RESOURCE_CURRENT) {}
  /** A resource that lives during the call. Throws when it is empty. */
  resource_ref(resource const& from);  // NOLINT(google-explicit-constructor)
  /** A handle of the C interface, which stays with its owner. */
  explicit resource_ref(tenure_resource borrowed) noexcept : handle_(borrowed) {}

  /** The handle; not to be released. */
  [[nodiscard]] tenure_resource handle() const noexcept { return handle_; }

  /** As `resource::allocate`. */
  [[nodiscard]] void* allocate(cuda_stream_view stream,
                               std::size_t bytes,
                               std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT) const
  {
    void* out = nullptr;
    ::tenure::detail::check(TENURE_DETAIL_CALL(allocate)(handle_, bytes, alignment, stream.native(), &out));
    return out;
  }
  /**
   * As `resource::deallocate`. Where this names the current resource, that is the one of *now*: name a resource for what was
   * allocated before.
   */
  void deallocate(cuda_stream_view stream,
                  void* ptr,
                  std::size_t bytes,
                  std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT) const
  {
    ::tenure::detail::check(TENURE_DETAIL_CALL(deallocate)(handle_, ptr, bytes, alignment, stream.native()));
  }
  /** As `resource::allocate_sync`. */
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT) const
  {
    void* out = nullptr;
    ::tenure::detail::check(TENURE_DETAIL_CALL(allocate_sync)(handle_, bytes, alignment, &out));
    return out;
  }
  /** As `resource::deallocate_sync`, except that it throws. */
  void deallocate_sync(void* ptr, std::size_t bytes, std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT) const
  {
    ::tenure::detail::check(TENURE_DETAIL_CALL(deallocate_sync)(handle_, ptr, bytes, alignment));
  }

  /** Whether both name one resource. */
  friend bool operator==(resource_ref a, resource_ref b) noexcept
  {
    std::uint32_t same = a.handle_ == b.handle_ ? 1 : 0;
    return same != 0 || (TENURE_DETAIL_CALL(resource_same)(a.handle_, b.handle_, &same) == TENURE_OK && same != 0);
  }
  friend bool operator!=(resource_ref a, resource_ref b) noexcept { return !(a == b); }

 private:
  tenure_resource handle_;
};

/** An owning handle of any resource. */
class resource {
 public:
  /** Empty. */
  resource() noexcept = default;
  resource(resource const& other)
  {
    if (other.counted()) {
      ::tenure::detail::check(TENURE_DETAIL_CALL(resource_retain_light)(other.handle_, &handle_));
    } else {
      handle_ = other.handle_;
    }
  }
  resource(resource&& other) noexcept : handle_(other.handle_)
  {
    // The resources of the process stay ready, as all that this could leave behind for them is the same again.
    if (other.counted()) { other.handle_ = TENURE_RESOURCE_NULL; }
  }
  resource& operator=(resource other) noexcept
  {
    swap(*this, other);
    return *this;
  }
  ~resource()
  {
    if (counted()) { ::tenure::detail::finish(TENURE_DETAIL_CALL(resource_release)(handle_)); }
  }
  friend void swap(resource& a, resource& b) noexcept { std::swap(a.handle_, b.handle_); }

  /** A handle of what a parameter names. The current resource is looked up now. */
  explicit resource(resource_ref from)
  {
    auto const handle = from.handle();
    ::tenure::detail::check(handle == TENURE_RESOURCE_CURRENT ? TENURE_DETAIL_CALL(current_get)(-1, &handle_)
                                                              : TENURE_DETAIL_CALL(resource_retain)(handle, &handle_));
  }
  /** Takes over a reference that a function of the C interface gave. */
  [[nodiscard]] static resource from_handle(tenure_resource owned) noexcept
  {
    resource made;
    made.handle_ = owned;
    return made;
  }
  /** One more reference to what `borrowed` refers to, which stays with its owner. */
  [[nodiscard]] static resource retain(tenure_resource borrowed) { return resource(resource_ref(borrowed)); }
  /** The resource of this id, or an empty handle when it is gone. */
  [[nodiscard]] static resource from_id(std::uint64_t id)
  {
    resource made;
    ::tenure::detail::check(TENURE_DETAIL_CALL(resource_from_id)(id, &made.handle_));
    return made;
  }
  /** Gives a reference to the caller, who releases it with `tenure_resource_release`; this handle is empty afterwards. */
  [[nodiscard]] tenure_resource release()
  {
    if (!counted()) { ::tenure::detail::check(TENURE_DETAIL_CALL(resource_retain)(handle(), &handle_)); }
    return std::exchange(handle_, TENURE_RESOURCE_NULL);
  }
  /** The handle for calls of the C interface; it stays with this object. */
  [[nodiscard]] tenure_resource handle() const
  {
    return counted() ? handle_ : detail::process_handle(detail::stands_for(handle_));
  }
  /** Whether there is a resource. */
  explicit operator bool() const noexcept { return handle_ != TENURE_RESOURCE_NULL; }
  /** Lets go of the resource. */
  void reset() noexcept { *this = resource(); }

  /**
   * Allocates `bytes` bytes, usable in the order of `stream`. 0 bytes give null. The caller frees them with `deallocate`, or
   * hands them to a buffer with `device_buffer::adopt`; the resource lives until then.
   */
  [[nodiscard]] void* allocate(cuda_stream_view stream,
                               std::size_t bytes,
                               std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT)
  {
    void* out = nullptr;
    ::tenure::detail::check(TENURE_DETAIL_CALL(allocate)(handle(), bytes, alignment, stream.native(), &out));
    return out;
  }
  /** Frees in the order of `stream`. Throws `ownership_error`, and changes nothing, for what is not a block of this resource. */
  void deallocate(cuda_stream_view stream,
                  void* ptr,
                  std::size_t bytes,
                  std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT)
  {
    ::tenure::detail::check(TENURE_DETAIL_CALL(deallocate)(handle(), ptr, bytes, alignment, stream.native()));
  }
  /**
   * The same as CCCL asks for it, in the order of a `cuda::stream_ref`. Its erased types let no exception out of a free, so a
   * wrong one goes to the handler of wrong frees.
   */
  template <class StreamRef, std::enable_if_t<::tenure::detail::is_stream_ref<StreamRef>::value, int> = 0>
  void deallocate(StreamRef stream,
                  void* ptr,
                  std::size_t bytes,
                  std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT) noexcept
  {
    deallocate_or_report(cuda_stream_view(stream), ptr, bytes, alignment);
  }
  /** `deallocate` for places where nothing can be thrown: a wrong free goes to the handler of wrong frees. */
  void deallocate_or_report(cuda_stream_view stream,
                            void* ptr,
                            std::size_t bytes,
                            std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT) noexcept
  {
    ::tenure::detail::call_and_report([&] { deallocate(stream, ptr, bytes, alignment); });
  }
  /**
   * Allocates `count` blocks, of `bytes[i]` bytes each, into `out`: all of them, or an exception and none. 0 bytes give null.
   * Each is freed by itself with `deallocate`, or with others.
   */
  void allocate_many(cuda_stream_view stream,
                     std::size_t const* bytes,
                     std::size_t count,
                     void** out,
                     std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT)
  {
    ::tenure::detail::check(
      TENURE_DETAIL_CALL(allocate_many)(handle(), count, bytes, alignment, stream.native(), out));
  }
  /** The same for a vector of sizes. */
  [[nodiscard]] std::vector<void*> allocate_many(cuda_stream_view stream,
                                                 std::vector<std::size_t> const& bytes,
                                                 std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT)
  {
    std::vector<void*> out(bytes.size(), nullptr);
    allocate_many(stream, bytes.data(), bytes.size(), out.data(), alignment);
    return out;
  }
  /**
   * Frees `count` blocks in the order of `stream`; null with 0 bytes is passed over. Each is checked: one that is wrong stays
   * as it is, every other is freed, and the exception is that of the first wrong one, whose place is in its text and in
   * `wrong` (may be null, `count` where there is none).
   */
  void deallocate_many(cuda_stream_view stream,
                       void* const* ptrs,
                       std::size_t const* bytes,
                       std::size_t count,
                       std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT,
                       std::size_t* wrong    = nullptr)
  {
    ::tenure::detail::check(
      TENURE_DETAIL_CALL(deallocate_many)(handle(), count, ptrs, bytes, alignment, stream.native(), wrong));
  }
  /** The same for vectors; throws `invalid_argument`, and frees nothing, where they are not of one length. */
  void deallocate_many(cuda_stream_view stream,
                       std::vector<void*> const& ptrs,
                       std::vector<std::size_t> const& bytes,
                       std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT)
  {
    if (ptrs.size() != bytes.size()) {
      ::tenure::detail::raise_own<invalid_argument>(TENURE_ERROR_INVALID_ARGUMENT,
                                                    std::to_string(ptrs.size()) + " pointers and " +
                                                      std::to_string(bytes.size()) +
                                                      " sizes: give one size for each block");
    }
    deallocate_many(stream, ptrs.data(), bytes.data(), ptrs.size(), alignment);
  }
  /** Allocates memory that is usable on any stream at return. */
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT)
  {
    void* out = nullptr;
    ::tenure::detail::check(TENURE_DETAIL_CALL(allocate_sync)(handle(), bytes, alignment, &out));
    return out;
  }
  /**
   * Frees memory that nothing uses any more. CCCL calls this where nothing can be thrown, so a wrong free goes to the handler of
   * wrong frees, and changes nothing.
   */
  void deallocate_sync(void* ptr, std::size_t bytes, std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT) noexcept
  {
    ::tenure::detail::call_and_report([&] {
      ::tenure::detail::check(TENURE_DETAIL_CALL(deallocate_sync)(handle(), ptr, bytes, alignment));
    });
  }

  /** A number that no other resource of the process ever has. */
  [[nodiscard]] std::uint64_t id() const
  {
    std::uint64_t id = 0;
    ::tenure::detail::check(TENURE_DETAIL_CALL(resource_id)(handle(), &id));
    return id;
  }
  /** The kind, such as "pool". Valid while the resource lives. */
  [[nodiscard]] std::string_view kind() const
  {
    char const* kind = nullptr;
    ::tenure::detail::check(TENURE_DETAIL_CALL(resource_kind)(handle(), &kind));
    return kind != nullptr ? std::string_view(kind) : std::string_view();
  }
  /** The device; -1 when it follows from the stream of each call. */
  [[nodiscard]] cuda_device_id device() const
  {
    std::int32_t device = -1;
    ::tenure::detail::check(TENURE_DETAIL_CALL(resource_device)(handle(), &device));
    return cuda_device_id{device};
  }
  /** `TENURE_DEVICE_ACCESSIBLE` and so on. */
  [[nodiscard]] std::uint32_t properties() const
  {
    std::uint32_t properties = 0;
    ::tenure::detail::check(TENURE_DETAIL_CALL(resource_properties)(handle(), &properties));
    return properties;
  }
  [[nodiscard]] bool is_device_accessible() const { return (properties() & TENURE_DEVICE_ACCESSIBLE) != 0; }
  [[nodiscard]] bool is_host_accessible() const { return (properties() & TENURE_HOST_ACCESSIBLE) != 0; }
  /** The figures. */
  [[nodiscard]] resource_info info() const
  {
    resource_info info{};
    info.size = sizeof info;
    ::tenure::detail::check(TENURE_DETAIL_CALL(resource_info)(handle(), &info));
    return info;
  }
  /** The resource from which this one takes its memory; empty where there is none. */
  [[nodiscard]] resource get_upstream_resource() const
  {
    resource upstream;
    ::tenure::detail::check(TENURE_DETAIL_CALL(resource_upstream)(handle(), &upstream.handle_));
    return upstream;
  }
  /** Whether a live allocation that was asked of this very resource contains `ptr`. */
  [[nodiscard]] bool owns(void const* ptr) const
  {
    std::uint32_t owns = 0;
    ::tenure::detail::check(TENURE_DETAIL_CALL(resource_owns)(handle(), ptr, &owns));
    return owns != 0;
  }
  /** Gives back what is cached, down to `keep_bytes`; returns how many bytes went. */
  std::size_t trim(std::size_t keep_bytes = 0)
  {
    std::size_t released = 0;
    ::tenure::detail::check(TENURE_DETAIL_CALL(resource_trim)(handle(), keep_bytes, &released));
    return released;
  }

  /** Whether both are handles of one resource. Empty handles are equal. */
  friend bool operator==(resource const& a, resource const& b) noexcept
  {
    if (!a || !b) { return !a && !b; }
    if (a.handle_ == b.handle_) { return true; }
    std::uint32_t same = 0;
    try {
      return TENURE_DETAIL_CALL(resource_same)(a.handle(), b.handle(), &same) == TENURE_OK && same != 0;
    } catch (...) {
      return false;  // a resource that cannot even be named is no other's equal
    }
  }
  friend bool operator!=(resource const& a, resource const& b) noexcept { return !(a == b); }

 protected:
  explicit resource(detail::process_resource kind) noexcept : handle_(detail::stand_in(kind)) {}
  struct adopt_tag {};
  resource(adopt_tag, tenure_resource owned) noexcept : handle_(owned) {}

  /** A named figure of the concrete kind. */
  [[nodiscard]] std::uint64_t property(char const* name) const
  {
    std::uint64_t value = 0;
    ::tenure::detail::check(TENURE_DETAIL_CALL(resource_property)(handle(), name, &value));
    return value;
  }

 private:
  /** Whether this object has a reference to give back. */
  [[nodiscard]] bool counted() const noexcept
  {
    return handle_ != TENURE_RESOURCE_NULL && detail::stands_for(handle_) == detail::process_resource::none;
  }

  tenure_resource handle_{TENURE_RESOURCE_NULL};
};

inline resource_ref::resource_ref(resource const& from) : handle_(from.handle()) {}

}  // namespace mr

namespace mr {

/** A parameter that names a resource whose memory the host can use: the resource is asked, and another one is refused. */
class host_resource_ref : public resource_ref {
 public:
  /** A resource that lives during the call. Throws `invalid_argument` where the host cannot use its memory. */
  host_resource_ref(resource const& from)  // NOLINT(google-explicit-constructor)
    : resource_ref(from)
  {
    if (!from.is_host_accessible()) {
      ::tenure::detail::raise_own<invalid_argument>(
        TENURE_ERROR_INVALID_ARGUMENT,
        "tenure: the host cannot use the memory of this " + std::string(from.kind()) +
          " resource; pass one of pinned, managed or system memory");
    }
  }
};

}  // namespace mr

// RMM's names for the parameter types. One type serves both ways of allocating.
using device_async_resource_ref      = mr::resource_ref;       ///< Names a resource.
using device_resource_ref            = mr::resource_ref;       ///< Names a resource.
using host_async_resource_ref        = mr::host_resource_ref;  ///< Names a resource of memory that the host can use.
using host_resource_ref              = mr::host_resource_ref;  ///< Names a resource of memory that the host can use.
using host_device_async_resource_ref = mr::host_resource_ref;  ///< Names a resource of memory that both can use.
using host_device_resource_ref       = mr::host_resource_ref;  ///< Names a resource of memory that both can use.

/** A parameter of what `from` points to. Throws where it is null. */
template <class Resource>
[[nodiscard]] device_async_resource_ref to_device_async_resource_ref_checked(Resource* from)
{
  if (from == nullptr) {
    detail::raise_own<logic_error>(TENURE_ERROR_INVALID_ARGUMENT,
                                   "tenure: the pointer to a resource is null; pass one to a resource that lives during the call");
  }
  return device_async_resource_ref(*from);
}

/** Who was asked for the smallest live allocation around a pointer. */
struct ownership {
  mr::resource owner{};  ///< Empty when no resource of tenure's made it.
  void* base{};          ///< Where the allocation begins.
  std::size_t bytes{};   ///< Its size.

  explicit operator bool() const noexcept { return static_cast<bool>(owner); }
};

/** Who was asked for the smallest live allocation around `ptr`. */
[[nodiscard]] inline ownership owner_of(void const* ptr)
{
  ownership found;
  tenure_resource owner = TENURE_RESOURCE_NULL;
  detail::check(TENURE_DETAIL_CALL(owner_of)(ptr, &owner, &found.base, &found.bytes));
  found.owner = mr::resource::from_handle(owner);
  return found;
}

}  // namespace tenure

/** Handles of one resource have one hash; empty ones have one too. */
template <>
struct std::hash<tenure::mr::resource> {
  std::size_t operator()(tenure::mr::resource const& resource) const
  {
    return std::hash<std::uint64_t>()(resource ? resource.id() : 0);
  }
};
