// SPDX-License-Identifier: Apache-2.0
//
// What is written down and counted: the log, and scopes of statistics.

#include "check.hpp"

#include <tenure/logging.hpp>
#include <tenure/scopes.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace tenure;

namespace {

std::filesystem::path folder()
{
  static auto const path = [] {
    auto made = std::filesystem::temp_directory_path() / ("tenure-cpp-" + std::to_string(::getpid()));
    std::filesystem::create_directory(made);
    return made;
  }();
  return path;
}

std::vector<std::string> lines_of(std::string const& name)
{
  std::ifstream file(name);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
  }
  return lines;
}

bool contains(std::string const& text, char const* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST(a_log_has_a_row_for_each_call)
{
  auto const name = (folder() / "rows.csv").string();
  mr::pool_memory_resource const pool{mr::cuda_memory_resource{}, 1 << 20};
  mr::logging_resource_adaptor log{pool, name};
  CHECK(log.kind() == "logging" && log.get_upstream_resource() == pool);
  CHECK(log.file_name() == name);
  {
    device_buffer const buffer{1000, cuda_stream_legacy, log};
  }
  CHECK_THROWS(log.allocate(cuda_stream_legacy, std::size_t{1} << 50), out_of_memory, "out of memory");
  log.flush();
  auto const lines = lines_of(name);
  CHECK_EQ(lines.size(), 4u);
  CHECK(lines[0].rfind(mr::logging_resource_adaptor::header(), 0) == 0);
  CHECK(contains(lines[1], ",allocate,0x") && contains(lines[1], ",1000,0,"));
  CHECK(contains(lines[2], ",free,0x"));
  CHECK(contains(lines[3], ",allocate failure,(nil),") && contains(lines[3], ",out of memory,\"\""));
  CHECK(resource_cast<mr::logging_resource_adaptor>(log).has_value());
}

TEST(a_log_that_cannot_be_written_is_refused)
{
  mr::cuda_memory_resource const cuda{};
  auto const missing = folder() / "no" / "log.csv";
  CHECK_THROWS((mr::logging_resource_adaptor{cuda, missing.string()}), invalid_argument, "its folder does not exist");
  CHECK(!std::filesystem::exists(missing.parent_path()));
  ::unsetenv("RMM_LOG_FILE");
  CHECK_THROWS((mr::logging_resource_adaptor{cuda}), invalid_argument, "RMM_LOG_FILE");
  auto const named = (folder() / "environment.csv").string();
  ::setenv("RMM_LOG_FILE", named.c_str(), 1);
  CHECK(mr::logging_resource_adaptor{cuda}.file_name() == named);
  auto const below = mr::logging_resource_adaptor{cuda};
  CHECK(mr::logging_resource_adaptor::over(below) != below);
  ::unsetenv("RMM_LOG_FILE");
  CHECK_THROWS((void)mr::logging_resource_adaptor{}.file_name(), logic_error, "is empty");
}

TEST(scopes_belong_to_their_threads)
{
  mr::statistics_resource_adaptor const statistics{mr::pool_memory_resource{mr::cuda_memory_resource{}, 1 << 20}};
  mr::statistics_scope outer{statistics};
  device_buffer const kept{100, cuda_stream_legacy, statistics};
  std::thread([&] {
    mr::statistics_scope own{statistics};
    device_buffer const other{5000, cuda_stream_legacy, statistics};
    auto const [bytes, allocations] = own.close();
    CHECK_EQ(bytes.total, 5000);
    CHECK_EQ(allocations.value, 1);
    CHECK_THROWS(own.close(), bad_handle, "closed already");
    CHECK_EQ(outer.run([&] { return device_buffer{7, cuda_stream_legacy, statistics}.size(); }), 7u);
  }).join();
  {
    mr::statistics_scope inner{statistics};
    device_buffer const inside{30, cuda_stream_legacy, statistics};
    CHECK_EQ(inner.get().first.value, 30);
    auto moved = std::move(inner);
    CHECK_EQ(moved.get().first.peak, 30);
  }
  CHECK_EQ(outer.get().first.value, 100);
  CHECK_EQ(outer.close().first.total, 137);
  CHECK_EQ(statistics.get_bytes_counter().total, 5137);
}

int main()
{
  int const failed = check::run_all("measured");
  std::filesystem::remove_all(folder());
  return failed;
}
