// SPDX-License-Identifier: Apache-2.0

/**
 * \file bridge.hpp
 *
 * The C++ half of the RMM bridge: tenure's resources as RMM's, and RMM's as tenure's.
 *
 *     RMM's device_buffer --owns--> any_resource --inline--> handle --counts--> resource of tenure's
 *     buffer of tenure's --counts--> resource of kind "rmm" --owns--> foreign --owns--> any_resource of RMM's
 *
 * - `handle` is what RMM stores: one reference, copied with each buffer. So a block goes home to the resource that made it
 *   whatever the tables say by then, and the resource lives as long as the block.
 * - `foreign` is what tenure stores of RMM's. With the Python object of the resource it also holds what RMM's C++ object only
 *   borrows (the functions of a CallbackMemoryResource).
 * - RMM's C++ table is read under its own lock and copied out: `get_per_device_resource_ref` gives a reference into the table
 *   that a `set` on another thread overwrites in place.
 *
 * Everything here is inline and hidden; what must be one per process (RMM's table, its exceptions) is RMM's, and exported by its
 * headers. One file is compiled for each minor version of RMM, whose types are in a namespace of that minor.
 */

#pragma once

#include <Python.h>

#include <tenure/python.hpp>
#include <tenure/rmm.hpp>

#include <rmm/mr/per_device_resource.hpp>

#include <cuda/memory_resource>
#include <cuda/stream_ref>

#include <cxxabi.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace tenure_bridge {

using any = ::cuda::mr::any_resource<::cuda::mr::device_accessible>;

/** What is allocated while it lives is RMM's in reports: all that RMM asks for, whoever asked RMM. Fails no allocation. */
class as_rmm {
 public:
  as_rmm() { (void)TENURE_DETAIL_CALL(library_set)(number(), &previous_); }
  as_rmm(as_rmm const&)            = delete;
  as_rmm& operator=(as_rmm const&) = delete;
  ~as_rmm() { (void)TENURE_DETAIL_CALL(library_set)(previous_, nullptr); }

 private:
  /** The number of the name; the program's own where the process has no name left. */
  static std::uint32_t number()
  {
    static std::uint32_t const known = [] {
      std::uint32_t found = 0;
      return TENURE_DETAIL_CALL(library_number)("rmm", &found) == TENURE_OK ? found : 0;
    }();
    return known;
  }

  std::uint32_t previous_{0};
};

/**
 * A resource of tenure's as RMM's C++ sees it: one word, stored inline in an `any_resource`, with RMM's exceptions. A type of its
 * own, so that what is found in RMM's table and has this type was made by this file, whatever headers others were compiled with.
 */
class handle : public ::tenure::mr::rmm_resource {
 public:
  using ::tenure::mr::rmm_resource::rmm_resource;

  void* allocate(::cuda::stream_ref stream, std::size_t bytes, std::size_t alignment)
  {
    as_rmm const counted;
    return ::tenure::mr::rmm_resource::allocate(stream, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment)
  {
    as_rmm const counted;
    return ::tenure::mr::rmm_resource::allocate_sync(bytes, alignment);
  }
};
static_assert(::cuda::mr::resource_with<handle, ::cuda::mr::device_accessible>);
// What is no larger is stored inline: a buffer of RMM's then needs no memory for its resource.
static_assert(sizeof(handle) <= 3 * sizeof(void*));

/** A resource of RMM's for tenure, with the Python object that stood in RMM's table, if one did. */
class foreign {
 public:
  foreign(any resource, PyObject* object) : resource_(std::move(resource)), object_(object) { Py_XINCREF(object_); }
  foreign(foreign&& other) noexcept
    : resource_(std::move(other.resource_)), object_(std::exchange(other.object_, nullptr))
  {
  }
  foreign(foreign const&)            = delete;
  foreign& operator=(foreign const&) = delete;
  foreign& operator=(foreign&&)      = delete;
  ~foreign()
  {
    // First: a pool of RMM's gives its memory back here, and the functions of a callback resource below it go with the object.
    resource_.reset();
    if (object_ == nullptr) { return; }
    // On any thread, and never once the interpreter is going: the resource is one of an interpreter's (TENURE_INTERPRETED).
    auto const state = PyGILState_Ensure();
    Py_DECREF(object_);
    PyGILState_Release(state);
  }

  void* allocate(::tenure::cuda_stream_view stream, std::size_t bytes, std::size_t alignment)
  {
    return resource_.allocate(::cuda::stream_ref{stream.value()}, bytes, alignment);
  }
  void deallocate(::tenure::cuda_stream_view stream, void* ptr, std::size_t bytes, std::size_t alignment)
  {
    resource_.deallocate(::cuda::stream_ref{stream.value()}, ptr, bytes, alignment);
  }

  [[nodiscard]] any const& resource() const noexcept { return resource_; }
  [[nodiscard]] PyObject* object() const noexcept { return object_; }

 private:
  any resource_;
  PyObject* object_;
};

/** An `any_resource` that can be empty, for Cython, which wants everything default-constructible. */
using held = std::shared_ptr<any>;

inline held hold(::rmm::device_async_resource_ref from) { return std::make_shared<any>(from); }

inline ::rmm::device_async_resource_ref ref_of(handle& from) { return ::rmm::device_async_resource_ref(from); }
inline ::rmm::device_async_resource_ref ref_of(held const& from) { return ::rmm::device_async_resource_ref(*from); }

/** What RMM's C++ table holds for a device; empty where nobody has set or asked yet. */
inline held table_get(int device)
{
  std::lock_guard<std::mutex> lock{::rmm::mr::detail::ref_map_lock()};
  auto const& map  = ::rmm::mr::detail::get_ref_map();
  auto const found = map.find(device);
  return found == map.end() ? nullptr : std::make_shared<any>(found->second);
}

/** Whether RMM's C++ table holds a resource that is equal to this one. They compare by functions of their own: not under the lock. */
inline bool table_holds(int device, held const& wanted)
{
  auto const entry = table_get(device);
  return entry != nullptr && wanted != nullptr && *entry == *wanted;
}

/** Sets the entry of RMM's C++ table alone; an empty one is RMM's initial resource. */
inline void table_set(int device, held const& wanted)
{
  // What was there goes after the lock: it may be the last reference to a pool.
  auto const before = wanted != nullptr
                        ? ::rmm::mr::set_per_device_resource(::rmm::cuda_device_id{device}, any(*wanted))
                        : ::rmm::mr::reset_per_device_resource(::rmm::cuda_device_id{device});
}

/** The resource of tenure's behind one of RMM's; empty where it is none. */
inline ::tenure::mr::resource inside(held const& from)
{
  if (from != nullptr) {
    if (auto const* const ours = ::cuda::mr::resource_cast<handle>(from.get())) { return *ours; }
  }
  return {};
}

/** A resource of tenure's over one of RMM's. `object`: the Python object of it, or null. */
inline ::tenure::mr::resource make_foreign(held const& from, PyObject* object, int device)
{
  ::tenure::mr::resource_traits traits;
  traits.kind   = "rmm";
  traits.device = ::tenure::cuda_device_id{device};
  if (object != nullptr) { traits.properties |= TENURE_INTERPRETED; }
  return ::tenure::mr::make_resource(foreign(*from, object), traits);
}

/** What `make_foreign` was given, where a resource of tenure's was made by it; else null and empty. */
inline std::pair<held, PyObject*> behind(::tenure::mr::resource const& from)
{
  auto const* const found = ::tenure::resource_cast<foreign>(from);
  if (found == nullptr) { return {nullptr, nullptr}; }
  return {std::make_shared<any>(found->resource()), found->object()};
}

/** The C++ class, as people read it. */
inline std::string class_name(held const& from)
{
  if (from == nullptr) { return "nothing yet"; }
  char const* const raw = from->type().name();
  int status            = 0;
  std::unique_ptr<char, void (*)(void*)> const text(abi::__cxa_demangle(raw, nullptr, nullptr, &status), &std::free);
  return status == 0 && text ? text.get() : raw;
}

}  // namespace tenure_bridge
