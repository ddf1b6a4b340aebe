// SPDX-License-Identifier: Apache-2.0
//
// Without linking: the library is found at run time, or a sentence says where was looked.
//
//     header_only LIBRARY     the path of libtenure.so.0

#define TENURE_HEADER_ONLY 1

#include <tenure/tenure.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string library;

// Each way is a child: a process finds its library once.
int not_there()
{
  ::unsetenv("TENURE_LIBRARY");
  try {
    (void)tenure::version();
    return 10;
  } catch (tenure::library_not_found const& error) {
    return std::strstr(error.what(), "TENURE_LIBRARY") != nullptr ? 0 : 11;
  }
}

int a_wrong_path()
{
  ::setenv("TENURE_LIBRARY", "/nonexistent/libtenure.so.0", 1);
  try {
    (void)tenure::mr::get_current_device_resource();
    return 10;
  } catch (tenure::library_not_found const& error) {
    if (std::strstr(error.what(), "/nonexistent/libtenure.so.0") == nullptr) { return 11; }
  }
  // It is looked for again: the path may have been set right meanwhile.
  ::setenv("TENURE_LIBRARY", library.c_str(), 1);
  return tenure::version().empty() ? 12 : 0;
}

int something_else()
{
  ::setenv("TENURE_LIBRARY", "libc.so.6", 1);
  try {
    (void)tenure::version();
    return 10;
  } catch (tenure::library_not_found const& error) {
    return std::strstr(error.what(), "is not libtenure") != nullptr ? 0 : 11;
  }
}

int work()
{
  tenure::device_buffer buffer;
  {
    tenure::mr::pool_memory_resource const pool{tenure::mr::cuda_memory_resource{}, 0};
    buffer = tenure::device_buffer{1000, tenure::cuda_stream_legacy, pool};
  }
  return buffer.size() == 1000 && buffer.memory_resource().kind() == "pool" ? 0 : 13;
}

int by_environment()
{
  ::setenv("TENURE_LIBRARY", library.c_str(), 1);
  return work();
}

int already_loaded()
{
  ::setenv("TENURE_LIBRARY", "/nonexistent/libtenure.so.0", 1);
  void* const loaded = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) { return 14; }
  return work();
}

int in_the_global_scope()
{
  ::setenv("TENURE_LIBRARY", "/nonexistent/libtenure.so.0", 1);
  if (::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) { return 14; }
  return work();
}

bool passes(char const* name, int (*test)())
{
  pid_t const child = ::fork();
  if (child == 0) {
    int result = 99;
    try {
      result = test();
    } catch (std::exception const& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    std::exit(result);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) == child && status == 0) { return true; }
  std::fprintf(stderr, "FAILED: %s (%d)\n", name, WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  return false;
}

}  // namespace

int main(int argc, char** argv)
{
  if (argc != 2) {
    std::fprintf(stderr, "usage: header_only LIBRARY\n");
    return 2;
  }
  library    = argv[1];
  int passed = 0, failed = 0;
  ++(passes("not_there", &not_there) ? passed : failed);
  ++(passes("a_wrong_path", &a_wrong_path) ? passed : failed);
  ++(passes("something_else", &something_else) ? passed : failed);
  ++(passes("by_environment", &by_environment) ? passed : failed);
  ++(passes("already_loaded", &already_loaded) ? passed : failed);
  ++(passes("in_the_global_scope", &in_the_global_scope) ? passed : failed);
  std::printf("header_only.cpp: %d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
