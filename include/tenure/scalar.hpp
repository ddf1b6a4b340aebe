// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/scalar.hpp
 *
 * `tenure::device_scalar<T>`: one value on a device.
 */

#pragma once

#include <tenure/uvector.hpp>

#include <cstddef>
#include <utility>

namespace tenure {

/** One value on a device. */
template <class T>
class device_scalar {
 public:
  using value_type    = T;
  using size_type     = std::size_t;
  using reference     = T&;
  using pointer       = T*;
  using const_pointer = T const*;

  /** Empty: no memory, no resource, no stream. */
  device_scalar() noexcept = default;
  /** A value that is not initialised. */
  explicit device_scalar(cuda_stream_view stream, mr::resource_ref resource = {}) : storage_(1, stream, resource) {}
  /** A copy of `value`. Waits for the copy: `value` may be a temporary. */
  device_scalar(value_type const& value, cuda_stream_view stream, mr::resource_ref resource = {})
    : storage_(1, stream, resource)
  {
    storage_.set_element(0, value, stream);
  }
  /** A copy. */
  device_scalar(device_scalar const& other, cuda_stream_view stream, mr::resource_ref resource = {})
    : storage_(other.storage_, stream, resource)
  {
  }
  device_scalar(device_scalar const&)                = delete;
  device_scalar& operator=(device_scalar const&)     = delete;
  device_scalar(device_scalar&&) noexcept            = default;
  device_scalar& operator=(device_scalar&&) noexcept = default;
  ~device_scalar()                                   = default;

  /** Reads the value and waits for it. */
  [[nodiscard]] value_type value(cuda_stream_view stream) const { return storage_.front_element(stream); }
  /** Enqueues writing the value, which must stay alive until `stream` got there: a temporary is refused. */
  void set_value_async(value_type const& value, cuda_stream_view stream) { storage_.set_element_async(0, value, stream); }
  void set_value_async(value_type&&, cuda_stream_view) = delete;
  /** Enqueues setting the value to zero bytes. */
  void set_value_to_zero_async(cuda_stream_view stream) { storage_.set_element_to_zero_async(0, stream); }

  /** Where the value is, on the device; null where there is none. */
  [[nodiscard]] pointer data() noexcept { return storage_.data(); }
  [[nodiscard]] const_pointer data() const noexcept { return storage_.data(); }
  /** 1, or 0 when there is no value. */
  [[nodiscard]] size_type size() const noexcept { return storage_.size(); }
  [[nodiscard]] bool is_empty() const noexcept { return storage_.is_empty(); }
  explicit operator bool() const noexcept { return static_cast<bool>(storage_); }
  /** Gives the storage to the caller; this object is empty afterwards. */
  [[nodiscard]] device_buffer release() noexcept { return storage_.release(); }

  [[nodiscard]] mr::resource memory_resource() const { return storage_.memory_resource(); }
  [[nodiscard]] cuda_stream_view stream() const { return storage_.stream(); }
  void set_stream(cuda_stream_view stream) { storage_.set_stream(stream); }
  void record_stream(cuda_stream_view stream) { storage_.record_stream(stream); }

  /** Whether both are the same buffer. Values are not compared. */
  friend bool operator==(device_scalar const& a, device_scalar const& b) noexcept { return a.storage_ == b.storage_; }
  friend bool operator!=(device_scalar const& a, device_scalar const& b) noexcept { return !(a == b); }

 private:
  device_uvector<T> storage_{};
};

}  // namespace tenure
