// A kind of data set of text files, a document a line: [dataset] plugin = "my_data". Replace what
// it reads by yours.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/plugin_main.h"

namespace {

namespace mw = meshwright;

constexpr meshwright_option kOptions[] = {
    mw::bool_option("lower_case", false, "Read A to Z as a to z."),
    mw::number_option("line_end_weight", "1", 0, "Weight of the end of a line in the loss.")};

// Samples by number. All methods are const and called by several threads at once: whatever read()
// needs is made in the constructor, or is a local variable.
class MyData final : public mw::SampleSource {
 public:
  explicit MyData(const mw::DatasetRequest& request)
      : path_(request.path),
        length_(request.seq_len),
        vocabulary_(request.vocab_size),
        end_weight_(static_cast<float>(request.options.get_number("line_end_weight"))) {
    std::ifstream in(path_, std::ios::binary);
    if (!in)
      throw mw::Error(mw::ErrorCode::bad_dataset, path_ + ": cannot be read")
          .key(request.table + ".path");
    text_.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    if (request.options.get_bool("lower_case"))
      for (char& c : text_)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (samples() < 1)
      throw mw::Error(mw::ErrorCode::bad_dataset,
                      path_ + ": has " + std::to_string(text_.size()) +
                          " bytes, but a sample takes seq_len + 1 = " + std::to_string(length_ + 1))
          .key(request.table + ".path")
          .help("set " + request.table + ".seq_len to less");
  }
  // Position i of a sample predicts the byte behind it.
  int64_t samples() const override { return (static_cast<int64_t>(text_.size()) - 1) / length_; }

  void read(int64_t sample, const mw::SampleView& out) const override {
    if (sample < 0 || sample >= samples())
      throw mw::Error(mw::ErrorCode::internal, "there is no sample " + std::to_string(sample));
    int32_t document = 0;
    for (size_t i = 0; i < out.tokens.size(); ++i) {
      const size_t at = static_cast<size_t>(sample * length_) + i;
      out.tokens[i] = token(at);
      const bool last = text_[at] == '\n';  // of its line: what follows is another document's
      out.targets[i] = last ? mw::kNoTarget : token(at + 1);
      out.documents[i] = document;
      out.weights[i] = text_[at + 1] == '\n' ? end_weight_ : 1;
      document += last ? 1 : 0;
    }
  }
  bool has_documents() const override { return true; }
  bool has_weights() const override { return true; }

  std::string describe() const override {
    return path_ + ", " + std::to_string(text_.size()) + " bytes";
  }
  // Of what samples are made of, and not of the path: other hosts may have the file elsewhere.
  uint64_t fingerprint() const override {
    uint64_t hash = 14695981039346656037u;
    auto add = [&](const void* data, size_t size) {
      for (size_t i = 0; i < size; ++i)
        hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
    };
    add(text_.data(), text_.size());
    add(&end_weight_, sizeof end_weight_);
    return hash;
  }
  // The engine sees that every rank has the same one.
  std::vector<std::string> files() const override { return {path_}; }
  // Told when a run starts.
  std::vector<std::string> report() const override {
    return {std::to_string(std::count(text_.begin(), text_.end(), '\n')) + " lines"};
  }

 private:
  int64_t token(size_t at) const {
    const int64_t id = static_cast<unsigned char>(text_[at]);
    if (vocabulary_ > 0 && id >= vocabulary_)
      throw mw::Error(mw::ErrorCode::bad_token, path_ + ": byte " + std::to_string(at) + " is " +
                                                    std::to_string(id) +
                                                    ", but the model's vocabulary has " +
                                                    std::to_string(vocabulary_) + " entries");
    return id;
  }

  std::string path_, text_;
  int64_t length_, vocabulary_;
  float end_weight_;
};

class MyDataKind final : public mw::DatasetKind {
 public:
  // What the schema of the options cannot say.
  void validate(const mw::DatasetRequest& request, mw::Diagnostics& found) const override {
    if (request.path.empty())
      found.add(mw::Error(mw::ErrorCode::missing_key,
                          request.table + ".path is needed: the file of lines")
                    .key(request.table + ".path")
                    .help("set " + request.table + ".path = \"data/lines.txt\""));
  }
  std::unique_ptr<mw::SampleSource> open(const mw::DatasetRequest& request) const override {
    return std::make_unique<MyData>(request);
  }
};

const meshwright_component kDatasets[] = {mw::describe_dataset<MyDataKind>(
    {.name = "my_data", .summary = "Lines of text, a document each", .options = kOptions})};

}  // namespace

MESHWRIGHT_DATA_PLUGIN("my_data", MESHWRIGHT_PLUGIN_VERSION, "Me", "Apache-2.0",
                       "Lines of text, a document each", kDatasets)
