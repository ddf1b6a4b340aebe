// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/buffer.hpp
 *
 * `tenure::device_buffer`: memory with an owner. It knows its resource, its home stream and its device, and is freed in that
 * order from any thread; the resource, the stream and the entry of the table may be dropped or replaced while it lives.
 *
 *     tenure::mr::pool_memory_resource pool{tenure::mr::cuda_memory_resource{}, 0};
 *     tenure::device_buffer buffer{1 << 20, stream, pool};
 *
 * Across a language border a buffer goes as its handle: `release()` gives it, `from_handle()` takes it, and resource, stream and
 * device go along. A bare pointer is adopted with the resource that made it (checked), or with an owner.
 */

#pragma once

#include <tenure/device.hpp>
#include <tenure/resource.hpp>
#include <tenure/stream.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace tenure {

/** Enqueues a copy on `stream`, between any two kinds of memory. Host memory stays alive until the copy is done. */
inline void copy_async(void* to, void const* from, std::size_t bytes, cuda_stream_view stream)
{
  detail::check(TENURE_DETAIL_CALL(copy_async)(to, from, bytes, stream.native()));
}

/** Enqueues setting each byte to `value`. */
inline void fill_async(void* to, std::uint8_t value, std::size_t bytes, cuda_stream_view stream)
{
  detail::check(TENURE_DETAIL_CALL(fill_async)(to, value, bytes, stream.native()));
}

/** An allocation that was taken out of its buffer, with what is needed to free it. */
struct detached_allocation {
  void* ptr{};                //!< The memory; null when there are no bytes.
  std::size_t bytes{};        //!< Bytes in use.
  std::size_t capacity{};     //!< Bytes allocated: what `deallocate` wants to hear.
  std::size_t alignment{};    //!< What `deallocate` wants to hear.
  mr::resource resource{};    //!< Who made it, and must free it.
  cuda_stream_view stream{};  //!< In whose order to free it.
  cuda_stream stream_owner{}; //!< Keeps the stream alive, if it is an object.
};

/** Untyped memory with an owner. Sizes are in bytes. */
class device_buffer {
 public:
  /** Empty: no memory, no resource, no stream. */
  device_buffer() noexcept = default;

  /**
   * `bytes` bytes, usable in the order of `stream`, which is the home: the order in which they are freed. Without `resource` it
   * is the current one of the stream's device. 0 bytes call no resource.
   */
  device_buffer(std::size_t bytes, cuda_stream_view stream, mr::resource_ref resource = {})
    : device_buffer(bytes, CUDA_ALLOCATION_ALIGNMENT, stream, resource)
  {
  }
  /** The same with an alignment, a power of two. */
  device_buffer(std::size_t bytes, std::size_t alignment, cuda_stream_view stream, mr::resource_ref resource = {})
  {
    detail::check(TENURE_DETAIL_CALL(buffer_create)(bytes, alignment, stream.native(), resource.handle(), &handle_));
  }
  /** A copy of `bytes` bytes at `source`, on the host or on a device, which stay alive until the copy on `stream` is done. */
  device_buffer(void const* source, std::size_t bytes, cuda_stream_view stream, mr::resource_ref resource = {})
    : device_buffer(source, bytes, CUDA_ALLOCATION_ALIGNMENT, stream, resource)
  {
  }
  /** The same with an alignment, a power of two. */
  device_buffer(void const* source,
                std::size_t bytes,
                std::size_t alignment,
                cuda_stream_view stream,
                mr::resource_ref resource = {})
    : device_buffer(bytes, alignment, stream, resource)
  {
    if (bytes == 0) { return; }
    if (source == nullptr) {
      detail::raise_own<invalid_argument>(TENURE_ERROR_INVALID_ARGUMENT,
                                          "tenure: a buffer cannot be copied from a null pointer; pass the source or 0 bytes");
    }
    copy_async(data(), source, bytes, stream);
  }
  /** A copy of a buffer. */
  device_buffer(device_buffer const& other, cuda_stream_view stream, mr::resource_ref resource = {})
  {
    detail::check(
      TENURE_DETAIL_CALL(buffer_copy)(other.engaged(), stream.native(), resource.handle(), &handle_));
  }

  // A copy needs a stream: there is a constructor for it.
  device_buffer(device_buffer const&)            = delete;
  device_buffer& operator=(device_buffer const&) = delete;
  device_buffer(device_buffer&& other) noexcept : handle_(std::exchange(other.handle_, 0)) {}
  device_buffer& operator=(device_buffer&& other) noexcept
  {
    if (this != &other) {
      destroy();
      handle_ = std::exchange(other.handle_, 0);
    }
    return *this;
  }
  ~device_buffer() { destroy(); }
  friend void swap(device_buffer& a, device_buffer& b) noexcept { std::swap(a.handle_, b.handle_); }

  /** Takes over a buffer that a function of the C interface, or another language, made. */
  [[nodiscard]] static device_buffer from_handle(tenure_buffer owned) noexcept
  {
    device_buffer made;
    made.handle_ = owned;
    return made;
  }
  /** Gives the buffer to the caller, who ends it with `tenure_buffer_destroy`; this object is empty afterwards. */
  [[nodiscard]] tenure_buffer release() noexcept { return std::exchange(handle_, 0); }
  /** The handle for calls of the C interface; it stays with this object. Throws when there is none. */
  [[nodiscard]] tenure_buffer handle() const { return engaged(); }

  /**
   * Makes a buffer of a block that `resource` made and that nobody else will free: from `allocate`, or from `detach`. Throws
   * `ownership_error`, and takes nothing, when the resource did not make it or the size is another.
   */
  [[nodiscard]] static device_buffer adopt(void* ptr,
                                           std::size_t bytes,
                                           cuda_stream_view stream,
                                           mr::resource const& resource,
                                           std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT)
  {
    device_buffer made;
    detail::check(TENURE_DETAIL_CALL(buffer_adopt)(
      ptr, bytes, alignment, stream.native(), resource.handle(), &made.handle_));
    return made;
  }
  /**
   * Makes a buffer of memory that no resource of tenure's made. `owner` is moved in and destroyed, on any thread, when the
   * buffer is freed: it keeps the memory alive. `device` -1 is memory of the host.
   */
  template <class Owner>
  [[nodiscard]] static device_buffer adopt_with_owner(
    void* ptr, std::size_t bytes, cuda_device_id device, cuda_stream_view stream, Owner owner)
  {
    auto owned = std::make_unique<Owner>(std::move(owner));
    device_buffer made;
    detail::check(
      TENURE_DETAIL_CALL(buffer_adopt_foreign)(ptr,
                                               bytes,
                                               device.value(),
                                               stream.native(),
                                               nullptr,
                                               tenure_owner{owned.get(), &detail::delete_object<Owner>},
                                               &made.handle_));
    (void)owned.release();
    return made;
  }
  /** Frees memory of somebody else's, in the order of the stream. */
  using free_function = std::function<void(void* ptr, std::size_t bytes, cuda_stream_view stream)>;
  /** The same with a function that frees the memory. What it throws is reported like a wrong free. */
  [[nodiscard]] static device_buffer adopt_with_free(
    void* ptr, std::size_t bytes, cuda_device_id device, cuda_stream_view stream, free_function free)
  {
    if (!free) {
      detail::raise_own<invalid_argument>(TENURE_ERROR_INVALID_ARGUMENT,
                                          "tenure: adopt_with_free needs a function that frees; the one given is empty");
    }
    auto owned = std::make_unique<free_function>(std::move(free));
    auto const call = [](void* context, void* memory, std::size_t size, tenure_stream home) {
      detail::call_and_report([&] { (*static_cast<free_function*>(context))(memory, size, cuda_stream_view(home)); });
    };
    device_buffer made;
    detail::check(
      TENURE_DETAIL_CALL(buffer_adopt_foreign)(ptr,
                                               bytes,
                                               device.value(),
                                               stream.native(),
                                               call,
                                               tenure_owner{owned.get(), &detail::delete_object<free_function>},
                                               &made.handle_));
    (void)owned.release();
    return made;
  }
  /** Takes the allocation out: it stays counted on its resource. The buffer keeps resource and stream, and has no bytes. */
  [[nodiscard]] detached_allocation detach()
  {
    tenure_detached raw{};
    raw.size = sizeof raw;
    detail::check(TENURE_DETAIL_CALL(buffer_detach)(engaged(), &raw));
    return detached_allocation{raw.ptr,
                               raw.bytes,
                               raw.capacity,
                               raw.alignment,
                               mr::resource::from_handle(raw.resource),
                               cuda_stream_view(raw.stream),
                               cuda_stream::from_handle(raw.stream)};
  }

  /** Whether there is a buffer: not after default construction, a move, or `release`. */
  explicit operator bool() const noexcept { return handle_ != 0; }
  /** The memory; null where there are no bytes. */
  [[nodiscard]] void* data() noexcept { return look().ptr; }
  [[nodiscard]] void const* data() const noexcept { return look().ptr; }
  /** Bytes in use. */
  [[nodiscard]] std::size_t size() const noexcept { return look().bytes; }
  /** Bytes in use, signed. */
  [[nodiscard]] std::ptrdiff_t ssize() const noexcept { return static_cast<std::ptrdiff_t>(size()); }
  /** Whether there are no bytes. */
  [[nodiscard]] bool is_empty() const noexcept { return size() == 0; }
  /** Bytes allocated. */
  [[nodiscard]] std::size_t capacity() const noexcept { return look().capacity; }
  /** Everything there is to say about the buffer. Throws when there is none. */
  [[nodiscard]] struct ::tenure_buffer_view view() const
  {
    struct ::tenure_buffer_view view{};
    view.size = sizeof view;
    detail::check(TENURE_DETAIL_CALL(buffer_view)(engaged(), &view));
    return view;
  }
  /** The alignment that was asked for, in bytes. */
  [[nodiscard]] std::size_t alignment() const { return view().alignment; }
  /** The home stream. The view is valid while the buffer has it. */
  [[nodiscard]] cuda_stream_view stream() const { return cuda_stream_view(view().stream); }
  /** The device of the memory; -1 for memory of the host. */
  [[nodiscard]] cuda_device_id device() const { return cuda_device_id{view().device}; }
  /** The resource, owned; empty when the buffer was adopted with an owner. */
  [[nodiscard]] mr::resource memory_resource() const
  {
    tenure_resource out = TENURE_RESOURCE_NULL;
    detail::check(TENURE_DETAIL_CALL(buffer_resource)(engaged(), &out));
    return mr::resource::from_handle(out);
  }

  /** Makes it `bytes` long. Beyond the capacity the bytes move to a new block of the same resource. The stream becomes the home. */
  void resize(std::size_t bytes, cuda_stream_view stream)
  {
    detail::check(TENURE_DETAIL_CALL(buffer_resize)(engaged(), bytes, stream.native()));
  }
  /** Makes sure of a capacity. */
  void reserve(std::size_t bytes, cuda_stream_view stream)
  {
    detail::check(TENURE_DETAIL_CALL(buffer_reserve)(engaged(), bytes, stream.native()));
  }
  /** Reduces the capacity to the size. */
  void shrink_to_fit(cuda_stream_view stream)
  {
    detail::check(TENURE_DETAIL_CALL(buffer_shrink_to_fit)(engaged(), stream.native()));
  }
  /** Makes `stream` the home. The old home stays among the used streams: nothing is waited for, nothing is lost. */
  void set_stream(cuda_stream_view stream)
  {
    detail::check(TENURE_DETAIL_CALL(buffer_set_stream)(engaged(), stream.native()));
  }
  /** Says that work on `stream` uses the buffer until it is freed. */
  void record_stream(cuda_stream_view stream)
  {
    detail::check(TENURE_DETAIL_CALL(buffer_record_stream)(engaged(), stream.native()));
  }
  /**
   * Asks the driver to move the memory to a device (without a number: the current one), in the order of `stream`; says whether it
   * was asked. A hint is no error where memory does not migrate or the device lacks it. The stream is recorded then.
   */
  bool prefetch(cuda_device_id device, cuda_stream_view stream)
  {
    auto const order   = stream.native();
    std::uint32_t told = 0;
    detail::check(TENURE_DETAIL_CALL(buffer_prefetch)(engaged(), device.value(), &order, &told));
    return told != 0;
  }
  /** Frees the memory now, in the order of the home stream, and throws what a destructor could only report. */
  void close()
  {
    if (handle_ != 0) { detail::check(TENURE_DETAIL_CALL(buffer_close)(handle_, nullptr)); }
  }
  /** Frees the memory now in the order of `stream`, which becomes the home. */
  void close(cuda_stream_view stream)
  {
    auto const order = stream.native();
    if (handle_ != 0) { detail::check(TENURE_DETAIL_CALL(buffer_close)(handle_, &order)); }
  }

  /** Whether both are the same buffer. Contents are not compared. */
  friend bool operator==(device_buffer const& a, device_buffer const& b) noexcept { return a.handle_ == b.handle_; }
  friend bool operator!=(device_buffer const& a, device_buffer const& b) noexcept { return a.handle_ != b.handle_; }

 private:
  [[nodiscard]] tenure_buffer engaged() const
  {
    if (handle_ == 0) {
      detail::raise_own<logic_error>(TENURE_ERROR_BAD_HANDLE,
                                     "tenure: this tenure buffer is empty: it was default-constructed, moved from or released; make one "
                                     "with a size and a stream first");
    }
    return handle_;
  }
  // Sizes are asked for in places that cannot throw; a buffer that cannot be looked at has none.
  [[nodiscard]] struct ::tenure_buffer_view look() const noexcept
  {
    struct ::tenure_buffer_view view{};
    view.size = sizeof view;
    if (handle_ != 0 && TENURE_DETAIL_CALL(buffer_view)(handle_, &view) != TENURE_OK) { view = {}; }
    return view;
  }
  void destroy() noexcept
  {
    if (handle_ != 0) { detail::finish(TENURE_DETAIL_CALL(buffer_destroy)(std::exchange(handle_, 0))); }
  }

  tenure_buffer handle_{0};
};

}  // namespace tenure

/** Buffers are found by who they are, not by what they hold. */
template <>
struct std::hash<tenure::device_buffer> {
  std::size_t operator()(tenure::device_buffer const& buffer) const
  {
    return std::hash<tenure_buffer>()(buffer ? buffer.handle() : 0);
  }
};
