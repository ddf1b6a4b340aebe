// SPDX-License-Identifier: Apache-2.0
//
// Streams that are given out in turn, and prefetching.

#include "check.hpp"

#include <cstdint>
#include <set>
#include <thread>
#include <utility>
#include <vector>

using namespace tenure;

TEST(streams_go_round)
{
  cuda_stream_pool pool{3};
  CHECK_EQ(pool.get_pool_size(), 3);
  CHECK_EQ(cuda_stream_pool{}.get_pool_size(), cuda_stream_pool::default_size);
  std::vector<cuda_stream> round;
  for (int i = 0; i < 3; ++i) { round.push_back(pool.get_stream()); }
  CHECK(round[0] != round[1] && round[1] != round[2] && round[0] != round[2]);
  for (int i = 0; i < 7; ++i) {
    CHECK(pool.get_stream() == round[static_cast<std::size_t>(i) % 3]);
    CHECK(pool.get_stream(static_cast<std::size_t>(i)) == round[static_cast<std::size_t>(i) % 3]);
  }
}

TEST(a_stream_outlives_its_pool)
{
  cuda_stream kept;
  device_buffer buffer;
  {
    cuda_stream_pool pool{2, cuda_stream::flags::non_blocking};
    kept   = pool.get_stream();
    buffer = device_buffer{100, pool.get_stream()};
    cuda_stream_pool moved{std::move(pool)};
    CHECK(moved.get_stream() == kept);
    CHECK_THROWS(pool.get_stream(), logic_error, "moved from");
  }
  kept.synchronize();
  device_buffer again{100, kept};
  CHECK(again.data() != nullptr && buffer.data() != nullptr);
}

TEST(many_threads_take_turns)
{
  cuda_stream_pool pool{4};
  std::vector<std::thread> threads;
  std::vector<std::vector<cudaStream_t>> seen(4);
  for (auto& mine : seen) {
    threads.emplace_back([&pool, &mine] {
      for (int i = 0; i < 200; ++i) { mine.push_back(pool.get_stream().value()); }
    });
  }
  for (auto& thread : threads) { thread.join(); }
  std::multiset<cudaStream_t> all;
  for (auto const& mine : seen) { all.insert(mine.begin(), mine.end()); }
  for (int i = 0; i < 4; ++i) { CHECK_EQ(all.count(pool.get_stream(static_cast<std::size_t>(i)).value()), 200); }
}

TEST(pools_that_make_no_sense)
{
  CHECK_THROWS(cuda_stream_pool{0}, invalid_argument, "pool_size must be 1 or more");
  CHECK_THROWS(cuda_stream_pool{std::size_t{1} << 40}, invalid_argument, "pool_size is at most");
}

TEST(handles_of_the_c_interface)
{
  tenure_stream_pool pool = 0;
  tenure_stream out{};
  std::size_t size = 0;
  CHECK(tenure_stream_pool_create(-1, 2, 1, nullptr) == TENURE_ERROR_INVALID_ARGUMENT);
  CHECK(tenure_stream_pool_create(-2, 2, 1, &pool) != TENURE_OK && pool == 0);
  CHECK(tenure_stream_pool_create(-1, 2, 1, &pool) == TENURE_OK);
  CHECK(tenure_stream_pool_next(pool, nullptr) == TENURE_ERROR_INVALID_ARGUMENT);
  CHECK(tenure_stream_pool_at(pool, 5, &out) == TENURE_OK && out.object != 0);
  CHECK(tenure_stream_release(out.object) == TENURE_OK);
  CHECK(tenure_stream_pool_size(pool, &size) == TENURE_OK && size == 2);
  CHECK(tenure_stream_pool_release(pool) == TENURE_OK);
  // The pool had the last reference.
  CHECK(tenure_stream_retain(out.object) == TENURE_ERROR_BAD_HANDLE);
  CHECK(tenure_stream_pool_release(pool) == TENURE_ERROR_BAD_HANDLE);
  CHECK(tenure_stream_pool_next(pool, &out) == TENURE_ERROR_BAD_HANDLE);
  CHECK(tenure_stream_pool_size(0, &size) == TENURE_ERROR_BAD_HANDLE);
}

int main() { return check::run_all("stream_pool.cpp"); }
