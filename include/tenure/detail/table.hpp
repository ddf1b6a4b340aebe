// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/detail/table.hpp
 *
 * How the C++ headers reach the library. There are two ways, chosen by the unit that includes them:
 *
 * - By default the functions are the symbols `tenure_*`: link against libtenure.so.0.
 * - With `TENURE_HEADER_ONLY` defined nothing is linked. The table of functions is looked for at the first call: among the
 *   symbols of the process, then in a libtenure.so.0 that is already loaded, then at the path in the environment variable
 *   `TENURE_LIBRARY`, then where the loader finds libtenure.so.0. There is one library per process: all ways lead to it.
 *   Where none is found, `tenure::library_not_found` says where was looked.
 *
 * Units of both kinds may be mixed in one program.
 */

#pragma once

#include <tenure/tenure.h>

#include <stdexcept>
#include <string>

#if defined(TENURE_HEADER_ONLY)
#include <dlfcn.h>

#include <cstdlib>
#endif

namespace tenure {

/** libtenure is not there, is too old for these headers, or is a second one in the process. */
class library_not_found : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

#if defined(TENURE_HEADER_ONLY)

namespace detail {

using get_api_fn       = tenure_api const* (*)(std::uint32_t);
using get_api_error_fn = char const* (*)();

inline char const* last_dl_error() noexcept
{
  char const* const text = ::dlerror();
  return text != nullptr ? text : "no reason given";
}

/** Asks one library for its table; `library` is null for the symbols of the process. Null when it is not there. */
inline tenure_api const* ask(void* library, std::string const& where)
{
  void* const scope = library != nullptr ? library : RTLD_DEFAULT;
  // POSIX says that an object pointer from dlsym may be turned into a function pointer.
  auto const get = reinterpret_cast<get_api_fn>(::dlsym(scope, "tenure_get_api"));
  if (get == nullptr) { return nullptr; }
  tenure_api const* const api = get(TENURE_ABI_VERSION);
  if (api == nullptr) {
    auto const why = reinterpret_cast<get_api_error_fn>(::dlsym(scope, "tenure_get_api_error"));
    throw library_not_found("tenure: the library " + where + " refuses: " +
                            (why != nullptr ? why() : "it does not say why"));
  }
  if (api->size < sizeof(tenure_api)) {
    throw library_not_found("tenure: the library " + where +
                            " is older than the headers this program was compiled with; install the newer one");
  }
  return api;
}

inline tenure_api const* find_table()
{
  constexpr char const* name = "libtenure.so.0";
  if (auto const* api = ask(nullptr, "of this process")) { return api; }
  if (void* const loaded = ::dlopen(name, RTLD_NOW | RTLD_NOLOAD)) {
    if (auto const* api = ask(loaded, "that is loaded as libtenure.so.0")) { return api; }
  }
  std::string looked = "the symbols of the process and the loaded libtenure.so.0 (not there)";
  if (char const* const path = std::getenv("TENURE_LIBRARY"); path != nullptr && *path != '\0') {
    void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    // A path that was set by hand is meant: nothing else is tried in its place.
    if (library == nullptr) {
      throw library_not_found(std::string("tenure: TENURE_LIBRARY names a library that cannot be loaded: ") +
                              last_dl_error());
    }
    if (auto const* api = ask(library, std::string("at ") + path + " (TENURE_LIBRARY)")) { return api; }
    throw library_not_found(std::string("tenure: ") + path +
                            ", which TENURE_LIBRARY names, is not libtenure: it has no tenure_get_api");
  }
  if (void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (auto const* api = ask(library, "that the loader finds as libtenure.so.0")) { return api; }
    looked += " and libtenure.so.0 of the loader (it has no tenure_get_api)";
  } else {
    looked += std::string(" and libtenure.so.0 of the loader (") + last_dl_error() + ")";
  }
  throw library_not_found("tenure: libtenure was not found; looked at " + looked +
                          ". Load it before, set TENURE_LIBRARY to its path, or put its folder into LD_LIBRARY_PATH");
}

/** The table; looked for once, and again only after it was not found. */
inline tenure_api const& table()
{
  static tenure_api const* const api = find_table();
  return *api;
}

}  // namespace detail

#define TENURE_DETAIL_CALL(name) (::tenure::detail::table().name)

#else

#define TENURE_DETAIL_CALL(name) (::tenure_##name)

#endif

}  // namespace tenure
