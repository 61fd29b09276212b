// What the verbs do: verify, export and diff, over every layout.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <random>

#include "engine/checkpoint/export.h"
#include "engine/checkpoint/inspect.h"
#include "engine/checkpoint/tests/make_checkpoint.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/tests/scratch.h"

namespace tools_test {

using namespace meshwright;
using namespace meshwright::checkpoint;
namespace fs = std::filesystem;
using scratch::Folder, scratch::has;

namespace {

const char* const kConfig = "{\n  \"model_type\": \"llama\",\n  \"torch_dtype\": \"float32\"\n}\n";

std::vector<float> values(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> out(count);
  for (float& value : out) value = static_cast<float>(random() % 20001) / 1000 - 10;
  return out;
}

// A matrix that spans several blocks, a vector, a scalar, something empty, and an optimizer.
std::vector<MadeTensor> some_tensors() {
  std::vector<MadeTensor> out = {
      made("", "embed", DType::float32, {700, 513}, values(700 * 513, 1)),
      made("", "norm", DType::float32, {5}, values(5, 2)),
      made("", "scale", DType::float32, {}, values(1, 3)),
      made("", "none", DType::float32, {0, 3}, std::vector<float>()),
      made("", "ids", DType::int64, {3}, std::vector<int64_t>{1, -2, int64_t{1} << 60}),
      made("exp_avg", "embed", DType::float32, {700, 513}, values(700 * 513, 4)),
      made("exp_avg", "norm", DType::float32, {5}, values(5, 5))};
  out[1].export_dtype = DType::bfloat16;
  return out;
}

const std::map<std::string, std::string> kFiles = {
    {"config.json", kConfig}, {"source/tokenizer.json", "{}"}, {"source/sub/x.txt", ""}};

std::string text_of(const std::vector<Error>& errors) {
  std::string out;
  for (const Error& error : errors) out += code_string(error.code()) + " " + error.message() + "\n";
  return out;
}

void ignore(int64_t) {}

}  // namespace

TEST_CASE("what a checkpoint's list has of programs is left out of an export, and told") {
  const Folder folder;
  const fs::path saved = folder.path / "saved";
  make_checkpoint(saved, 1, some_tensors(), Layout::rows,
                  {{"config.json", kConfig},
                   {"source/tokenizer.json", "{}"},
                   {"source/pytorch_model.bin", "PK"},
                   {"source/merges.txt", "\x80\x04\x95 a pickle"}});
  Source source(saved);
  CHECK(export_folder(source, folder.path / "hf", {}).files ==
        std::vector<std::string>{"model.safetensors", "config.json", "tokenizer.json"});
  CHECK(carried_by(*source.checkpoint()).notice ==
        saved.string() +
            ": weights, pickles, archives and programs in source/ are not carried along: "
            "merges.txt and 1 more");
}

TEST_CASE(
    "an export of any layout holds every weight bitwise identical, in the dtype of the model's own "
    "folder") {
  Folder folder;
  std::vector<MadeTensor> tensors = some_tensors();
  for (Layout layout : {Layout::rows, Layout::columns, Layout::runs})
    for (size_t ranks : {1, 2, 3, 7}) {
      CAPTURE(ranks);
      fs::path saved = folder.path / "saved", out = folder.path / "hf";
      fs::remove_all(saved);
      make_checkpoint(saved, ranks, tensors, layout, kFiles);
      CHECK(text_of(verify_checkpoint(saved, ignore).damage) == "");
      Source source(saved);
      int64_t heard = 0, wanted = export_bytes(source, {});
      weights::Exported done =
          export_folder(source, out, {.progress = [&](int64_t bytes) { heard += bytes; }});
      CHECK(heard == done.bytes);
      CHECK(heard - wanted > 0);
      CHECK(heard - wanted < 1000);  // the header
      CHECK(done.files == std::vector<std::string>{"model.safetensors", "config.json", "sub/x.txt",
                                                   "tokenizer.json"});
      CHECK(base::read_file(out / "config.json") == kConfig);
      CHECK(base::read_file(out / "tokenizer.json") == "{}");
      weights::WeightFolder found(out);
      CHECK(found.names() == std::vector<std::string>{"embed", "ids", "none", "norm", "scale"});
      for (const MadeTensor& tensor : tensors) {
        if (!tensor.state.empty()) continue;
        const weights::TensorEntry& entry = *found.find(tensor.name);
        CHECK(entry.dtype == tensor.export_dtype);
        CHECK(entry.shape == tensor.shape);
        if (entry.dtype == tensor.dtype)
          CHECK(std::equal(tensor.values.begin(), tensor.values.end(), entry.data));
      }
      // The folder and the checkpoint are the same but for the vector's dtype.
      Source exported(out);
      Difference difference = compare(source, exported, ignore);
      CHECK(difference.only_a.empty());
      CHECK(difference.only_b.empty());
      CHECK_FALSE(difference.optimizer_compared);
      for (const TensorDifference& t : difference.both) CHECK(t.equal() == (t.name != "norm"));
    }
}

TEST_CASE("another dtype, and shards") {
  Folder folder;
  make_checkpoint(folder.path / "saved", 3, some_tensors(), Layout::rows, kFiles);
  Source source(folder.path / "saved");
  export_folder(source, folder.path / "half", {.dtype = DType::float16, .shard_bytes = 100000});
  CHECK(has(folder.read("half/config.json"), "\"torch_dtype\": \"float16\""));
  CHECK(fs::exists(folder.path / "half" / "model.safetensors.index.json"));
  Source half(folder.path / "half");
  for (const SourceTensor& tensor : half.tensors())
    CHECK(tensor.dtype == (tensor.name == "ids" ? DType::int64 : DType::float16));
  // A Hugging Face folder is a source like any other.
  export_folder(half, folder.path / "again", {});
  Source again(folder.path / "again");
  CHECK(compare(half, again, ignore).equal());
  CHECK(folder.read("again/config.json") == folder.read("half/config.json"));
  CHECK(folder.read("again/tokenizer.json") == "{}");
}

TEST_CASE("config.json names the dtype of the weights at its top") {
  for (auto [before, after] : std::vector<std::pair<const char*, const char*>>{
           {"{\"torch_dtype\": \"float32\"}", "{\"torch_dtype\": \"bfloat16\"}"},
           {"{\"dtype\":\"float32\"}", "{\"dtype\":\"bfloat16\"}"},
           {"{\"a\": [\"dtype\", \"float32\"], \"torch_dtype\" : \"torch.float16\", \"b\": 1}",
            "{\"a\": [\"dtype\", \"float32\"], \"torch_dtype\" : \"torch.bfloat16\", \"b\": 1}"},
           {"{\"vision\": {\"dtype\": \"float32\"}}", "{\"vision\": {\"dtype\": \"float32\"}}"},
           {"{\"x\": \"dtype\", \"y\": \"float32\"}", "{\"x\": \"dtype\", \"y\": \"float32\"}"},
           {"{\"x\": \"\\\"dtype\", \"dtype\": null, \"y\": \"float32\"}",
            "{\"x\": \"\\\"dtype\", \"dtype\": null, \"y\": \"float32\"}"},
           {"{}", "{}"},
           {"{\"dtype", "{\"dtype"},
           {"", ""}})
    CHECK(with_dtype(before, DType::bfloat16) == after);
}

TEST_CASE("an export of damaged shards fails with file and bytes, and leaves nothing") {
  Folder folder;
  fs::path saved = folder.path / "saved", file = saved / "model-00002-of-00002.safetensors";
  make_checkpoint(saved, 2, some_tensors(), Layout::rows, kFiles);
  auto size = static_cast<int64_t>(fs::file_size(file));
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(size - 100).put('\x5a');
  Source source(saved);
  CHECK(scratch::message_of([&] { export_folder(source, folder.path / "hf", {}); },
                            ErrorCode::bad_checkpoint) == file.string() + ": bytes 0 to " +
                                                              std::to_string(size - 1) +
                                                              " do not match their checksum");
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);
}

TEST_CASE("verify tells all damage, by file and bytes") {
  Folder folder;
  fs::path saved = folder.path / "saved", one = saved / "model-00001-of-00002.safetensors",
           other = saved / "optimizer-00002-of-00002.safetensors";
  // 1.4 MB and more a file: two blocks.
  std::vector<MadeTensor> tensors = {
      made("", "w", DType::float32, {1800, 513}, values(1800 * 513, 1)),
      made("exp_avg", "w", DType::float32, {1800, 513}, values(1800 * 513, 2))};
  auto fresh = [&] {
    fs::remove_all(saved);
    return make_checkpoint(saved, 2, tensors, Layout::columns, kFiles);
  };
  auto damage = [&](const fs::path& path, int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    char byte = static_cast<char>(file.get());
    file.seekp(at).put(static_cast<char>(byte ^ 1));
  };
  auto found = [&] { return text_of(verify_checkpoint(saved, ignore).damage); };
  fresh();
  int64_t heard = 0;
  Verified fine = verify_checkpoint(saved, [&](int64_t bytes) { heard += bytes; });
  CHECK(text_of(fine.damage) == "");
  CHECK(fine.checksums);
  CHECK(fine.files == 7);
  CHECK(fine.tensors == 2);
  CHECK(heard == fine.bytes);
  CHECK(heard == verify_bytes(saved));
  auto size = static_cast<int64_t>(fs::file_size(one));
  REQUIRE(size > kBlock);
  const std::string last = std::to_string(size - 1);
  damage(one, kBlock + 3);
  damage(other, 0);
  damage(saved / "config.json", 2);
  CHECK(found() == "E0711 " + one.string() + ": bytes 1048576 to " + last +
                       " do not match their checksum\nE0711 " + other.string() +
                       ": bytes 0 to 1048575 do not match their checksum\nE0711 " +
                       (saved / "config.json").string() + ": bytes 0 to " +
                       std::to_string(std::string(kConfig).size() - 1) +
                       " do not match their checksum\n");
  fresh();
  damage(one, 17);
  damage(one, kBlock);
  CHECK(found() ==
        "E0711 " + one.string() + ": bytes 0 to " + last + " do not match their checksums\n");
  fresh();
  fs::resize_file(one, 1000);
  fs::resize_file(other, fs::file_size(other) + 1);
  fs::remove(saved / "source/tokenizer.json");
  CHECK(has(found(), one.string() + ": has 1000 bytes, meta.json says " + std::to_string(size) +
                         ": bytes from 1000 on are lost\n"));
  CHECK(has(found(), "bytes from " + std::to_string(fs::file_size(other) - 1) +
                         " on do not belong to it\n"));
  CHECK(has(found(), "tokenizer.json: the file is missing\n"));
  fresh();
  fs::rename(one, folder.path / "elsewhere");
  fs::create_symlink(folder.path / "elsewhere", one);
  CHECK(found() == "E0711 " + one.string() + ": is a link, not a file of this folder\n");
  fs::remove(one);
  fs::create_directory(one);
  CHECK(found() == "E0711 " + one.string() + ": is not a regular file\n");
  fresh();
  damage(saved / "meta.json", 300);
  CHECK(found() == "E0711 " + (saved / "meta.json").string() +
                       ": byte 0: the file does not match its checksum\n");
  fs::remove(saved / "meta.json");
  CHECK(found().find("E0712 ") == 0);
  // What meta.json does not know of is said.
  fresh();
  std::ofstream(saved / "source" / "extra.bin") << "x";
  CHECK(verify_checkpoint(saved, ignore).not_covered ==
        std::vector<std::string>{"source/extra.bin"});
  // Right checksums of a file that says something else.
  for (const char* what : {"name", "shape", "more", "less"}) {
    CAPTURE(what);
    Meta meta = fresh();
    TensorRecord& tensor = meta.tensors[0];
    if (std::string(what) == "name")
      for (Piece& piece : tensor.pieces) tensor.name = piece.key = "v";
    if (std::string(what) == "shape") {
      int64_t cut = tensor.pieces[0].region.count();
      tensor.pieces[0].region = Region::run(0, cut);
      tensor.pieces[1].region = Region::run(cut, 1800 * 513);
    }
    if (std::string(what) == "more") meta.tensors.pop_back();
    if (std::string(what) == "less")
      meta.tensors.push_back(
          {"", "x", DType::float32, {1}, {{0, "x", Region::run(0, 1)}}, DType::float32});
    base::write_durably(saved / "meta.json", to_json(meta));
    std::string said = found();
    CAPTURE(said);
    CHECK(has(said, what == std::string("shape")
                        ? "tensor \"w\" has another dtype or shape than meta.json says"
                    : what == std::string("more") ? "holds tensors that meta.json does not name"
                                                  : "has no tensor \""));
  }
}

TEST_CASE("verify of a Hugging Face folder looks at headers and index") {
  Folder folder;
  make_checkpoint(folder.path / "saved", 2, some_tensors(), Layout::runs, kFiles);
  Source source(folder.path / "saved");
  fs::path hf = folder.path / "hf";
  export_folder(source, hf, {.shard_bytes = 500000});
  CHECK(is_weights(hf));
  CHECK_FALSE(is_weights(folder.path / "saved"));
  Verified fine = verify_weights(hf);
  CHECK(text_of(fine.damage) == "");
  CHECK_FALSE(fine.checksums);
  CHECK(fine.tensors == 5);
  fs::path shard;
  for (const auto& entry : fs::directory_iterator(hf))
    if (entry.path().extension() == ".safetensors") shard = entry.path();
  fs::resize_file(shard, fs::file_size(shard) - 1);
  CHECK(text_of(verify_weights(hf).damage).find("E0703 " + shard.string()) == 0);
  fs::remove(shard);
  CHECK(has(text_of(verify_weights(hf).damage), "which is not there"));
}

TEST_CASE("differences are counted element by element, whatever the layouts") {
  Folder folder;
  std::vector<MadeTensor> a = some_tensors(), b = a;
  auto at = [](MadeTensor& tensor, size_t index) {
    return reinterpret_cast<float*>(tensor.values.data()) + index;
  };
  make_checkpoint(folder.path / "a", 3, a, Layout::columns, kFiles);
  make_checkpoint(folder.path / "same", 2, a, Layout::runs, kFiles);
  *at(b[0], 100000) += 1;
  *at(b[0], 200000) += 3;
  *at(b[1], 2) = std::nanf("");
  b[2] =
      made("", "scale", DType::float64, {}, std::vector<double>{static_cast<double>(*at(a[2], 0))});
  b[3].name = "renamed";
  b[4].shape = {3, 1};
  *at(b[5], 7) = -*at(b[5], 7) - 1;
  make_checkpoint(folder.path / "b", 2, b, Layout::rows, kFiles);
  Source one(folder.path / "a"), same(folder.path / "same"), other(folder.path / "b");
  int64_t heard = 0;
  CHECK(compare(one, same, [&](int64_t bytes) { heard += bytes; }).equal());
  CHECK(heard == diff_bytes(one, same));
  Difference difference = compare(one, other, ignore);
  CHECK_FALSE(difference.equal());
  CHECK(difference.optimizer_compared);
  CHECK(difference.only_a == std::vector<std::string>{"none"});
  CHECK(difference.only_b == std::vector<std::string>{"renamed"});
  std::map<std::string, TensorDifference> by_name;
  for (const TensorDifference& t : difference.both) by_name[t.state + "/" + t.name] = t;
  const TensorDifference& embed = by_name.at("/embed");
  CHECK(embed.differing == 2);
  CHECK(embed.worst == 200000);
  CHECK(embed.max_abs == doctest::Approx(3).epsilon(1e-5));
  CHECK(embed.relative > 0);
  CHECK(embed.relative <= 2);
  CHECK(by_name.at("/norm").differing == 1);
  CHECK(std::isinf(by_name.at("/norm").max_abs));
  CHECK(by_name.at("/norm").worst == 2);
  CHECK(by_name.at("/scale").differing == 0);  // the same value in another dtype
  CHECK_FALSE(by_name.at("/scale").equal());
  CHECK_FALSE(by_name.at("/ids").same_shape());
  CHECK(by_name.at("exp_avg/embed").differing == 1);
  CHECK(by_name.at("exp_avg/norm").equal());
  // Bits count, so a zero of another sign differs, by nothing.
  b = a;
  *at(a[1], 0) = 0.f;
  *at(b[1], 0) = -0.f;
  make_checkpoint(folder.path / "plus", 1, a, Layout::rows);
  make_checkpoint(folder.path / "minus", 1, b, Layout::rows);
  Source plus(folder.path / "plus"), minus(folder.path / "minus");
  difference = compare(plus, minus, ignore);
  CHECK(difference.both[1].differing == 1);
  CHECK(difference.both[1].max_abs == 0);
  CHECK(difference.both[1].relative == 0);
}

TEST_CASE("a path is listed as a checkpoint, a folder of some, a run, or runs") {
  Folder folder;
  std::vector<MadeTensor> tensors = some_tensors();
  for (const char* run : {"one", "two"})
    for (int64_t step : {3, 40})
      make_checkpoint(folder.path / "runs" / run / "checkpoints" / step_name(step), 2, tensors,
                      Layout::rows, kFiles);
  fs::path own = folder.path / "runs/one/checkpoints";
  base::link_durably(step_name(40), own / "latest");
  fs::resize_file(own / step_name(3) / "config.json", 1);
  fs::create_directories(folder.path / "runs" / "empty");
  for (const fs::path& path : {own, folder.path / "runs/one"}) {
    std::vector<Group> groups = list_checkpoints(path);
    REQUIRE(groups.size() == 1);
    CHECK(groups[0].folder == own);
    REQUIRE(groups[0].checkpoints.size() == 2);
    CHECK_FALSE(groups[0].checkpoints[0].meta);
    CHECK(has(groups[0].checkpoints[0].found.problem, "config.json: the file has 1 bytes"));
    CHECK(groups[0].checkpoints[1].latest);
    REQUIRE(groups[0].checkpoints[1].meta);
    CHECK(parameters_of(*groups[0].checkpoints[1].meta) == 700 * 513 + 5 + 1 + 3);
    CHECK(groups[0].checkpoints[1].bytes > 700 * 513 * 8);
  }
  CHECK(list_checkpoints(folder.path / "runs").size() == 2);
  for (const fs::path& path : {own / "latest", own / step_name(40)}) {
    std::vector<Group> groups = list_checkpoints(path);
    REQUIRE(groups.size() == 1);
    REQUIRE(groups[0].checkpoints.size() == 1);
    CHECK(groups[0].checkpoints[0].latest);
    CHECK(groups[0].checkpoints[0].found.path == own / step_name(40));
  }
  for (const char* name :
       {"nowhere", "runs/empty", "runs/one/checkpoints/step_00000040/config.json"})
    CHECK_THROWS_AS(list_checkpoints(folder.path / name), Error);
}

}  // namespace tools_test
