// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/sharing.hpp
 *
 * Memory of one process in another. The exporter describes a buffer; bytes and descriptors travel on a channel of the program's
 * choice (a Unix socket with `SCM_RIGHTS`, or inheritance); the importer opens them as a buffer of its own.
 *
 *     tenure::mr::pool_options options;
 *     options.export_handle_type = TENURE_HANDLE_FD;
 *     tenure::mr::pool_memory_resource pool{tenure::mr::cuda_memory_resource{}, options};
 *     tenure::device_buffer buffer{1 << 20, stream, pool};
 *     tenure::shared_memory shared = tenure::share(buffer);             // waits for the work on the buffer's streams
 *     // shared.bytes() and shared.descriptors() go to the other process, which calls
 *     tenure::device_buffer opened = tenure::shared_memory{bytes, descriptors}.open(stream);
 *
 * The exporter's buffer owns its block, and must live until its importers need the contents no more; of a driver's pool and of
 * legacy handles, until they have ended theirs. Memory of a pool with ranges of its own stays valid where it was opened, also
 * when the exporter has ended.
 */

#pragma once

#include <tenure/buffer.hpp>
#include <tenure/error.hpp>
#include <tenure/resource.hpp>
#include <tenure/stream.hpp>

#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tenure {

/** By which kinds of handles memory of a resource can be given to other processes: a sum of `TENURE_HANDLE_FD` and so on. */
[[nodiscard]] inline std::uint32_t exports(mr::resource_ref resource)
{
  mr::resource const named(resource);  // what is current is looked up here
  std::uint32_t kinds = 0;
  detail::check(TENURE_DETAIL_CALL(resource_exports)(named.handle(), &kinds));
  return kinds;
}

/** Memory of a process, described for another, with the descriptors that lead there, which it closes. Does not keep the buffer. */
class shared_memory {
 public:
  /**
   * What `bytes` and `descriptors` gave in the other process. Takes the descriptors over when it succeeds; throws, and leaves them
   * to the caller, when the bytes are no handle, not a whole one, or another number of descriptors belongs to them.
   */
  shared_memory(std::vector<std::byte> bytes, std::vector<int> descriptors) : bytes_(std::move(bytes))
  {
    info_.size = sizeof info_;
    detail::check(TENURE_DETAIL_CALL(shared_info)(bytes_.data(), bytes_.size(), &info_));
    if (info_.fd_count != descriptors.size()) {
      detail::raise_own<invalid_argument>(
        TENURE_ERROR_INVALID_ARGUMENT,
        "tenure: another number of file descriptors belongs to this handle; pass all that came with it, in their order");
    }
    descriptors_ = std::move(descriptors);
  }
  shared_memory(shared_memory const&)            = delete;
  shared_memory& operator=(shared_memory const&) = delete;
  shared_memory(shared_memory&& other) noexcept
    : bytes_(std::move(other.bytes_)), descriptors_(std::exchange(other.descriptors_, {})),
      info_(std::exchange(other.info_, tenure_shared_view{}))
  {
  }
  shared_memory& operator=(shared_memory&& other) noexcept
  {
    if (this != &other) {
      close();
      bytes_       = std::move(other.bytes_);
      descriptors_ = std::exchange(other.descriptors_, {});
      info_        = std::exchange(other.info_, tenure_shared_view{});
    }
    return *this;
  }
  ~shared_memory() { close(); }

  /** Everything but the descriptors. */
  [[nodiscard]] std::vector<std::byte> const& bytes() const noexcept { return bytes_; }
  /** The descriptors that must travel beside the bytes, in this order; they stay this object's. */
  [[nodiscard]] std::vector<int> const& descriptors() const noexcept { return descriptors_; }
  /** The size of the shared memory in bytes. */
  [[nodiscard]] std::size_t size() const noexcept { return static_cast<std::size_t>(info_.bytes); }
  /** By what it is handed out: `TENURE_HANDLE_FD` and so on. */
  [[nodiscard]] std::uint32_t kind() const noexcept { return info_.kind; }
  /** The process that shares it. */
  [[nodiscard]] std::uint32_t pid() const noexcept { return info_.pid; }
  /** The device that it lies on. */
  [[nodiscard]] std::array<std::uint8_t, 16> uuid() const noexcept
  {
    std::array<std::uint8_t, 16> out{};
    for (std::size_t at = 0; at < out.size(); ++at) { out[at] = info_.uuid[at]; }
    return out;
  }

  /**
   * A buffer of the memory, with `stream` as its home, on the device that the memory lies on (`device` is for fabric handles of
   * another node). However often one piece of memory is opened in a process, it is mapped once; the mapping goes with the last
   * buffer.
   */
  [[nodiscard]] device_buffer open(cuda_stream_view stream, cuda_device_id device = {}) const
  {
    tenure_buffer made = 0;
    detail::check(TENURE_DETAIL_CALL(buffer_import)(
      bytes_.data(), bytes_.size(), descriptors_.data(), descriptors_.size(), device.value(), stream.native(), &made));
    return device_buffer::from_handle(made);
  }

 private:
  void close() noexcept
  {
    for (int const fd : std::exchange(descriptors_, {})) { (void)::close(fd); }
  }

  std::vector<std::byte> bytes_;
  std::vector<int> descriptors_;
  tenure_shared_view info_{};
};

/**
 * Describes the memory of a buffer for another process, by one of `kinds` (a sum of `TENURE_HANDLE_FD` and so on; 0: any). Waits
 * for the work that the buffer knows of, on its home stream and on those that were recorded. Throws `unsupported` for memory that
 * cannot be handed out so, with the option that makes it exportable.
 */
[[nodiscard]] inline shared_memory share(device_buffer const& buffer, std::uint32_t kinds = 0)
{
  struct owned {
    tenure_shared raw{};
    ~owned() { (void)TENURE_DETAIL_CALL(shared_free)(&raw); }
  } made;
  detail::check(TENURE_DETAIL_CALL(buffer_share)(buffer.handle(), kinds, &made.raw));
  auto const* const first = static_cast<std::byte const*>(made.raw.data);
  std::vector<std::byte> bytes(first, first + made.raw.data_bytes);
  std::vector<int> descriptors(made.raw.fds, made.raw.fds + made.raw.fd_count);
  shared_memory shared{std::move(bytes), std::move(descriptors)};
  // They are the new object's from here on.
  for (std::size_t at = 0; at < made.raw.fd_count; ++at) { made.raw.fds[at] = -1; }
  return shared;
}

}  // namespace tenure
