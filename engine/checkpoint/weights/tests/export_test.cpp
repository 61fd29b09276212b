// Folders as transformers writes them, put in place in one go, and nothing of anybody else's
// removed.
#include "engine/checkpoint/weights/export.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "engine/checkpoint/weights/auxiliary_files.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/tests/scratch.h"

namespace export_test {

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::weights;
using scratch::Folder, scratch::has;

namespace {

// Relative names of all files, sorted by the set.
std::set<std::string> listing(const fs::path& folder) {
  std::set<std::string> out;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (!entry.is_directory()) out.insert(entry.path().lexically_relative(folder).generic_string());
  return out;
}

ExportTensor constant(const std::string& name, int64_t elements, float value) {
  return {{name, DType::float32, {elements}}, [=](const ByteSink& sink) {
            for (int64_t i = 0; i < elements; ++i) sink(std::as_bytes(std::span(&value, 1)));
          }};
}

std::string failure(const std::function<void()>& body,
                    ErrorCode code = ErrorCode::output_unwritable) {
  const Error error = scratch::caught(body);
  if (error.message().empty()) return "";
  CHECK(error.code() == code);
  CHECK((!error.helps().empty() || code == ErrorCode::internal));
  return error.message();
}

// An export of one weight, and of the files beside it.
void write(const fs::path& out, float value, std::vector<ExportFile> extras = {}) {
  write_folder(out, {constant("w", 10, value)}, std::move(extras));
}

}  // namespace

TEST_CASE("a folder of one file equals the one it was read from, to the byte") {
  Folder folder;
  fs::path net = MESHWRIGHT_SOURCE_DIR "/tests/data/nets/qwen2", out = folder.path / "out";
  WeightFolder source(net);
  std::vector<ExportTensor> tensors;
  for (const std::string& name : source.names())
    tensors.push_back(tensor_of(*source.find(name), source.find(name)->dtype));
  int64_t heard = 0;
  Exported done =
      write_folder(out, std::move(tensors),
                   {copy_of("config.json", net / "config.json"), text_of("a/b/c.txt", "c")},
                   {.progress = [&](int64_t bytes) { heard += bytes; }});
  CHECK(done.files == std::vector<std::string>{"model.safetensors", "config.json", "a/b/c.txt"});
  CHECK(done.bytes == heard);
  CHECK(listing(out) == std::set<std::string>{".meshwright-export", "a/b/c.txt", "config.json",
                                              "model.safetensors"});
  CHECK((base::read_file(out / "config.json") == base::read_file(net / "config.json")));
  CHECK(folder.read("out/a/b/c.txt") == "c");
  WeightFolder again(out);
  CHECK(again.names() == source.names());
  for (const std::string& name : source.names()) {
    const TensorEntry &a = *source.find(name), &b = *again.find(name);
    CHECK(a.dtype == b.dtype);
    CHECK(a.shape == b.shape);
    CHECK(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes)) == 0);
  }
  CHECK(listing(folder.path).size() == 4);  // nothing is left beside it
}

TEST_CASE("tensors are split over files as transformers splits them") {
  Folder folder;
  struct Row {
    std::vector<int64_t> sizes;  // in units of the limit's sixth
    std::vector<std::vector<size_t>> files;
  };
  // The first row is the example of huggingface_hub: a limit of 10 GB and tensors of 6, 6, 2, 6, 2
  // and 2.
  for (const Row& row : std::vector<Row>{{{36, 36, 12, 36, 12, 12}, {{0}, {1, 2}, {3, 4, 5}}},
                                         {{10, 20, 30}, {{0, 1, 2}}},
                                         {{30, 31, 29, 1}, {{0}, {1, 2}, {3}}},
                                         {{10, 100, 20, 300, 31}, {{1}, {3}, {0, 2}, {4}}},
                                         {{}, {{}}},
                                         {{0, 60, 0, 1}, {{0, 1, 2}, {3}}}}) {
    std::vector<ExportTensor> tensors;
    int64_t total = 0;
    for (size_t i = 0; i < row.sizes.size(); ++i) {
      tensors.push_back(constant("t" + std::to_string(i), row.sizes[i], static_cast<float>(i)));
      total += row.sizes[i] * 4;
    }
    fs::path out = folder.path / "out";
    Exported done = write_folder(out, std::move(tensors), {}, {.shard_bytes = 60 * 4});
    size_t n = row.files.size();
    CHECK(done.files.size() == (n == 1 ? 1 : n + 1));
    std::map<std::string, std::string> map;
    for (size_t i = 0; i < n; ++i) {
      char name[64];
      std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, n);
      SafetensorsFile file(out / (n == 1 ? "model.safetensors" : name));
      CHECK(file.metadata() == Metadata{{"format", "pt"}});
      std::set<std::string> found, wanted;
      for (const TensorEntry& entry : file.tensors()) found.insert(entry.name);
      for (size_t tensor : row.files[i])
        wanted.insert("t" + std::to_string(tensor)), map["t" + std::to_string(tensor)] = name;
      CHECK(found == wanted);
    }
    WeightFolder weights(out);
    CHECK(weights.names().size() == row.sizes.size());
    for (size_t i = 0; i < row.sizes.size(); ++i) {
      const TensorEntry& entry = *weights.find("t" + std::to_string(i));
      CHECK(entry.shape == std::vector<int64_t>{row.sizes[i]});
      for (int64_t at = 0; at < entry.bytes; at += 4) {
        float value = -1;
        std::memcpy(&value, entry.data + at, 4);
        CHECK(value == static_cast<float>(i));
      }
    }
    if (n == 1) continue;
    boost::json::object index =
        boost::json::parse(base::read_file(out / "model.safetensors.index.json")).as_object();
    CHECK(index.at("metadata").as_object().at("total_size").as_int64() == total);
    CHECK(index.at("weight_map").as_object().size() == map.size());
    for (const auto& [name, file] : map)
      CHECK(index.at("weight_map").as_object().at(name).as_string() == file);
  }
}

TEST_CASE("weights are converted on the way, in pieces") {
  Folder folder;
  const int64_t n = 1'300'000;  // more than one piece
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i)) * 100;
  const std::vector<int64_t> ids = {7};
  write_folder(folder.path / "wide",
               {{{"w", DType::float32, {2, n / 2}},
                 [&](const ByteSink& sink) { sink(std::as_bytes(std::span(values))); }},
                {{"ids", DType::int64, {1}},
                 [&](const ByteSink& sink) { sink(std::as_bytes(std::span(ids))); }}},
               {});
  WeightFolder wide(folder.path / "wide");
  for (DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16}) {
    write_folder(folder.path / "out", {tensor_of(*wide.find("w"), dtype)}, {});
    WeightFolder narrow(folder.path / "out");
    const TensorEntry& found = *narrow.find("w");
    CHECK(found.dtype == dtype);
    std::vector<std::byte> wanted(static_cast<size_t>(n * dtype_size(dtype)));
    read_slice(*wide.find("w"), std::vector<int64_t>{0, 0}, std::vector<int64_t>{2, n / 2}, dtype,
               wanted.data());
    REQUIRE(found.bytes == static_cast<int64_t>(wanted.size()));
    CHECK(std::memcmp(found.data, wanted.data(), wanted.size()) == 0);
  }
  const ExportTensor narrow = tensor_of(*wide.find("ids"), DType::bfloat16);
  CHECK(has(failure([&] { write_folder(folder.path / "ids", {narrow}, {}); },
                    ErrorCode::weights_mismatch),
            "int64"));
}

TEST_CASE("an earlier export is taken away as a whole, and nothing else") {
  Folder folder;
  const fs::path out = folder.path / "out";
  remove_folder(out);  // there is none
  write(out, 1);
  folder.put("out/notes.txt", "mine");
  CHECK(has(failure([&] { remove_folder(out); }), "holds notes.txt"));
  CHECK(fs::exists(out / "model.safetensors"));
  fs::remove(out / "notes.txt");
  remove_folder(out);
  CHECK(listing(folder.path).empty());
  write(out, 1);
  CHECK(fs::exists(out / "model.safetensors"));
}

TEST_CASE("an earlier export is replaced as a whole; what anybody else made is left alone") {
  Folder folder;
  fs::path out = folder.path / "hf";
  auto write = [&](float value, const std::string& extra) {
    export_test::write(out, value, {text_of(extra, extra)});
  };
  auto kept = [&](const std::string& says) {
    auto before = listing(folder.path);
    std::string found = failure([&] { write(9, "new.txt"); });
    INFO(found);
    CHECK(has(found, says));
    CHECK(has(failure([&] { check_target(out); }), says));
    CHECK(listing(folder.path) == before);
  };
  write(1, "sub/one.txt");
  write(2, "two.txt");
  CHECK(listing(folder.path) ==
        std::set<std::string>{"hf/.meshwright-export", "hf/model.safetensors", "hf/two.txt"});
  float value = 0;
  std::memcpy(&value, WeightFolder(out).find("w")->data, 4);
  CHECK(value == 2);
  folder.put("hf/notes.txt", "mine");
  kept("holds notes.txt, which the earlier export did not write");
  fs::remove(out / "notes.txt");
  folder.put("hf/sub/notes.txt", "mine");
  kept("holds sub/notes.txt, which the earlier export did not write");
  fs::remove_all(out / "sub");
  fs::remove(out / ".meshwright-export");
  kept("holds files that no export made");
  folder.put("hf/.meshwright-export", "[]");
  kept("holds files that no export made");
  folder.put("hf/.meshwright-export", "{\"files\":[\"model.safetensors\"]}");
  kept("holds two.txt, which");
  fs::remove_all(out);
  folder.put("hf", "a file");
  kept("is not a folder");
  fs::remove(out);
  fs::create_directory(out);
  write(3, "three.txt");  // an empty folder
  // Through a link the folder that it leads to is replaced, not the link.
  fs::rename(out, folder.path / "disk");
  fs::create_directory_symlink("disk", out);
  write(4, "four.txt");
  CHECK(fs::is_symlink(out));
  CHECK(folder.read("disk/four.txt") == "four.txt");
  CHECK(!fs::exists(folder.path / "disk/three.txt"));
  fs::remove_all(folder.path / "disk");
  kept("is not a folder");  // the link leads nowhere
  for (const char* name : {"", "/", "/.."}) CHECK(failure([&] { check_target(name); }) != "");
}

TEST_CASE(
    "an export that fails leaves nothing, one that was cut off is cleared away, one under way is "
    "not disturbed") {
  Folder folder;
  fs::path out = folder.path / "hf", temporary = folder.path / ".hf.export";
  auto write = [&](int64_t given) {
    write_folder(
        out,
        {{{"w", DType::int8, {4}},
          [=](const ByteSink& sink) { sink(std::vector<std::byte>(static_cast<size_t>(given))); }}},
        {text_of("x/y", "z")});
  };
  CHECK(has(failure([&] { write(3); }, ErrorCode::internal), "1 of 4 bytes"));
  CHECK(listing(folder.path).empty());
  write(4);
  auto before = listing(folder.path);
  CHECK(has(failure([&] { write(5); }, ErrorCode::internal), "gets 5 more"));
  CHECK(listing(folder.path) == before);
  struct Stop {};
  CHECK_THROWS_AS(
      write_folder(out, {}, {text_of("a", "b")}, {.progress = [](int64_t) { throw Stop{}; }}),
      Stop);
  CHECK(listing(folder.path) == before);
  auto beside = [&](const ExportFile& file, ErrorCode code) {
    return failure([&] { write_folder(out, {}, {file}); }, code);
  };
  CHECK(beside(copy_of("a", folder.path / "nowhere"), ErrorCode::file_unreadable) != "");
  CHECK(has(beside(text_of("model.safetensors", "b"), ErrorCode::output_unwritable),
            "written already"));
  CHECK(beside(text_of("../b", "b"), ErrorCode::internal) != "");
  CHECK(listing(folder.path) == before);
  // What a process that was killed leaves.
  folder.put(".hf.export/.meshwright-export", "{\"files\":[]}");
  folder.put(".hf.export/model.safetensors", "half");
  write(4);
  CHECK(listing(folder.path) == before);
  folder.put(".hf.export/thesis.txt", "mine");
  CHECK(has(failure([&] { write(4); }), "no export made it"));
  CHECK(fs::exists(temporary / "thesis.txt"));
  fs::remove_all(temporary);
  folder.put(".hf.export/.meshwright-export", "{\"files\":[]}");
  int lock = ::open(temporary.c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(::flock(lock, LOCK_EX | LOCK_NB) == 0);
  CHECK(has(failure([&] { write(4); }), "in use by another export"));
  CHECK(fs::exists(temporary));
  ::close(lock);
  write(4);
  CHECK(listing(folder.path) == before);
}

TEST_CASE("files beside the weights are carried along, and each kind that is not is named once") {
  Folder folder;
  fs::path source = folder.path / "source";
  const std::set<std::string> carried = {
      "tokenizer.json", "tokenizer.model",       "LICENSE",     "generation_config.json",
      "merges.txt",     "1_Pooling/config.json", "a/b/c/d.txt", "empty",
      "linked.txt"};
  for (const std::string& name : carried)
    if (name != "linked.txt") folder.put(source / name, name == "empty" ? "" : name);
  for (const char* name : {"config.json", "model.safetensors", "model-00001-of-00002.safetensors",
                           "model.safetensors.index.json", ".meshwright-export"})
    folder.put(source / name, "x");
  for (const char* name :
       {"adapter_model.safetensors", "pytorch_model.bin", "pytorch_model.bin.index.json",
        "original/consolidated.00.pth", "consolidated.safetensors", "x.PT", "x.pkl", "x.ckpt",
        "flax_model.msgpack", "tf_model.h5", "onnx/model.onnx", "q4.gguf", ".gitattributes",
        ".git/HEAD", "a/b/c/d/e/deep.txt", "bad\xff.txt"})
    folder.put(source / name, "x");
  folder.put("secret", "x");
  fs::create_symlink("LICENSE", source / "linked.txt");
  fs::create_symlink("../secret", source / "stolen.txt");
  fs::create_symlink("/etc/hostname", source / "a" / "stolen.txt");
  fs::create_symlink("nowhere", source / "broken.txt");
  fs::create_directory_symlink(".", source / "loop");
  REQUIRE(::mkfifo((source / "pipe").c_str(), 0600) == 0);
  Carried found = carried_files(source);
  std::set<std::string> names;
  for (const CarriedFile& file : found.files) {
    names.insert(file.name);
    CHECK(file.bytes == static_cast<int64_t>(fs::file_size(file.path)));
  }
  CHECK(names == carried);
  std::string notices;
  for (const std::string& notice : found.notices) notices += notice + "\n";
  INFO(notices);
  for (const char* part :
       {"hidden files are not carried along: .git and 1 more",
        "other weights are not carried along: adapter_model.safetensors and 2 more",
        "weights in formats that may hold programs are not carried along: "
        "original/consolidated.00.pth and 4 more",
        "weights in other formats are not carried along: flax_model.msgpack and 3 more",
        "links that lead out of the folder are not carried along: a/stolen.txt and 1 more",
        "links that lead nowhere are not carried along: broken.txt\n",
        "links to folders are not carried along: loop\n",
        "folders deeper than 4 levels are not carried along: a/b/c/d/e\n",
        "pipes, sockets and devices are not carried along: pipe\n", "names that are not UTF-8"})
    CHECK_MESSAGE(has(notices, part), part);
  CHECK(found.notices.size() == 10);
  // The layout of the download cache.
  fs::path model = folder.path / "models--a--b", revision = model / "snapshots" / "0123";
  folder.put(model / "blobs/77", "blob");
  fs::create_directories(revision / "sub");
  fs::create_symlink("../../blobs/77", revision / "tokenizer.json");
  fs::create_symlink("../../../blobs/77", revision / "sub" / "x.txt");
  fs::create_symlink("../../../secret", revision / "no.txt");
  Carried cache = carried_files(revision);
  REQUIRE(cache.files.size() == 2);
  CHECK(cache.files[0].name == "sub/x.txt");
  CHECK(cache.files[1].name == "tokenizer.json");
  CHECK(cache.notices.size() == 1);
  // Bounds.
  fs::path many = folder.path / "many";
  for (int i = 0; i < 1005; ++i) folder.put(many / (std::to_string(10000 + i) + ".txt"), "");
  Carried bounded = carried_files(many);
  CHECK(bounded.files.size() == 1000);
  REQUIRE(bounded.notices.size() == 1);
  CHECK(bounded.notices[0].ends_with(
      ": files beyond the first 1,000 are not carried along: 11000.txt and 4 more"));
  fs::path large = folder.path / "large";
  fs::resize_file(folder.put(large / "a.txt", ""), (int64_t{1} << 30) - 5);
  folder.put(large / "b.txt", "123456");
  folder.put(large / "c.txt", "12345");
  CHECK(carried_files(large).files.size() == 2);
  CHECK(has(failure([&] { carried_files(folder.path / "nowhere"); }, ErrorCode::file_unreadable),
            "cannot list"));
}

TEST_CASE(
    "beside a config the files of a tokenizer are carried by their names, and none without a "
    "tokenizer") {
  Folder folder;
  fs::path source = folder.path / "source";
  for (const char* name : {"config.json", "other.json", "generation_config.json",
                           "tokenizer_config.json", "runs/a/tokenizer.json", "data.txt"})
    folder.put(source / name, "x");
  CHECK(carried_beside(source).files.empty());
  folder.put(source / "tokenizer.json", "{}");
  folder.put(source / "additional_chat_templates/tools.jinja", "x");
  Carried found = carried_beside(source);
  std::vector<std::string> names;
  for (const CarriedFile& file : found.files) names.push_back(file.name);
  CHECK(names == std::vector<std::string>{"additional_chat_templates/tools.jinja",
                                          "generation_config.json", "tokenizer.json",
                                          "tokenizer_config.json"});
  CHECK(found.notices.empty());
  // A link that leads out of the folder stays behind here too.
  fs::remove(source / "tokenizer.json");
  fs::create_symlink("/etc/hostname", source / "tokenizer.json");
  found = carried_beside(source);
  REQUIRE(found.notices.size() == 1);
  CHECK(found.notices[0].ends_with(
      ": links that lead out of the folder are not carried along: tokenizer.json"));
  CHECK(carried_beside(folder.path / "nowhere").files.empty());
}

TEST_CASE("an export would replace a folder by whatever name, and what lies or leads in it") {
  Folder folder;
  const fs::path base = folder.path / "models/base", out = folder.path / "out";
  folder.put("models/base/model.safetensors", "x");
  fs::create_directories(base / "adapter");
  folder.put("linked/config.json", "{}");
  fs::create_directory_symlink(base, folder.path / "link");
  fs::create_symlink(base / "model.safetensors", folder.path / "linked/model.safetensors");
  const std::vector<fs::path> same{base,
                                   base / "",
                                   base / "adapter" / "..",
                                   folder.path / "link",
                                   folder.path / "link" / "",
                                   folder.path / "nowhere/../models/base",
                                   fs::relative(base)};
  for (const fs::path& target : same)
    for (const fs::path& kept : same) {
      CAPTURE(target.string());
      CAPTURE(kept.string());
      // A name through a folder that is not there names nothing yet.
      CHECK(would_replace(target, kept) == fs::exists(kept));
    }
  CHECK(would_replace(folder.path / "models", base));
  CHECK(would_replace(folder.path / "models", folder.path / "link"));
  CHECK(would_replace(base, base / "model.safetensors"));
  CHECK(would_replace(base, folder.path / "linked"));  // its weights are there
  CHECK_FALSE(would_replace(base / "adapter", base));  // below it nothing of it goes
  CHECK_FALSE(would_replace(folder.path / "models/bas", base));
  CHECK_FALSE(would_replace(folder.path / "linked", base));
  CHECK_FALSE(would_replace(out, base));
  CHECK_FALSE(would_replace(out, out));  // nothing is there
}

}  // namespace export_test
