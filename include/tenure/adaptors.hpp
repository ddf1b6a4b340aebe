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

}  // namespace mr
}  // namespace tenure
