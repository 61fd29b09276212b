// checkpoint_fuzz COUNT SEED [SECONDS]: safetensors files, their indices and meta.json, changed in
// thousands of ways and read.
//
// Each input is either read, and then everything in it can be, or refused with an Error of exit
// status 7. Anything else ends the run with the seed, which makes the input again: a crash (run it
// under the address and undefined-behaviour sanitizers), another exception, more processor time
// than kMostSeconds, or memory far above the input's size. SECONDS ends the run early.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/inspect.h"
#include "engine/checkpoint/tests/make_checkpoint.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "fuzz.h"

namespace {

namespace fs = std::filesystem;
using namespace meshwright;
using fuzz::Random;

// What one input may take beside its own size: readers hold the parsed form, about 30 bytes for
// each of the text in the worst case.
constexpr size_t kFreeBytes = 256 << 10, kTimesInput = 48;
// The slowest of a million took 0.7 s under the sanitizers on a machine of its own
// (bench/results/checkpoint_fuzz.txt). A processor shared with others has been seen to take more
// than twice as long for the same work; what grows with the square of the input takes minutes.
constexpr double kMostSeconds = 10;

// Files in memory, where there is such a place: the disk is not what is tested.
struct Workshop {
  fs::path path;
  Workshop() {
    std::error_code failed;
    fs::path base = fs::is_directory("/dev/shm", failed) && ::access("/dev/shm", W_OK) == 0
                        ? fs::path("/dev/shm")
                        : fs::temp_directory_path();
    path = base / ("meshwright_checkpoint_fuzz_" + std::to_string(::getpid()));
    fs::create_directories(path);
  }
  ~Workshop() { base::remove_tree(path); }
};

void put(const fs::path& path, std::string_view bytes) {
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  bool fine =
      fd >= 0 && ::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  if (fd >= 0) ::close(fd);
  if (fine) return;
  std::fprintf(stderr, "cannot write %s\n", path.c_str());
  std::exit(2);
}

constexpr std::array kTypes = {DType::float64,  DType::float32, DType::float16,
                               DType::bfloat16, DType::int64,   DType::int32,
                               DType::int16,    DType::int8,    DType::boolean};

std::string list(const std::vector<int64_t>& values) {
  std::string out;
  for (int64_t value : values) out += (out.empty() ? "" : ",") + std::to_string(value);
  return "[" + out + "]";
}

std::vector<int64_t> some_shape(Random& random) {
  std::vector<int64_t> shape(random.below(4));
  for (int64_t& size : shape) size = static_cast<int64_t>(random.below(6));
  return shape;
}

// A valid header and its data.
struct File {
  std::string header, data;
  std::string bytes() const {
    uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
  }
};

File some_file(Random& random, size_t tensors, const std::string& prefix = "t") {
  File file;
  file.header = random.one_in(2) ? R"({"__metadata__":{"format":"pt","x":""})" : "{";
  for (size_t i = 0; i < tensors; ++i) {
    DType dtype = kTypes[random.below(kTypes.size())];
    std::vector<int64_t> shape = some_shape(random);
    auto from = static_cast<int64_t>(file.data.size()),
         bytes = *weights::tensor_bytes(dtype, shape);
    file.header += (file.header.size() > 1 ? ",\"" : "\"") + prefix + std::to_string(i) +
                   R"(":{"dtype":")" + std::string(weights::element_type_name(dtype)) +
                   R"(","shape":)" + list(shape) + R"(,"data_offsets":)" +
                   list({from, from + bytes}) + "}";
    for (int64_t k = 0; k < bytes; ++k) file.data += static_cast<char>(random.next());
  }
  file.header += "}";
  return file;
}

// Whatever opened is read to its last byte.
void read_all(const weights::WeightFolder& folder, Random& random) {
  for (const std::string& name : folder.names()) {
    const weights::TensorEntry& entry = *folder.find(name);
    DType target = random.one_in(2) ? entry.dtype : kTypes[random.below(kTypes.size())];
    std::vector<std::byte> out(
        static_cast<size_t>(entry.bytes / dtype_size(entry.dtype) * dtype_size(target)));
    try {
      weights::read_slice(entry, std::vector<int64_t>(entry.shape.size(), 0), entry.shape, target,
                          out.data());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::weights_mismatch) throw;
    }
  }
}

// A box or run of the tensor with few elements.
Region some_region(const std::vector<int64_t>& shape, Random& random) {
  int64_t elements = 1, room = 4096;
  for (int64_t size : shape) elements *= size;
  if (elements > 0 && random.one_in(2)) {
    auto begin = static_cast<int64_t>(random.below(static_cast<size_t>(elements)));
    return Region::run(begin,
                       begin + static_cast<int64_t>(random.below(
                                   static_cast<size_t>(std::min(elements - begin, room)) + 1)));
  }
  std::vector<int64_t> offsets, sizes;
  for (int64_t size : shape) {
    offsets.push_back(
        static_cast<int64_t>(random.below(static_cast<size_t>(size) + (size < INT64_MAX ? 1 : 0))));
    sizes.push_back(static_cast<int64_t>(
        random.below(static_cast<size_t>(std::min(size - offsets.back(), room)) + 1)));
    room = std::max<int64_t>(1, room / std::max<int64_t>(1, sizes.back()));
  }
  int64_t count = Region::box(offsets, sizes).count();
  if (shape.empty() || count == 0 || random.one_in(2))
    return Region::box(std::move(offsets), std::move(sizes));
  auto begin = static_cast<int64_t>(random.below(static_cast<size_t>(count)));
  auto length = static_cast<int64_t>(random.below(static_cast<size_t>(count - begin) + 1));
  return Region::run_of_box(std::move(offsets), std::move(sizes), begin, begin + length);
}

// A whole checkpoint on the disk.
struct Saved {
  fs::path folder;
  std::string meta;
};

Saved save(const fs::path& folder, size_t tensors, Random& random) {
  std::vector<checkpoint::MadeTensor> list;
  for (size_t i = 0; i < tensors; ++i) {
    checkpoint::MadeTensor tensor{random.one_in(3) ? "exp_avg" : "",
                                  "layer." + std::to_string(i),
                                  kTypes[random.below(4)],
                                  {},
                                  some_shape(random),
                                  {}};
    tensor.export_dtype = random.one_in(2) ? tensor.dtype : DType::bfloat16;
    tensor.values.resize(static_cast<size_t>(*weights::tensor_bytes(tensor.dtype, tensor.shape)));
    for (std::byte& byte : tensor.values) byte = static_cast<std::byte>(random.next());
    list.push_back(std::move(tensor));
  }
  auto layout = static_cast<checkpoint::Layout>(random.below(3));
  checkpoint::Meta meta = checkpoint::make_files(folder, 1 + random.below(3), list, layout,
                                                 {{"config.json", "{}"}, {"source/a.txt", "a"}});
  for (checkpoint::TensorRecord& tensor : meta.tensors)  // what no rank holds may be named or not
    if (tensor.pieces.empty() && random.one_in(2))
      tensor.pieces.push_back({0, tensor.name, Region::whole(tensor.shape)});
  if (tensors > 100) {  // a grid of single elements: what no program writes, and a reader must not
                        // take minutes for
    meta.tensors.push_back({"", "grid", DType::int8, {50, 80}, {}, DType::int8});
    for (int64_t i = 0; i < 4000; ++i)
      meta.tensors.back().pieces.push_back({0, "grid", Region::box({i % 50, i / 50}, {1, 1})});
  }
  return {folder, to_json(meta)};
}

// So that what is wrong behind it is seen.
std::string with_right_checksum(const std::string& text) {
  constexpr std::string_view kKey = ",\n  \"checksum\": \"";
  size_t at = text.rfind(kKey);
  if (at == std::string::npos) return text;
  return text.substr(0, at) + std::string(kKey) +
         checkpoint::to_hex(checkpoint::checksum(std::string_view(text).substr(0, at))) + "\"\n}\n";
}

enum class Kind : uint8_t { safetensors, index, meta };

class Fuzz {
 public:
  explicit Fuzz(uint64_t seed) {
    Random random{~seed};
    for (size_t i = 0; i < 24; ++i) files_.push_back(some_file(random, random.below(8)));
    files_.push_back(some_file(random, 3000));  // what takes long with much of it
    put_index(random);
    for (size_t i = 0; i < 12; ++i)
      saved_.push_back(
          save(workshop_.path / ("c" + std::to_string(i)), i < 11 ? random.below(7) : 900, random));
  }

  // Returns whether it was read; throws what nobody should.
  bool one(Random& random, Kind& kind, size_t& size) {
    // Large ones are rare: they cost a hundred times as much.
    bool large = random.one_in(400);
    switch (random.below(3)) {
      case 0:
        kind = Kind::safetensors;
        return safetensors(random, large, size);
      case 1:
        kind = Kind::index;
        return index(random, large, size);
      default:
        kind = Kind::meta;
        return meta(random, large, size);
    }
  }

 private:
  void put_index(Random& random) {
    folder_ = workshop_.path / "folder";
    fs::create_directories(folder_ / "sub");
    put(folder_ / "one.safetensors", some_file(random, 4, "a").bytes());
    put(folder_ / "sub/two.safetensors", some_file(random, 4, "b").bytes());
    std::error_code failed;
    fs::create_symlink("/etc/hostname", folder_ / "out.safetensors", failed);
    auto entries = [](size_t n, const char* prefix, const char* file) {
      std::string out;
      for (size_t i = 0; i < n; ++i)
        out += std::string(i > 0 ? ", \"" : "\"") + prefix + std::to_string(i) + "\": \"" + file +
               "\"";
      return out;
    };
    std::string head = R"({"metadata": {"total_size": 100}, "weight_map": {)";
    indices_ = {head + entries(4, "a", "one.safetensors") + ", " +
                    entries(4, "b", "sub/two.safetensors") + "}}",
                head + entries(2, "a", "one.safetensors") + "}}",
                head + entries(1, "a", "out.safetensors") + "}}", "{\"weight_map\":{}}",
                head + entries(20000, "a", "one.safetensors") + "}}"};
  }

  bool safetensors(Random& random, bool large, size_t& size) {
    File file = large ? files_.back() : files_[random.below(files_.size() - 1)];
    if (!random.one_in(50)) file.header = fuzz::mutated_json(std::move(file.header), random);
    if (random.one_in(6)) file.data = fuzz::mutated_bytes(std::move(file.data), random);
    std::string bytes = file.bytes();
    if (random.one_in(8)) {
      uint64_t length = random.next() >> random.below(64);
      std::memcpy(bytes.data(), &length, 8);
    }
    if (random.one_in(8)) bytes.resize(random.below(bytes.size() + 1));
    size = bytes.size();
    fs::path path = workshop_.path / "t.safetensors";
    put(path, bytes);
    fuzz::Memory::reset();
    weights::WeightFolder folder(path);
    read_all(folder, random);
    return true;
  }

  bool index(Random& random, bool large, size_t& size) {
    std::string text = fuzz::mutated_json(
        large ? indices_.back() : indices_[random.below(indices_.size() - 1)], random);
    size = text.size() + 1000;  // the files that it names
    put(folder_ / "model.safetensors.index.json", text);
    fuzz::Memory::reset();
    weights::WeightFolder folder(folder_);
    read_all(folder, random);
    return true;
  }

  bool meta(Random& random, bool large, size_t& size) {
    const Saved& saved = large ? saved_.back() : saved_[random.below(saved_.size() - 1)];
    std::string text = fuzz::mutated_json(saved.meta, random);
    if (!random.one_in(20)) text = with_right_checksum(text);
    size = text.size();
    put(saved.folder / "meta.json", text);
    fuzz::Memory::reset();
    checkpoint::Checkpoint opened(saved.folder);
    size += static_cast<size_t>(opened.bytes());
    const checkpoint::Meta& found = opened.meta();
    // What is written of it is read again as the same, but for the last digit of a real number:
    // Boost 1.81 reads those to within one.
    checkpoint::Meta whole = found;
    whole.lr = 0;
    if (std::string again = to_json(whole), third = to_json(checkpoint::parse_meta(again, "again"));
        third != again) {
      size_t at = static_cast<size_t>(
          std::mismatch(again.begin(), again.end(), third.begin(), third.end()).first -
          again.begin());
      throw std::runtime_error("meta.json changes when it is written again: " +
                               again.substr(at - std::min<size_t>(at, 40), 80));
    }
    for (const Error& error : checkpoint::verify_checkpoint(saved.folder, [](int64_t) {}).damage)
      if (exit_status(error.code()) != 7) throw Error(error);
    for (const checkpoint::TensorRecord& tensor : found.tensors) {
      Region region = some_region(tensor.shape, random);
      std::vector<std::byte> out(static_cast<size_t>(region.count()) * 8);
      DType target = kTypes[random.below(large ? 1 : 4)];
      try {
        opened.read(tensor, region, target, out.data());
      } catch (const Error& error) {
        if (exit_status(error.code()) != 7) throw;
      }
    }
    return true;
  }

  Workshop workshop_;
  std::vector<File> files_;
  std::vector<std::string> indices_;
  std::vector<Saved> saved_;
  fs::path folder_;
};

struct Extreme {
  double value = 0;
  uint64_t seed = 0;
  void see(double other, uint64_t at) {
    if (other > value) *this = {other, at};
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: checkpoint_fuzz COUNT SEED [SECONDS]\n");
    return 2;
  }
  using Clock = std::chrono::steady_clock;
  uint64_t count = std::strtoull(argv[1], nullptr, 10), first = std::strtoull(argv[2], nullptr, 10);
  double limit = argc > 3 ? std::strtod(argv[3], nullptr) : 1e9;
  // Of the processor: what other programs do on the machine is not the input's fault.
  auto processor_seconds = [] {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  };
  auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  // The corpus depends on nothing but the program, so that a seed alone makes its input again.
  auto fuzz = std::make_unique<Fuzz>(0);
  constexpr const char* kNames[] = {"safetensors", "index", "meta.json"};
  uint64_t done = 0, read[3] = {}, refused[3] = {};
  Extreme slowest, largest, peak;
  auto begin = Clock::now();
  for (; done < count && since(begin) < limit; ++done) {
    uint64_t seed = first + done;
    fuzz::watch(seed);
    Random random{seed};
    Kind kind{};
    size_t size = 0;
    double started = processor_seconds();
    std::string broken;
    try {
      fuzz->one(random, kind, size);
      ++read[static_cast<size_t>(kind)];
    } catch (const Error& error) {
      ++refused[static_cast<size_t>(kind)];
      if (exit_status(error.code()) != 7 || error.message().size() > 10000) broken = error.what();
    } catch (const std::exception& error) {
      broken = error.what();
    }
    double seconds = processor_seconds() - started, room = static_cast<double>(size);
    double single = static_cast<double>(fuzz::Memory::largest()),
           most = static_cast<double>(fuzz::Memory::peak());
    slowest.see(seconds, seed);
    if (size > 20000) {
      largest.see(single / room, seed);
      peak.see(most / room, seed);
    }
    if (seconds > kMostSeconds) broken = "took " + std::to_string(seconds) + " s";
    if (most > kFreeBytes + kTimesInput * room)
      broken = "took " + std::to_string(most) + " bytes of memory for an input of " +
               std::to_string(size);
    if (broken.empty()) continue;
    std::fprintf(stderr, "seed %llu (%s): %s\n", static_cast<unsigned long long>(seed),
                 kNames[static_cast<size_t>(kind)], broken.c_str());
    return 1;
  }
  ::alarm(0);
  double total = since(begin);
  std::printf("%llu inputs from seed %llu in %.0f s, %.0f a second\n",
              static_cast<unsigned long long>(done), static_cast<unsigned long long>(first), total,
              static_cast<double>(done) / total);
  for (size_t i = 0; i < 3; ++i)
    std::printf("%s: %llu read, %llu refused\n", kNames[i],
                static_cast<unsigned long long>(read[i]),
                static_cast<unsigned long long>(refused[i]));
  std::printf(
      "slowest %.3f s (seed %llu); of inputs above 20 kB: largest allocation %.1f times the input "
      "(seed %llu), most memory %.1f times "
      "(seed %llu)\n",
      slowest.value, static_cast<unsigned long long>(slowest.seed), largest.value,
      static_cast<unsigned long long>(largest.seed), peak.value,
      static_cast<unsigned long long>(peak.seed));
  // A fuzzer whose inputs are all refused tests little.
  bool lively = done < 2000 || (read[0] > 0 && read[1] > 0 && read[2] > 0);
  if (!lively) std::fprintf(stderr, "of some kind no input at all was read\n");
  return lively ? 0 : 1;
}
