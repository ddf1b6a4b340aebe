// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/rmm.hpp
 *
 * A resource of tenure's for code that was written for RMM's, with RMM's exceptions. Needs librmm's headers (26.8 or newer).
 *
 *     tenure::mr::rmm_resource mr{pool};                              // what RMM's functions take
 *     rmm::device_buffer buffer(1 << 20, stream, mr);                 // it owns the pool
 *     auto before = rmm::mr::set_per_device_resource(device, mr);     // libcudf allocates from the pool
 *
 *     auto ours = tenure::mr::from_cccl(rmm::mr::cuda_memory_resource{});   // and RMM's resources below ours (cccl.hpp)
 *
 * tenure's other handles do for RMM as well; what they throw is tenure's own. Code that catches `rmm::out_of_memory`, as RMM's
 * failure callback and libcudf's retries do, needs this one: it throws exactly RMM's types.
 *
 * | tenure throws                              | RMM's code catches        |
 * |--------------------------------------------|---------------------------|
 * | `tenure::out_of_memory`                    | `rmm::out_of_memory`      |
 * | `tenure::bad_alloc`                        | `rmm::bad_alloc`          |
 * | `tenure::cuda_error`                       | `rmm::cuda_error`         |
 * | `tenure::invalid_argument`                 | `rmm::invalid_argument`   |
 * | `tenure::out_of_range`                     | `rmm::out_of_range`       |
 * | `tenure::logic_error`, `ownership_error`, `bad_handle`, `unsupported` | `rmm::logic_error` |
 * | anything else, RMM's own from an upstream among it | the same          |
 *
 * The texts are kept. RMM's types are of one minor version of RMM: compile this with the headers of the librmm that is linked.
 */

#pragma once

#include <tenure/cccl.hpp>

#if !__has_include(<rmm/error.hpp>)
#error "tenure/rmm.hpp needs RMM's headers: add the include folder of librmm 26.8 or newer, which has rmm/error.hpp"
#endif

#include <rmm/error.hpp>
#include <rmm/resource_ref.hpp>

#include <cstddef>
#include <type_traits>
#include <utility>

namespace tenure {

namespace detail {

/** RMM's exception for ours, where there is one. */
template <class Theirs>
[[noreturn]] inline void throw_theirs(error const& ours)
{
  throw Theirs(ours.message());
}

}  // namespace detail

/** Within a catch block: throws what is being handled on as RMM's exception, or as it is where RMM has none. */
[[noreturn]] inline void rethrow_as_rmm()
{
  try {
    throw;
  } catch (out_of_memory const& thrown) {
    detail::throw_theirs<::rmm::out_of_memory>(thrown);
  } catch (bad_alloc const& thrown) {
    detail::throw_theirs<::rmm::bad_alloc>(thrown);
  } catch (cuda_error const& thrown) {
    detail::throw_theirs<::rmm::cuda_error>(thrown);
  } catch (invalid_argument const& thrown) {
    detail::throw_theirs<::rmm::invalid_argument>(thrown);
  } catch (out_of_range const& thrown) {
    detail::throw_theirs<::rmm::out_of_range>(thrown);
  } catch (logic_error const& thrown) {
    detail::throw_theirs<::rmm::logic_error>(thrown);
  } catch (unsupported const& thrown) {
    detail::throw_theirs<::rmm::logic_error>(thrown);
  }
}

/** Calls `function`, and throws what it throws as RMM's exceptions. */
template <class Function>
decltype(auto) with_rmm_exceptions(Function&& function)
{
  try {
    return std::forward<Function>(function)();
  } catch (...) {
    rethrow_as_rmm();
  }
}

namespace mr {

/** A handle that throws RMM's exceptions where its base throws tenure's. `Base` says what is known of its memory. */
template <class Base>
class basic_rmm_resource : public Base {
  static_assert(std::is_base_of_v<resource, Base>, "tenure: the base is a handle of tenure's");

 public:
  /** Empty. */
  basic_rmm_resource() noexcept = default;
  /** A handle of `from`. */
  explicit basic_rmm_resource(resource from) : Base(make(std::move(from))) {}
  /** A handle of what a parameter names. The current resource is looked up now. */
  explicit basic_rmm_resource(resource_ref from) : basic_rmm_resource(resource(from)) {}

  /** As `resource::allocate`. */
  [[nodiscard]] void* allocate(::cuda::stream_ref stream,
                               std::size_t bytes,
                               std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT)
  {
    return with_rmm_exceptions([&] { return resource::allocate(stream, bytes, alignment); });
  }
  /** As `resource::deallocate_or_report`: RMM's frees do not throw. */
  void deallocate(::cuda::stream_ref stream,
                  void* ptr,
                  std::size_t bytes,
                  std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT) noexcept
  {
    resource::deallocate_or_report(stream, ptr, bytes, alignment);
  }
  /** As `resource::allocate_sync`. */
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT)
  {
    return with_rmm_exceptions([&] { return resource::allocate_sync(bytes, alignment); });
  }

 private:
  static Base make(resource from)
  {
    if constexpr (std::is_same_v<Base, resource>) {
      return from;
    } else {
      return with_rmm_exceptions([&] { return Base(std::move(from)); });
    }
  }
};

/** What code that takes RMM's resources is given. */
using rmm_resource = basic_rmm_resource<resource>;
/** The same for code that wants memory that the host can use. Throws `rmm::invalid_argument` where it cannot. */
using rmm_host_resource = basic_rmm_resource<resource_with<::cuda::mr::device_accessible, ::cuda::mr::host_accessible>>;

}  // namespace mr
}  // namespace tenure
