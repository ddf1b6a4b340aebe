// SPDX-License-Identifier: Apache-2.0
//
// Two units that include everything and are linked: nothing is defined twice. units_b.cpp is compiled for per-thread default
// streams and finds the library at run time; this one is not and does not. A default stream keeps the meaning of its unit.

#include "check.hpp"

tenure::device_buffer make_in_the_other_unit(std::size_t bytes, tenure::mr::resource const& resource);
tenure::cuda_stream_view default_of_the_other_unit();
void fail_in_the_other_unit();

TEST(a_buffer_of_one_unit_is_freed_by_the_other)
{
  tenure::mr::pool_memory_resource const pool{tenure::mr::cuda_memory_resource{}, 0};
  {
    tenure::device_buffer const buffer = make_in_the_other_unit(123, pool);
    CHECK(buffer.size() == 123 && buffer.memory_resource() == pool);
    CHECK(buffer.stream().is_per_thread_default());
  }
  CHECK_EQ(pool.info().live_count, 0);
}

TEST(each_unit_has_its_default_stream)
{
  CHECK(default_of_the_other_unit() == tenure::cuda_stream_per_thread);
  CHECK(tenure::cuda_stream_view{} == tenure::cuda_stream_legacy);
  CHECK(tenure::cuda_stream_default == tenure::cuda_stream_legacy);
}

TEST(exceptions_are_the_same_types)
{
  CHECK_THROWS(fail_in_the_other_unit(), tenure::ownership_error, "");
}

int main() { return check::run_all("units.cpp"); }
