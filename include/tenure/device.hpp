// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/device.hpp
 *
 * Devices: their ids, and the one that is current on a thread.
 */

#pragma once

#include <tenure/aligned.hpp>
#include <tenure/error.hpp>

#include <cstddef>
#include <string>
#include <utility>

namespace tenure {

/** The number of a device; -1 means "the device that is current on this thread". */
struct cuda_device_id {
  using value_type = int;

  /** The current device. */
  constexpr cuda_device_id() noexcept = default;
  /** The device of this number. */
  explicit constexpr cuda_device_id(value_type id) noexcept : id_(id) {}

  [[nodiscard]] constexpr value_type value() const noexcept { return id_; }

  friend constexpr bool operator==(cuda_device_id a, cuda_device_id b) noexcept { return a.id_ == b.id_; }
  friend constexpr bool operator!=(cuda_device_id a, cuda_device_id b) noexcept { return a.id_ != b.id_; }

 private:
  value_type id_{-1};
};

/** The number of devices. */
[[nodiscard]] inline int get_num_cuda_devices()
{
  std::int32_t count = 0;
  detail::check(TENURE_DETAIL_CALL(device_count)(&count));
  return count;
}

/** The device that is current on this thread. */
[[nodiscard]] inline cuda_device_id get_current_cuda_device()
{
  std::int32_t device = 0;
  detail::check(TENURE_DETAIL_CALL(device_get_current)(&device));
  return cuda_device_id{device};
}

/** Makes a device current on this thread. */
inline void set_current_cuda_device(cuda_device_id device)
{
  detail::check(TENURE_DETAIL_CALL(device_set_current)(device.value()));
}

/** Waits for all work of a device. A stream capture that is under way goes on. */
inline void device_synchronize(cuda_device_id device = {})
{
  detail::check(TENURE_DETAIL_CALL(device_synchronize)(device.value()));
}

/** What a device is: its name, its memory, what it can do. */
[[nodiscard]] inline struct ::tenure_device_info device_info(cuda_device_id device = {})
{
  struct ::tenure_device_info info{};
  info.size = sizeof info;
  detail::check(TENURE_DETAIL_CALL(device_info)(device.value(), &info));
  return info;
}

/** Free and total bytes of the current device. */
[[nodiscard]] inline std::pair<std::size_t, std::size_t> available_device_memory()
{
  auto const info = device_info();
  return {static_cast<std::size_t>(info.free_bytes), static_cast<std::size_t>(info.total_bytes)};
}

/**
 * That many percent of what is free on the current device, lowered to a multiple of 256 bytes. Throws `invalid_argument` for
 * what is no percentage.
 */
[[nodiscard]] inline std::size_t percent_of_free_device_memory(int percent)
{
  if (percent < 0 || percent > 100) {
    detail::raise_own<invalid_argument>(TENURE_ERROR_INVALID_ARGUMENT,
                                        "tenure: " + std::to_string(percent) +
                                          " percent of the free memory were asked for; say 0 to 100");
  }
  auto const free = available_device_memory().first;
  return align_down(free / 100 * static_cast<std::size_t>(percent) + free % 100 * static_cast<std::size_t>(percent) / 100,
                    CUDA_ALLOCATION_ALIGNMENT);
}

/** Makes a device current on this thread while it lives, and the one from before afterwards. */
class cuda_set_device_raii {
 public:
  explicit cuda_set_device_raii(cuda_device_id device) : before_(get_current_cuda_device())
  {
    set_current_cuda_device(device);
  }
  cuda_set_device_raii(cuda_set_device_raii const&)            = delete;
  cuda_set_device_raii& operator=(cuda_set_device_raii const&) = delete;
  ~cuda_set_device_raii() { detail::finish(TENURE_DETAIL_CALL(device_set_current)(before_.value())); }

 private:
  cuda_device_id before_;
};

}  // namespace tenure
