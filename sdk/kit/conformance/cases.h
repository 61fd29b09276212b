// The cases, one function each. Not for use outside the kit.
#pragma once

#include "sdk/base/conformance.h"

namespace meshwright::conformance {

void check_facts(const Subject& subject, Report& report);
void check_symbols(const Subject& subject, Report& report);
void check_descriptor(const Subject& subject, Report& report);
void check_options(const Subject& subject, Report& report);
void check_lifecycle(const Subject& subject, Report& report);
void check_validate(const Subject& subject, Report& report);
void check_mesh(const Subject& subject, Report& report);
void check_mesh_pure(const Subject& subject, Report& report);
void check_mesh_refusal(const Subject& subject, Report& report);
void check_tp_plan(const Subject& subject, Report& report);
void check_footprint(const Subject& subject, Report& report);
void check_parallelize(const Subject& subject, Report& report);
void check_data_lifecycle(const Subject& subject, Report& report);
void check_data_open(const Subject& subject, Report& report);
void check_data_read(const Subject& subject, Report& report);
void check_data_pure(const Subject& subject, Report& report);
void check_data_fingerprint(const Subject& subject, Report& report);
void check_model_lifecycle(const Subject& subject, Report& report);
void check_model_outline(const Subject& subject, Report& report);
void check_model_module(const Subject& subject, Report& report);
void check_model_forward(const Subject& subject, Report& report);
void check_model_layouts(const Subject& subject, Report& report);

// The part of the kit that runs tensors: a library of its own beside the SDK's, loaded when it is
// needed, since planning needs no LibTorch. Not for use outside the kit.

// A function of the library. nullptr, and why in the report, where it is not there.
void* symbol_of_training(const char* name, Report& report);

// How it says what it finds, to a Report.
using Say = void (*)(void*, const char*);
inline void say_fail(void* to, const char* text) { static_cast<Report*>(to)->fail(text); }
inline void say_note(void* to, const char* text) { static_cast<Report*>(to)->note(text, 1); }

}  // namespace meshwright::conformance
