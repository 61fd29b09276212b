// What the cases about models share. Not for use outside the kit.
#pragma once

#include <optional>
#include <string>

#include "meshwright/model/model_family.h"
#include "sdk/conformance/probe.h"

namespace meshwright::conformance {

struct FamilyInstance : MadeBy<meshwright_component, ModelFamily> {
  explicit FamilyInstance(const Subject& subject) : MadeBy(*subject.model) {}
};

// The job's, or one of defaults.
ModelRequest model_request_of(const Subject& subject);
// The model on paper of that request, or nullopt with the reason in the report: a problem where a
// job was named, else the case is skipped.
std::optional<ModelOutline> outline_or_skip(const ModelFamily& family, const ModelRequest& request,
                                            const Subject& subject, Report& report);

}  // namespace meshwright::conformance
