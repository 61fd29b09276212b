// The options of [dataset.text].
#pragma once

#include "meshwright/options.h"

namespace meshwright::jsonl {

inline constexpr meshwright_option kTextOptions[] = {
    option("text_field", MESHWRIGHT_STRING, "\"text\"",
           "Of rows (*.jsonl, *.parquet): the field that holds the text of a document."),
    choice_option("documents", "\"file\"", "file|line|blank_line",
                  "What a document of a text file is: the file, a line, or lines up to one that is "
                  "blank."),
    with_flags(option("separator", MESHWRIGHT_STRING, nullptr,
                      "A text that stands between the documents of a file, in place of documents."),
               MESHWRIGHT_OPTIONAL),
    option("document_end", MESHWRIGHT_STRING, "\"auto\"",
           "The token put behind a document, unless it ends with it. auto: the tokenizer's "
           "eos_token, where it has one; none; or a token."),
    choice_option("packing", "\"stream\"", "stream|bfd|sequential|none",
                  "stream: documents one behind the other, cut at seq_len. Else each sample has "
                  "whole documents, longer ones in parts: best fit decreasing, in order, or one a "
                  "sample."),
    choice_option("attention", "\"auto\"", "auto|sample|document",
                  "What a token sees: all of its sample before it, or its document alone, which "
                  "then does not predict the next one. auto: sample for stream, else document."),
    option("cache", MESHWRIGHT_STRING, "\"auto\"",
           "A folder for the tokens, which the processes of a host share; auto: "
           "$XDG_CACHE_HOME/meshwright; none: each makes its own, of at most 1 GiB."),
    int_option("threads", "0", 0, 1024,
               "Threads that tokenize; 0: as many as there are cores. Changes no token."),
};

}  // namespace meshwright::jsonl
