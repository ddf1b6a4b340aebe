// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/capture.hpp
 *
 * Captures: memory that graphs share, and streams that are about to be captured.
 *
 * A pool over the plain device resource serves allocations on a capturing stream by itself: they are the graph's as long as it
 * lives. What is here is for more than that.
 *
 *     auto const arena = tenure::shared_arena::make();
 *     for (auto const& shape : shapes) {
 *       tenure::capture_scope const scope{stream, arena};
 *       // begin the capture, allocate, launch, free, end the capture
 *     }
 */

#pragma once

#include <tenure/error.hpp>
#include <tenure/stream.hpp>

#include <utility>

namespace tenure {

/**
 * A name for memory that several graphs share which never run at the same time: each pool keeps one arena for it, and what one
 * graph freed while it was captured serves the next. The memory goes back when the name, the graphs and the allocations are
 * gone. The program orders the runs of these graphs with each other. Default-constructed and moved-from objects are empty.
 */
class shared_arena {
 public:
  /** No name. */
  shared_arena() noexcept = default;
  /** A new name. */
  [[nodiscard]] static shared_arena make()
  {
    shared_arena made;
    ::tenure::detail::check(TENURE_DETAIL_CALL(shared_arena_create)(&made.arena_));
    return made;
  }
  shared_arena(shared_arena&& other) noexcept : arena_(std::exchange(other.arena_, 0)) {}
  shared_arena& operator=(shared_arena&& other) noexcept
  {
    if (this != &other) {
      release();
      arena_ = std::exchange(other.arena_, 0);
    }
    return *this;
  }
  shared_arena(shared_arena const&)            = delete;
  shared_arena& operator=(shared_arena const&) = delete;
  ~shared_arena() { release(); }

  /** The handle of the C ABI, which stays this object's. */
  [[nodiscard]] tenure_shared_arena handle() const
  {
    if (arena_ == 0) {
      detail::raise_own<logic_error>(TENURE_ERROR_BAD_HANDLE,
                                  "tenure: this tenure::shared_arena is empty: it was default-constructed or moved from; make "
                                  "one with tenure::shared_arena::make()");
    }
    return arena_;
  }
  /** Whether there is a name. */
  explicit operator bool() const noexcept { return arena_ != 0; }

 private:
  void release() noexcept
  {
    if (arena_ != 0) { ::tenure::detail::finish(TENURE_DETAIL_CALL(shared_arena_release)(std::exchange(arena_, 0))); }
  }
  tenure_shared_arena arena_{0};
};

/**
 * A scope around captures of a stream, whichever thread allocates in them. The per-thread default stream stands for this thread:
 * only inside such a scope is it asked for capture in every allocation. Scopes may end in any order and on any thread.
 */
class capture_scope {
 public:
  /** No scope. */
  capture_scope() noexcept = default;
  /** Opens a scope; each capture has memory of its own, as without one. */
  explicit capture_scope(cuda_stream_view stream) : capture_scope(stream, 0) {}
  /** Opens a scope whose captures share an arena. They follow each other. */
  capture_scope(cuda_stream_view stream, shared_arena const& shared) : capture_scope(stream, shared.handle()) {}
  capture_scope(capture_scope&& other) noexcept : scope_(std::exchange(other.scope_, 0)) {}
  capture_scope& operator=(capture_scope&& other) noexcept
  {
    if (this != &other) {
      exit();
      scope_ = std::exchange(other.scope_, 0);
    }
    return *this;
  }
  capture_scope(capture_scope const&)            = delete;
  capture_scope& operator=(capture_scope const&) = delete;
  ~capture_scope() { exit(); }

  /** Ends the scope before its time. */
  void exit() noexcept
  {
    if (scope_ != 0) { ::tenure::detail::finish(TENURE_DETAIL_CALL(capture_scope_exit)(std::exchange(scope_, 0))); }
  }

 private:
  capture_scope(cuda_stream_view stream, tenure_shared_arena arena)
  {
    ::tenure::detail::check(TENURE_DETAIL_CALL(capture_scope_enter)(stream.native(), arena, &scope_));
  }
  tenure_capture_scope scope_{0};
};

}  // namespace tenure
