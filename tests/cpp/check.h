/* SPDX-License-Identifier: Apache-2.0
 *
 * What a test program needs, for C and C++: nothing has to be fetched, and a failure says where and what.
 *
 * CHECK(condition) goes on after a failure; REQUIRE(condition) leaves the test. Each test is a function; RUN(test) runs it.
 * finish() prints "N passed, N failed" and returns the exit status.
 */
#ifndef TENURE_TESTS_CHECK_H
#define TENURE_TESTS_CHECK_H

#include <tenure/tenure.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int check_passed_tests = 0;
static int check_failed_tests = 0;
static int check_failures     = 0;

static inline void check_failed(char const* file, int line, char const* what)
{
  ++check_failures;
  fprintf(stderr, "%s:%d: not true: %s\n", file, line, what);
}

#define CHECK(condition)                                               \
  do {                                                                 \
    if (!(condition)) { check_failed(__FILE__, __LINE__, #condition); } \
  } while (0)

#define REQUIRE(condition)                            \
  do {                                                \
    if (!(condition)) {                               \
      check_failed(__FILE__, __LINE__, #condition);   \
      return;                                         \
    }                                                 \
  } while (0)

/* Unsigned numbers that must be equal; both are shown. */
#define CHECK_EQ(found, wanted)                                                                          \
  do {                                                                                                   \
    unsigned long long const found_  = (unsigned long long)(found);                                      \
    unsigned long long const wanted_ = (unsigned long long)(wanted);                                     \
    if (found_ != wanted_) {                                                                             \
      check_failed(__FILE__, __LINE__, #found " == " #wanted);                                           \
      fprintf(stderr, "    found %llu, wanted %llu\n", found_, wanted_);                                 \
    }                                                                                                    \
  } while (0)

/* The last error of this thread, or zeros. */
static inline tenure_error check_last_error(void)
{
  tenure_error error;
  memset(&error, 0, sizeof error);
  error.size = sizeof error;
  (void)tenure_error_get(&error);
  return error;
}

static inline int check_status(char const* file, int line, char const* call, tenure_status found, tenure_status wanted)
{
  if (found == wanted) { return 1; }
  check_failed(file, line, call);
  fprintf(stderr, "    status %d, wanted %d", (int)found, (int)wanted);
  if (found > 0) { fprintf(stderr, " (%s)", check_last_error().message ? check_last_error().message : "no message"); }
  fprintf(stderr, "\n");
  return 0;
}

#define CHECK_STATUS(call, wanted) (void)check_status(__FILE__, __LINE__, #call, (call), (wanted))
#define CHECK_OK(call) CHECK_STATUS(call, TENURE_OK)
#define REQUIRE_OK(call)                                                        \
  do {                                                                          \
    if (!check_status(__FILE__, __LINE__, #call, (call), TENURE_OK)) { return; } \
  } while (0)

/* The call fails with this status, and leaves a sentence. */
#define CHECK_ERROR(call, wanted)                                                              \
  do {                                                                                         \
    if (check_status(__FILE__, __LINE__, #call, (call), (wanted))) {                           \
      tenure_error const error_ = check_last_error();                                          \
      CHECK(error_.status == (wanted));                                                        \
      CHECK(error_.message != NULL && strlen(error_.message) > 15 && !strchr(error_.message, '\n')); \
    }                                                                                          \
  } while (0)

static inline void check_run(char const* name, void (*test)(void))
{
  int const before = check_failures;
  test();
  if (check_failures == before) {
    ++check_passed_tests;
  } else {
    ++check_failed_tests;
    fprintf(stderr, "FAILED: %s\n", name);
  }
}
#define RUN(test) check_run(#test, test)

/* Ends the program: all frees were right, and nothing broke the rules of the driver. */
static inline int check_finish(char const* program, uint64_t expected_misuse)
{
  uint64_t misuse = 0, violations = 0;
  uint32_t simulated = 0;
  CHECK_OK(tenure_collect());
  CHECK_OK(tenure_misuse_count(&misuse));
  CHECK_EQ(misuse, expected_misuse);
  CHECK_OK(tenure_sim_active(&simulated));
  if (simulated) {
    CHECK_OK(tenure_sim_violations(&violations));
    CHECK_EQ(violations, 0);
  }
  if (check_failures > 0 && check_failed_tests == 0) { check_failed_tests = 1; }
  printf("%s: %d passed, %d failed\n", program, check_passed_tests, check_failed_tests);
  return check_failed_tests == 0 ? 0 : 1;
}

#endif
