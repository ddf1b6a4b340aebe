// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/callback.hpp
 *
 * Resources made of your own code: two functions (`callback_memory_resource`), or an object (`make_resource`).
 *
 *     struct arena {
 *       void* allocate(tenure::cuda_stream_view stream, std::size_t bytes, std::size_t alignment);
 *       void deallocate(tenure::cuda_stream_view stream, void* ptr, std::size_t bytes, std::size_t alignment);
 *       std::size_t trim(std::size_t keep_bytes);  // optional; returns how many bytes went
 *     };
 *     tenure::mr::resource mr = tenure::mr::make_resource(arena{}, {"arena"});
 *     arena* mine = tenure::resource_cast<arena>(mr);
 *
 * The functions, or the object, are moved into the resource and destroyed with it, once, on any thread, after the last buffer.
 * They are called on any thread, with no lock of the library held, and may allocate. An exception from `allocate` reaches the
 * caller as the same exception, whatever languages lie between; a `std::bad_alloc`, or a null result, is out of memory to
 * everybody else. An exception from `deallocate` is reported in one line on stderr and never stops the free.
 */

#pragma once

#include <tenure/resource.hpp>
#include <tenure/resources.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace tenure {
namespace mr {

/** What a resource of user code says of itself. */
struct resource_traits {
  std::string kind{"callback"};                                                     ///< A short name.
  std::uint32_t properties{TENURE_DEVICE_ACCESSIBLE | TENURE_STREAM_ORDERED};  ///< `TENURE_...`
  cuda_device_id device{};                                                          ///< -1: it follows from the stream.
};

namespace detail {

template <class Object, class = void>
struct can_trim : std::false_type {};
template <class Object>
struct can_trim<Object, std::void_t<decltype(std::declval<Object&>().trim(std::size_t{}))>> : std::true_type {};

/** The functions of the C interface over an object. */
template <class Object>
struct object_functions {
  static tenure_status allocate(void* context, tenure_request const* request, tenure_stream stream, void** out) noexcept
  {
    try {
      void* const ptr =
        static_cast<Object*>(context)->allocate(cuda_stream_view(stream), request->bytes, request->alignment);
      if (ptr == nullptr) {
        (void)TENURE_DETAIL_CALL(error_set)(
          TENURE_ERROR_OUT_OF_MEMORY, "a C++ resource returned null for an allocation", 0, nullptr, nullptr);
        return TENURE_ERROR_OUT_OF_MEMORY;
      }
      *out = ptr;
      return TENURE_OK;
    } catch (...) {
      return ::tenure::detail::hand_over_exception();
    }
  }
  static tenure_status deallocate(void* context,
                                  void* ptr,
                                  tenure_request const* request,
                                  tenure_stream stream) noexcept
  {
    try {
      static_cast<Object*>(context)->deallocate(cuda_stream_view(stream), ptr, request->bytes, request->alignment);
      return TENURE_OK;
    } catch (...) {
      // The library reports it with the exception's text, and counts the block as freed.
      return ::tenure::detail::hand_over_exception();
    }
  }
  static tenure_status trim(void* context, std::size_t keep_bytes, std::size_t* released) noexcept
  {
    try {
      std::size_t const went = static_cast<Object*>(context)->trim(keep_bytes);
      if (released != nullptr) { *released = went; }
      return TENURE_OK;
    } catch (...) {
      return ::tenure::detail::hand_over_exception();
    }
  }
  static void drop(void* context) noexcept { delete static_cast<Object*>(context); }

  static tenure_resource make(std::unique_ptr<Object> object, resource_traits const& traits)
  {
    tenure_resource_vtable vtable{};
    vtable.size       = sizeof vtable;
    vtable.kind       = traits.kind.c_str();
    vtable.properties = traits.properties;
    vtable.device     = traits.device.value();
    vtable.allocate   = &allocate;
    vtable.deallocate = &deallocate;
    vtable.drop       = &drop;
    if constexpr (can_trim<Object>::value) { vtable.trim = &trim; }
    tenure_resource made = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(callback_create)(&vtable, object.get(), &made));
    (void)object.release();
    return made;
  }
};

}  // namespace detail

/** Makes a resource of an object, which is moved in. See the top of this file. */
template <class Object>
[[nodiscard]] resource make_resource(Object object, resource_traits const& traits = {})
{
  return resource::from_handle(
    detail::object_functions<Object>::make(std::make_unique<Object>(std::move(object)), traits));
}

/** Allocates `bytes` bytes in the order of the stream; the last argument is the constructor's. */
using allocate_callback_t = std::function<void*(std::size_t bytes, cuda_stream_view stream, void* arg)>;
/** Frees in the order of the stream. */
using deallocate_callback_t = std::function<void(void* ptr, std::size_t bytes, cuda_stream_view stream, void* arg)>;

/** A resource of two functions, with RMM's signatures. */
class callback_memory_resource : public resource {
 public:
  using allocate_callback_t   = mr::allocate_callback_t;    ///< The function that allocates.
  using deallocate_callback_t = mr::deallocate_callback_t;  ///< The function that frees.

  /** Empty. */
  callback_memory_resource() noexcept = default;
  /** A resource of these functions, which are moved in. What the arguments point to must outlive the resource. */
  callback_memory_resource(allocate_callback_t allocate_callback,
                           deallocate_callback_t deallocate_callback,
                           void* allocate_callback_arg   = nullptr,
                           void* deallocate_callback_arg = nullptr,
                           resource_traits const& traits = {})
    : resource(adopt_tag{},
               make({std::move(allocate_callback),
                     std::move(deallocate_callback),
                     allocate_callback_arg,
                     deallocate_callback_arg},
                    traits))
  {
  }

 private:
  friend struct cast_access;
  struct functions {
    allocate_callback_t on_allocate;
    deallocate_callback_t on_deallocate;
    void* allocate_arg;
    void* deallocate_arg;

    void* allocate(cuda_stream_view stream, std::size_t bytes, std::size_t /*alignment*/)
    {
      return on_allocate(bytes, stream, allocate_arg);
    }
    void deallocate(cuda_stream_view stream, void* ptr, std::size_t bytes, std::size_t /*alignment*/)
    {
      on_deallocate(ptr, bytes, stream, deallocate_arg);
    }
  };
  static tenure_resource make(functions callbacks, resource_traits const& traits)
  {
    if (!callbacks.on_allocate || !callbacks.on_deallocate) {
      ::tenure::detail::raise_own<invalid_argument>(TENURE_ERROR_INVALID_ARGUMENT,
                                                    "tenure: a callback_memory_resource needs both functions; one of them is empty");
    }
    return detail::object_functions<functions>::make(std::make_unique<functions>(std::move(callbacks)), traits);
  }
};

/** The context of a resource that was made of an `Object`, else null. */
struct cast_access {
  template <class Object>
  static Object* context(resource const& from)
  {
    void* context = nullptr;
    ::tenure::detail::check(
      TENURE_DETAIL_CALL(callback_context)(from.handle(), &detail::object_functions<Object>::drop, &context));
    return static_cast<Object*>(context);
  }
  static bool is_callback(resource const& from) { return context<callback_memory_resource::functions>(from) != nullptr; }
};

}  // namespace mr

/**
 * The concrete class behind a handle, or nothing when it is another one:
 *
 *     if (auto pool = tenure::resource_cast<tenure::mr::pool_memory_resource>(mr)) { use(pool->pool_size()); }
 *
 * For a class of `tenure::mr` the answer is a `std::optional` handle of that class. For any other type it is a pointer to the
 * object that `make_resource` took, which is valid while the resource lives, or null.
 */
template <class Kind>
[[nodiscard]] auto resource_cast(mr::resource const& from)
{
  if constexpr (std::is_base_of_v<mr::resource, Kind>) {
    std::optional<Kind> found;
    bool matches = static_cast<bool>(from);
    if constexpr (std::is_same_v<Kind, mr::callback_memory_resource>) {
      matches = matches && mr::cast_access::is_callback(from);
    } else {
      matches = matches && from.kind() == Kind::kind_name;
    }
    if (matches) { static_cast<mr::resource&>(found.emplace()) = from; }
    return found;
  } else {
    return from ? mr::cast_access::context<Kind>(from) : static_cast<Kind*>(nullptr);
  }
}

}  // namespace tenure
