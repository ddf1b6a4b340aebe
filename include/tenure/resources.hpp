// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/resources.hpp
 *
 * The concrete resources, under RMM's names. Each class is a `tenure::mr::resource` (an owning handle) with the constructor and
 * the accessors of its kind; it may be sliced to `resource` and found again with `tenure::resource_cast`.
 *
 * `cuda_`, `managed_`, `pinned_host_` and `system_memory_resource` exist once per process: default-constructed they are ready
 * to use. All others are empty when default-constructed (RMM's make a pool or do not compile), and make something when they
 * get an argument. Wherever an upstream is taken, the adaptor holds it: drop yours when you like.
 */

#pragma once

#include <tenure/resource.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tenure {
namespace mr {

/** Plain device memory, on the device of the stream of each call. One per process. */
class cuda_memory_resource : public resource {
 public:
  static constexpr std::string_view kind_name = "cuda";
  cuda_memory_resource() noexcept : resource(detail::process_resource::cuda) {}
};

/** Managed memory. One per process. */
class managed_memory_resource : public resource {
 public:
  static constexpr std::string_view kind_name = "managed";
  managed_memory_resource() noexcept : resource(detail::process_resource::managed) {}
};

/** Pinned memory of the host. One per process. */
class pinned_host_memory_resource : public resource {
 public:
  static constexpr std::string_view kind_name = "pinned";
  pinned_host_memory_resource() noexcept : resource(detail::process_resource::pinned) {}
};

/** Memory of the system's allocator. One per process. */
class system_memory_resource : public resource {
 public:
  static constexpr std::string_view kind_name = "system";
  system_memory_resource() noexcept : resource(detail::process_resource::system) {}
};

/** How a `cuda_async_memory_resource` is made. */
struct async_options {
  std::optional<std::size_t> initial_pool_size{};  ///< Bytes taken at once.
  std::optional<std::size_t> release_threshold{};  ///< Bytes kept at a synchronisation; left out: all.
  std::uint32_t handle_type{0};                    ///< How the pool can be exported: 0 not, 1 file descriptor, 8 fabric.
  bool stream_outlives_buffer{false};              ///< Raw streams outlive every buffer that names them.
  cuda_device_id device{};                         ///< The device; left out: the current one.
};

/** Stream-ordered memory from a driver pool of its own. */
class cuda_async_memory_resource : public resource {
 public:
  static constexpr std::string_view kind_name = "cuda_async";

  /** How the pool can be given to another process. */
  enum class allocation_handle_type : std::uint32_t { none = 0, posix_file_descriptor = 1, fabric = 8 };

  /** Empty. */
  cuda_async_memory_resource() noexcept = default;
  /** A pool made as the options say. */
  explicit cuda_async_memory_resource(async_options const& options) : resource(adopt_tag{}, make(options)) {}
  /** RMM's constructor. `std::nullopt` as the only argument makes a pool with nothing said about it. */
  explicit cuda_async_memory_resource(std::optional<std::size_t> initial_pool_size,
                                      std::optional<std::size_t> release_threshold              = std::nullopt,
                                      std::optional<allocation_handle_type> export_handle_type = std::nullopt)
    : resource(adopt_tag{},
               make({initial_pool_size,
                     release_threshold,
                     static_cast<std::uint32_t>(export_handle_type.value_or(allocation_handle_type::none)),
                     false,
                     {}}))
  {
  }

  /** The driver's pool (`cudaMemPool_t`, `CUmemoryPool`), which lives as long as this resource. */
  [[nodiscard]] void* pool_handle() const
  {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(property("pool_handle")));
  }

 private:
  static tenure_resource make(async_options const& options)
  {
    tenure_async_options raw{};
    raw.size                   = sizeof raw;
    raw.initial_bytes          = options.initial_pool_size.value_or(0);
    raw.release_threshold      = options.release_threshold.value_or(0);
    raw.has_release_threshold  = options.release_threshold.has_value() ? 1 : 0;
    raw.device                 = options.device.value();
    raw.handle_type            = options.handle_type;
    raw.stream_outlives_buffer = options.stream_outlives_buffer ? 1 : 0;
    tenure_resource made       = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(async_resource_create)(&raw, &made));
    return made;
  }
};

/** Stream-ordered memory from somebody else's driver pool, which must outlive this resource and its buffers. */
class cuda_async_view_memory_resource : public resource {
 public:
  static constexpr std::string_view kind_name = "cuda_async_view";

  /** Empty. */
  cuda_async_view_memory_resource() noexcept = default;
  /** A view of `pool` (`cudaMemPool_t`, `CUmemoryPool`) on `device`. */
  explicit cuda_async_view_memory_resource(void* pool, cuda_device_id device = {})
    : resource(adopt_tag{}, make(pool, device))
  {
  }
  [[nodiscard]] void* pool_handle() const
  {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(property("pool_handle")));
  }

 private:
  static tenure_resource make(void* pool, cuda_device_id device)
  {
    tenure_resource made = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(async_view_create)(pool, device.value(), &made));
    return made;
  }
};

/** How a `pool_memory_resource` is made. Sizes are in bytes. */
struct pool_options {
  std::size_t initial_pool_size{0};                ///< Taken at once, or an error. 0: the pool grows by need.
  std::optional<std::size_t> maximum_pool_size{};  ///< A hard limit that can be reached.
  std::size_t release_threshold{0};                ///< `trim` keeps at least this many idle bytes.
  bool prefer_footprint{false};                    ///< Rather make a stream wait for another than grow.
  bool assume_no_capture{false};                   ///< A promise: no stream that is passed is ever capturing.
  bool plain_chunks{false};                        ///< Chunks of the upstream even where ranges could be mapped.
  cuda_device_id device{};                         ///< The device; left out: the current one.
  bool remap{true};                                ///< Idle pages may be mapped a second time where a larger range is needed.
  bool grow_ahead{false};                          ///< A thread of the library grows the pool after it had to grow.
  std::chrono::milliseconds decay{0};              ///< Pages idle for so long are given back by themselves. 0: never.
  std::size_t chunk_size{0};                       ///< The unit of growth, a power of two of 2 MiB to 1 GiB. 0: what suits.
  std::uint32_t export_handle_type{0};             ///< How other processes can be given it: `TENURE_HANDLE_FD`, `TENURE_HANDLE_FABRIC`.
  std::vector<cuda_device_id> peers{};             ///< Other devices whose kernels and copies may use the memory.
  bool rdma{false};                                ///< Network cards can be given the memory.
};

/** A pool over an upstream. */
class pool_memory_resource : public resource {
 public:
  static constexpr std::string_view kind_name = "pool";

  /** Empty. */
  pool_memory_resource() noexcept = default;
  /** A pool made as the options say. */
  pool_memory_resource(resource_ref upstream, pool_options const& options)
    : resource(adopt_tag{}, make(upstream, options))
  {
  }
  /** RMM's constructor. */
  pool_memory_resource(resource_ref upstream,
                       std::size_t initial_pool_size,
                       std::optional<std::size_t> maximum_pool_size = std::nullopt)
    : pool_memory_resource(upstream, sizes(initial_pool_size, maximum_pool_size))
  {
  }

  /** Bytes that the pool holds from its upstream. */
  [[nodiscard]] std::size_t pool_size() const { return static_cast<std::size_t>(property("pool_size")); }
  /** Whether it maps address ranges of its own. If not, it takes chunks through its upstream. */
  [[nodiscard]] bool own_ranges() const { return property("own_ranges") != 0; }
  /** Bytes of them that belong to captured graphs. */
  [[nodiscard]] std::size_t graph_bytes() const { return static_cast<std::size_t>(property("graph_bytes")); }

 private:
  static pool_options sizes(std::size_t initial, std::optional<std::size_t> maximum)
  {
    pool_options options;
    options.initial_pool_size = initial;
    options.maximum_pool_size = maximum;
    return options;
  }
  static tenure_resource make(resource_ref upstream, pool_options const& options)
  {
    if (options.maximum_pool_size == std::size_t{0}) {
      ::tenure::detail::raise_own<invalid_argument>(
        TENURE_ERROR_INVALID_ARGUMENT, "tenure: a pool with a maximum of 0 bytes can hold nothing; leave the maximum out or raise it");
    }
    tenure_pool_options raw{};
    raw.size              = sizeof raw;
    raw.initial_bytes     = options.initial_pool_size;
    raw.maximum_bytes     = options.maximum_pool_size.value_or(0);
    raw.release_threshold = options.release_threshold;
    raw.device            = options.device.value();
    raw.prefer_footprint  = options.prefer_footprint ? 1 : 0;
    raw.assume_no_capture = options.assume_no_capture ? 1 : 0;
    raw.plain_chunks      = options.plain_chunks ? 1 : 0;
    raw.no_remap          = options.remap ? 0 : 1;
    raw.grow_ahead        = options.grow_ahead ? 1 : 0;
    raw.decay_ms          = options.decay.count() > 0 ? static_cast<std::uint64_t>(options.decay.count()) : 0;
    raw.chunk_bytes       = options.chunk_size;
    raw.export_handle_type = options.export_handle_type;
    raw.rdma              = options.rdma ? 1 : 0;
    for (auto const peer : options.peers) {
      if (peer.value() < 0 || peer.value() > 63) {
        ::tenure::detail::raise_own<invalid_argument>(TENURE_ERROR_INVALID_ARGUMENT, "tenure: a peer must be a device of 0 to 63");
      }
      raw.peers |= std::uint64_t{1} << static_cast<unsigned>(peer.value());
    }
    tenure_resource made  = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(pool_create)(upstream.handle(), &raw, &made));
    return made;
  }
};

/** Refuses what would take more than a limit from its upstream at once. */
class limiting_resource_adaptor : public resource {
 public:
  static constexpr std::string_view kind_name = "limiting";

  /** Empty. */
  limiting_resource_adaptor() noexcept = default;
  /** At most `allocation_limit` bytes at a time. */
  limiting_resource_adaptor(resource_ref upstream, std::size_t allocation_limit)
    : resource(adopt_tag{}, make(upstream, allocation_limit))
  {
  }
  /** Bytes handed out now. */
  [[nodiscard]] std::size_t get_allocated_bytes() const { return static_cast<std::size_t>(property("allocated_bytes")); }
  /** The limit in bytes. */
  [[nodiscard]] std::size_t get_allocation_limit() const { return static_cast<std::size_t>(property("allocation_limit")); }

 private:
  static tenure_resource make(resource_ref upstream, std::size_t limit)
  {
    tenure_resource made = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(limiting_create)(upstream.handle(), limit, &made));
    return made;
  }
};

/** Counts what goes through. */
class statistics_resource_adaptor : public resource {
 public:
  static constexpr std::string_view kind_name = "statistics";

  /** One thing counted. */
  struct counter {
    std::int64_t value{0};  ///< Now.
    std::int64_t peak{0};   ///< The highest.
    std::int64_t total{0};  ///< Everything ever added.

    friend bool operator==(counter const& a, counter const& b) noexcept
    {
      return a.value == b.value && a.peak == b.peak && a.total == b.total;
    }
    friend bool operator!=(counter const& a, counter const& b) noexcept { return !(a == b); }
  };
  /** Bytes, and blocks. */
  using counters = std::pair<counter, counter>;

  /** Empty. */
  statistics_resource_adaptor() noexcept = default;
  /**
   * Counts what goes to `upstream`. An adaptor over another statistics adaptor is made with `over`: this constructor would copy
   * the handle there.
   */
  explicit statistics_resource_adaptor(resource_ref upstream) : resource(adopt_tag{}, make(upstream)) {}
  /** Counts what goes to `upstream`, whatever it is. */
  [[nodiscard]] static statistics_resource_adaptor over(resource_ref upstream)
  {
    return statistics_resource_adaptor(upstream);
  }

  [[nodiscard]] counter get_bytes_counter() const { return read(&api_get).first; }
  [[nodiscard]] counter get_allocations_counter() const { return read(&api_get).second; }
  /** Starts a nested set of counters; returns the enclosing ones. */
  counters push_counters() { return read(&api_push); }
  /** Ends the nested set and returns it. The enclosing ones take it in. Throws when there is none. */
  counters pop_counters() { return read(&api_pop); }

 private:
  using call = tenure_status (*)(tenure_resource, tenure_statistics*);
  static tenure_status api_get(tenure_resource r, tenure_statistics* out) { return TENURE_DETAIL_CALL(statistics_get)(r, out); }
  static tenure_status api_push(tenure_resource r, tenure_statistics* out) { return TENURE_DETAIL_CALL(statistics_push)(r, out); }
  static tenure_status api_pop(tenure_resource r, tenure_statistics* out) { return TENURE_DETAIL_CALL(statistics_pop)(r, out); }

  [[nodiscard]] counters read(call get) const
  {
    tenure_statistics raw{};
    raw.size = sizeof raw;
    ::tenure::detail::check(get(handle(), &raw));
    return {counter{raw.current_bytes, raw.peak_bytes, raw.total_bytes},
            counter{raw.current_count, raw.peak_count, raw.total_count}};
  }
  static tenure_resource make(resource_ref upstream)
  {
    tenure_resource made = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(statistics_create)(upstream.handle(), &made));
    return made;
  }
};

}  // namespace mr
}  // namespace tenure
