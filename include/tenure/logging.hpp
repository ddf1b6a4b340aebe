// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/logging.hpp
 *
 * Logs of what passes: RMM's log, and what RMM's leaves out.
 *
 *     tenure::mr::logging_resource_adaptor log{pool, "run.csv"};
 *     tenure::mr::set_current_device_resource(log);
 *
 * A row of CSV for each allocation and free: `Thread,Time,Action,Pointer,Size,Stream` as RMM writes them, then device, day,
 * monotonic nanoseconds, stream id, outcome and tag. Each row is in the file at once, also when the process is killed.
 */

#pragma once

#include <tenure/resource.hpp>

#include <string>
#include <string_view>

namespace tenure {
namespace mr {

/** Writes a row for each allocation and free. */
class logging_resource_adaptor : public resource {
 public:
  static constexpr std::string_view kind_name = "logging";

  /** Empty. */
  logging_resource_adaptor() noexcept = default;
  /**
   * Logs what goes to `upstream` into `filename`, which is emptied. Adaptors of one process that name one file share it as it
   * is. Throws where the file cannot be written or another process writes it; nothing was created.
   */
  logging_resource_adaptor(resource_ref upstream, std::string const& filename)
    : resource(adopt_tag{}, make(upstream, filename.c_str()))
  {
  }
  /**
   * Logs into the file that the environment variable `RMM_LOG_FILE` names; throws where it is not set. An adaptor over another
   * logging adaptor is made with `over`: this constructor would copy the handle there.
   */
  explicit logging_resource_adaptor(resource_ref upstream) : resource(adopt_tag{}, make(upstream, nullptr)) {}
  /** Logs into the file that `RMM_LOG_FILE` names, whatever `upstream` is. */
  [[nodiscard]] static logging_resource_adaptor over(resource_ref upstream) { return logging_resource_adaptor(upstream); }

  /** Ends the file behind its last row. Until then spaces may follow it, inside its last field. */
  void flush() { ::tenure::detail::check(TENURE_DETAIL_CALL(logging_flush)(handle())); }
  /** The absolute name of the file. */
  [[nodiscard]] std::string file_name() const
  {
    tenure_text text{};
    ::tenure::detail::check(TENURE_DETAIL_CALL(logging_file_name)(handle(), &text));
    std::string name(text.data, text.size);
    (void)TENURE_DETAIL_CALL(text_free)(&text);
    return name;
  }
  /** The first line of a log, as RMM's function of this name gives it: with its six columns only. */
  [[nodiscard]] static std::string header() { return "Thread,Time,Action,Pointer,Size,Stream"; }

 private:
  static tenure_resource make(resource_ref upstream, char const* name)
  {
    tenure_resource made = TENURE_RESOURCE_NULL;
    ::tenure::detail::check(TENURE_DETAIL_CALL(logging_create)(upstream.handle(), name, 0, &made));
    return made;
  }
};

}  // namespace mr
}  // namespace tenure
