// SPDX-License-Identifier: Apache-2.0
#include "columns.hpp"

tenure::device_uvector<int> make_column(std::size_t count,
                                        tenure::cuda_stream_view stream,
                                        tenure::mr::resource_ref resource)
{
  tenure::device_uvector<int> column{count, stream, resource};
  for (std::size_t at = 0; at < count; ++at) { column.set_element(at, static_cast<int>(at), stream); }
  return column;
}
