// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/stream.hpp
 *
 * Streams, without CUDA's headers: `cudaStream_t` is known by a forward declaration that agrees with theirs.
 *
 * - `cuda_stream_view` names a stream for a call. It owns nothing.
 * - `cuda_stream` owns a reference to a stream object: the stream lives while a reference or a buffer names it. Pass it
 *   where a view is wanted, and a buffer keeps the stream alive for its own free.
 *
 * A view of a bare `cudaStream_t` must name a stream that is alive during the call; it is not touched afterwards.
 *
 * In a unit that is compiled for per-thread default streams (`CUDA_API_PER_THREAD_DEFAULT_STREAM`) the value 0 means the
 * per-thread default stream, as it does for the CUDA runtime there; elsewhere it means the legacy one. The meaning is fixed
 * where the view is made, so that units of both kinds can be linked together.
 */

#pragma once

#include <tenure/device.hpp>
#include <tenure/error.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <type_traits>
#include <utility>

struct CUstream_st;

namespace tenure {

using cudaStream_t = ::CUstream_st*;

class cuda_stream;
class cuda_stream_view;

namespace detail {

inline constexpr std::uintptr_t legacy_stream     = 1;
inline constexpr std::uintptr_t per_thread_stream = 2;

// Two constructors, and the unit decides which of them has the default argument: so no function has two meanings.
struct unit_with_legacy_default {};
struct unit_with_per_thread_default {};
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
using unit_default = unit_with_per_thread_default;
#define TENURE_DETAIL_IF_LEGACY
#define TENURE_DETAIL_IF_PER_THREAD = {}
#else
using unit_default = unit_with_legacy_default;
#define TENURE_DETAIL_IF_LEGACY = {}
#define TENURE_DETAIL_IF_PER_THREAD
#endif

// Other people's streams are known by what they can do, so that their headers are not needed and may come before or after ours:
// `get()` gives the stream of CCCL's (`cuda::stream_ref`, `cuda::stream`), `value()` that of RMM's (`rmm::cuda_stream_view`), and
// a reference can be made of one (`cuda::stream_ref`).
template <class Stream, class = void>
struct has_get : std::false_type {};
template <class Stream>
struct has_get<Stream,
               std::enable_if_t<std::is_same_v<typename Stream::value_type, cudaStream_t> &&
                                std::is_same_v<std::decay_t<decltype(std::declval<Stream const&>().get())>, cudaStream_t>>>
  : std::true_type {};
template <class Stream, class = void>
struct has_value : std::false_type {};
template <class Stream>
struct has_value<Stream, std::enable_if_t<std::is_same_v<decltype(std::declval<Stream const&>().value()), cudaStream_t>>>
  : std::true_type {};
template <class Stream>
struct is_stream_like
  : std::bool_constant<(has_get<Stream>::value || has_value<Stream>::value) && !std::is_same_v<Stream, cuda_stream> &&
                       !std::is_same_v<Stream, cuda_stream_view>> {};
template <class Stream, class = void>
struct is_stream_ref : std::false_type {};
template <class Stream>
struct is_stream_ref<Stream, std::enable_if_t<is_stream_like<Stream>::value && std::is_trivially_copyable_v<Stream>>>
  : std::bool_constant<std::is_constructible_v<Stream, cudaStream_t>> {};
template <class Stream>
cudaStream_t bare_stream(Stream const& stream)
{
  if constexpr (has_get<Stream>::value) {
    return stream.get();
  } else {
    return stream.value();
  }
}

}  // namespace detail

/** Names a stream for a call; owns nothing. As small as two words, trivially copied. */
class cuda_stream_view {
 public:
  /** The default stream, as this unit understands it. */
  constexpr cuda_stream_view() noexcept : cuda_stream_view(detail::unit_default{}) {}
  /** A stream by its value, which is alive during the call. */
  cuda_stream_view(cudaStream_t stream, detail::unit_with_legacy_default TENURE_DETAIL_IF_LEGACY) noexcept
    : raw_(reinterpret_cast<std::uintptr_t>(stream))
  {
  }
  /** The same in a unit that is compiled for per-thread default streams. */
  cuda_stream_view(cudaStream_t stream, detail::unit_with_per_thread_default TENURE_DETAIL_IF_PER_THREAD) noexcept
    : raw_(stream == nullptr ? detail::per_thread_stream : reinterpret_cast<std::uintptr_t>(stream))
  {
  }
  /** What the C interface calls a stream. */
  explicit cuda_stream_view(tenure_stream stream) noexcept
    : raw_(reinterpret_cast<std::uintptr_t>(stream.raw)), object_(stream.object)
  {
  }
  /** CCCL's `cuda::stream_ref` or `cuda::stream`, or RMM's streams, which are alive during the call. */
  template <class Stream, std::enable_if_t<detail::is_stream_like<Stream>::value, int> = 0>
  cuda_stream_view(Stream const& stream) noexcept  // NOLINT(google-explicit-constructor)
    : cuda_stream_view(detail::bare_stream(stream), detail::unit_default{})
  {
  }
  constexpr explicit cuda_stream_view(detail::unit_with_legacy_default) noexcept {}
  constexpr explicit cuda_stream_view(detail::unit_with_per_thread_default) noexcept : raw_(detail::per_thread_stream) {}
  // A literal 0 is hardly ever meant to be a stream.
  cuda_stream_view(int)            = delete;
  cuda_stream_view(std::nullptr_t) = delete;

  /** The stream for CUDA's own calls. */
  [[nodiscard]] cudaStream_t value() const noexcept { return reinterpret_cast<cudaStream_t>(raw_); }
  operator cudaStream_t() const noexcept { return value(); }
  /** The stream for calls of CCCL: converts to `cuda::stream_ref`. */
  template <class Ref, std::enable_if_t<detail::is_stream_ref<Ref>::value, int> = 0>
  operator Ref() const noexcept  // NOLINT(google-explicit-constructor)
  {
    return Ref(value());
  }
  /** The stream for calls of the C interface. */
  [[nodiscard]] tenure_stream native() const noexcept
  {
    return tenure_stream{reinterpret_cast<void*>(raw_), object_};
  }

  /** Whether it is the legacy default stream. */
  [[nodiscard]] constexpr bool is_default() const noexcept { return raw_ <= detail::legacy_stream; }
  /** Whether it is the per-thread default stream. */
  [[nodiscard]] constexpr bool is_per_thread_default() const noexcept { return raw_ == detail::per_thread_stream; }

  /** Waits until the work enqueued so far is done. */
  void synchronize() const { detail::check(TENURE_DETAIL_CALL(stream_synchronize)(native())); }
  /** `synchronize` that reports an error like a wrong free instead of throwing it. */
  void synchronize_no_throw() const noexcept { detail::finish(TENURE_DETAIL_CALL(stream_synchronize)(native())); }
  /**
   * Says that the host has waited for the stream by other means than `synchronize`: what was freed on it before this call may
   * then serve every stream without a wait. Nothing is believed: the driver is asked, and where the stream is not idle, all
   * stays as it was.
   */
  void note_sync() const { detail::check(TENURE_DETAIL_CALL(note_sync)(native())); }
  /**
   * Says that this stream has been made to wait for `other` by other means than `wait`: what was freed on `other` before this
   * call may then be used in the order of this stream, without a wait for each block. Nothing is believed: a pool that holds such
   * memory inserts a wait of its own, once.
   */
  void note_wait(cuda_stream_view other) const
  {
    detail::check(TENURE_DETAIL_CALL(note_wait)(native(), other.native()));
  }
  /** Whether all work enqueued so far is done. */
  [[nodiscard]] bool query() const
  {
    std::uint32_t done = 0;
    detail::check(TENURE_DETAIL_CALL(stream_query)(native(), &done));
    return done != 0;
  }
  /** Makes later work of this stream wait for the work enqueued on `other` so far; the host does not wait. */
  void wait(cuda_stream_view other) const
  {
    detail::check(TENURE_DETAIL_CALL(stream_wait_stream)(native(), other.native()));
  }
  /** The device of the stream. */
  [[nodiscard]] cuda_device_id device() const
  {
    std::int32_t device = 0;
    detail::check(TENURE_DETAIL_CALL(stream_device)(native(), &device));
    return cuda_device_id{device};
  }

  /** Whether both name the same stream. 0 and 1 are one stream. */
  friend constexpr bool operator==(cuda_stream_view a, cuda_stream_view b) noexcept
  {
    return a.raw_ == b.raw_ || (a.is_default() && b.is_default());
  }
  friend constexpr bool operator!=(cuda_stream_view a, cuda_stream_view b) noexcept { return !(a == b); }
  // Each converts into the other: said here, so that comparing them is not in doubt.
  template <class Stream, std::enable_if_t<detail::is_stream_like<Stream>::value, int> = 0>
  friend bool operator==(cuda_stream_view a, Stream const& b) noexcept
  {
    return a == cuda_stream_view(b);
  }
  template <class Stream, std::enable_if_t<detail::is_stream_like<Stream>::value, int> = 0>
  friend bool operator==(Stream const& a, cuda_stream_view b) noexcept
  {
    return cuda_stream_view(a) == b;
  }
  template <class Stream, std::enable_if_t<detail::is_stream_like<Stream>::value, int> = 0>
  friend bool operator!=(cuda_stream_view a, Stream const& b) noexcept
  {
    return !(a == cuda_stream_view(b));
  }
  template <class Stream, std::enable_if_t<detail::is_stream_like<Stream>::value, int> = 0>
  friend bool operator!=(Stream const& a, cuda_stream_view b) noexcept
  {
    return !(cuda_stream_view(a) == b);
  }

 private:
  std::uintptr_t raw_{0};
  std::uint64_t object_{0};
};

/** Writes the value of the stream, as CUDA's tools show it. */
inline std::ostream& operator<<(std::ostream& out, cuda_stream_view stream)
{
  return out << static_cast<void const*>(stream.value());
}

#undef TENURE_DETAIL_IF_LEGACY
#undef TENURE_DETAIL_IF_PER_THREAD

/** The default stream, as this unit understands it. */
static constexpr cuda_stream_view cuda_stream_default{detail::unit_default{}};
/** The legacy default stream. */
inline constexpr cuda_stream_view cuda_stream_legacy{detail::unit_with_legacy_default{}};
/** The default stream of each thread. */
inline constexpr cuda_stream_view cuda_stream_per_thread{detail::unit_with_per_thread_default{}};

/**
 * Owns a reference to a stream. The last reference, or the last buffer that names the stream, ends it: a stream of tenure's
 * own is destroyed, a wrapped one lets go of its owner. A copy is one more reference.
 *
 * Default-constructed and moved-from objects are empty; unlike RMM's, `cuda_stream{}` makes no stream.
 */
class cuda_stream {
 public:
  enum class flags : std::uint32_t {
    sync_default = 0,  ///< Waits for the legacy default stream, and it for this one.
    non_blocking = 1,  ///< Does not.
  };

  /** Empty. */
  cuda_stream() noexcept = default;
  /** A new stream on `device`. */
  explicit cuda_stream(flags kind, cuda_device_id device = {})
  {
    detail::check(TENURE_DETAIL_CALL(stream_create)(device.value(), static_cast<std::uint32_t>(kind), &stream_));
  }
  cuda_stream(cuda_stream const& other) : stream_(other.stream_)
  {
    if (stream_.object != 0) {
      tenure_status const status = TENURE_DETAIL_CALL(stream_retain)(stream_.object);
      detail::check(status);
    }
  }
  cuda_stream(cuda_stream&& other) noexcept : stream_(std::exchange(other.stream_, tenure_stream{})) {}
  cuda_stream& operator=(cuda_stream other) noexcept
  {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~cuda_stream()
  {
    if (stream_.object != 0) { detail::finish(TENURE_DETAIL_CALL(stream_release)(stream_.object)); }
  }

  /**
   * Somebody else's stream, which `owner` keeps alive: the object is moved into the library and deleted, on any thread, when
   * nothing names the stream any more. A `std::shared_ptr` will do.
   */
  template <class Owner>
  [[nodiscard]] static cuda_stream wrap(cudaStream_t stream, Owner owner, cuda_device_id device = {})
  {
    auto owned = std::make_unique<Owner>(std::move(owner));
    cuda_stream made;
    detail::check(TENURE_DETAIL_CALL(stream_wrap)(
      stream, device.value(), tenure_owner{owned.get(), &detail::delete_object<Owner>}, &made.stream_));
    (void)owned.release();
    return made;
  }
  /** Somebody else's stream that is never destroyed while the process lives. */
  [[nodiscard]] static cuda_stream immortal(cudaStream_t stream, cuda_device_id device = {})
  {
    cuda_stream made;
    detail::check(TENURE_DETAIL_CALL(stream_immortal)(stream, device.value(), &made.stream_));
    return made;
  }
  /** Takes over a reference that a function of the C interface gave. */
  [[nodiscard]] static cuda_stream from_handle(tenure_stream stream) noexcept
  {
    cuda_stream made;
    if (stream.object != 0) { made.stream_ = stream; }
    return made;
  }
  /** Gives the reference to the caller, who releases it with `tenure_stream_release`. */
  [[nodiscard]] tenure_stream release() noexcept { return std::exchange(stream_, tenure_stream{}); }

  /** Whether there is a stream. */
  [[nodiscard]] bool is_valid() const noexcept { return stream_.object != 0; }
  explicit operator bool() const noexcept { return is_valid(); }

  /** A view, which is valid while this object is. */
  [[nodiscard]] cuda_stream_view view() const
  {
    if (!is_valid()) {
      detail::raise_own<logic_error>(TENURE_ERROR_BAD_HANDLE,
                                     "tenure: this tenure::cuda_stream is empty: it was default-constructed or moved from; make one "
                                     "with cuda_stream{cuda_stream::flags::non_blocking} first");
    }
    return cuda_stream_view(stream_);
  }
  operator cuda_stream_view() const { return view(); }
  /** A reference for calls of CCCL (`cuda::stream_ref`), which is valid while this object is. */
  template <class Ref, std::enable_if_t<detail::is_stream_ref<Ref>::value, int> = 0>
  operator Ref() const  // NOLINT(google-explicit-constructor)
  {
    return Ref(value());
  }
  /** The stream for CUDA's own calls. */
  [[nodiscard]] cudaStream_t value() const { return view().value(); }
  explicit operator cudaStream_t() const { return value(); }
  /** Waits until the work enqueued so far is done. */
  void synchronize() const { view().synchronize(); }
  /** `synchronize` that reports an error like a wrong free instead of throwing it. */
  void synchronize_no_throw() const noexcept
  {
    detail::call_and_report([&] { view().synchronize(); });
  }
  /** As `cuda_stream_view::note_sync`. */
  void note_sync() const { view().note_sync(); }
  /** As `cuda_stream_view::note_wait`. */
  void note_wait(cuda_stream_view other) const { view().note_wait(other); }
  /** The device of the stream. */
  [[nodiscard]] cuda_device_id device() const { return view().device(); }

  friend bool operator==(cuda_stream const& a, cuda_stream const& b) noexcept
  {
    return a.stream_.raw == b.stream_.raw && a.is_valid() == b.is_valid();
  }
  friend bool operator!=(cuda_stream const& a, cuda_stream const& b) noexcept { return !(a == b); }

 private:
  tenure_stream stream_{};
};

}  // namespace tenure
