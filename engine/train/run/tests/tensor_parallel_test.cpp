// Tensor and sequence parallel training takes the steps of one process, for every model and on
// every mesh. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/curves.h"
#include "sdk/comm/tests/sampled.h"

#include <doctest/doctest.h>

namespace tensor_parallel_test {

using namespace meshwright;

namespace {

const std::vector<std::vector<std::string>> kVariants = {
    {}, {kSequence}, {kSequence, kAsync}, {kBase}, {kSequence, kBase}};

}  // namespace

TEST_CASE(
    "steps of Llama on every mesh, with and without sequence parallelism, with logits cut "
    "or gathered") {
  TestFolder folder("tensor_parallel");
  std::string model = write_model(folder.path, kLlama);
  const int steps = steps_of(6, 20);
  Curve truth = curve_of(calm_layout(model, kAlone), steps);
  for (const OnMesh& mesh : kTpMeshes)
    for (const std::vector<std::string>& more : kVariants) {
      Layout layout = calm_layout(model, mesh, more);
      INFO(layout.text());
      CHECK(strays(curve_of(layout, steps), truth) == "");
    }
}

TEST_CASE("every model that runs takes the same steps under tensor and sequence parallelism") {
  TestFolder folder("tensor_parallel");
  size_t number = 0;
  for (
      const SmallModel& m : std::vector<SmallModel>{
          {"Qwen3", "Qwen3ForCausalLM", "qwen3"},
          {"Mistral with a window", "MistralForCausalLM", "mistral", 32, 4, 4, 64,
           R"(, "sliding_window": 4)"},
          {"Qwen2, which has biases", "Qwen2ForCausalLM", "qwen2"},
          {"Llama with all biases", "LlamaForCausalLM", "llama", 32, 4, 4, 64,
           R"(, "attention_bias": true, "mlp_bias": true)"},
          {"Llama with a tied head", "LlamaForCausalLM", "llama", 32, 4, 4, 64,
           R"(, "tie_word_embeddings": true)"},
          {"Llama of odd sizes", "LlamaForCausalLM", "llama", 96, 6, 2, 257,
           R"(, "tie_word_embeddings": false)"},
          {"Qwen3 of odd sizes, tied and padded", "Qwen3ForCausalLM", "qwen3", 96, 6, 2, 257,
           R"(, "tie_word_embeddings": true, "pad_token_id": 200)"},
          // The last of four ranks has none of five words; 41 / 4 leaves it eight of the MLP's
          // columns where the others have eleven.
          {"Llama with few words", "LlamaForCausalLM", "llama", 32, 4, 4, 5,
           R"(, "intermediate_size": 41)"},
          {"tied Qwen3 with few words", "Qwen3ForCausalLM", "qwen3", 32, 4, 4, 5,
           R"(, "tie_word_embeddings": true, "intermediate_size": 41, "pad_token_id": 4)"},
          {"Gemma 3", "Gemma3ForCausalLM", "gemma3_text", 32, 4, 4, 64,
           R"(, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"], "final_logit_softcapping": 8.0)"},
          {"Gemma 3 of odd sizes, with its own head", "Gemma3ForCausalLM", "gemma3_text", 96, 6, 2,
           257, R"(, "tie_word_embeddings": false, "attention_bias": true, "sliding_window": 3)"},
          {"Phi3", "Phi3ForCausalLM", "phi3", 32, 4, 4, 64, R"(, "pad_token_id": null)"},
          {"Phi3 of odd sizes", "Phi3ForCausalLM", "phi3", 96, 6, 2, 257,
           R"(, "pad_token_id": 200, "sliding_window": 3, "partial_rotary_factor": 0.75)"},
      }) {
    std::string model = write_model(folder.path, m);
    bool most = std::string(m.name) == "Qwen3" || std::string(m.name) == "Gemma 3";
    const size_t of_model = number++;
    const int steps = most ? steps_of(6, 20) : 5;
    Curve truth = curve_of(calm_layout(model, kAlone), steps);
    for (const OnMesh& mesh : kTpMeshes) {
      size_t turn = of_model;
      for (const std::vector<std::string>& more : kVariants) {
        ++turn;
        if (mesh.sets[0] == kTp4 && m.kv_heads % 4 != 0) continue;
        // All variants on two ranks; on more, the one or the other of the two that matter most, and
        // for two models both.
        bool plain = more.empty(), sequence = more == std::vector<std::string>{kSequence};
        if (mesh.ranks == 4 && !sequence && !(most && plain)) continue;
        if (mesh.ranks == 8 && !plain && !(most && sequence)) continue;
        bool base = !more.empty() && more.back() == kBase;
        if (base &&
            (m.model_type == std::string("gemma3_text") || m.model_type == std::string("phi3")))
          continue;  // made for Llama's modules
        // Of the other three variants one for each model but two, eight ranks for every second one.
        if (!most && !plain && !sequence && !sampled(turn, 3)) continue;
        if (!most && mesh.ranks == 8 && !sampled(of_model, 2)) continue;
        Layout layout = calm_layout(model, mesh, more);
        INFO(m.name << ": " << layout.text());
        CHECK(strays(curve_of(layout, steps), truth) == "");
      }
    }
  }
}

TEST_CASE("more ranks than key-value heads are refused with the sizes that fit") {
  TestFolder folder("tensor_parallel");
  std::string model = write_model(folder.path, {"odd", "LlamaForCausalLM", "llama", 96, 6, 2, 257});
  std::mutex mutex;
  int refused = 0;
  run_ranks(4, [&](const std::shared_ptr<World>& world) {
    try {
      Rank rank(calm_layout(model, {4, {kTp4}}), world);
    } catch (const Error& error) {
      std::lock_guard lock(mutex);
      refused += error.code() == ErrorCode::heads_not_divisible &&
                 std::string(error.what()).find("2 key-value heads, which do not divide by tp 4") !=
                     std::string::npos &&
                 error.helps().at(0) == "set distributed.tp_size = 2";
    }
  });
  CHECK(refused == 4);
}

}  // namespace tensor_parallel_test
