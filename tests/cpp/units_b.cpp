// SPDX-License-Identifier: Apache-2.0
//
// The other half of units_a.cpp.

#define CUDA_API_PER_THREAD_DEFAULT_STREAM 1
#define TENURE_HEADER_ONLY 1

#include <tenure/tenure.hpp>

tenure::device_buffer make_in_the_other_unit(std::size_t bytes, tenure::mr::resource const& resource)
{
  return tenure::device_buffer{bytes, tenure::cuda_stream_view{}, resource};
}

tenure::cuda_stream_view default_of_the_other_unit()
{
  return tenure::cuda_stream_default == tenure::cuda_stream_view{} ? tenure::cuda_stream_view(tenure::cudaStream_t{})
                                                                   : tenure::cuda_stream_legacy;
}

void fail_in_the_other_unit()
{
  int local = 0;
  tenure::mr::get_current_device_resource().deallocate(tenure::cuda_stream_view{}, &local, sizeof local);
}
