// SPDX-License-Identifier: Apache-2.0
//
// tenure's pool beside RMM's C++ resources, in one process and one run: figures, no judgement.
//
//     peers [--quick] [--json FILE] [WORKLOAD...]     workloads: pair churn threads burst phase random_allocations
//
// Built by run.sh where a compiler and RMM's headers are (C++20; RMM, its logger, the CUDA runtime, libtenure.so.0). Without
// RMM's headers it has tenure's rows alone, also on the simulated device.
//
// Each case makes its allocators new, one after another, on a stream of its own; a figure is the median of some rounds, in
// nanoseconds for one operation, and of the slowest thread where there are several. All calls go through one virtual function,
// whose nanosecond everybody pays. Nothing is queued on the streams.

#include <tenure/tenure.hpp>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#if __has_include(<rmm/mr/pool_memory_resource.hpp>) && !defined(WITHOUT_RMM)
#define WITH_RMM 1
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/resource_ref.hpp>
#else
#define WITH_RMM 0
#endif

namespace {

constexpr std::size_t KiB = std::size_t{1} << 10;
constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::size_t GiB = std::size_t{1} << 30;

using clock_type = std::chrono::steady_clock;

double ns_since(clock_type::time_point start) { return std::chrono::duration<double, std::nano>(clock_type::now() - start).count(); }

double median(std::vector<double> values)
{
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/** What is measured. */
class allocator {
 public:
  virtual ~allocator()                                                           = default;
  virtual void* allocate(std::size_t bytes, tenure::cuda_stream const& stream)   = 0;
  virtual void free(void* ptr, std::size_t bytes, tenure::cuda_stream const& stream) = 0;
};

/** tenure's pool, with a stream as an object or by its value. */
class ours final : public allocator {
 public:
  ours(tenure::mr::pool_options const& options, bool object)
    : pool_(tenure::mr::cuda_memory_resource{}, options), object_(object)
  {
  }
  void* allocate(std::size_t bytes, tenure::cuda_stream const& stream) override
  {
    return pool_.allocate(view(stream), bytes);
  }
  void free(void* ptr, std::size_t bytes, tenure::cuda_stream const& stream) override
  {
    pool_.deallocate(view(stream), ptr, bytes);
  }

 private:
  [[nodiscard]] tenure::cuda_stream_view view(tenure::cuda_stream const& stream) const
  {
    return object_ ? stream.view() : tenure::cuda_stream_view{stream.value()};
  }
  tenure::mr::pool_memory_resource pool_;
  bool object_;
};

#if WITH_RMM
/** A resource of RMM's. */
template <class Resource>
class theirs final : public allocator {
 public:
  template <class... Arguments>
  explicit theirs(Arguments&&... arguments) : resource_(std::forward<Arguments>(arguments)...), ref_(resource_)
  {
  }
  void* allocate(std::size_t bytes, tenure::cuda_stream const& stream) override
  {
    return ref_.allocate(cuda::stream_ref{stream.value()}, bytes, 256);
  }
  void free(void* ptr, std::size_t bytes, tenure::cuda_stream const& stream) override
  {
    ref_.deallocate(cuda::stream_ref{stream.value()}, ptr, bytes, 256);
  }

 private:
  Resource resource_;
  rmm::device_async_resource_ref ref_;
};
#endif

/** How large a pool is: what it has from the start, and its limit. */
struct extent {
  std::size_t start;
  std::size_t most;
};

struct peer {
  std::string name;
  std::function<std::unique_ptr<allocator>(extent)> make;
};

std::vector<peer> peers()
{
  auto tenure_pool = [](bool object) {
    return [object](extent size) -> std::unique_ptr<allocator> {
      tenure::mr::pool_options options;
      options.initial_pool_size = size.start;
      options.maximum_pool_size = size.most;
      return std::make_unique<ours>(options, object);
    };
  };
  std::vector<peer> all{{"tenure, own stream", tenure_pool(true)}, {"tenure, raw stream", tenure_pool(false)}};
#if WITH_RMM
  using namespace rmm::mr;
  all.push_back({"RMM pool", [](extent size) -> std::unique_ptr<allocator> {
                   return std::make_unique<theirs<pool_memory_resource>>(cuda_memory_resource{}, size.start, size.most);
                 }});
  all.push_back({"RMM arena", [](extent size) -> std::unique_ptr<allocator> {
                   return std::make_unique<theirs<arena_memory_resource>>(cuda_memory_resource{}, size.start);
                 }});
  all.push_back({"RMM binning", [](extent size) -> std::unique_ptr<allocator> {
                   pool_memory_resource pool{cuda_memory_resource{}, size.start, size.most};
                   return std::make_unique<theirs<binning_memory_resource>>(pool, int8_t{18}, int8_t{22});
                 }});
  all.push_back({"RMM async", [](extent size) -> std::unique_ptr<allocator> {
                   return std::make_unique<theirs<cuda_async_memory_resource>>(size.start);
                 }});
#endif
  return all;
}

/** Sizes whose logarithm is evenly spread; the same for the same seed. */
class sizes {
 public:
  sizes(std::size_t least, std::size_t most, std::uint64_t seed)
    : random_(seed), exponent_(std::log2(double(least)), std::log2(double(most)))
  {
  }
  std::size_t next() { return static_cast<std::size_t>(std::exp2(exponent_(random_))); }
  std::size_t below(std::size_t count) { return random_() % count; }

 private:
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> exponent_;
};

/** Blocks that are freed at the end, and places that are drawn before the clock runs. */
class blocks {
 public:
  blocks(allocator& from, tenure::cuda_stream const& stream, std::size_t live, sizes draw, std::size_t steps)
    : from_(from), stream_(stream), draw_(draw)
  {
    for (std::size_t i = 0; i < steps; ++i) { steps_.push_back({draw_.below(live), draw_.next()}); }
    live_.reserve(live);
    for (std::size_t i = 0; i < live; ++i) {
      std::size_t const bytes = draw_.next();
      live_.push_back({from_.allocate(bytes, stream_), bytes});
    }
  }
  ~blocks()
  {
    for (auto& block : live_) {
      if (block.ptr != nullptr) { from_.free(block.ptr, block.bytes, stream_); }
    }
  }
  blocks(blocks const&)            = delete;
  blocks& operator=(blocks const&) = delete;

  /** Nanoseconds of a step: one block freed, another allocated in its place. */
  double churn()
  {
    auto const start = clock_type::now();
    for (auto const& step : steps_) {
      auto& block = live_[step.place];
      from_.free(block.ptr, block.bytes, stream_);
      block = {nullptr, 0};
      block = {from_.allocate(step.bytes, stream_), step.bytes};
    }
    return ns_since(start) / double(steps_.size());
  }

 private:
  struct block { void* ptr; std::size_t bytes; };
  struct step { std::size_t place, bytes; };
  allocator& from_;
  tenure::cuda_stream const& stream_;
  sizes draw_;
  std::vector<step> steps_;
  std::vector<block> live_;
};

tenure::cuda_stream new_stream() { return tenure::cuda_stream{tenure::cuda_stream::flags::non_blocking}; }

struct settings {
  bool quick{false};
  std::size_t room{0};  ///< Free bytes of the device.
  [[nodiscard]] int rounds() const { return quick ? 3 : 7; }
  [[nodiscard]] std::size_t count(std::size_t full) const { return quick ? std::max<std::size_t>(full / 20, 1) : full; }
  [[nodiscard]] extent size() const { return {std::min(24 * GiB, room / 3 & ~(MiB - 1)), std::min(48 * GiB, room / 3 * 2 & ~(MiB - 1))}; }
};

double pair(allocator& from, settings const& with, std::size_t bytes)
{
  auto const stream       = new_stream();
  std::size_t const count = with.count(20'000);
  auto round              = [&] {
    auto const start = clock_type::now();
    for (std::size_t i = 0; i < count; ++i) { from.free(from.allocate(bytes, stream), bytes, stream); }
    return ns_since(start) / double(count);
  };
  (void)round();
  std::vector<double> figures;
  for (int i = 0; i < with.rounds(); ++i) { figures.push_back(round()); }
  return median(figures);
}

double churn(allocator& from, settings const& with, std::size_t live)
{
  auto const stream = new_stream();
  blocks all{from, stream, live, sizes{256, 4 * MiB, 42}, with.count(20'000)};
  (void)all.churn();
  std::vector<double> figures;
  for (int i = 0; i < with.rounds(); ++i) { figures.push_back(all.churn()); }
  return median(figures);
}

/** The slowest of some threads; each makes its own work, which says its nanoseconds. */
double slowest(int threads, settings const& with, std::function<std::function<double()>(int)> const& work)
{
  std::vector<double> medians(static_cast<std::size_t>(threads));
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(threads));
  std::barrier meeting{threads};
  std::vector<std::thread> all;
  for (int index = 0; index < threads; ++index) {
    all.emplace_back([&, index] {
      auto const at = static_cast<std::size_t>(index);
      std::function<double()> mine;
      std::vector<double> figures;
      // A thread that failed goes to every meeting, so that no other one waits for it.
      auto guarded = [&](auto&& what) {
        try {
          if (!failures[at]) { what(); }
        } catch (...) {
          failures[at] = std::current_exception();
        }
      };
      guarded([&] { mine = work(index); });
      guarded([&] { (void)mine(); });
      for (int round = 0; round < with.rounds(); ++round) {
        meeting.arrive_and_wait();
        guarded([&] { figures.push_back(mine()); });
      }
      meeting.arrive_and_wait();
      guarded([&] { mine = nullptr; });
      if (!figures.empty()) { medians[at] = median(figures); }
    });
  }
  for (auto& thread : all) { thread.join(); }
  for (auto const& failure : failures) {
    if (failure) { std::rethrow_exception(failure); }
  }
  return *std::max_element(medians.begin(), medians.end());
}

double threads(allocator& from, settings const& with, int count)
{
  std::vector<tenure::cuda_stream> streams;
  for (int i = 0; i < count; ++i) { streams.push_back(new_stream()); }
  return slowest(count, with, [&](int index) -> std::function<double()> {
    auto mine = std::make_shared<blocks>(from,
                                         streams[static_cast<std::size_t>(index)],
                                         200,
                                         sizes{256, MiB, 1000 + static_cast<std::uint64_t>(index)},
                                         with.count(10'000));
    return [mine] { return mine->churn(); };
  });
}

/** What the machine itself does to private work when more threads run: a try-lock of one's own, twice. */
double try_lock(settings const& with, int count)
{
  struct alignas(128) line { std::atomic<bool> taken{false}; };
  return slowest(count, with, [&](int) -> std::function<double()> {
    auto mine = std::make_shared<line>();
    return [mine, n = with.count(200'000)] {
      auto const start = clock_type::now();
      for (std::size_t i = 0; i < n * 2; ++i) {
        (void)mine->taken.exchange(true, std::memory_order_acquire);
        mine->taken.store(false, std::memory_order_release);
      }
      return ns_since(start) / double(n);
    };
  });
}

/** For each buffer of a burst of 10 000 small ones. */
double burst(allocator& from, settings const& with)
{
  auto const stream = new_stream();
  sizes draw{256, 4 * KiB, 5};
  std::vector<std::size_t> bytes(10'000);
  std::generate(bytes.begin(), bytes.end(), [&] { return draw.next(); });
  std::vector<void*> all(bytes.size());
  auto round = [&] {
    auto const start = clock_type::now();
    for (std::size_t i = 0; i < all.size(); ++i) { all[i] = from.allocate(bytes[i], stream); }
    for (std::size_t i = 0; i < all.size(); ++i) { from.free(all[i], bytes[i], stream); }
    return ns_since(start) / double(all.size());
  };
  (void)round();
  std::vector<double> figures;
  for (int i = 0; i < with.rounds(); ++i) { figures.push_back(round()); }
  return median(figures);
}

/** The allocation of 60 % of a fixed pool after small blocks have filled 80 % of it and gone, on the same or another stream. */
double phase(allocator& from, settings const& with, std::size_t pool, bool other)
{
  auto const one = new_stream(), two = new_stream();
  std::size_t const large = pool / 10 * 6;
  std::vector<double> figures;
  for (int i = 0; i < with.rounds(); ++i) {
    sizes draw{256, 64 * KiB, static_cast<std::uint64_t>(i) + 1};
    std::vector<std::pair<void*, std::size_t>> swarm;
    for (std::size_t sum = 0; sum < pool / 10 * 8;) {
      std::size_t const bytes = draw.next();
      swarm.emplace_back(from.allocate(bytes, one), bytes);
      sum += (bytes + 255) / 256 * 256;
    }
    for (auto const& [ptr, bytes] : swarm) { from.free(ptr, bytes, one); }
    auto const& stream = other ? two : one;
    auto const start   = clock_type::now();
    void* const ptr    = from.allocate(large, stream);
    figures.push_back(ns_since(start));
    from.free(ptr, large, stream);
  }
  return median(figures);
}

/**
 * For each step of RMM's benchmark of this name: 2 `count` steps; 73 of 100 times, or where nothing is live, an allocation
 * of 1 byte to `largest`, if fewer than `count` were made and the live bytes stay below 16 000 MiB; else, or where it fails, a
 * free of a random block.
 */
double random_allocations(allocator& from, settings const& with, std::size_t count, std::size_t largest)
{
  auto const stream       = new_stream();
  std::size_t const usage = std::min<std::size_t>(16'000 * MiB, with.size().start / 3 * 2);
  auto run                = [&] {
    std::mt19937_64 random{1};
    std::vector<std::pair<void*, std::size_t>> live;
    std::size_t live_bytes = 0, allocated = 0;
    auto free_at = [&](std::size_t at) {
      std::swap(live[at], live.back());
      auto const [ptr, bytes] = live.back();
      live.pop_back();
      live_bytes -= bytes;
      from.free(ptr, bytes, stream);
    };
    auto const start = clock_type::now();
    for (std::size_t step = 0; step < count * 2; ++step) {
      std::size_t const bytes = 1 + random() % largest;
      bool const wanted =
        live.empty() || (random() % 100 < 73 && allocated < count && live_bytes + bytes < usage);
      void* ptr = nullptr;
      if (wanted) {
        try {
          ptr = from.allocate(bytes, stream);
        } catch (std::bad_alloc const&) {
        }
      }
      if (ptr != nullptr) {
        live.emplace_back(ptr, bytes);
        live_bytes += bytes;
        ++allocated;
      } else if (!live.empty()) {
        free_at(random() % live.size());
      }
    }
    double const figure = ns_since(start) / double(count * 2);
    while (!live.empty()) { free_at(live.size() - 1); }
    return figure;
  };
  (void)run();
  std::vector<double> figures;
  for (int i = 0; i < (with.quick ? 1 : 3); ++i) { figures.push_back(run()); }
  return median(figures);
}

/** One line of the table. */
struct row {
  std::string workload, what;
  std::vector<std::optional<double>> figures;
  std::vector<std::string> notes;
};

class report {
 public:
  report(std::vector<peer> all, settings with, std::vector<std::string> wanted)
    : peers_(std::move(all)), with_(with), wanted_(std::move(wanted))
  {
    std::printf("%-40s", "ns for one operation");
    for (auto const& each : peers_) { std::printf("%20s", each.name.c_str()); }
    std::printf("\n");
  }

  [[nodiscard]] bool wants(std::string const& workload) const
  {
    return wanted_.empty() || std::find(wanted_.begin(), wanted_.end(), workload) != wanted_.end();
  }

  void measure(std::string const& workload, std::string const& what, extent size, std::function<double(allocator&)> const& how)
  {
    if (!wants(workload)) { return; }
    row line{workload, what, {}, {}};
    for (auto const& each : peers_) {
      std::optional<double> figure;
      std::string note;
      try {
        auto made = each.make(size);
        figure    = how(*made);
      } catch (std::exception const& failure) {
        note = failure.what();
      }
      line.figures.push_back(figure);
      line.notes.push_back(note);
    }
    print(line);
  }

  /** A figure that no allocator has a part in. */
  void alone(std::string const& workload, std::string const& what, double figure)
  {
    if (!wants(workload)) { return; }
    print({workload, what, {figure}, {""}});
  }

  [[nodiscard]] bool json(char const* path) const
  {
    std::FILE* const file = std::fopen(path, "w");
    if (file == nullptr) { return false; }
    std::fprintf(file, "[");
    char const* separator = "\n";
    for (auto const& line : rows_) {
      for (std::size_t i = 0; i < line.figures.size(); ++i) {
        bool const alone = line.figures.size() == 1;
        std::fprintf(file, "%s  {\"workload\": \"%s\", \"case\": \"%s\", \"allocator\": \"%s\", \"ns\": ", separator,
                     line.workload.c_str(), line.what.c_str(), alone ? "none" : peers_[i].name.c_str());
        if (line.figures[i]) {
          std::fprintf(file, "%.1f}", *line.figures[i]);
        } else {
          std::fprintf(file, "null, \"why\": \"%s\"}", plain(line.notes[i]).c_str());
        }
        separator = ",\n";
      }
    }
    std::fprintf(file, "\n]\n");
    return std::fclose(file) == 0;
  }

 private:
  /** As JSON can hold it. */
  static std::string plain(std::string text)
  {
    for (char& letter : text) {
      if (letter == '"' || letter == '\\' || static_cast<unsigned char>(letter) < 0x20) { letter = ' '; }
    }
    return text;
  }

  void print(row line)
  {
    std::printf("%-40s", (line.workload + ", " + line.what).c_str());
    for (auto const& figure : line.figures) {
      if (figure) {
        std::printf("%20.1f", *figure);
      } else {
        std::printf("%20s", "failed");
      }
    }
    std::printf("\n");
    for (std::size_t i = 0; i < line.notes.size(); ++i) {
      if (!line.notes[i].empty()) { std::printf("    %s: %s\n", peers_[i].name.c_str(), plain(line.notes[i]).substr(0, 200).c_str()); }
    }
    std::fflush(stdout);
    rows_.push_back(std::move(line));
  }

  std::vector<peer> peers_;
  settings with_;
  std::vector<std::string> wanted_;
  std::vector<row> rows_;
};

std::string label(std::size_t bytes)
{
  if (bytes >= MiB) { return std::to_string(bytes / MiB) + " MiB"; }
  if (bytes >= KiB) { return std::to_string(bytes / KiB) + " KiB"; }
  return std::to_string(bytes) + " B";
}

int run(settings with, char const* json, std::vector<std::string> wanted)
{
  struct ::tenure_device_info info {};
  info.size = sizeof info;
  tenure::detail::check(TENURE_DETAIL_CALL(device_info)(0, &info));
  with.room = static_cast<std::size_t>(info.free_bytes);
  std::printf("%s; %u cores%s\n\n", info.name, std::thread::hardware_concurrency(), WITH_RMM ? "" : "; built without RMM");
  report out{peers(), with, std::move(wanted)};
  extent const size = with.size();

  for (std::size_t const bytes : {std::size_t{256}, 64 * KiB, 4 * MiB, 256 * MiB}) {
    out.measure("pair", label(bytes), size, [&](allocator& from) { return pair(from, with, bytes); });
  }
  for (std::size_t const live : {100, 1'000, 10'000, 100'000}) {
    // As many blocks of 256 B to 4 MiB take so much, at a mean of 450 KiB; the peers take minutes for more than 10 000.
    bool const fits = live * 450 * KiB < size.start;
    if (!fits || (WITH_RMM && live > 10'000)) { continue; }
    out.measure("churn", std::to_string(live) + " live", size, [&](allocator& from) { return churn(from, with, live); });
  }
  for (int const count : {1, 2, 4, 8, 16}) {
    std::string const what = std::to_string(count) + " threads";
    out.measure("threads", what, size, [&](allocator& from) { return threads(from, with, count); });
    if (out.wants("threads")) { out.alone("threads", what + ", a try-lock of one's own", try_lock(with, count)); }
  }
  out.measure("burst", "10 000 small buffers", size, [&](allocator& from) { return burst(from, with); });
  std::size_t const pool = std::min(GiB, with.room / 4 & ~(MiB - 1));
  for (bool const other : {false, true}) {
    out.measure("phase", other ? "60 %, another stream" : "60 %, same stream", {pool, pool}, [&](allocator& from) {
      return phase(from, with, pool, other);
    });
  }
  struct {
    std::size_t count, mib;
  } const cases[] = {{1'000, 1}, {1'000, 4}, {1'000, 64}, {1'000, 1'024}, {1'000, 4'096}, {10'000, 4}, {100'000, 4}};
  for (auto const& [count, mib] : cases) {
    if (mib * MiB * 4 > size.start || (with.quick && count > 10'000)) { continue; }
    out.measure("random_allocations", std::to_string(count) + " of <= " + std::to_string(mib) + " MiB", size,
                [&, count = count, mib = mib](allocator& from) { return random_allocations(from, with, count, mib * MiB); });
  }
  if (json != nullptr && !out.json(json)) {
    std::fprintf(stderr, "peers: cannot write %s\n", json);
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv)
{
  settings with;
  char const* json = nullptr;
  std::vector<std::string> wanted;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      with.quick = true;
    } else if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json = argv[++i];
    } else {
      wanted.emplace_back(argv[i]);
    }
  }
  try {
    return run(with, json, std::move(wanted));
  } catch (std::exception const& failure) {
    std::fprintf(stderr, "peers: %s\n", failure.what());
    return 1;
  }
}
