// SPDX-License-Identifier: Apache-2.0
#include "columns.hpp"

#include <cstdio>

int main()
{
  tenure::mr::statistics_resource_adaptor counted{tenure::mr::cuda_memory_resource{}};
  tenure::cuda_stream stream{tenure::cuda_stream::flags::non_blocking};
  auto const column = make_column(10, stream, counted);
  auto const held   = counted.get_bytes_counter().value;
  std::printf("%d at the end of %lld bytes\n", column.back_element(stream), static_cast<long long>(held));
  return column.back_element(stream) == 9 && held == 40 ? 0 : 1;
}
