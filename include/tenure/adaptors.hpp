// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/adaptors.hpp
 *
 * Adaptors beyond those of resources.hpp, under RMM's names and with RMM's parameters. Each holds its upstream.
 *
 *     tenure::mr::tracking_resource_adaptor tracked{upstream, true};         // what is out, and where it came from
 *     tenure::mr::failure_callback_resource_adaptor asking{tracked, [&](std::size_t, void*) { return cache.shrink(); }};
 *
 * Where a constructor takes nothing but an upstream, a resource of the same class is copied and not wrapped: `over` wraps it.
 */

#pragma once

#include <tenure/resource.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace tenure {
namespace mr {

/**
 * Keeps a list of the blocks that are out, with the stack of each allocation where that is wanted: it costs microseconds then,
 * and names are looked up when the list is asked for.
 */
class tracking_resource_adaptor : public resource {
 public:
  static constexpr std::string_view kind_name = "tracking";

  /** One block that is out. */
  struct allocation_info {
    std::size_t allocation_size{0};  ///< Bytes, as they were asked for.
    std::string strace{};            ///< One frame a line, those of an interpreter first; empty where stacks are not kept.
  };

  /** Empty. */
  tracking_resource_adaptor() noexcept = default;
  /** Lists what goes to `upstream`. */
  explicit tracking_resource_adaptor(resource_ref upstream, bool capture_stacks = false)
    : resource(adopt_tag{}, make(upstream, capture_stacks))
  {
  }
  /** Lists what goes to `upstream`, whatever it is. */
  [[nodiscard]] static tracking_resource_adaptor over(resource_ref upstream, bool capture_stacks = false)
  {
    return tracking_resource_adaptor(upstream, capture_stacks);
  }

  /** Bytes that are out. */
  [[nodiscard]] std::size_t get_allocated_bytes() const { return static_cast<std::size_t>(property("allocated_bytes")); }
  /** The blocks that are out at this moment. A copy: RMM's is a reference that nobody may read while others allocate. */
  [[nodiscard]] std::map<void*, allocation_info> get_outstanding_allocations() const
  {
    std::map<void*, allocation_info> blocks;
    taking take{&blocks, nullptr};
    ::tenure::detail::check(TENURE_DETAIL_CALL(tracking_list)(handle(), &tracking_resource_adaptor::visit, &take));
    if (take.thrown) { std::rethrow_exception(take.thrown); }
    return blocks;
  }
  /** The same as text: `0x7f0000000000: 1024 B` and a line end for each block, its stack behind it. */
  [[nodiscard]] std::string get_outstanding_allocations_str() const
  {
    tenure_text raw{};
    ::tenure::detail::check(TENURE_DETAIL_CALL(tracking_text)(handle(), &raw));
    struct give_back {
      tenure_text* text;
      ~give_back() { (void)TENURE_DETAIL_CALL(text_free)(text); }
    } const last{&raw};
    return std::string(raw.data, raw.size);
  }

 private:
  struct taking {
    std::map<void*, allocation_info>* blocks;
    std::exception_ptr thrown;
  };
  static std::int32_t visit(void* context, tenure_tracked const* block) noexcept
  {
    auto* const take = static_cast<taking*>(context);
    try {
      take->blocks->insert_or_assign(block->ptr, allocation_info{block->bytes, block->stack});
      return 0;
    } catch (...) {
      take->thrown = std::current_exception();
      return 1;
    }
  }
  static tenure_resource make(resource_ref upstream, bool capture_stacks)
  {
    tenure_resource made = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(tracking_create)(upstream.handle(), capture_stacks ? 1 : 0, &made));
    return made;
  }
};

/** Asked when `bytes` bytes are not to be had: true for another try. The last argument is the constructor's. */
using failure_callback_t = std::function<bool(std::size_t bytes, void* arg)>;

/**
 * Asks a function before a request fails for want of memory, and for no other error. The function is moved in; it is called
 * without a lock, on any thread, perhaps on several at once, and may allocate and free. What it throws reaches whoever asked for
 * memory, as the same exception. "True" is believed for as long as something becomes free: 100 tries in a row before which
 * nothing has become better end the request with its error. A request that the function makes through this very resource does
 * not ask it again.
 */
template <class ExceptionType = ::tenure::out_of_memory>
class failure_callback_resource_adaptor : public resource {
  static_assert(std::is_base_of_v<ExceptionType, ::tenure::out_of_memory>,
                "only out of memory asks: a fault of the device or a wrong argument is no reason to try again");

 public:
  static constexpr std::string_view kind_name = "failure_callback";
  using exception_type                        = ExceptionType;

  /** Empty. */
  failure_callback_resource_adaptor() noexcept = default;
  /** Asks `callback`, and passes it `callback_arg`, whose object must outlive the resource. */
  failure_callback_resource_adaptor(resource_ref upstream, failure_callback_t callback, void* callback_arg = nullptr)
    : resource(adopt_tag{}, make(upstream, std::move(callback), callback_arg))
  {
  }

 private:
  struct asked {
    failure_callback_t function;
    void* arg;
  };
  static tenure_status call(void* context, std::size_t bytes, std::uint32_t* again) noexcept
  {
    try {
      auto const* const self = static_cast<asked*>(context);
      *again                 = self->function(bytes, self->arg) ? 1 : 0;
      return TENURE_OK;
    } catch (...) {
      return ::tenure::detail::hand_over_exception();
    }
  }
  static tenure_resource make(resource_ref upstream, failure_callback_t callback, void* arg)
  {
    if (!callback) {
      ::tenure::detail::raise_own<invalid_argument>(
        TENURE_ERROR_INVALID_ARGUMENT, "tenure: a failure_callback_resource_adaptor needs a callback; the one given is empty");
    }
    auto owned           = std::make_unique<asked>(asked{std::move(callback), arg});
    tenure_resource made = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(failure_callback_create)(
      upstream.handle(), &call, tenure_owner{owned.get(), &::tenure::detail::delete_object<asked>}, &made));
    (void)owned.release();
    return made;
  }
};

/**
 * Moves memory that migrates (managed, or of the host where devices can use that) to the device of each request's stream. A hint
 * and nothing else: where there is nothing to move, the memory is handed out as it is.
 */
class prefetch_resource_adaptor : public resource {
 public:
  static constexpr std::string_view kind_name = "prefetch";

  /** Empty. */
  prefetch_resource_adaptor() noexcept = default;
  /** Moves what `upstream` makes. */
  explicit prefetch_resource_adaptor(resource_ref upstream) : resource(adopt_tag{}, make(upstream)) {}
  /** Moves what `upstream` makes, whatever it is. */
  [[nodiscard]] static prefetch_resource_adaptor over(resource_ref upstream) { return prefetch_resource_adaptor(upstream); }

  /** Whether memory of the upstream migrates, so that the driver is told anything at all. */
  [[nodiscard]] bool hints() const { return property("hints") != 0; }
  /** How often the driver was told. */
  [[nodiscard]] std::uint64_t told() const { return property("told"); }

 private:
  static tenure_resource make(resource_ref upstream)
  {
    tenure_resource made = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(prefetch_create)(upstream.handle(), &made));
    return made;
  }
};

/** Raises the alignment of what is large enough. The upstream aligns: no byte is asked for beyond the request. */
class aligned_resource_adaptor : public resource {
 public:
  static constexpr std::string_view kind_name                = "aligned";
  static constexpr std::size_t default_alignment_threshold = 0;

  /** Empty. */
  aligned_resource_adaptor() noexcept = default;
  /**
   * Aligns blocks of `alignment_threshold` bytes and more to `alignment`, which is raised to 256 where it is less. Throws for
   * one that is no power of two, or larger than 2 MiB.
   */
  explicit aligned_resource_adaptor(resource_ref upstream,
                                    std::size_t alignment           = 256,
                                    std::size_t alignment_threshold = default_alignment_threshold)
    : resource(adopt_tag{}, make(upstream, alignment, alignment_threshold))
  {
  }

  [[nodiscard]] std::size_t get_alignment() const { return static_cast<std::size_t>(property("alignment")); }
  [[nodiscard]] std::size_t get_alignment_threshold() const
  {
    return static_cast<std::size_t>(property("alignment_threshold"));
  }

 private:
  static tenure_resource make(resource_ref upstream, std::size_t alignment, std::size_t threshold)
  {
    tenure_resource made = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(aligned_create)(upstream.handle(), alignment, threshold, &made));
    return made;
  }
};

/**
 * One call at a time for an upstream of user functions that cannot take more; every resource of tenure's own can. The functions
 * may come back to this resource on the same thread (RMM's would wait for itself).
 */
class thread_safe_resource_adaptor : public resource {
 public:
  static constexpr std::string_view kind_name = "thread_safe";

  /** Empty. */
  thread_safe_resource_adaptor() noexcept = default;
  /** Lets one call at a time through to `upstream`. */
  explicit thread_safe_resource_adaptor(resource_ref upstream) : resource(adopt_tag{}, make(upstream)) {}
  /** Lets one call at a time through to `upstream`, whatever it is. */
  [[nodiscard]] static thread_safe_resource_adaptor over(resource_ref upstream)
  {
    return thread_safe_resource_adaptor(upstream);
  }

 private:
  static tenure_resource make(resource_ref upstream)
  {
    tenure_resource made = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(thread_safe_create)(upstream.handle(), &made));
    return made;
  }
};

/**
 * Memory of the system's allocator that is at home on the device of each request as far as that has more than the headroom free,
 * and on the host beyond. A hint: where devices cannot use memory of the host, it is that of `system_memory_resource`.
 */
class sam_headroom_memory_resource : public resource {
 public:
  static constexpr std::string_view kind_name = "sam_headroom";

  /** Empty. */
  sam_headroom_memory_resource() noexcept = default;
  /** Leaves `headroom` bytes of each device to others. */
  explicit sam_headroom_memory_resource(std::size_t headroom) : resource(adopt_tag{}, make(headroom)) {}

  /** The bytes of the device that are left to others. */
  [[nodiscard]] std::size_t get_headroom() const { return static_cast<std::size_t>(property("headroom")); }
  /** Whether devices can use memory of the host, so that the driver is told anything at all. */
  [[nodiscard]] bool hints() const { return property("hints") != 0; }

 private:
  static tenure_resource make(std::size_t headroom)
  {
    tenure_resource made = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(sam_headroom_create)(headroom, &made));
    return made;
  }
};

/**
 * Stream-ordered managed memory from the default pool of managed memory of a device, which keeps what is free from now on. Throws
 * before CUDA 13 and on devices that do not use managed memory together with the host. Default-constructed it is empty; RMM's
 * default constructor is `cuda_async_managed_memory_resource{cuda_device_id{}}` here.
 */
class cuda_async_managed_memory_resource : public resource {
 public:
  static constexpr std::string_view kind_name = "cuda_async_managed";

  /** Empty. */
  cuda_async_managed_memory_resource() noexcept = default;
  /** The managed pool of a device; without a number, of the current one. */
  explicit cuda_async_managed_memory_resource(cuda_device_id device) : resource(adopt_tag{}, make(device)) {}

  /** The driver's pool (`cudaMemPool_t`, `CUmemoryPool`). */
  [[nodiscard]] void* pool_handle() const
  {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(property("pool_handle")));
  }

 private:
  static tenure_resource make(cuda_device_id device)
  {
    tenure_resource made = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(async_managed_create)(device.value(), &made));
    return made;
  }
};

}  // namespace mr

/** The host, as a place for `prefetch`. */
inline constexpr cuda_device_id host_device{TENURE_HOST};

/**
 * Asks the driver to move memory to a device, or to the `host_device`, in the order of `stream`; says whether it was asked. A hint
 * is no error where memory does not migrate, the device or the driver lacks it, or the stream is capturing.
 */
inline bool prefetch(void const* ptr, std::size_t size, cuda_device_id device, cuda_stream_view stream)
{
  std::uint32_t told = 0;
  detail::check(TENURE_DETAIL_CALL(prefetch)(ptr, size, device.value(), stream.native(), &told));
  return told != 0;
}

}  // namespace tenure
