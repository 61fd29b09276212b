// Instruction data: [dataset] plugin = "jsonl". Rows of messages, prompt and completion, or text;
// chat templates rendered as transformers renders them, answers as targets, documents packed.
// And texts, files of any size, as streams of tokens.
#include "kind.h"
#include "meshwright/plugin_main.h"
#include "options.h"
#include "text_kind.h"
#include "text_options.h"

namespace {

const meshwright_component kDatasets[] = {
    meshwright::describe_dataset<meshwright::jsonl::JsonlKind>(
        {.name = "jsonl",
         .summary = "Instruction data: chats, prompts with completions, texts, as JSON lines",
         .options = meshwright::jsonl::kOptions}),
    meshwright::describe_dataset<meshwright::jsonl::TextKind>(
        {.name = "text",
         .summary = "Texts as the tokens of a tokenizer: what dataset.kind = \"text\" reads where "
                    "there is one",
         .options = meshwright::jsonl::kTextOptions})};

}  // namespace

// NOLINTNEXTLINE(cert-err58-cpp)
MESHWRIGHT_DATA_PLUGIN("jsonl", MESHWRIGHT_VERSION, "Meshwright", "Apache-2.0",
                       "Instruction data with exact loss masks and packing", kDatasets)
