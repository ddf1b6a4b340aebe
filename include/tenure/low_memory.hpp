// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/low_memory.hpp
 *
 * Asking the rest of the process for memory, and being asked.
 *
 * Where a pool is about to fail it first makes the other pools of the device give back what is idle, then calls the hooks,
 * then fails. The other way round, a library that needs memory calls `low_memory`.
 */

#pragma once

#include <tenure/device.hpp>
#include <tenure/error.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace tenure {

/**
 * Calls a function whenever a pool is about to fail, while it lives: without a lock, on any thread, perhaps on several at once.
 * The function may free, allocate and register; what fails in it calls nobody. What it throws is noted and stops nothing.
 */
class low_memory_hook {
 public:
  /** What is called: the device and the bytes that are wanted there; it says how many bytes it freed. */
  using function = std::function<std::size_t(cuda_device_id device, std::size_t bytes)>;

  /** Asks nobody. */
  low_memory_hook() noexcept = default;
  explicit low_memory_hook(function free_some)
  {
    if (!free_some) {
      detail::raise_own<invalid_argument>(TENURE_ERROR_INVALID_ARGUMENT,
                                          "tenure: a low-memory hook needs a function; the one given is empty");
    }
    auto owned = std::make_unique<function>(std::move(free_some));
    detail::check(
      TENURE_DETAIL_CALL(low_memory_add)(&call, tenure_owner{owned.get(), &detail::delete_object<function>}, &hook_));
    (void)owned.release();
  }
  low_memory_hook(low_memory_hook&& other) noexcept : hook_(std::exchange(other.hook_, 0)) {}
  low_memory_hook& operator=(low_memory_hook&& other) noexcept
  {
    if (this != &other) {
      remove();
      hook_ = std::exchange(other.hook_, 0);
    }
    return *this;
  }
  low_memory_hook(low_memory_hook const&)            = delete;
  low_memory_hook& operator=(low_memory_hook const&) = delete;
  ~low_memory_hook() { remove(); }

  /** Stops being asked. A call that is under way on another thread may still end after this. */
  void remove() noexcept
  {
    if (hook_ != 0) { detail::finish(TENURE_DETAIL_CALL(low_memory_remove)(std::exchange(hook_, 0))); }
  }
  explicit operator bool() const noexcept { return hook_ != 0; }

 private:
  static tenure_status call(void* context, std::int32_t device, std::uint64_t bytes, std::uint64_t* released) noexcept
  {
    try {
      *released = (*static_cast<function*>(context))(cuda_device_id{device}, static_cast<std::size_t>(bytes));
      return TENURE_OK;
    } catch (...) {
      return detail::hand_over_exception();
    }
  }
  tenure_low_memory_hook hook_{0};
};

/**
 * Makes the pools of a device give back idle memory until `bytes` bytes went, or all that is idle with 0; says how many did. May
 * wait for the device. Release thresholds do not count.
 */
inline std::size_t low_memory(cuda_device_id device = {}, std::size_t bytes = 0)
{
  std::uint64_t released = 0;
  detail::check(TENURE_DETAIL_CALL(low_memory)(device.value(), bytes, &released));
  return static_cast<std::size_t>(released);
}

}  // namespace tenure
