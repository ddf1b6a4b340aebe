// SPDX-License-Identifier: Apache-2.0
//
// A pool, a stream, and a buffer that outlives the name of the pool.

#include <tenure/tenure.hpp>

#include <cstdio>

int main()
{
  tenure::cuda_stream stream{tenure::cuda_stream::flags::non_blocking};
  tenure::device_buffer buffer;
  {
    tenure::mr::pool_memory_resource pool{tenure::mr::cuda_memory_resource{}, 1 << 20};
    buffer = tenure::device_buffer{1 << 16, stream, pool};
  }  // the name is gone; the pool lives on, because the buffer does
  std::printf("%zu bytes from a %s\n", buffer.size(), std::string(buffer.memory_resource().kind()).c_str());
  buffer.close();
  return tenure::misuse_count() == 0 ? 0 : 1;
}
