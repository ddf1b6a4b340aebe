// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tenure/tenure.hpp>

/** A column of `count` numbers, made in the order of `stream`, of the caller's resource or the current one. */
tenure::device_uvector<int> make_column(std::size_t count,
                                        tenure::cuda_stream_view stream,
                                        tenure::mr::resource_ref resource = {});
