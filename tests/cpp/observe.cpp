// SPDX-License-Identifier: Apache-2.0
//
// Looking inside, as C++ asks.

#include "check.hpp"

#include <cstdint>
#include <string>
#include <thread>

using namespace tenure;

static account account_of(usage_by by, std::string const& name)
{
  for (auto const& found : usage(by)) {
    if (found.name == name) { return found; }
  }
  return {};
}

static bool snapshot_has(std::string const& what) { return memory_snapshot().find(what) != std::string::npos; }

TEST(tags_count_while_they_live_and_nest)
{
  mr::pool_memory_resource const pool{mr::cuda_memory_resource{}, mr::pool_options{}};
  device_buffer outer, inner;
  {
    tag const one{"cpp outer"};
    outer = device_buffer{3000, cuda_stream_legacy, pool};
    tag const two{std::string{"cpp inner"}};
    inner = device_buffer{5000, cuda_stream_legacy, pool};
    // A tag is its thread's.
    std::thread([&] { device_buffer const untagged{7000, cuda_stream_legacy, pool}; }).join();
  }
  device_buffer const after{11000, cuda_stream_legacy, pool};
  CHECK_EQ(account_of(usage_by::tag, "cpp outer").live_bytes, 3000);
  CHECK_EQ(account_of(usage_by::tag, "cpp inner").live_bytes, 5000);
  CHECK_EQ(account_of(usage_by::resource, "pool > cuda").total_bytes, 26000);
  CHECK(snapshot_has("\"tag\":\"cpp inner\""));
  inner = device_buffer{};
  CHECK_EQ(account_of(usage_by::tag, "cpp inner").live_bytes, 0);
  CHECK_EQ(account_of(usage_by::tag, "cpp inner").peak_bytes, 5000);
  CHECK_THROWS(tag{""}, invalid_argument, "1 to 256 bytes");
}

TEST(events_are_recorded_until_it_ends)
{
  record_history();
  { device_buffer const buffer{98765, cuda_stream_legacy}; }
  record_history(false);
  { device_buffer const buffer{56789, cuda_stream_legacy}; }
  CHECK(snapshot_has("\"action\":\"free\"") && snapshot_has("\"size\":98765"));
  CHECK(!snapshot_has("\"size\":56789"));
  CHECK_THROWS(record_history(true, false, std::size_t{1} << 40), invalid_argument, "max_entries");
}

TEST(out_of_memory_has_one_line_and_notes)
{
  mr::pool_memory_resource const pool{mr::cuda_memory_resource{}, mr::pool_options{}};
  mr::limiting_resource_adaptor const limited{pool, 1000};
  tag const model{"cpp model"};
  device_buffer const kept{700, cuda_stream_legacy, limited};
  try {
    device_buffer const too_much{5000, cuda_stream_legacy, limited};
    CHECK(false);
  } catch (out_of_memory const& thrown) {
    CHECK(std::string{thrown.what()}.find('\n') == std::string::npos);
    auto const& notes = thrown.notes();
    REQUIRE(!notes.empty() && notes.size() <= 8);
    CHECK(notes.front().find("tag \"cpp model\" holds 700 B") != std::string::npos);
    CHECK(notes.back().find("allocation_limit=5700 bytes") != std::string::npos);
  }
}

TEST(a_report_names_the_library_that_allocates)
{
  auto const says = [](std::string const& what) { return report().find(what) != std::string::npos; };
  mr::pool_memory_resource const pool{mr::cuda_memory_resource{}, mr::pool_options{}};
  library const solver{"cpp solver"}, mesh{std::string{"cpp mesh"}};
  CHECK_EQ(library{"cpp solver"}.number(), solver.number());
  CHECK(solver.number() != mesh.number() && solver.number() != 0);
  report_begin();
  device_buffer first, second, third;
  {
    in_library const outer{solver};
    first = device_buffer{3001, cuda_stream_legacy, pool};
    {
      in_library const inner{mesh};
      second = device_buffer{703, cuda_stream_legacy, pool};
    }
    third = device_buffer{5003, cuda_stream_legacy, pool};
    // A library is its thread's.
    std::thread([&] { device_buffer const own{11, cuda_stream_legacy, pool}; }).join();
  }
  device_buffer const own{17, cuda_stream_legacy, pool};
  CHECK(says("\"library\":\"cpp solver\",\"live_bytes\":8004,\"live_count\":2"));
  CHECK(says("\"library\":\"cpp mesh\",\"live_bytes\":703,\"live_count\":1"));
  CHECK(says("\"library\":null,\"live_bytes\":17,\"live_count\":1"));
  CHECK(says("\"peak_live_bytes\":8724"));
  report_end();
  device_buffer const uncounted{90001, cuda_stream_legacy, pool};
  CHECK(says("\"peak_live_bytes\":8724") && !says("90001"));
  CHECK_THROWS(library{""}, invalid_argument, "1 to 256 bytes");
}

int main()
{
  int const status = check::run_all("observe.cpp");
  observe(false);
  return status;
}
