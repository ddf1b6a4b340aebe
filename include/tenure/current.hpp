// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/current.hpp
 *
 * The one table of current resources: one entry per device, in the library, for every language of the process.
 *
 * - A getter returns an owning handle, so what it returned can be used even after the entry was replaced.
 * - A setter returns the previous resource, owned. Replacing an entry never harms memory that was handed out.
 * - `using_resource` binds the entry for this thread and puts it back on every way out, exceptions included.
 *
 * Resolve once and pass on: read the table at your public surface, and hand that very handle to whatever you call.
 */

#pragma once

#include <tenure/device.hpp>
#include <tenure/resource.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace tenure {
namespace mr {

/** The current resource of a device, scopes of this thread included. */
[[nodiscard]] inline resource get_per_device_resource(cuda_device_id device)
{
  tenure_resource out = TENURE_RESOURCE_NULL;
  ::tenure::detail::check(TENURE_DETAIL_CALL(current_get)(device.value(), &out));
  return resource::from_handle(out);
}

/** The current resource of the current device. */
[[nodiscard]] inline resource get_current_device_resource() { return get_per_device_resource(cuda_device_id{}); }

/** RMM's name; where theirs is a reference that dangles after the next setter, this one owns. */
[[nodiscard]] inline resource get_per_device_resource_ref(cuda_device_id device) { return get_per_device_resource(device); }

/** RMM's name; this one owns. */
[[nodiscard]] inline resource get_current_device_resource_ref() { return get_current_device_resource(); }

/** Replaces the current resource of a device and returns the previous one. The table holds its own reference. */
inline resource set_per_device_resource(cuda_device_id device, resource_ref next)
{
  tenure_resource previous = TENURE_RESOURCE_NULL;
  ::tenure::detail::check(TENURE_DETAIL_CALL(current_set)(device.value(), next.handle(), &previous));
  return resource::from_handle(previous);
}

/** Replaces the current resource of the current device and returns the previous one. */
inline resource set_current_device_resource(resource_ref next) { return set_per_device_resource(cuda_device_id{}, next); }

/** Puts the plain device resource back and returns the previous one. */
inline resource reset_per_device_resource(cuda_device_id device)
{
  tenure_resource previous = TENURE_RESOURCE_NULL;
  ::tenure::detail::check(TENURE_DETAIL_CALL(current_reset)(device.value(), &previous));
  return resource::from_handle(previous);
}

/** Puts the plain device resource back on the current device and returns the previous one. */
inline resource reset_current_device_resource() { return reset_per_device_resource(cuda_device_id{}); }

/**
 * Binds the current resource of a device for this thread while it lives. Scopes may end in any order and on any thread; each
 * removes its own binding. Moved-from scopes bind nothing.
 */
class using_resource {
 public:
  /** Binds nothing. */
  using_resource() noexcept = default;
  /** Binds the resource of the device that is current now. */
  explicit using_resource(resource_ref bound) : using_resource(cuda_device_id{}, bound) {}
  /** Binds the resource of a device. */
  using_resource(cuda_device_id device, resource_ref bound)
  {
    ::tenure::detail::check(TENURE_DETAIL_CALL(scope_enter)(device.value(), bound.handle(), &scope_));
  }
  using_resource(using_resource&& other) noexcept : scope_(std::exchange(other.scope_, 0)) {}
  using_resource& operator=(using_resource&& other) noexcept
  {
    if (this != &other) {
      exit();
      scope_ = std::exchange(other.scope_, 0);
    }
    return *this;
  }
  using_resource(using_resource const&)            = delete;
  using_resource& operator=(using_resource const&) = delete;
  ~using_resource() { exit(); }

  /** Ends the scope before its time. */
  void exit() noexcept
  {
    if (scope_ != 0) { ::tenure::detail::finish(TENURE_DETAIL_CALL(scope_exit)(std::exchange(scope_, 0))); }
  }
  /** Whether something is bound. */
  explicit operator bool() const noexcept { return scope_ != 0; }

 private:
  tenure_scope scope_{0};
};

/**
 * Calls a function whenever an entry of the table changes, while it lives: without a lock, one call at a time per device, with
 * the newest state. What the function throws is reported like a wrong free.
 */
class listener {
 public:
  /** What is called: the device, its current resource now (a handle of your own), and a number that rises with each change. */
  using function = std::function<void(cuda_device_id device, resource current, std::uint64_t version)>;

  /** Listens to nothing. */
  listener() noexcept = default;
  explicit listener(function on_change)
  {
    if (!on_change) {
      ::tenure::detail::raise_own<invalid_argument>(TENURE_ERROR_INVALID_ARGUMENT,
                                                    "tenure: a listener needs a function; the one given is empty");
    }
    auto owned = std::make_unique<function>(std::move(on_change));
    ::tenure::detail::check(TENURE_DETAIL_CALL(listener_add)(
      &call, tenure_owner{owned.get(), &::tenure::detail::delete_object<function>}, &listener_));
    (void)owned.release();
  }
  listener(listener&& other) noexcept : listener_(std::exchange(other.listener_, 0)) {}
  listener& operator=(listener&& other) noexcept
  {
    if (this != &other) {
      remove();
      listener_ = std::exchange(other.listener_, 0);
    }
    return *this;
  }
  listener(listener const&)            = delete;
  listener& operator=(listener const&) = delete;
  ~listener() { remove(); }

  /** Stops listening. A call that is under way on another thread may still end after this. */
  void remove() noexcept
  {
    if (listener_ != 0) { ::tenure::detail::finish(TENURE_DETAIL_CALL(listener_remove)(std::exchange(listener_, 0))); }
  }
  explicit operator bool() const noexcept { return listener_ != 0; }

 private:
  static void call(void* context, std::int32_t device, tenure_resource current, std::uint64_t version) noexcept
  {
    ::tenure::detail::call_and_report([&] {
      (*static_cast<function*>(context))(cuda_device_id{device}, resource::retain(current), version);
    });
  }
  tenure_listener listener_{0};
};

}  // namespace mr
}  // namespace tenure
