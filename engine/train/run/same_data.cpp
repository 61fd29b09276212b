#include "engine/train/run/same_data.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <span>

#include "engine/checkpoint/checksum.h"
#include "engine/launch/rendezvous/error_exchange.h"
#include "engine/train/step/rank_agreement.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/wait.h"
#include "sdk/base/words.h"

namespace meshwright::train {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kPrefix = ".probe-";
// Network file systems remember for some seconds that a name was not there.
constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(10);

// What a rank sees of that file.
struct Looked {
  bool found = false;
  std::string name, path;  // of the rank, and where it looked
};
BOOST_DESCRIBE_STRUCT(Looked, (), (found, name, path))

// Rank 0's file, which goes when the ranks have looked.
class Probe {
 public:
  explicit Probe(const fs::path& folder) : folder_(folder) {
    base::make_folders(folder);
    // What a run that was killed in the middle of this has left.
    std::error_code failed;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed))
      if (entry.path().filename().string().find(kPrefix) != std::string::npos)
        base::remove_tree(entry.path());
    std::random_device random;
    name_ = text::format("%08x%08x", random(), random());
    base::write_durably(folder / (kPrefix + name_), name_);
  }
  ~Probe() { base::remove_tree(folder_ / (kPrefix + name_)); }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;
  const std::string& name() const { return name_; }

 private:
  fs::path folder_;
  std::string name_;
};

bool sees(const fs::path& folder, const std::string& name, std::chrono::milliseconds patience) {
  return base::wait_until(Clock::now() + patience, std::chrono::milliseconds(50), [&] {
    // Opening a folder makes NFS ask its server again, which looking a name up does not.
    std::error_code failed;
    for (const fs::path& opened : {folder.parent_path(), folder})
      fs::directory_iterator(opened.empty() ? "." : opened, failed);
    return base::read_file(folder / (kPrefix + name)) == name;
  });
}

}  // namespace

std::string full_path(const fs::path& path) {
  std::error_code failed;
  fs::path out = fs::absolute(path, failed);
  return (failed ? path : out.lexically_normal()).string();
}

void check_shared(World& world, const fs::path& folder) {
  if (world.size() == 1) return;
  std::unique_ptr<Probe> probe;
  const std::string name = agree_or_throw(world, [&] {
    if (world.rank() == 0) probe = std::make_unique<Probe>(folder);
    return probe ? probe->name() : std::string();
  })[0];
  // A rank that looks for long must not let the others run into the limit of a collective.
  const bool found =
      world.rank() == 0 || sees(folder, name, std::min(kPatience, world.timeout() / 2));
  const std::vector<Looked> ranks =
      gather(world, Looked{found, rendezvous::name_here(world.rank()), full_path(folder)});
  std::vector<std::string> blind;
  for (const Looked& rank : ranks)
    if (!rank.found) blind.push_back(rank.name + " at " + rank.path);
  if (blind.empty()) return;
  throw Error(ErrorCode::run_folder_not_shared,
              "the run folder of " + ranks[0].name + " is " + ranks[0].path +
                  "; what it writes there is not seen by " + text::first_few(blind, 4))
      .key("run.dir")
      .help(
          "set run.dir to a folder on a file system that every host mounts (NFS, Lustre, ...): "
          "every rank saves its part of a checkpoint there")
      .help(fs::path(folder).is_absolute()
                ? "check with ls on each host that the folder is the same one"
                : "or start every rank in the same folder: a relative run.dir begins where the "
                  "rank was started");
}

namespace {

constexpr int64_t kWhole = int64_t{64} << 20, kBlock = int64_t{64} << 10,
                  kPieceBytes = int64_t{4} << 20;
constexpr size_t kPlaces = 256, kMostFiles = 1024;

struct File {
  std::string path, digest;  // empty digest: only the size counts
  int64_t bytes = 0;
};
BOOST_DESCRIBE_STRUCT(File, (), (path, digest, bytes))

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path) {
    if (!file_.is_open()) fail(file_.problem());
  }
  // The checksum of [begin, begin + count), as far as the file goes, is added to the digest.
  void add(int64_t begin, int64_t count) {
    buffer_.resize(static_cast<size_t>(count));
    size_t have = 0;
    while (have < buffer_.size()) {
      ssize_t n = ::pread(file_.fd(), buffer_.data() + have, buffer_.size() - have,
                          begin + static_cast<int64_t>(have));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail(std::strerror(errno));
      if (n == 0) break;
      have += static_cast<size_t>(n);
    }
    digest_ = checkpoint::to_hex(checkpoint::checksum(
        digest_ + checkpoint::to_hex(checkpoint::checksum(std::span(buffer_).first(have)))));
  }
  const std::string& digest() const { return digest_; }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ErrorCode::file_unreadable, "cannot read " + path_ + ": " + why);
  }
  std::string path_, digest_;
  base::ForeignFile file_;
  std::vector<std::byte> buffer_;
};

std::string digest_of(const File& file, bool whole, size_t places) {
  Reader in(file.path);
  if (whole || file.bytes <= 2 * kBlock) {
    for (int64_t at = 0; at < file.bytes; at += kPieceBytes)
      in.add(at, std::min(kPieceBytes, file.bytes - at));
    return in.digest();
  }
  int64_t last = file.bytes - kBlock;
  for (size_t i = 0; i <= places; ++i)
    in.add(last / static_cast<int64_t>(places) * static_cast<int64_t>(i), kBlock);
  in.add(last, kBlock);
  return in.digest();
}

std::vector<File> files_of(const FileGroup& group) {
  std::vector<File> out;
  for (const std::string& path : group.paths) {
    std::error_code failed;
    auto bytes = static_cast<int64_t>(fs::file_size(path, failed));
    out.push_back({path, "", failed ? -1 : bytes});
  }
  return out;
}

int64_t total(const std::vector<File>& files) {
  int64_t out = 0;
  for (const File& file : files) out += std::max<int64_t>(file.bytes, 0);
  return out;
}

void read(std::vector<File>& files, bool whole) {
  whole = whole || total(files) <= kWhole;
  // The size of every file is compared; of very many files only some have their contents compared.
  size_t step = whole ? 1 : (files.size() + kMostFiles - 1) / kMostFiles,
         chosen = (files.size() + step - 1) / std::max<size_t>(step, 1);
  for (size_t i = 0; i < files.size(); i += step)
    if (files[i].bytes >= 0)
      files[i].digest = digest_of(files[i], whole, std::max<size_t>(1, kPlaces / chosen));
}

std::string sum_of(const std::vector<File>& files) {
  return checkpoint::to_hex(checkpoint::checksum(base::json_text(files)));
}

}  // namespace

std::string digest_of(const FileGroup& group) {
  std::vector<File> files = files_of(group);
  read(files, /*whole=*/false);
  return sum_of(files);
}

namespace {

// What a rank says of itself: a digest of each group of files, or of each data set.
struct Told {
  std::string name;
  std::vector<std::string> digests;
};
BOOST_DESCRIBE_STRUCT(Told, (), (name, digests))

// The same text: the same files of the same machine.
std::string identity(const std::vector<FileGroup>& groups, int64_t rank) {
  std::string boot;
  std::vector<std::pair<std::string, std::vector<int64_t>>> all;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) boot = rendezvous::name_here(rank);  // nobody else's
  for (const FileGroup& group : groups)
    for (const std::string& path : group.paths) {
      struct stat status{};
      if (::stat(path.c_str(), &status) != 0) status = {};
      all.push_back(
          {path,
           {static_cast<int64_t>(status.st_dev), static_cast<int64_t>(status.st_ino),
            static_cast<int64_t>(status.st_size), static_cast<int64_t>(status.st_mtim.tv_sec),
            static_cast<int64_t>(status.st_mtim.tv_nsec)}});
    }
  return boot + checkpoint::to_hex(checkpoint::checksum(base::json_text(all)));
}

std::string some_names(const std::vector<size_t>& ranks, const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (size_t rank : ranks) out.push_back(names[rank]);
  return text::first_few(out, 4);
}

std::string bytes_text(int64_t bytes) {
  return bytes < 0 ? "cannot be read" : "has " + std::to_string(bytes) + " bytes";
}

// "data/train.bin has 800 bytes on rank 1 (b), and 1600 bytes on rank 0 (a)", of the first file
// that differs, and how many more there are.
std::string difference(const std::vector<File>& odd_files, const std::string& odd_names,
                       const std::vector<File>& usual_files, const std::string& usual_names) {
  std::map<std::string, File> odd, usual;
  for (const File& file : odd_files) odd.emplace(file.path, file);
  for (const File& file : usual_files) usual.emplace(file.path, file);
  std::vector<std::string> found;
  auto say = [&](std::string text) { found.push_back(std::move(text)); };
  for (const auto& [path, file] : odd) {
    auto other = usual.find(path);
    if (other == usual.end())
      say(path + " is on " + odd_names + " and not on " + usual_names);
    else if (other->second.bytes != file.bytes)
      say(path + " " + bytes_text(file.bytes) + " on " + odd_names + ", and " +
          bytes_text(other->second.bytes) + " on " + usual_names);
    else if (other->second.digest != file.digest)
      say(path + ", of " + std::to_string(file.bytes) + " bytes, has other contents on " +
          odd_names + " than on " + usual_names);
  }
  for (const auto& [path, file] : usual)
    if (!odd.contains(path)) say(path + " is on " + usual_names + " and not on " + odd_names);
  if (found.size() <= 1) return text::join(found, "");
  const size_t more = found.size() - 1;
  return found[0] + "; and " + std::to_string(more) +
         (more == 1 ? " more file differs" : " more files differ");
}

[[noreturn]] void refuse(World& world, const FileGroup& group, const std::vector<File>& files,
                         const std::vector<std::string>& kinds,
                         const std::vector<std::string>& names) {
  std::map<std::string, std::vector<size_t>> members;
  for (size_t rank = 0; rank < kinds.size(); ++rank) members[kinds[rank]].push_back(rank);
  const std::vector<size_t>* usual = &members[kinds[0]];
  for (const auto& [kind, ranks] : members)
    if (ranks.size() > usual->size()) usual = &ranks;
  const std::vector<size_t>* odd = nullptr;
  for (const auto& [kind, ranks] : members)
    if (&ranks != usual && (odd == nullptr || ranks[0] < (*odd)[0])) odd = &ranks;
  // One rank of each kind has the lists; a corpus may have many files.
  auto me = static_cast<size_t>(world.rank());
  bool speaks = me == (*usual)[0] || me == (*odd)[0];
  std::pair<std::string, std::vector<File>> mine;  // where it begins to read, and what
  if (speaks) mine = {full_path(group.paths.empty() ? "." : group.paths[0]), files};
  const auto lists = gather(world, mine);
  const auto& [odd_place, odd_files] = lists[(*odd)[0]];
  const auto& [usual_place, usual_files] = lists[(*usual)[0]];
  Error error(ErrorCode::data_differs, "the " + group.what + " differ: " +
                                           difference(odd_files, some_names(*odd, names),
                                                      usual_files, some_names(*usual, names)));
  if (odd_place != usual_place)
    error.note(names[(*odd)[0]] + " begins to read at " + odd_place + ", " + names[(*usual)[0]] +
               " at " + usual_place);
  throw error.key(group.key)
      .help(
          "copy the files again, so that every host has the same ones (sha256sum tells which "
          "host's are right)")
      .help(
          "or name a place that every host mounts; a relative path begins where each rank was "
          "started");
}

}  // namespace

void check_same_fingerprints(World& world, const std::vector<Fingerprint>& fingerprints) {
  if (world.size() == 1) return;
  Told mine{rendezvous::name_here(world.rank()), {}};
  for (const Fingerprint& one : fingerprints) mine.digests.push_back(one.value);
  const std::vector<Told> told = gather(world, mine);
  for (size_t i = 0; i < fingerprints.size(); ++i) {
    const Fingerprint& one = fingerprints[i];
    std::map<std::string, std::vector<size_t>> members;
    for (size_t rank = 0; rank < told.size(); ++rank)
      members[told[rank].digests[i]].push_back(rank);
    if (members.size() == 1) continue;
    std::vector<std::string> names;
    for (const Told& rank : told) names.push_back(rank.name);
    std::string text;
    for (const auto& [value, ranks] : members)
      text += (text.empty() ? "" : ", ") + value + " on " + some_names(ranks, names);
    throw Error(ErrorCode::data_differs,
                "the " + one.what + " differ: their fingerprint is " + text)
        .key(one.key)
        .help(
            "copy the files again, so that every host has the same ones, and use the same options "
            "and version of a plugin everywhere");
  }
}

std::string check_same_data(World& world, const std::vector<FileGroup>& groups, bool whole) {
  if (world.size() == 1)
    return whole ? "dataset.verify = \"whole\" compares ranks, and this run has only one" : "";
  const auto begin = Clock::now();
  std::vector<std::string> identities = gather_texts(world, identity(groups, world.rank()));
  auto me = static_cast<size_t>(world.rank());
  std::map<std::string, size_t> firsts;
  for (size_t rank = 0; rank < identities.size(); ++rank) firsts.emplace(identities[rank], rank);
  auto first_like = [&](size_t rank) { return firsts.at(identities[rank]); };
  std::vector<std::vector<File>> files;
  int64_t bytes = 0;
  size_t count = 0;
  Told mine{rendezvous::name_here(world.rank()), {}};
  const std::vector<std::string> texts = agree_or_throw(world, [&] {
    for (const FileGroup& group : groups) {
      files.push_back(files_of(group));
      bytes += total(files.back());
      count += files.back().size();
      if (first_like(me) != me) continue;
      read(files.back(), whole);
      mine.digests.push_back(sum_of(files.back()));
    }
    return base::json_text(mine);
  });
  std::vector<Told> told;
  for (const std::string& text : texts) told.push_back(base::read_json_text<Told>(text));
  std::vector<std::string> names;
  size_t machines = 0;
  for (size_t rank = 0; rank < told.size(); ++rank) {
    machines += first_like(rank) == rank ? 1 : 0;
    names.push_back(told[rank].name);
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<std::string> kinds;
    for (size_t rank = 0; rank < told.size(); ++rank)
      kinds.push_back(told[first_like(rank)].digests[g]);
    if (std::ranges::count(kinds, kinds[0]) < std::ssize(kinds))
      refuse(world, groups[g], files[g], kinds, names);
  }
  if (!whole) return "";
  return text::format("every byte of %s, %s, compared in %zu %s in %.2f s (dataset.verify)",
                      text::counted(static_cast<int64_t>(count), "file").c_str(),
                      report::human_bytes(bytes).c_str(), machines,
                      machines == 1 ? "place" : "places", base::ms_since(begin) / 1000);
}

std::vector<std::string> weight_files(const std::string& pretrained) {
  std::vector<std::string> out;
  std::error_code failed;
  if (!fs::is_directory(pretrained, failed))
    return pretrained.empty() ? out : std::vector<std::string>{pretrained};
  for (const fs::directory_entry& entry : fs::directory_iterator(pretrained, failed)) {
    fs::path extension = entry.path().extension();
    if ((extension == ".safetensors" || extension == ".json") && entry.is_regular_file(failed))
      out.push_back(entry.path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace meshwright::train
