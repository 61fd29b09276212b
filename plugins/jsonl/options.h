// The options of [dataset.jsonl].
#pragma once

#include "meshwright/options.h"

namespace meshwright::jsonl {

inline constexpr meshwright_option kOptions[] = {
    choice_option("format", "\"auto\"", "auto|messages|prompt_completion|text",
                  "What a row is: messages, a prompt and a completion that are joined as they "
                  "are, or a text. auto: what the first row holds."),
    with_flags(
        option("fields", MESHWRIGHT_STRING_MAP, nullptr,
               "Which columns of a row are its prompt, completion, system, messages, text "
               "and weight (in the loss): paths, \"data.question\", or texts with columns in "
               "them, \"{instruction}\\n{input?}\"."),
        MESHWRIGHT_OPTIONAL),
    with_flags(option("tokenizer", MESHWRIGHT_STRING, nullptr,
                      "A folder with tokenizer.json; auto: that of model.pretrained, or beside "
                      "model.config."),
               MESHWRIGHT_OPTIONAL),
    with_flags(option("chat_template", MESHWRIGHT_STRING, nullptr,
                      "A file, the name of a template of the tokenizer's folder, or "
                      "\"chatml\"; auto: the folder's own."),
               MESHWRIGHT_OPTIONAL),
    with_flags(option("template_variables", MESHWRIGHT_STRING_MAP, nullptr,
                      "Variables for the chat template: true, 3, [1, 2], tables, strings. A "
                      "string that is JSON is what it says: \"false\" is false."),
               MESHWRIGHT_OPTIONAL),
    with_flags(option("date", MESHWRIGHT_STRING, nullptr,
                      "YYYY-MM-DD: what strftime_now of a template says; none: it is "
                      "undefined, and templates take their fixed date."),
               MESHWRIGHT_OPTIONAL),
    choice_option("train_on", "\"assistant\"", "assistant|last|all",
                  "Targets: every answer of the assistant, the last one, or all but turns of "
                  "weight 0."),
    choice_option("special_tokens_in_content", "\"text\"", "text|parse|error",
                  "What looks like a special token in a string of a row: plain text, "
                  "that token, or an error."),
    choice_option("truncate", "\"right\"", "right|left|drop",
                  "What goes of a document of more than seq_len + 1 tokens: its end, "
                  "its beginning, or all of it."),
    choice_option("packing", "\"bfd\"", "bfd|sequential|none",
                  "How documents share a sample: best fit decreasing, in order, or "
                  "one a sample."),
    option("cache", MESHWRIGHT_STRING, "\"auto\"",
           "A folder for the tokens, which the processes of a host share; auto: "
           "$XDG_CACHE_HOME/meshwright; none: each makes its own."),
    int_option("threads", "0", 0, 1024,
               "Threads that tokenize; 0: as many as there are cores. Changes no "
               "token."),
};

}  // namespace meshwright::jsonl
