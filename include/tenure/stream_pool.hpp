// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/stream_pool.hpp
 *
 * Streams that are given out in turn, for programs that want a stream for each of many small tasks.
 *
 *     tenure::cuda_stream_pool pool{4};
 *     for (auto const& task : tasks) { run(task, pool.get_stream()); }
 */

#pragma once

#include <tenure/error.hpp>
#include <tenure/stream.hpp>

#include <cstddef>
#include <utility>

namespace tenure {

/**
 * A set of streams of one device, given out in turn. Whoever gets a stream shares it with whoever gets it a round later. A stream
 * that a `cuda_stream` or a buffer names outlives the pool; a bare view does not keep it. Any number of threads may ask at once.
 * Moved-from objects are empty.
 */
class cuda_stream_pool {
 public:
  /** How many streams a pool has that is not told. */
  static constexpr std::size_t default_size{16};

  /** Makes `pool_size` streams on `device`. */
  explicit cuda_stream_pool(std::size_t pool_size = default_size,
                            cuda_stream::flags kind = cuda_stream::flags::sync_default,
                            cuda_device_id device = {})
  {
    detail::check(
      TENURE_DETAIL_CALL(stream_pool_create)(device.value(), pool_size, static_cast<std::uint32_t>(kind), &pool_));
  }
  cuda_stream_pool(cuda_stream_pool&& other) noexcept : pool_(std::exchange(other.pool_, 0)) {}
  cuda_stream_pool& operator=(cuda_stream_pool&& other) noexcept
  {
    std::swap(pool_, other.pool_);
    return *this;
  }
  cuda_stream_pool(cuda_stream_pool const&)            = delete;
  cuda_stream_pool& operator=(cuda_stream_pool const&) = delete;
  ~cuda_stream_pool()
  {
    if (pool_ != 0) { detail::finish(TENURE_DETAIL_CALL(stream_pool_release)(pool_)); }
  }

  /** The stream whose turn it is. */
  [[nodiscard]] cuda_stream get_stream() const
  {
    tenure_stream out{};
    detail::check(TENURE_DETAIL_CALL(stream_pool_next)(handle(), &out));
    return cuda_stream::from_handle(out);
  }
  /** The stream with this number; numbers beyond the last one go round. */
  [[nodiscard]] cuda_stream get_stream(std::size_t stream_id) const
  {
    tenure_stream out{};
    detail::check(TENURE_DETAIL_CALL(stream_pool_at)(handle(), stream_id, &out));
    return cuda_stream::from_handle(out);
  }
  /** How many streams there are. */
  [[nodiscard]] std::size_t get_pool_size() const
  {
    std::size_t size = 0;
    detail::check(TENURE_DETAIL_CALL(stream_pool_size)(handle(), &size));
    return size;
  }
  /** The handle of the C ABI, which stays this object's. */
  [[nodiscard]] tenure_stream_pool handle() const
  {
    if (pool_ == 0) {
      detail::raise_own<logic_error>(TENURE_ERROR_BAD_HANDLE,
                                     "tenure: this tenure::cuda_stream_pool is empty: it was moved from; make another one");
    }
    return pool_;
  }

 private:
  tenure_stream_pool pool_{0};
};

}  // namespace tenure
