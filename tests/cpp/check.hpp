// SPDX-License-Identifier: Apache-2.0
//
// check.h for C++: tests register themselves, and exceptions are expected by type and text.

#pragma once

#include "check.h"

#include <tenure/tenure.hpp>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace check {

struct test {
  char const* name;
  void (*run)();
};

inline std::vector<test>& tests()
{
  static std::vector<test> all;
  return all;
}

struct registrar {
  registrar(char const* name, void (*run)()) { tests().push_back({name, run}); }
};

inline int run_all(char const* program, std::uint64_t expected_misuse = 0)
{
  for (auto const& one : tests()) {
    int const before = check_failures;
    try {
      one.run();
    } catch (std::exception const& error) {
      check_failed(one.name, 0, (std::string("no exception: ") + error.what()).c_str());
    } catch (...) {
      check_failed(one.name, 0, "no exception that is not a std::exception");
    }
    if (check_failures == before) {
      ++check_passed_tests;
    } else {
      ++check_failed_tests;
      std::fprintf(stderr, "FAILED: %s\n", one.name);
    }
  }
  return check_finish(program, expected_misuse);
}

template <class Error>
std::string text_of(Error const& error)
{
  if constexpr (std::is_base_of_v<std::exception, Error>) {
    return error.what();
  } else {
    return error.message();
  }
}

/** Runs `function`, which must throw an `Error` whose text has `part` in it. */
template <class Error, class Function>
void throws(char const* file, int line, char const* what, char const* part, Function&& function)
{
  try {
    function();
    check_failed(file, line, (std::string("throws: ") + what).c_str());
  } catch (Error const& error) {
    if (text_of(error).find(part) == std::string::npos) {
      check_failed(file, line, (std::string("says \"") + part + "\": " + text_of(error)).c_str());
    }
  } catch (std::exception const& error) {
    check_failed(file, line, (std::string("the right type of exception: ") + what + " threw " + error.what()).c_str());
  }
}

/** What a counting upstream saw; shared with the test. */
struct ledger {
  std::atomic<int> allocations{0};
  std::atomic<int> frees{0};
  std::atomic<int> dropped{0};
  std::atomic<long long> live_bytes{0};
};

/** A resource of user code over the host's memory that counts. Its destruction is counted too. */
class counting {
 public:
  explicit counting(std::shared_ptr<ledger> book) : book_(std::move(book)) {}
  counting(counting&&) noexcept            = default;
  counting& operator=(counting&&) noexcept = default;
  ~counting()
  {
    if (book_) { ++book_->dropped; }
  }
  void* allocate(tenure::cuda_stream_view, std::size_t bytes, std::size_t alignment)
  {
    // aligned_alloc wants a size that is a multiple of the alignment.
    void* const ptr = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (ptr == nullptr) { throw std::bad_alloc(); }
    ++book_->allocations;
    book_->live_bytes += static_cast<long long>(bytes);
    return ptr;
  }
  void deallocate(tenure::cuda_stream_view stream, void* ptr, std::size_t bytes, std::size_t)
  {
    stream.synchronize();  // host memory is free at once
    ++book_->frees;
    book_->live_bytes -= static_cast<long long>(bytes);
    std::free(ptr);
  }

 private:
  std::shared_ptr<ledger> book_;
};

inline tenure::mr::resource make_counting(std::shared_ptr<ledger> const& book)
{
  return tenure::mr::make_resource(
    counting(book), {"counting", TENURE_DEVICE_ACCESSIBLE | TENURE_HOST_ACCESSIBLE, tenure::cuda_device_id{}});
}

}  // namespace check

#define TEST(name)                                             \
  static void name();                                          \
  static check::registrar const name##_registrar(#name, &name); \
  static void name()

#define CHECK_THROWS(expression, type, part) \
  check::throws<type>(__FILE__, __LINE__, #expression, part, [&] { (void)(expression); })
