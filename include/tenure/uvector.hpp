// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/uvector.hpp
 *
 * `tenure::device_uvector<T>`: elements on a device that nobody initialises. Everything else is as in `device_buffer`.
 */

#pragma once

#include <tenure/buffer.hpp>

#include <cstddef>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>

namespace tenure {

/** Uninitialised elements on a device. Sizes are in elements. */
template <class T>
class device_uvector {
  static_assert(std::is_trivially_copyable_v<T>, "tenure: elements on a device are copied byte by byte");

 public:
  using value_type      = T;
  using size_type       = std::size_t;
  using reference       = T&;
  using const_reference = T const&;
  using pointer         = T*;
  using const_pointer   = T const*;
  using iterator        = pointer;
  using const_iterator  = const_pointer;
  using reverse_iterator       = std::reverse_iterator<iterator>;
  using const_reverse_iterator = std::reverse_iterator<const_iterator>;

  /** Empty: no memory, no resource, no stream. */
  device_uvector() noexcept = default;
  /** `size` elements; see `device_buffer`. */
  device_uvector(size_type size, cuda_stream_view stream, mr::resource_ref resource = {})
    : storage_(detail::bytes_of<T>(size), alignment(), stream, resource)
  {
  }
  /** A copy. */
  device_uvector(device_uvector const& other, cuda_stream_view stream, mr::resource_ref resource = {})
    : storage_(other.storage_, stream, resource)
  {
  }
  device_uvector(device_uvector const&)                = delete;
  device_uvector& operator=(device_uvector const&)     = delete;
  device_uvector(device_uvector&&) noexcept            = default;
  device_uvector& operator=(device_uvector&&) noexcept = default;
  ~device_uvector()                                    = default;

  /** Takes over a buffer whose bytes are elements. Throws when they are no whole number of them. */
  explicit device_uvector(device_buffer&& buffer) : storage_(whole(std::move(buffer))) {}
  /** Gives the storage to the caller; this object is empty afterwards. */
  [[nodiscard]] device_buffer release() noexcept { return std::move(storage_); }

  /** Where the element is, on the device. */
  [[nodiscard]] pointer element_ptr(size_type index) { return data() + in_range(index); }
  [[nodiscard]] const_pointer element_ptr(size_type index) const { return data() + in_range(index); }
  /** Enqueues writing an element. `value` must stay alive until `stream` got there: a temporary is refused. */
  void set_element_async(size_type index, value_type const& value, cuda_stream_view stream)
  {
    copy_async(element_ptr(index), &value, sizeof(T), stream);
  }
  void set_element_async(size_type, value_type const&&, cuda_stream_view) = delete;
  /** Enqueues setting an element to zero bytes. */
  void set_element_to_zero_async(size_type index, cuda_stream_view stream)
  {
    fill_async(element_ptr(index), 0, sizeof(T), stream);
  }
  /** Writes an element and waits for it. */
  void set_element(size_type index, value_type const& value, cuda_stream_view stream)
  {
    // On a capturing stream this throws: the copy would become a part of the graph, which would use a value that is gone.
    (void)stream.query();
    copy_async(element_ptr(index), &value, sizeof(T), stream);
    stream.synchronize();
  }
  /** Reads an element and waits for it. */
  [[nodiscard]] value_type element(size_type index, cuda_stream_view stream) const
  {
    std::remove_const_t<value_type> value;
    // On a capturing stream this throws: the copy would become a part of the graph, which would use a value that is gone.
    (void)stream.query();
    copy_async(&value, element_ptr(index), sizeof(T), stream);
    stream.synchronize();
    return value;
  }
  /** Reads the first element. */
  [[nodiscard]] value_type front_element(cuda_stream_view stream) const { return element(0, stream); }
  /** Reads the last element. */
  [[nodiscard]] value_type back_element(cuda_stream_view stream) const
  {
    auto const count = size();
    return element(count == 0 ? 0 : count - 1, stream);
  }

  /** Makes it `size` elements long; new ones are not initialised. */
  void resize(size_type size, cuda_stream_view stream) { storage_.resize(detail::bytes_of<T>(size), stream); }
  /** Makes sure of a capacity. */
  void reserve(size_type size, cuda_stream_view stream) { storage_.reserve(detail::bytes_of<T>(size), stream); }
  /** Reduces the capacity to the size. */
  void shrink_to_fit(cuda_stream_view stream) { storage_.shrink_to_fit(stream); }

  [[nodiscard]] size_type size() const noexcept { return storage_.size() / sizeof(T); }
  [[nodiscard]] std::ptrdiff_t ssize() const noexcept { return static_cast<std::ptrdiff_t>(size()); }
  [[nodiscard]] bool is_empty() const noexcept { return size() == 0; }
  [[nodiscard]] size_type capacity() const noexcept { return storage_.capacity() / sizeof(T); }
  /** Whether there is a buffer. */
  explicit operator bool() const noexcept { return static_cast<bool>(storage_); }
  [[nodiscard]] pointer data() noexcept { return static_cast<pointer>(storage_.data()); }
  [[nodiscard]] const_pointer data() const noexcept { return static_cast<const_pointer>(storage_.data()); }
  [[nodiscard]] iterator begin() noexcept { return data(); }
  [[nodiscard]] const_iterator begin() const noexcept { return data(); }
  [[nodiscard]] const_iterator cbegin() const noexcept { return data(); }
  [[nodiscard]] iterator end() noexcept { return data() + size(); }
  [[nodiscard]] const_iterator end() const noexcept { return data() + size(); }
  [[nodiscard]] const_iterator cend() const noexcept { return data() + size(); }
  [[nodiscard]] reverse_iterator rbegin() noexcept { return reverse_iterator(end()); }
  [[nodiscard]] const_reverse_iterator rbegin() const noexcept { return const_reverse_iterator(end()); }
  [[nodiscard]] const_reverse_iterator crbegin() const noexcept { return const_reverse_iterator(end()); }
  [[nodiscard]] reverse_iterator rend() noexcept { return reverse_iterator(begin()); }
  [[nodiscard]] const_reverse_iterator rend() const noexcept { return const_reverse_iterator(begin()); }
  [[nodiscard]] const_reverse_iterator crend() const noexcept { return const_reverse_iterator(begin()); }

  /** The storage, which stays with this object. */
  [[nodiscard]] device_buffer const& storage() const noexcept { return storage_; }
  [[nodiscard]] mr::resource memory_resource() const { return storage_.memory_resource(); }
  [[nodiscard]] cuda_stream_view stream() const { return storage_.stream(); }
  void set_stream(cuda_stream_view stream) { storage_.set_stream(stream); }
  void record_stream(cuda_stream_view stream) { storage_.record_stream(stream); }

  /** Whether both are the same buffer. Contents are not compared. */
  friend bool operator==(device_uvector const& a, device_uvector const& b) noexcept { return a.storage_ == b.storage_; }
  friend bool operator!=(device_uvector const& a, device_uvector const& b) noexcept { return !(a == b); }

 private:
  static constexpr std::size_t alignment() noexcept
  {
    return alignof(T) > CUDA_ALLOCATION_ALIGNMENT ? alignof(T) : CUDA_ALLOCATION_ALIGNMENT;
  }
  static device_buffer whole(device_buffer&& buffer)
  {
    if (buffer.size() % sizeof(T) != 0) {
      detail::raise_own<invalid_argument>(TENURE_ERROR_INVALID_ARGUMENT,
                                          "tenure: a buffer of " + std::to_string(buffer.size()) +
                                            " bytes is no whole number of elements of " + std::to_string(sizeof(T)) + " bytes");
    }
    return std::move(buffer);
  }
  [[nodiscard]] size_type in_range(size_type index) const
  {
    auto const count = size();
    if (index >= count) {
      detail::raise_own<out_of_range>(TENURE_ERROR_INVALID_ARGUMENT,
                                      "tenure: element " + std::to_string(index) + " of a vector of " +
                                        std::to_string(count) + " was named; the last one is size() - 1");
    }
    return index;
  }

  device_buffer storage_{};
};

}  // namespace tenure
