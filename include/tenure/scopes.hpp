// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/scopes.hpp
 *
 * Measurements that belong to a thread or a task.
 *
 *     tenure::mr::statistics_resource_adaptor statistics{pool};
 *     tenure::mr::statistics_scope scope{statistics};
 *     work(statistics);                            // other threads may be at work there too
 *     auto [bytes, allocations] = scope.close();   // what this thread did
 */

#pragma once

#include <tenure/resources.hpp>

#include <utility>

namespace tenure {
namespace mr {

/**
 * Counts what the calling thread does through a statistics adaptor until it is closed or destroyed: its allocations, and its
 * frees, whoever had allocated. A scope that is opened inside another one of that adaptor counts there too. The adaptor's own
 * counters go on beside it.
 */
class statistics_scope {
 public:
  /** One thing counted. */
  using counter = statistics_resource_adaptor::counter;
  /** Bytes, and blocks. */
  using counters = statistics_resource_adaptor::counters;

  /** Empty. */
  statistics_scope() noexcept = default;
  /** Opens a scope of the calling thread. */
  explicit statistics_scope(statistics_resource_adaptor const& statistics)
  {
    ::tenure::detail::check(TENURE_DETAIL_CALL(statistics_scope_open)(statistics.handle(), &scope_));
  }
  statistics_scope(statistics_scope&& other) noexcept : scope_(std::exchange(other.scope_, 0)) {}
  statistics_scope& operator=(statistics_scope&& other) noexcept
  {
    if (this != &other) {
      discard();
      scope_ = std::exchange(other.scope_, 0);
    }
    return *this;
  }
  statistics_scope(statistics_scope const&)            = delete;
  statistics_scope& operator=(statistics_scope const&) = delete;
  ~statistics_scope() { discard(); }

  /** What it has counted. */
  [[nodiscard]] counters get() const
  {
    tenure_statistics raw = empty();
    ::tenure::detail::check(TENURE_DETAIL_CALL(statistics_scope_get)(scope_, &raw));
    return of(raw);
  }
  /** Closes it, and says what it has counted. Scopes that were opened inside it go on. */
  counters close()
  {
    tenure_statistics raw = empty();
    ::tenure::detail::check(TENURE_DETAIL_CALL(statistics_scope_close)(scope_, &raw));
    scope_ = 0;
    return of(raw);
  }
  /** Calls `function` inside the scope on the calling thread, whichever opened it: several threads then count in one scope. */
  template <typename Function>
  decltype(auto) run(Function&& function) const
  {
    tenure_statistics_scope before = 0;
    ::tenure::detail::check(TENURE_DETAIL_CALL(statistics_scope_enter)(scope_, &before));
    struct back {
      tenure_statistics_scope to;
      ~back() { (void)TENURE_DETAIL_CALL(statistics_scope_enter)(to, nullptr); }
    } guard{before};
    return std::forward<Function>(function)();
  }

 private:
  static tenure_statistics empty() noexcept
  {
    tenure_statistics raw{};
    raw.size = sizeof raw;
    return raw;
  }
  static counters of(tenure_statistics const& raw) noexcept
  {
    return {counter{raw.current_bytes, raw.peak_bytes, raw.total_bytes},
            counter{raw.current_count, raw.peak_count, raw.total_count}};
  }
  void discard() noexcept
  {
    if (scope_ != 0) { (void)TENURE_DETAIL_CALL(statistics_scope_close)(std::exchange(scope_, 0), nullptr); }
  }

  tenure_statistics_scope scope_{0};
};

}  // namespace mr
}  // namespace tenure
