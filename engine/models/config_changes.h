// Two config.json beside each other: whether a run that began with the one may go on with the
// other.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace meshwright::outlines {

struct ConfigChange {
  std::string field;        // "rope_parameters.rope_theta"
  std::string before, now;  // JSON; "": it is not there
};

// Of models that are made of these files: the fields with which `now` computes otherwise than
// `before` did, its loss and its gradients included; empty: the same. The order of fields, how a
// number is written, defaults written out and fields that no model is made of (dtypes, ids of the
// tokenizer, versions, how weights begin) change nothing.
// Both are texts of JSON. Throws Error(bad_model_config) for one that is none.
std::vector<ConfigChange> changes_of_model(std::string_view before, std::string_view now);
// Of files that somebody else makes a model of: every field that has another value, but for those
// that say nothing of a model. Throws as above.
std::vector<ConfigChange> changes_of_file(std::string_view before, std::string_view now);

}  // namespace meshwright::outlines
