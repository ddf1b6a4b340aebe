// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/bins.hpp
 *
 * Resources that sort requests by size, and the arena, under RMM's names and with RMM's parameters.
 *
 *     tenure::mr::binning_memory_resource bins{upstream, 18, 22};  // 256 KiB, 512 KiB, ... 4 MiB
 *     bins.add_bin(1 << 30, pool);                                 // what is larger, up to 1 GiB, from the pool
 *     tenure::device_buffer buffer{300000, stream, bins};          // a block of 512 KiB
 *
 * What differs from RMM: every free is checked; bins may be added at any time, and a block goes home to whoever made it; the
 * bins that a binning resource makes itself take nothing before their first use.
 */

#pragma once

#include <tenure/resource.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tenure {
namespace mr {

/** How a `fixed_size_memory_resource` is made. */
struct fixed_size_options {
  std::size_t block_size{1 << 20};         ///< Bytes of each block, rounded up to a multiple of 256.
  std::size_t blocks_to_preallocate{128};  ///< Taken at once, or an error, and as many at a time later.
  cuda_device_id device{};                 ///< The device; left out: the current one.
};

/**
 * Blocks of one size. A request that is larger than a block throws `invalid_argument`, which says so.
 *
 * The constructor from one resource makes a resource over it, but for another fixed-size resource: that is copied. Give
 * `fixed_size_options` to stand on one.
 */
class fixed_size_memory_resource : public resource {
 public:
  static constexpr std::string_view kind_name = "fixed_size";
  static constexpr std::size_t default_block_size            = 1 << 20;  ///< Bytes.
  static constexpr std::size_t default_blocks_to_preallocate = 128;

  /** Empty. */
  fixed_size_memory_resource() noexcept = default;
  /** Blocks as the options say. */
  fixed_size_memory_resource(resource_ref upstream, fixed_size_options const& options)
    : resource(adopt_tag{}, make(upstream, options))
  {
  }
  /** RMM's constructor. */
  explicit fixed_size_memory_resource(resource_ref upstream,
                                      std::size_t block_size            = default_block_size,
                                      std::size_t blocks_to_preallocate = default_blocks_to_preallocate)
    : fixed_size_memory_resource(upstream, fixed_size_options{block_size, blocks_to_preallocate, {}})
  {
  }

  /** Bytes of each block. */
  [[nodiscard]] std::size_t get_block_size() const { return static_cast<std::size_t>(property("block_size")); }

 private:
  static tenure_resource make(resource_ref upstream, fixed_size_options const& options)
  {
    if (options.block_size == 0) {
      ::tenure::detail::raise_own<invalid_argument>(
        TENURE_ERROR_INVALID_ARGUMENT, "tenure: block_size is 0; give the bytes of a block (the usual size is 1048576)");
    }
    tenure_fixed_size_options raw{};
    raw.size                  = sizeof raw;
    raw.block_size            = options.block_size;
    raw.blocks_to_preallocate = options.blocks_to_preallocate;
    raw.device                = options.device.value();
    tenure_resource made      = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(fixed_size_create)(upstream.handle(), &raw, &made));
    return made;
  }
};

/** How a `binning_memory_resource` is made. */
struct binning_options {
  std::int8_t min_size_exponent{-1};  ///< A bin of 2^n bytes for each n from here on; both -1: no bins at first.
  std::int8_t max_size_exponent{-1};  ///< The exponent of the largest bin.
  cuda_device_id device{};            ///< The device of the bins made here; left out: the current one.
};

/**
 * Sends each request to the smallest bin that is large enough, and what no bin takes to the upstream.
 *
 * The constructor from one resource makes a resource over it, but for another binning resource: that is copied. Give
 * `binning_options` to stand on one.
 */
class binning_memory_resource : public resource {
 public:
  static constexpr std::string_view kind_name = "binning";

  /** Empty. */
  binning_memory_resource() noexcept = default;
  /** Bins as the options say. */
  binning_memory_resource(resource_ref upstream, binning_options const& options)
    : resource(adopt_tag{}, make(upstream, options))
  {
  }
  /** RMM's constructor: no bins at first. */
  explicit binning_memory_resource(resource_ref upstream) : binning_memory_resource(upstream, binning_options{}) {}
  /** RMM's constructor: a bin of 2^n bytes for each n from `min_size_exponent` to `max_size_exponent`. */
  binning_memory_resource(resource_ref upstream, std::int8_t min_size_exponent, std::int8_t max_size_exponent)
    : binning_memory_resource(upstream, binning_options{min_size_exponent, max_size_exponent, {}})
  {
  }

  /**
   * Adds a bin for requests of up to `allocation_size` bytes (rounded up to a multiple of 256), at any time. Without a
   * resource it is a fixed-size resource with blocks of that size over the upstream. A size that has a bin keeps it
   * where no resource is given; with one, the new bin serves it from now on.
   */
  void add_bin(std::size_t allocation_size, std::optional<resource_ref> bin_resource = std::nullopt)
  {
    auto const bin = bin_resource.has_value() ? bin_resource->handle() : TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(binning_add_bin)(handle(), allocation_size, bin));
  }
  /** The bins, the smallest first: the size up to which each serves, and its resource. */
  [[nodiscard]] std::vector<std::pair<std::size_t, resource>> bins() const
  {
    std::vector<std::pair<std::size_t, resource>> all;
    for (;;) {
      std::uint64_t size  = 0;
      tenure_resource bin = TENURE_RESOURCE_NULL;
      ::tenure::detail::check(
        TENURE_DETAIL_CALL(binning_bin)(handle(), static_cast<std::uint32_t>(all.size()), &size, &bin));
      if (bin == TENURE_RESOURCE_NULL) { return all; }
      all.emplace_back(static_cast<std::size_t>(size), resource::from_handle(bin));
    }
  }

 private:
  static tenure_resource make(resource_ref upstream, binning_options const& options)
  {
    tenure_binning_options raw{};
    raw.size              = sizeof raw;
    raw.has_exponents     = 1;
    raw.min_size_exponent = options.min_size_exponent;
    raw.max_size_exponent = options.max_size_exponent;
    raw.device            = options.device.value();
    tenure_resource made  = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(binning_create)(upstream.handle(), &raw, &made));
    return made;
  }
};

/** How an `arena_memory_resource` is made. */
struct arena_options {
  std::optional<std::size_t> arena_size{};  ///< Bytes, taken at once, or an error; left out: half of the free memory.
  bool dump_log_on_failure{false};          ///< Each failure leaves the state in `tenure_arena_memory_dump.log`.
  cuda_device_id device{};                  ///< The device; left out: the current one.
};

/**
 * Memory of one size, taken at once, that many threads and streams share.
 *
 * The constructor from one resource makes a resource over it, but for another arena: that is copied. Give `arena_options` to
 * stand on one.
 */
class arena_memory_resource : public resource {
 public:
  static constexpr std::string_view kind_name = "arena";

  /** Empty. */
  arena_memory_resource() noexcept = default;
  /** An arena made as the options say. */
  arena_memory_resource(resource_ref upstream, arena_options const& options)
    : resource(adopt_tag{}, make(upstream, options))
  {
  }
  /** RMM's constructor. */
  explicit arena_memory_resource(resource_ref upstream,
                                 std::optional<std::size_t> arena_size = std::nullopt,
                                 bool dump_log_on_failure              = false)
    : arena_memory_resource(upstream, arena_options{arena_size, dump_log_on_failure, {}})
  {
  }

  /** Bytes of the arena. */
  [[nodiscard]] std::size_t arena_size() const { return static_cast<std::size_t>(property("arena_size")); }

 private:
  static tenure_resource make(resource_ref upstream, arena_options const& options)
  {
    if (options.arena_size == std::size_t{0}) {
      ::tenure::detail::raise_own<invalid_argument>(
        TENURE_ERROR_INVALID_ARGUMENT, "tenure: arena_size is 0; leave it out for half of the free memory, or raise it");
    }
    tenure_arena_options raw{};
    raw.size                = sizeof raw;
    raw.arena_size          = options.arena_size.value_or(0);
    raw.device              = options.device.value();
    raw.dump_log_on_failure = options.dump_log_on_failure ? 1 : 0;
    tenure_resource made    = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(arena_create)(upstream.handle(), &raw, &made));
    return made;
  }
};

}  // namespace mr
}  // namespace tenure
