// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/observe.hpp
 *
 * Looking inside: tags, accounts, snapshots, history, reports of a run.
 *
 *     {
 *       tenure::tag const loading{"loader"};
 *       buffer = tenure::device_buffer{n, stream, pool};
 *     }
 *     for (auto const& account : tenure::usage(tenure::usage_by::tag)) { ... account.live_bytes ... }
 *
 * Nothing is kept before the first tag, `observe`, `record_history`, or `report_begin`. What an out-of-memory error has to say besides its
 * line is in `tenure::error::notes()`. The fields of a snapshot are described in `docs/looking-inside.md`.
 */

#pragma once

#include <tenure/error.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tenure {

/**
 * Counts what this thread allocates under a name while it lives. Tags nest; the innermost counts. A tag ends on the thread
 * that opened it.
 */
class tag {
 public:
  /** A name of 1 to 256 bytes. */
  explicit tag(char const* name) { detail::check(TENURE_DETAIL_CALL(tag_push)(name, &tag_)); }
  explicit tag(std::string const& name) : tag(name.c_str()) {}
  tag(tag const&)            = delete;
  tag& operator=(tag const&) = delete;
  ~tag() { detail::finish(TENURE_DETAIL_CALL(tag_pop)(tag_)); }

 private:
  tenure_tag tag_{0};
};

/** Books who allocates what from now on, or no more. */
inline void observe(bool on = true) { detail::check(TENURE_DETAIL_CALL(observe)(on ? 1U : 0U)); }

/** What figures are asked by. */
enum class usage_by : std::uint32_t { tag = TENURE_BY_TAG, thread = TENURE_BY_THREAD, resource = TENURE_BY_RESOURCE };

/** What one tag, thread or resource has and had. All figures but the counts are bytes, as they were asked for. */
struct account {
  std::string name{};           ///< The tag (empty: none was open), the thread's name, the resource and what it stands on.
  std::uint64_t id{};           ///< The operating system's number of the thread, the id of the resource; 0 for tags.
  std::uint64_t live_bytes{};   ///< Live bytes.
  std::uint64_t live_count{};   ///< Live blocks.
  std::uint64_t peak_bytes{};   ///< The most that were live at once; too low by at most 1 MiB for each other thread.
  std::uint64_t peak_count{};   ///< The most blocks that were live at once.
  std::uint64_t total_bytes{};  ///< Bytes of all allocations.
  std::uint64_t total_count{};  ///< Number of all allocations.
};

namespace detail {

inline std::int32_t add_account(void* context, tenure_account const* found) noexcept
{
  try {
    static_cast<std::vector<account>*>(context)->push_back({text(found->name), found->id, found->live_bytes, found->live_count,
                                                            found->peak_bytes, found->peak_count, found->total_bytes,
                                                            found->total_count});
    return 0;
  } catch (...) {
    // No memory for one more: the list ends here.
    return 1;
  }
}

}  // namespace detail

/** The figures of each tag, thread or resource that allocated since the book was begun, those with most live bytes first. */
[[nodiscard]] inline std::vector<account> usage(usage_by by = usage_by::tag)
{
  std::vector<account> found;
  detail::check(TENURE_DETAIL_CALL(usage)(static_cast<std::uint32_t>(by), &detail::add_account, &found));
  return found;
}

namespace detail {

/** A text of the library's, which goes back to it. */
struct held_text {
  tenure_text text{};
  held_text()                            = default;
  held_text(held_text const&)            = delete;
  held_text& operator=(held_text const&) = delete;
  ~held_text() { (void)TENURE_DETAIL_CALL(text_free)(&text); }
};

}  // namespace detail

/** All memory as JSON: resources, live blocks, threads, and the recorded events. */
[[nodiscard]] inline std::string memory_snapshot()
{
  detail::held_text made;
  detail::check(TENURE_DETAIL_CALL(memory_snapshot)(&made.text));
  return {made.text.data, made.text.size};
}

/**
 * Records events from now on, the last `max_entries` of them (0: 100000); what was recorded before is forgotten. With `stacks`,
 * where something in the process can tell stacks: Python can. `false` ends it; what was recorded stays for snapshots.
 */
inline void record_history(bool on = true, bool stacks = false, std::size_t max_entries = 0)
{
  detail::check(TENURE_DETAIL_CALL(history_record)(on ? 1U : 0U, stacks ? 1U : 0U, max_entries));
}

/**
 * Counts for a report from now on, with what was counted before forgotten; with lines of who allocates if `stacks`, where
 * something in the process can tell them: Python can. While it counts, each call costs two readings of the clock, the book and
 * one lock of the process more.
 */
inline void report_begin(bool stacks = false) { detail::check(TENURE_DETAIL_CALL(report_begin)(1U, stacks ? 1U : 0U)); }

/** Counts no more. What was counted stays to be read. */
inline void report_end() { detail::check(TENURE_DETAIL_CALL(report_begin)(0U, 0U)); }

/**
 * What was counted, as JSON: the peak and who held what at it, what was reserved, the time spent in allocation, and the blocks
 * that are out. `tenure view` and `tenure stats` read it from a file; `docs/tools.md` says what the figures are.
 */
[[nodiscard]] inline std::string report()
{
  detail::held_text made;
  detail::check(TENURE_DETAIL_CALL(report)(&made.text));
  return {made.text.data, made.text.size};
}

/** A library that allocates from tenure, as reports name it: the same for the same name. */
class library {
 public:
  /** A name of 1 to 256 bytes; a process has at most 63 of them. */
  explicit library(char const* name) { detail::check(TENURE_DETAIL_CALL(library_number)(name, &number_)); }
  explicit library(std::string const& name) : library(name.c_str()) {}

  /** The number of it, as the C functions take it. */
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }

 private:
  std::uint32_t number_{0};
};

/**
 * What this thread allocates is that library's while it lives. They nest; it ends on the thread that opened it.
 *
 *     static tenure::library const mine{"my library"};
 *     tenure::in_library const here{mine};
 */
class in_library {
 public:
  explicit in_library(library const& which)
  {
    detail::check(TENURE_DETAIL_CALL(library_set)(which.number(), &previous_));
  }
  in_library(in_library const&)            = delete;
  in_library& operator=(in_library const&) = delete;
  ~in_library() { detail::finish(TENURE_DETAIL_CALL(library_set)(previous_, nullptr)); }

 private:
  std::uint32_t previous_{0};
};

}  // namespace tenure
