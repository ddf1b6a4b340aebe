#include "columns.hpp"

#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace columns {
namespace {

std::vector<std::string> fields(std::string line)
{
  if (!line.empty() && line.back() == '\r') { line.pop_back(); }
  std::vector<std::string> out;
  std::istringstream in(line);
  for (std::string field; std::getline(in, field, ',');) { out.push_back(field); }
  return out;
}

std::int64_t integer(std::string const& field, std::string const& path, std::size_t line)
{
  std::size_t used = 0;
  try {
    auto const value = std::stoll(field, &used, 0);
    if (used == field.size()) { return value; }
  } catch (std::exception const&) {
    // Said below, with the place.
  }
  throw std::runtime_error(path + ":" + std::to_string(line) + ": '" + field + "' is not an integer");
}

}  // namespace

tenure::device_uvector<std::int64_t> read(std::string const& path,
                                          std::string const& column,
                                          tenure::cuda_stream_view stream,
                                          tenure::mr::resource_ref resource)
{
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) { throw std::runtime_error("cannot read " + path); }
  auto const header = fields(line);
  std::size_t index = 0;
  while (index < header.size() && header[index] != column) { ++index; }
  if (index == header.size()) { throw std::runtime_error(path + " has no column " + column); }

  std::vector<std::int64_t> values;
  for (std::size_t number = 2; std::getline(file, line); ++number) {
    auto const row = fields(line);
    if (row.empty()) { continue; }
    if (index >= row.size()) {
      throw std::runtime_error(path + ":" + std::to_string(number) + ": the line is too short");
    }
    values.push_back(integer(row[index], path, number));
  }

  tenure::device_uvector<std::int64_t> result(values.size(), stream, resource);
  tenure::copy_async(result.data(), values.data(), values.size() * sizeof(std::int64_t), stream);
  // The host vector ends here: the copy must be done before.
  stream.synchronize();
  return result;
}

}  // namespace columns

// ---------------------------------------------------------------- the same for languages that speak C

namespace {

template <class Body>
int guarded(char* why, std::size_t room, Body body) noexcept
{
  try {
    body();
    return 0;
  } catch (std::exception const& error) {
    std::snprintf(why, room, "%s", error.what());
  } catch (...) {
    std::snprintf(why, room, "an exception of an unknown kind");
  }
  return 1;
}

}  // namespace

extern "C" {

// The buffer in `out` belongs to the caller, with its resource, its stream and its device.
int columns_read(char const* path,
                 char const* column,
                 tenure_stream stream,
                 tenure_resource resource,
                 tenure_buffer* out,
                 char* why,
                 std::size_t room)
{
  return guarded(why, room, [&] {
    auto read = columns::read(path, column, tenure::cuda_stream_view(stream), tenure::mr::resource_ref(resource));
    *out      = read.release().release();
  });
}

int columns_set_current(tenure_resource resource, char* why, std::size_t room)
{
  return guarded(why, room, [&] {
    tenure::mr::set_current_device_resource(tenure::mr::resource(tenure::mr::resource_ref(resource)));
  });
}

int columns_current_id(std::uint64_t* id, char* why, std::size_t room)
{
  return guarded(why, room, [&] { *id = tenure::mr::get_current_device_resource().id(); });
}

int columns_free(tenure_buffer buffer, char* why, std::size_t room)
{
  return guarded(why, room, [&] { tenure::device_buffer::from_handle(buffer).close(); });
}
}
