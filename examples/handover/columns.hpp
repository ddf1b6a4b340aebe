// A library of somebody's, in C++: it reads columns of CSV files into device memory.
//
// Like every function that allocates should, each one takes the stream and the resource, resolves the resource once, and
// passes both on.

#pragma once

#include <tenure/tenure.hpp>

#include <cstdint>
#include <string>

namespace columns {

// The integers of one column of a CSV file, in device memory under `resource`, ready in the order of `stream`.
// Throws std::runtime_error when the file or the column is not there or a field is no integer.
tenure::device_uvector<std::int64_t> read(std::string const& path,
                                          std::string const& column,
                                          tenure::cuda_stream_view stream,
                                          tenure::mr::resource_ref resource = {});

}  // namespace columns
