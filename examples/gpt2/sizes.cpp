#include "sizes.h"

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace gpt2 {

namespace mw = meshwright;
namespace fs = std::filesystem;
namespace json = boost::json;

namespace {

// One field at a time, told by its name when it is wrong.
class Reader {
 public:
  explicit Reader(const fs::path& file) : file_(file.string()) {
    std::ifstream in(file, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    if (!in) throw mw::Error(mw::ErrorCode::file_unreadable, "cannot read " + file_);
    json::error_code failed;
    json::value value = json::parse(text.str(), failed);
    if (failed || !value.is_object()) throw bad("is not a JSON object");
    object_ = value.as_object();
    if (const json::value* type = find("model_type"); type != nullptr && *type != "gpt2")
      throw bad("has the model_type " + json::serialize(*type) + ", not \"gpt2\"");
  }
  mw::Error bad(const std::string& what) const {
    return mw::Error(mw::ErrorCode::bad_model_config, file_ + ": " + what)
        .key("model.config")
        .help("name a config.json of GPT-2, with \"model_type\": \"gpt2\"");
  }
  int64_t whole(const char* field, int64_t fallback) const {
    const json::value* value = find(field);
    if (value == nullptr) return fallback;
    if (!value->is_int64() || value->as_int64() < 1 || value->as_int64() > (int64_t{1} << 24))
      throw bad(std::string(field) + " is not a whole number from 1 to 16777216");
    return value->as_int64();
  }
  double number(const char* field, double fallback, double most) const {
    const json::value* value = find(field);
    if (value == nullptr) return fallback;
    const double given = value->is_number() ? value->to_number<double>() : -1;
    if (!(given >= 0 && given <= most))
      throw bad(std::string(field) + " is not a number from 0 to " + std::to_string(most));
    return given;
  }
  bool yes(const char* field, bool fallback) const {
    const json::value* value = find(field);
    if (value == nullptr) return fallback;
    if (!value->is_bool()) throw bad(std::string(field) + " is neither true nor false");
    return value->as_bool();
  }
  std::string text(const char* field, const char* fallback) const {
    const json::value* value = find(field);
    if (value == nullptr) return fallback;
    if (!value->is_string()) throw bad(std::string(field) + " is not a string");
    return std::string(value->as_string());
  }

 private:
  const json::value* find(const char* field) const {
    const json::value* value = object_.if_contains(field);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  std::string file_;
  json::object object_;
};

}  // namespace

Sizes read_sizes(const mw::ModelRequest& request) {
  Sizes s;
  if (request.config.empty())
    throw mw::Error(mw::ErrorCode::missing_key, "gpt2 needs the config.json of a model")
        .key("model.config")
        .help("set model.config = \"gpt2/config.json\" for random weights of that shape")
        .help("set model.pretrained = \"gpt2\", a Hugging Face folder, to start from its weights");
  fs::path file = request.config;
  std::error_code failed;
  if (fs::is_directory(file, failed)) file /= "config.json";
  const Reader config(file);
  s.vocab = config.whole("vocab_size", s.vocab);
  s.positions = config.whole("n_positions", s.positions);
  s.width = config.whole("n_embd", s.width);
  s.layers = config.whole("n_layer", s.layers);
  s.heads = config.whole("n_head", s.heads);
  s.inner = config.whole("n_inner", 4 * s.width);
  if (s.width % s.heads != 0)
    throw config.bad("n_embd " + std::to_string(s.width) + " is no multiple of n_head " +
                     std::to_string(s.heads));
  s.activation = config.text("activation_function", "gelu_new");
  if (s.activation != "gelu_new" && s.activation != "gelu" && s.activation != "relu" &&
      s.activation != "silu")
    throw config.bad("activation_function \"" + s.activation +
                     "\" is not known; known are gelu_new, gelu, relu, silu");
  s.epsilon = config.number("layer_norm_epsilon", s.epsilon, 1);
  s.range = config.number("initializer_range", s.range, 1000);
  s.embedding_dropout = config.number("embd_pdrop", 0.1, 1);
  s.residual_dropout = config.number("resid_pdrop", 0.1, 1);
  s.attention_dropout = config.number("attn_pdrop", 0.1, 1);
  s.tied = config.yes("tie_word_embeddings", true);
  s.scaled = config.yes("scale_attn_weights", true);
  for (const char* field : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
    if (config.yes(field, false)) throw config.bad(std::string(field) + " is not built");
  return s;
}

}  // namespace gpt2
