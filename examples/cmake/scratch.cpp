// SPDX-License-Identifier: Apache-2.0
//
// A pool of tenure's where CCCL's erased resource is wanted.

#include <tenure/cccl.hpp>
#include <tenure/tenure.hpp>

#include <cstdio>

using any_resource = cuda::mr::any_resource<cuda::mr::device_accessible>;

void algorithm(cuda::stream_ref stream, any_resource resource)
{
  void* const scratch = resource.allocate(stream, 1000, 256);
  resource.deallocate(stream, scratch, 1000, 256);
}

int main()
{
  tenure::mr::statistics_resource_adaptor counted{tenure::mr::cuda_memory_resource{}};
  tenure::cuda_stream stream{tenure::cuda_stream::flags::non_blocking};
  algorithm(stream, counted);
  std::printf("peak: %lld bytes\n", static_cast<long long>(counted.get_bytes_counter().peak));
  return counted.get_bytes_counter().peak == 1000 && counted.get_bytes_counter().value == 0 ? 0 : 1;
}
